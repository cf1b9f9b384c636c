#include "llama/train/snapshot_words.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/train/courier.h"

namespace rz {

constexpr int64_t kMost = int64_t(1) << 50;  // bytes of a file

std::string to_text(const CopyLayout& l) {
    Json runs = Json::array();
    for (const CopyLayout::Run& r : l.runs) runs.push_back({r.file, r.offset, r.bytes, r.at});
    return Json{{"bytes", l.bytes}, {"files", l.files}, {"runs", std::move(runs)}}.dump();
}

// Another host's words: a file lies in the snapshot's folder.
static void check_inside(const std::string& file, const std::string& where) {
    require(!file.empty() && !file.starts_with("/") && file.find("..") == file.npos && file.find('\0') == file.npos,
            "%s: names the file %s", where.c_str(), file.c_str());
}

CopyLayout layout_from(const std::string& text, const std::string& where) try {
    const Json json = parse_json(text, where, kShareFile);
    CopyLayout l{.files = json.at("files").get<std::vector<std::string>>(),
                 .runs = {},
                 .bytes = json_int(json.at("bytes"), "bytes", 0, kMost, where)};
    for (const std::string& file : l.files) check_inside(file, where);
    int64_t end = 0;
    for (const Json& r : json.at("runs")) {
        const CopyLayout::Run run{.file = json_int(r.at(0), "file", 0, std::ssize(l.files) - 1, where),
                                  .offset = json_int(r.at(1), "offset", 0, kMost, where),
                                  .bytes = json_int(r.at(2), "bytes", 1, l.bytes, where),
                                  .at = json_int(r.at(3), "at", end, l.bytes, where)};
        require(run.bytes <= l.bytes - run.at, "%s: a run beyond the end", where.c_str());
        l.runs.push_back(run);
        end = run.at + run.bytes;
    }
    return l;
} catch (const nlohmann::json::exception& error) {
    fail("%s: %s", where.c_str(), error.what());
}

std::string snapshots_here(const CheckpointStore& store) {
    std::string text;
    for (const int64_t step : store.steps()) try {
            const std::string folder = store.path(step);
            text += std::to_string(step) + " " + check_checkpoint(folder).run_id;
            for (const std::string& rank : names_in(folder + "/shares"))
                if (!is_temporary_name(rank)) text += " " + rank;
            text += "\n";
        } catch (const Error& error) {
            std::fprintf(stderr, "train_llama: snapshot refused: %s\n", error.what());
        }
    return text;
}

std::map<Snapshot, FoundSnapshot> snapshots_in(const std::vector<std::string>& texts, const std::vector<int>& makers) {
    std::map<Snapshot, FoundSnapshot> found;
    for (int host = 0; host < int(texts.size()); ++host) {
        std::istringstream lines(texts[size_t(host)]);
        for (std::string line; std::getline(lines, line);) {
            const auto check = [&](bool right) {
                require(right, "rank %d says of its snapshots: %.200s", host, line.c_str());
            };
            std::istringstream words(line);
            Snapshot snapshot;
            auto& [step, id] = snapshot;
            check(bool(words >> step >> id) && step >= 0 && std::count(makers.begin(), makers.end(), host) > 0 &&
                  std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) || c == '-'; }));
            FoundSnapshot& f = found[snapshot];
            f.hosts.push_back(host);
            for (std::string word; words >> word;) {
                int rank = 0;
                const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), rank);
                check(error == std::errc() && *end == '\0' && rank >= 0 && rank < int(texts.size()));
                f.hosts_of[rank].push_back(host);
            }
        }
    }
    return found;
}

// A line of JSON, [name, length, bytes that come along] of each file, then those bytes.
std::string skeleton_of(const std::string& folder) {
    Json files = Json::array();
    std::string data;
    const auto add = [&](const std::string& name, int64_t bytes, const std::string& begin) {
        files.push_back({name, bytes, begin.size()});
        data += begin;
    };
    const Manifest manifest = Manifest::from_json(read_file(folder + "/" + kManifestName), folder);
    for (const ManifestFile& f : manifest.files) {
        const std::string path = folder + "/" + f.path;
        if (!f.holds_tensors) {
            const std::string text = read_file(path);
            add(f.path, int64_t(text.size()), text);
            continue;
        }
        // The header, too: it belongs to no rank.
        const OpenFile file = open_file(path, O_RDONLY);
        uint64_t length = 0;
        read_all(file.fd, 0, &length, 8, f.path);
        require(length < uint64_t(f.bytes), "%s: a header of %lu bytes", f.path.c_str(), length);
        std::string head(8 + size_t(length), '\0');
        read_all(file.fd, 0, head.data(), int64_t(head.size()), f.path);
        add(f.path, f.bytes, head);
    }
    const std::string text = read_file(folder + "/" + kManifestName);
    add(kManifestName, int64_t(text.size()), text);
    return files.dump() + "\n" + data;
}

static void make_file(const std::string& path, const char* begin, int64_t count, int64_t bytes) {
    make_folder(parent_folder(path));
    const OpenFile file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (again([&] { return ::ftruncate(file.fd, bytes); }) != 0) fail_errno(path, "ftruncate");
    write_all(file.fd, 0, begin, count, path);
}

void make_skeleton(const std::string& text, const std::string& folder) try {
    const std::string where = "the files of a snapshot from another host";
    const size_t line = text.find('\n');
    require(line != text.npos, "%s: no list of them", where.c_str());
    const Json files = parse_json(std::string_view(text).substr(0, line), where, kShareFile);
    size_t at = line + 1;
    for (const Json& file : files) {
        const std::string name = json_string(file.at(0), "name", where);
        check_inside(name, where);
        const int64_t bytes = json_int(file.at(1), "length", 0, kMost, where);
        const int64_t n = json_int(file.at(2), "bytes", 0, std::min(bytes, int64_t(text.size() - at)), where);
        make_file(folder + "/" + name, text.data() + at, n, bytes);
        at += size_t(n);
    }
    require(at == text.size(), "%s: %zu bytes of no file", where.c_str(), text.size() - at);
} catch (const nlohmann::json::exception& error) {
    fail("%s: %s", folder.c_str(), error.what());
}

}  // namespace rz
