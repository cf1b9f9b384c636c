#include "llama/train/neighbours.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "comm/placement.h"
#include "comm/restart.h"
#include "comm/transport.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/base/sum_hash.h"
#include "llama/train/snapshots.h"

namespace rz {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t(4) << 20;
constexpr Limit kShareFile = {"which bytes of a snapshot are there", int64_t(256) << 20};

// ---- hosts ----------------------------------------------------------------------------------------------------------

SnapshotHosts::SnapshotHosts(Process& process) : rank_(process.rank()) {
    const std::string folder = restart_folder();
    const std::vector<std::string> all = process.all_gather_text(folder.empty() ? "" : host_id() + folder);
    for (size_t r = 0; r < all.size(); ++r) {
        require_request(!all[r].empty(),
                        "--snapshot-every: the host of rank %zu has no folder in memory that outlives its ranks\n"
                        "  nearest: on every host dev/run/keep.sh -- torchrun ...; or --snapshot-every 0",
                        r);
        first_.push_back(int(std::find(all.begin(), all.end(), all[r]) - all.begin()));
    }
}

std::vector<int> SnapshotHosts::makers() const {
    std::vector<int> all;
    for (int r = 0; r < int(first_.size()); ++r)
        if (first_[size_t(r)] == r) all.push_back(r);
    return all;
}

std::vector<int> SnapshotHosts::members(int maker) const {
    std::vector<int> all;
    for (int r = 0; r < int(first_.size()); ++r)
        if (first_[size_t(r)] == maker) all.push_back(r);
    return all;
}

int SnapshotHosts::keeper(int rank) const {
    const std::vector<int> hosts = makers(), own = members(maker(rank));
    const auto index = [](const std::vector<int>& in, int r) {
        return size_t(std::find(in.begin(), in.end(), r) - in.begin());
    };
    const std::vector<int> next = members(hosts[(index(hosts, maker(rank)) + 1) % hosts.size()]);
    return next[index(own, rank) % next.size()];
}

std::vector<int> SnapshotHosts::kept_by(int keeper_rank) const {
    std::vector<int> all;
    for (int r = 0; r < int(first_.size()); ++r)
        if (keeper(r) == keeper_rank) all.push_back(r);
    return all;
}

// ---- slices on their way --------------------------------------------------------------------------------------------

static uint64_t sum_of(const void* data, int64_t bytes) {
    const int64_t words = bytes / 8;
    return sum_hash(data, 0, words, 8) + sum_hash(static_cast<const char*>(data) + 8 * words, 0, bytes % 8, 1);
}

namespace {

struct Outgoing {
    int to;
    int64_t bytes;
    // Bytes from `at` on: memory that stays, or `room` filled with them.
    std::function<const void*(int64_t at, int64_t count, char* room)> read;
    std::vector<char> room[2] = {};
    uint64_t sum[2] = {};
};

struct Incoming {
    int from;
    int64_t bytes;
    std::function<void(int64_t at, const char* data, int64_t count)> write;
    std::vector<char> room[2] = {};
    uint64_t sum[2] = {};
};

}  // namespace

// Shares go in pieces, each with its sum; while one is written the next is on its way.
class Courier {
   public:
    explicit Courier(Process& process)
        : transport_(process.make_transport(TransportKind::automatic, Device{}, 0, process.rank(), "snapshots")) {}

    // Every member calls it; what is sent is what is expected. What is wrong with one piece shows when all have moved.
    void move(std::vector<Outgoing> out, std::vector<Incoming> in) {
        int64_t most = 0;
        for (const Outgoing& o : out) most = std::max(most, o.bytes);
        for (const Incoming& i : in) most = std::max(most, i.bytes);
        const int64_t rounds = ceil_div(most, kPiece);
        std::string problem;
        try {
            if (rounds > 0) post(0, out, in, problem);
            for (int64_t round = 0; round < rounds; ++round) {
                const Event arrived = arrived_[round % 2];
                if (round + 1 < rounds) post(round + 1, out, in, problem);
                arrived.synchronize();
                for (Incoming& i : in) take(round, i, problem);
            }
        } catch (...) {
            drain();  // the worker is at this call's memory
            throw;
        }
        require(problem.empty(), "%s", problem.c_str());
    }

    // A text to each of `to` from each of `from`.
    std::vector<std::string> texts(const std::vector<std::pair<int, std::string>>& to, const std::vector<int>& from) {
        std::vector<int64_t> lengths(to.size()), theirs(from.size());
        MessageGroup first, second;
        for (size_t i = 0; i < to.size(); ++i) {
            lengths[i] = int64_t(to[i].second.size());
            first.send(&lengths[i], 8, to[i].first);
        }
        for (size_t i = 0; i < from.size(); ++i) first.recv(&theirs[i], 8, from[i]);
        transport_->exchange(stream_, first);
        stream_.synchronize();
        std::vector<std::string> texts;
        for (const int64_t n : theirs) {
            require(n >= 0 && n <= kShareFile.bytes, "a snapshot's share is described by %lld bytes", (long long)n);
            texts.emplace_back(size_t(n), '\0');
        }
        for (const auto& [rank, text] : to) second.send(text.data(), int64_t(text.size()), rank);
        for (size_t i = 0; i < from.size(); ++i) second.recv(texts[i].data(), theirs[i], from[i]);
        transport_->exchange(stream_, second);
        stream_.synchronize();
        return texts;
    }

   private:
    static int64_t count_at(int64_t round, int64_t bytes) {
        return std::clamp<int64_t>(bytes - round * kPiece, 0, kPiece);
    }

    void post(int64_t round, std::vector<Outgoing>& out, std::vector<Incoming>& in, std::string& problem) {
        const size_t side = size_t(round % 2);
        MessageGroup group;
        for (Outgoing& o : out) {
            const int64_t n = count_at(round, o.bytes);
            if (n == 0) continue;
            const void* data = nullptr;
            try {
                o.room[side].resize(size_t(std::min(kPiece, o.bytes)));
                data = o.read(round * kPiece, n, o.room[side].data());
                o.sum[side] = sum_of(data, n);
            } catch (const Error& error) {
                if (problem.empty()) problem = error.what();
                data = o.room[side].data();
                o.sum[side] = ~sum_of(data, n);  // the other side refuses it
            }
            group.send(data, n, o.to);
            group.send(&o.sum[side], 8, o.to);
        }
        for (Incoming& i : in) {
            const int64_t n = count_at(round, i.bytes);
            if (n == 0) continue;
            i.room[side].resize(size_t(std::min(kPiece, i.bytes)));
            group.recv(i.room[side].data(), n, i.from);
            group.recv(&i.sum[side], 8, i.from);
        }
        transport_->exchange(stream_, group);
        arrived_[side] = stream_.record();
    }

    static void take(int64_t round, Incoming& i, std::string& problem) try {
        const int64_t n = count_at(round, i.bytes);
        if (n == 0) return;
        char* data = i.room[round % 2].data();
        if (fault_errno("snapshot.arrived") != 0) data[n / 2] ^= 1;
        require(sum_of(data, n) == i.sum[round % 2], "slices of rank %d came with other bits than they were sent with",
                i.from);
        if (problem.empty()) i.write(round * kPiece, data, n);
    } catch (const Error& error) {
        if (problem.empty()) problem = error.what();
    }

    void drain() noexcept {
        try {
            stream_.synchronize();
        } catch (const std::exception&) {  // said already
        }
    }

    std::unique_ptr<Transport> transport_;
    Stream stream_{Device{}, "snapshots"};
    Event arrived_[2];
};

// ---- a share in files -----------------------------------------------------------------------------------------------

static std::string share_path(const std::string& folder, int rank) { return folder + format("/shares/%d", rank); }

static std::string to_text(const CopyLayout& l) {
    Json runs = Json::array();
    for (const CopyLayout::Run& r : l.runs) runs.push_back({r.file, r.offset, r.bytes, r.at});
    return Json{{"bytes", l.bytes}, {"files", l.files}, {"runs", std::move(runs)}}.dump();
}

// Another host's words: a file lies in the snapshot's folder.
static void check_inside(const std::string& file, const std::string& where) {
    require(!file.empty() && !file.starts_with("/") && file.find("..") == file.npos && file.find('\0') == file.npos,
            "%s: names the file %s", where.c_str(), file.c_str());
}

static CopyLayout layout_from(const std::string& text, const std::string& where) try {
    const Json json = parse_json(text, where, kShareFile);
    CopyLayout l{.files = json.at("files").get<std::vector<std::string>>(), .runs = {}, .bytes = json.at("bytes")};
    int64_t end = 0;
    require(l.bytes >= 0, "%s: %lld bytes", where.c_str(), (long long)l.bytes);
    for (const Json& r : json.at("runs")) {
        l.runs.push_back({r.at(0), r.at(1), r.at(2), r.at(3)});
        const CopyLayout::Run& run = l.runs.back();
        require(run.file >= 0 && run.file < std::ssize(l.files) && run.offset >= 0 && run.bytes > 0 && run.at >= end &&
                    run.bytes <= l.bytes - run.at && run.offset <= INT64_MAX - run.bytes,
                "%s: a run of it can't be", where.c_str());
        end = run.at + run.bytes;
    }
    for (const std::string& file : l.files) check_inside(file, where);
    return l;
} catch (const nlohmann::json::exception& error) {
    fail("%s: %s", where.c_str(), error.what());
}

namespace {

// The files of a snapshot, by positions in a rank's copy.
class ShareFiles {
   public:
    ShareFiles(const std::string& folder, const CopyLayout& layout, bool writes) : layout_(layout) {
        for (const std::string& name : layout.files) {
            const std::string path = folder + "/" + name;
            fds_.push_back(again([&] { return ::open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC); }));
            paths_.push_back(path);
            if (fds_.back() >= 0) continue;
            const int error = errno;
            close_all();
            errno = error;
            fail_errno(path, "open");
        }
    }
    ~ShareFiles() { close_all(); }
    ShareFiles(const ShareFiles&) = delete;

    void write(int64_t at, const char* data, int64_t count) const {
        each(at, count, [&](const CopyLayout::Run& r, int64_t from, int64_t n) {
            write_all(fds_[size_t(r.file)], r.offset + from - r.at, data + from - at, n, paths_[size_t(r.file)]);
        });
    }
    void read(int64_t at, char* data, int64_t count) const {
        std::fill_n(data, count, '\0');
        each(at, count, [&](const CopyLayout::Run& r, int64_t from, int64_t n) {
            read_all(fds_[size_t(r.file)], r.offset + from - r.at, data + from - at, n, paths_[size_t(r.file)]);
        });
    }

   private:
    template <class Body>
    void each(int64_t at, int64_t count, const Body& body) const {
        auto r = std::partition_point(layout_.runs.begin(), layout_.runs.end(),
                                      [&](const CopyLayout::Run& run) { return run.at + run.bytes <= at; });
        for (; r != layout_.runs.end() && r->at < at + count; ++r) {
            const int64_t from = std::max(r->at, at);
            body(*r, from, std::min(r->at + r->bytes, at + count) - from);
        }
    }
    void close_all() {
        for (const int fd : fds_)
            if (fd >= 0) ::close(fd);
    }

    const CopyLayout& layout_;
    std::vector<int> fds_;
    std::vector<std::string> paths_;
};

}  // namespace

static void tell_of_share(const std::string& folder, int rank, const CopyLayout& layout) {
    make_folder(folder + "/shares");
    write_file_atomically(share_path(folder, rank), to_text(layout));
}

// ---- while training -------------------------------------------------------------------------------------------------

int64_t arrival_bytes(int64_t share) { return 2 * std::min(kPiece, share); }

Neighbours::Neighbours(Process& process, const SnapshotHosts& hosts, CopyLayout own)
    : rank_(process.rank()),
      keeper_(hosts.keeper(rank_)),
      own_(std::move(own)),
      kept_(hosts.kept_by(rank_)),
      courier_(std::make_unique<Courier>(process)) {
    for (const std::string& text : courier_->texts({{keeper_, to_text(own_)}}, kept_))
        theirs_.push_back(layout_from(text, "another rank's share of a snapshot"));
}

Neighbours::~Neighbours() = default;

int64_t Neighbours::bytes_kept() const {
    return std::accumulate(theirs_.begin(), theirs_.end(), int64_t(0),
                           [](int64_t sum, const CopyLayout& l) { return sum + l.bytes; });
}

int64_t Neighbours::bytes_on_the_way() const {
    return std::accumulate(theirs_.begin(), theirs_.end(), int64_t(0),
                           [](int64_t sum, const CopyLayout& l) { return sum + arrival_bytes(l.bytes); });
}

void Neighbours::exchange(const void* copy, const std::string& folder) {
    std::vector<std::unique_ptr<ShareFiles>> files(theirs_.size());
    std::string problem;
    try {
        for (size_t i = 0; i < theirs_.size() && !folder.empty(); ++i)
            files[i] = std::make_unique<ShareFiles>(folder, theirs_[i], /*writes=*/true);
    } catch (const Error& error) {
        problem = error.what();
    }
    std::vector<Outgoing> out;
    out.push_back({.to = keeper_, .bytes = own_.bytes, .read = [copy](int64_t at, int64_t, char*) {
                       return static_cast<const char*>(copy) + at;
                   }});
    std::vector<Incoming> in;
    for (size_t i = 0; i < theirs_.size(); ++i)
        in.push_back({.from = kept_[i], .bytes = theirs_[i].bytes, .write = [to = files[i].get()](auto... piece) {
                          if (to) to->write(piece...);
                      }});
    courier_->move(std::move(out), std::move(in));
    require(problem.empty(), "%s", problem.c_str());
    if (folder.empty()) return;
    tell_of_share(folder, rank_, own_);
    for (size_t i = 0; i < theirs_.size(); ++i) tell_of_share(folder, kept_[i], theirs_[i]);
}

// ---- after a restart ------------------------------------------------------------------------------------------------

namespace {

struct Found {  // a snapshot, and on which hosts (their makers) which rank's slices are
    std::map<int, std::vector<int>> hosts_of;
    std::vector<int> hosts;
};
using Snapshot = std::pair<int64_t, std::string>;  // step and id: those of one step may be of two attempts

}  // namespace

static std::string what_is_here(const CheckpointStore& store) {
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

static std::map<Snapshot, Found> what_is_anywhere(Process& process, const std::string& own) {
    std::map<Snapshot, Found> found;
    const std::vector<std::string> all = process.all_gather_text(own);
    for (size_t host = 0; host < all.size(); ++host) {
        std::istringstream lines(all[host]);
        for (std::string line; std::getline(lines, line);) {
            std::istringstream words(line);
            Snapshot snapshot;
            words >> snapshot.first >> snapshot.second;
            Found& f = found[snapshot];
            f.hosts.push_back(int(host));
            for (int rank; words >> rank;) f.hosts_of[rank].push_back(int(host));
        }
    }
    return found;
}

// The newest of which every rank's slices are somewhere; says which are not.
static std::optional<Snapshot> newest_whole(const std::map<Snapshot, Found>& found, const Process& process) {
    for (auto s = found.rbegin(); s != found.rend(); ++s) {
        std::string lost;
        for (int r = 0; r < process.size(); ++r)
            if (!s->second.hosts_of.count(r)) lost += (lost.empty() ? "" : ", ") + std::to_string(r);
        if (lost.empty()) return s->first;
        if (process.is_root())
            std::fprintf(stderr,
                         "train_llama: of the snapshot of step %lld no host that is left has the slices of rank %s\n",
                         (long long)s->first.first, lost.c_str());
    }
    return std::nullopt;
}

// A host needs small files of a snapshot before slices come, and the sizes of the others.
static std::string skeleton_of(const std::string& folder) {
    Json small = Json::object(), sized = Json::object();
    const Manifest manifest = Manifest::from_json(read_file(folder + "/" + kManifestName), folder);
    for (const ManifestFile& f : manifest.files)
        if (f.holds_tensors) {
            // The header, too: it belongs to no rank.
            const int fd = again([&] { return ::open((folder + "/" + f.path).c_str(), O_RDONLY | O_CLOEXEC); });
            if (fd < 0) fail_errno(folder + "/" + f.path, "open");
            uint64_t length = 0;
            std::string head;
            try {
                read_all(fd, 0, &length, 8, f.path);
                require(length < uint64_t(f.bytes), "%s: a header of %llu bytes", f.path.c_str(),
                        (unsigned long long)length);
                head.resize(8 + size_t(length));
                read_all(fd, 0, head.data(), int64_t(head.size()), f.path);
            } catch (...) {
                ::close(fd);
                throw;
            }
            ::close(fd);
            sized[f.path] = {f.bytes, Json::binary({head.begin(), head.end()})};
        } else {
            const std::string text = read_file(folder + "/" + f.path);
            small[f.path] = Json::binary({text.begin(), text.end()});
        }
    const std::string text = read_file(folder + "/" + kManifestName);
    small[kManifestName] = Json::binary({text.begin(), text.end()});
    const std::vector<uint8_t> bytes = Json::to_cbor(Json{{"small", small}, {"sized", sized}});
    return {bytes.begin(), bytes.end()};
}

static void make_skeleton(const std::string& text, const std::string& folder) try {
    const Json json = Json::from_cbor(text.begin(), text.end());
    const auto make = [&](const std::string& name, const Json& content, int64_t bytes) {
        check_inside(name, folder);
        const std::string path = folder + "/" + name;
        const auto& data = content.get_binary();
        require(bytes >= int64_t(data.size()), "%s: %lld bytes", path.c_str(), (long long)bytes);
        make_folder(parent_folder(path));
        const int fd = again([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
        if (fd < 0) fail_errno(path, "open");
        const bool sized = again([&] { return ::ftruncate(fd, bytes); }) == 0;
        const int error = errno;
        try {
            if (sized) write_all(fd, 0, data.data(), int64_t(data.size()), path);
        } catch (...) {
            ::close(fd);
            throw;
        }
        ::close(fd);
        if (!sized) errno = error, fail_errno(path, "ftruncate");
    };
    for (const auto& [name, content] : json.at("sized").items()) make(name, content.at(1), content.at(0));
    for (const auto& [name, content] : json.at("small").items())
        make(name, content, int64_t(content.get_binary().size()));
} catch (const nlohmann::json::exception& error) {
    fail("%s: %s", folder.c_str(), error.what());
}

// The slices of the ranks whose host lacks them, each from a rank of a host that has them.
static void fetch_slices(Process& process, const SnapshotHosts& hosts, const Found& found, const std::string& folder) {
    std::vector<std::pair<int, std::string>> to;
    std::vector<int> from;
    std::vector<CopyLayout> layouts;
    const int self = process.rank();
    int64_t moved = 0;
    for (int r = 0; r < process.size(); ++r) {
        const std::vector<int>& have = found.hosts_of.at(r);
        if (std::count(have.begin(), have.end(), hosts.maker(r)) > 0) continue;
        const std::vector<int> there = hosts.members(have[0]);
        const int donor = there[size_t(r) % there.size()];
        if (donor == self) to.emplace_back(r, read_file(share_path(folder, r), kShareFile));
        if (r == self) from.push_back(donor);
        ++moved;
    }
    if (moved == 0) return;
    Courier courier(process);
    const std::vector<std::string> texts = courier.texts(to, from);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<std::unique_ptr<ShareFiles>> files;
    layouts.reserve(to.size() + texts.size());
    for (const auto& [rank, text] : to) {
        layouts.push_back(layout_from(text, share_path(folder, rank)));
        files.push_back(std::make_unique<ShareFiles>(folder, layouts.back(), /*writes=*/false));
        out.push_back({.to = rank,
                       .bytes = layouts.back().bytes,
                       .read = [f = files.back().get()](int64_t at, int64_t count, char* room) {
                           f->read(at, room, count);
                           return room;
                       }});
    }
    for (size_t i = 0; i < texts.size(); ++i) {
        layouts.push_back(layout_from(texts[i], "this rank's share of a snapshot"));
        files.push_back(std::make_unique<ShareFiles>(folder, layouts.back(), /*writes=*/true));
        in.push_back({.from = from[i], .bytes = layouts.back().bytes, .write = [f = files.back().get()](auto... piece) {
                          f->write(piece...);
                      }});
    }
    courier.move(std::move(out), std::move(in));
    if (!texts.empty()) tell_of_share(folder, self, layouts.back());
    if (process.is_root())
        std::fprintf(stderr, "train_llama: the slices of %lld of %d ranks came from the host that had a copy\n",
                     (long long)moved, process.size());
}

void restore_snapshots(Process& process) {
    const SnapshotHosts hosts(process);
    if (!hosts.several()) return;
    const CheckpointStore store = snapshot_store();
    if (hosts.makes()) store.clean();
    const std::map<Snapshot, Found> all = what_is_anywhere(process, hosts.makes() ? what_is_here(store) : "");
    const std::optional<Snapshot> newest = newest_whole(all, process);
    const int self = process.rank();
    const auto has = [&](int maker) {
        return newest && std::count(all.at(*newest).hosts.begin(), all.at(*newest).hosts.end(), maker) > 0;
    };
    std::error_code none;
    if (hosts.makes())
        for (const int64_t step : store.folders())
            if (!has(self) || step != newest->first) fs::remove_all(store.path(step), none);
    if (!newest) return;
    const auto& [step, id] = *newest;
    const Found& found = all.at(*newest);
    std::string problem, skeleton;
    if (int64_t(found.hosts.size()) < std::ssize(hosts.makers())) {
        if (self == found.hosts[0]) skeleton = skeleton_of(store.path(step));
        skeleton = process.broadcast_text(skeleton, found.hosts[0]);
    }
    const bool makes_it = !has(hosts.maker(self));
    const std::string folder = makes_it ? store.temporary(step, id) : store.path(step);
    if (makes_it && hosts.makes()) make_skeleton(skeleton, folder);
    process.barrier();
    fetch_slices(process, hosts, found, folder);
    process.barrier();
    if (makes_it && hosts.makes()) store.publish(step, id);
    process.barrier();
}

}  // namespace rz
