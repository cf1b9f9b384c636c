#include "llama/train/neighbours.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/placement.h"
#include "comm/restart.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/train/snapshot_words.h"
#include "llama/train/snapshots.h"

namespace rz {

namespace fs = std::filesystem;

// ---- hosts ----------------------------------------------------------------------------------------------------------

SnapshotHosts::SnapshotHosts(Process& process) : rank_(process.rank()) {
    const std::string folder = restart_folder();
    const std::vector<std::string> all = process.all_gather_text(folder.empty() ? "" : host_id() + folder);
    for (size_t r = 0; r < all.size(); ++r) {
        require_request(!all[r].empty(),
                        "--snapshot-every: the host of rank %zu has no folder in memory that outlives its ranks\n"
                        "  nearest: dev/run/supervise.sh --hosts FILE -- mpirun -f FILE ..., or on every host "
                        "dev/run/keep.sh -- torchrun ...; or --snapshot-every 0",
                        r);
        first_.push_back(int(std::find(all.begin(), all.end(), all[r]) - all.begin()));
    }
}

// Ascending.
template <class Which>
std::vector<int> SnapshotHosts::ranks_where(const Which& which) const {
    std::vector<int> ranks;
    for (int r = 0; r < int(first_.size()); ++r)
        if (which(r)) ranks.push_back(r);
    return ranks;
}

std::vector<int> SnapshotHosts::makers() const {
    return ranks_where([&](int r) { return maker(r) == r; });
}

std::vector<int> SnapshotHosts::members(int of) const {
    return ranks_where([&](int r) { return maker(r) == of; });
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
    return ranks_where([&](int r) { return keeper(r) == keeper_rank; });
}

// ---- a share in files -----------------------------------------------------------------------------------------------

static std::string share_path(const std::string& folder, int rank) { return folder + format("/shares/%d", rank); }

namespace {

// The files of a snapshot, by positions in a rank's copy.
class ShareFiles {
   public:
    ShareFiles(const std::string& folder, const CopyLayout& layout, bool writes) : layout_(layout) {
        for (const std::string& name : layout.files)
            files_.push_back(open_file(folder + "/" + name, writes ? O_RDWR : O_RDONLY));
    }

    void write(int64_t at, const char* data, int64_t count) const {
        each(at, count, [&](const CopyLayout::Run& r, int64_t from, int64_t n) {
            const OpenFile& file = files_[size_t(r.file)];
            write_all(file.fd, r.offset + from - r.at, data + from - at, n, file.path);
        });
    }
    void read(int64_t at, char* data, int64_t count) const {
        std::fill_n(data, count, '\0');
        each(at, count, [&](const CopyLayout::Run& r, int64_t from, int64_t n) {
            const OpenFile& file = files_[size_t(r.file)];
            read_all(file.fd, r.offset + from - r.at, data + from - at, n, file.path);
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

    const CopyLayout& layout_;
    std::vector<OpenFile> files_;
};

}  // namespace

static void tell_of_share(const std::string& folder, int rank, const CopyLayout& layout) {
    make_folder(folder + "/shares");
    write_file_atomically(share_path(folder, rank), to_text(layout));
}

// ---- while training -------------------------------------------------------------------------------------------------

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

// The newest of which every rank's slices are somewhere; says which are not.
static std::optional<Snapshot> newest_whole(const std::map<Snapshot, FoundSnapshot>& found, const Process& process) {
    for (auto s = found.rbegin(); s != found.rend(); ++s) {
        std::string lost;
        for (int r = 0; r < process.size(); ++r)
            if (!s->second.hosts_of.count(r)) lost += (lost.empty() ? "" : ", ") + std::to_string(r);
        if (lost.empty()) return s->first;
        if (process.is_root())
            std::fprintf(stderr,
                         "train_llama: of the snapshot of step %ld no host that is left has the slices of rank %s\n",
                         s->first.first, lost.c_str());
    }
    return std::nullopt;
}

// The slices of the ranks whose host lacks them, each from a rank of a host that has them. How many came.
static int64_t fetch_slices(Process& process, const SnapshotHosts& hosts, const FoundSnapshot& found,
                            const std::string& folder) {
    std::vector<std::pair<int, std::string>> to;
    std::vector<int> from;
    const int self = process.rank();
    int64_t moved = 0;
    for (int r = 0; r < process.size(); ++r) {
        const std::vector<int>& have = found.hosts_of.at(r);
        if (std::count(have.begin(), have.end(), hosts.maker(r)) > 0) continue;
        const std::vector<int> there = hosts.members(have[0]);
        const int donor = there[size_t(r) % there.size()];
        if (donor == self) to.emplace_back(r, "");
        if (r == self) from.push_back(donor);
        ++moved;
    }
    if (moved == 0) return 0;
    Courier courier(process);
    std::vector<CopyLayout> layouts;
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<std::unique_ptr<ShareFiles>> files;
    on_all(process, [&] {
        for (auto& [rank, text] : to) {
            text = read_file(share_path(folder, rank), kShareFile);
            if (fault_errno("snapshot.share") != 0) text.resize(text.size() / 2);
        }
    });
    on_all(process, [&] {
        const std::vector<std::string> texts = courier.texts(to, from);
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
            in.push_back({.from = from[i],
                          .bytes = layouts.back().bytes,
                          .write = [f = files.back().get()](auto... piece) { f->write(piece...); }});
        }
    });
    on_all(process, [&] {
        courier.move(std::move(out), std::move(in));
        if (!from.empty()) tell_of_share(folder, self, layouts.back());
    });
    return moved;
}

void restore_snapshots(Process& process) {
    const SnapshotHosts hosts(process);
    if (!hosts.several()) return;
    const CheckpointStore store = snapshot_store();
    if (hosts.makes()) store.clean();
    const std::map<Snapshot, FoundSnapshot> all =
        snapshots_in(process.all_gather_text(hosts.makes() ? snapshots_here(store) : ""), hosts.makers());
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
    const FoundSnapshot& found = all.at(*newest);
    const bool makes_it = !has(hosts.maker(self));
    const std::string folder = makes_it ? store.temporary(step, id) : store.path(step);
    try {
        if (int64_t(found.hosts.size()) < std::ssize(hosts.makers())) {
            std::string skeleton;
            on_all(process, [&] {
                if (self == found.hosts[0]) skeleton = skeleton_of(store.path(step));
            });
            skeleton = process.broadcast_text(skeleton, found.hosts[0]);
            on_all(process, [&] {
                if (makes_it && hosts.makes()) make_skeleton(skeleton, folder);
            });
        }
        const int64_t moved = fetch_slices(process, hosts, found, folder);
        if (moved > 0 && process.is_root())
            std::fprintf(stderr, "train_llama: the slices of %ld of %d ranks came from the host that had a copy\n",
                         moved, process.size());
        on_all(process, [&] {
            if (makes_it && hosts.makes()) store.publish(step, id);
        });
    } catch (const Error& error) {
        process.barrier();  // all have thrown, or this does: a rank has gone
        if (process.is_root())
            std::fprintf(stderr, "train_llama: snapshot refused: step %ld: %s\n", step, error.what());
        if (hosts.makes()) fs::remove_all(folder, none), fs::remove_all(store.path(step), none);
        process.barrier();
    }
}

}  // namespace rz
