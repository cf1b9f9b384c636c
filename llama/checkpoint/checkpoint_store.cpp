#include "llama/checkpoint/checkpoint_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/base/folder_file.h"
#include "llama/base/sum_hash.h"
#include "llama/model/hf.h"

namespace rz {

namespace fs = std::filesystem;

static std::string step_name(int64_t step) { return format("step_%09ld", step); }

// -1 unless `name` is `begin` and digits.
static int64_t number_after(std::string_view begin, std::string_view name) {
    if (!name.starts_with(begin)) return -1;
    const std::string digits(name.substr(begin.size()));
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
    return std::stoll(digits);
}

std::string CheckpointStore::path(int64_t step) const { return folder_ + "/" + step_name(step); }

std::string CheckpointStore::temporary(int64_t step, const std::string& id) const {
    return folder_ + "/.tmp-" + step_name(step) + "-" + id;
}

std::vector<int64_t> CheckpointStore::folders() const {
    std::vector<int64_t> steps;
    for (const std::string& name : names_in(folder_))
        if (const int64_t step = number_after("step_", name); step >= 0 && step_name(step) == name)
            steps.push_back(step);  // path() would not find another spelling
    std::sort(steps.begin(), steps.end());
    return steps;
}

std::vector<int64_t> CheckpointStore::steps() const {
    std::vector<int64_t> steps = folders();
    std::erase_if(steps, [&](int64_t step) { return !path_exists(path(step) + "/" + kManifestName); });
    return steps;
}

// Out of the way in one move first: a deletion that is cut short must not leave half a checkpoint under its name.
void CheckpointStore::remove(const std::string& name) const {
    std::error_code error;
    std::string trash = name;
    if (name[0] != '.') {
        trash = ".trash-" + name;
        fs::remove_all(folder_ + "/" + trash, error);
        fs::rename(folder_ + "/" + name, folder_ + "/" + trash, error);
        require(!error, "%s/%s: can't be deleted: %s", folder_.c_str(), name.c_str(), error.message().c_str());
        fsync_folder(folder_);
    }
    fs::remove_all(folder_ + "/" + trash, error);
    require(!error, "%s/%s: can't be deleted: %s", folder_.c_str(), trash.c_str(), error.message().c_str());
}

static constexpr std::string_view kMarker = ".after-save-";

std::string CheckpointStore::marker(int64_t step) const {
    return folder_ + "/" + std::string(kMarker) + std::to_string(step);
}

void CheckpointStore::mark(int64_t step) const { write_file_atomically(marker(step), ""); }

void CheckpointStore::unmark(int64_t step) const {
    if (again([&] { return ::unlink(marker(step).c_str()); }) != 0 && errno != ENOENT)
        fail_errno(marker(step), "remove");
    fsync_folder(folder_);
}

std::vector<int64_t> CheckpointStore::marked() const {
    std::vector<int64_t> steps;
    for (const std::string& name : names_in(folder_))
        if (const int64_t step = number_after(kMarker, name); step >= 0) steps.push_back(step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

void CheckpointStore::clean() const {
    for (const int64_t step : marked())
        if (!path_exists(path(step))) unmark(step);
    for (const std::string& name : names_in(folder_))
        if (name.rfind(".tmp-", 0) == 0 || name.rfind(".trash-", 0) == 0) remove(name);
    remove_left_temporaries(folder_);
}

void CheckpointStore::publish(int64_t step, const std::string& id) const {
    const std::string from = temporary(step, id), to = path(step);
    fsync_folder(from);
    const bool replaces = path_exists(to);
    if ((errno = fault_errno("checkpoint.rename")) != 0) fail_errno(to, "rename");
    if (replaces) {
        // Both names exist at every moment.
        if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
            remove(step_name(step));
            if (again([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) fail_errno(to, "rename");
        }
    } else if (again([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
        fail_errno(to, "rename");
    }
    fsync_folder(folder_);
    fault_point("checkpoint.renamed");
    std::error_code none;
    if (replaces) fs::remove_all(from, none);
    try {
        if ((errno = fault_errno("checkpoint.latest")) != 0) fail_errno(folder_ + "/latest", "rename");
        write_file_atomically(folder_ + "/latest", step_name(step) + "\n");
    } catch (const Error&) {  // a hint; the checkpoint is there
    }
}

std::vector<int64_t> CheckpointStore::collect(int64_t keep, int64_t every, int64_t published, int64_t save_every,
                                              int64_t most_held) const {
    std::vector<int64_t> unseen;
    if (keep <= 0) return unseen;
    std::vector<int64_t> all = steps();
    const std::vector<int64_t> wanted = marked();
    std::vector<int64_t> held = wanted;
    // The command may be at the oldest.
    if (int64_t(held.size()) > most_held) held.erase(held.begin() + 1, held.end() - (most_held - 1));
    if (published < 0 && !all.empty()) published = all.back();
    if (save_every > 0)
        std::stable_partition(all.begin(), all.end(), [&](int64_t step) { return step % save_every != 0; });
    // The newest by time, whatever its number.
    if (const auto own = std::find(all.begin(), all.end(), published); own != all.end())
        std::rotate(own, own + 1, all.end());
    for (int64_t i = 0; i + keep < int64_t(all.size()); ++i) {
        const int64_t step = all[size_t(i)];
        if (every > 0 && step % every == 0) continue;
        if (std::binary_search(held.begin(), held.end(), step)) continue;
        fault_point("checkpoint.gc");
        remove(step_name(step));
        fault_point("checkpoint.gc.done");
        if (!std::binary_search(wanted.begin(), wanted.end(), step)) continue;
        unmark(step);
        unseen.push_back(step);
    }
    return unseen;
}

std::vector<int64_t> CheckpointStore::abandon_after(int64_t step, const std::string& id) const {
    std::vector<int64_t> moved;
    for (const int64_t s : steps())
        if (s > step) {
            const std::string to = path(s) + "-abandoned-" + id;
            if (again([&] { return ::rename(path(s).c_str(), to.c_str()); }) != 0) fail_errno(to, "rename");
            moved.push_back(s);
        }
    if (!moved.empty()) fsync_folder(folder_);
    return moved;
}

Manifest check_checkpoint(const std::string& folder) {
    const std::string path = folder + "/" + kManifestName;
    struct stat st;
    require(has_file(folder, kManifestName), "%s: not a checkpoint: it holds no %s", folder.c_str(), kManifestName);
    if (const int error = fault_errno("resume.manifest"); error != 0)
        fail("%s: read failed: %s", path.c_str(), std::strerror(error));
    const Manifest manifest = Manifest::from_json(read_file(path, kManifest), path);
    for (const ManifestFile& f : manifest.files) {
        const std::string file = folder + "/" + f.path;
        require(has_file(folder, f.path), "%s: missing", file.c_str());
        require(again([&] { return ::stat(file.c_str(), &st); }) == 0, "%s: stat failed: %s", file.c_str(),
                std::strerror(errno));
        require(int64_t(st.st_size) == f.bytes, "%s: has %ld bytes, the manifest says %ld", file.c_str(), st.st_size,
                f.bytes);
        if (f.holds_tensors) continue;
        const uint64_t hash = text_hash(read_file(file, kCheckpointFile));
        require(hash == f.hash, "%s: its contents have the hash %016lx, the manifest says %016lx: it was changed",
                file.c_str(), hash, f.hash);
    }
    return manifest;
}

std::string model_folder(const std::string& from) {
    if (!is_folder(from) || is_file(from + "/config.json")) return resolve_model(from);
    if (is_file(from + "/final/config.json")) return from + "/final";
    const CheckpointStore store(from);
    const std::vector<int64_t> steps = store.steps();
    return resolve_model(steps.empty() ? from : store.path(steps.back()));
}

}  // namespace rz
