#include "llama/train/snapshots.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "comm/restart.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"

namespace rz {

namespace fs = std::filesystem;

constexpr Limit kRunFile = {"the name of a run's folder", 4096};

void check_restarts(const TrainOptions& o) {
    const bool starts_ranks = o.ranks > 1;
    require_request(o.max_restarts == 0 || starts_ranks,
                    "--max-restarts %ld is about the ranks that --ranks starts\n"
                    "  nearest: --ranks 2 --max-restarts %ld, or dev/run/supervise.sh --max-restarts %ld -- mpirun ...",
                    o.max_restarts, o.max_restarts, o.max_restarts);
    if (o.snapshot_every == 0) return;
    require_request(o.keeps(), "--snapshot-every continues a run in its --out, and that is empty: name a folder");
    const char* named = std::getenv(kRestartVariable);  // where this host lacks it, SnapshotHosts refuses
    require_request(
        (starts_ranks && o.max_restarts > 0) || !restart_folder().empty() || (named && *named),
        "--snapshot-every %ld: nothing starts the ranks again, and their snapshots go with them\n"
        "  nearest: --ranks %ld --max-restarts 10, or dev/run/supervise.sh -- mpirun -n %ld ./train_llama ...; "
        "on several hosts dev/run/supervise.sh --hosts FILE, or dev/run/keep.sh -- torchrun ... on each",
        o.snapshot_every, std::max<int64_t>(2, o.ranks), std::max<int64_t>(2, o.ranks));
}

void begin_restarts(const std::string& out) {
    if (const std::string folder = restart_folder(); !folder.empty()) write_file_atomically(folder + "/run", out);
}

void continue_run(TrainOptions& o, Process& process) {
    std::string out;  // rank 0 may be on a host that has taken another's place
    if (const std::string folder = restart_folder(); !folder.empty() && path_exists(folder + "/run"))
        out = read_file(folder + "/run", kRunFile);
    for (const std::string& one : process.all_gather_text(out))
        if (!one.empty()) {
            out = one;
            break;
        }
    if (out.empty() || (o.given.count("out") && o.out != out)) return;  // a program that the run has started
    o.out = out;
    o.resume = parse_resume("auto");
    o.overwrite = false;
    o.branch = -1;
    o.restarted = true;
}

CheckpointStore snapshot_store() { return CheckpointStore(restart_folder()); }

bool is_snapshot(const std::string& checkpoint_folder) {
    const std::string folder = restart_folder();
    return !folder.empty() && checkpoint_folder.starts_with(folder + "/");
}

int64_t snapshot_bytes(int64_t held) { return checked_mul(2, held, "snapshots"); }

// What lies in a folder of memory.
static int64_t bytes_in(const std::string& folder) {
    int64_t bytes = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        struct stat st;
        if (::lstat(at->path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) bytes += int64_t(st.st_blocks) * 512;
    }
    return bytes;
}

void check_snapshot_memory(const TrainOptions& o, Process& process, const Zero& zero) {
    if (o.snapshot_every == 0) return;
    const SnapshotHosts hosts(process);
    const std::vector<int64_t> copies = process.all_gather(copy_of_state_bytes(zero));
    int64_t held = 0;  // on this host
    for (int r = 0; r < process.size(); ++r)
        for (const int at : {r, hosts.keeper(r)})
            if (hosts.maker(at) == process.rank() && (at == r || hosts.several())) held += copies[size_t(r)];
    const int64_t needed = snapshot_bytes(held);
    std::string problem;
    struct statvfs memory;
    if (const std::string folder = restart_folder(); hosts.makes() && ::statvfs(folder.c_str(), &memory) == 0) {
        const int64_t room = int64_t(memory.f_bavail) * int64_t(memory.f_frsize) + bytes_in(folder);
        if (room < needed)
            problem = format(
                "--snapshot-every %ld: two snapshots need %s in %s, which has room for %s\n"
                "  make it larger (mount -o remount,size=..., a container's --shm-size), or leave the "
                "snapshots out: restarts then go back to checkpoints",
                o.snapshot_every, human_bytes(needed).c_str(), parent_folder(folder).c_str(),
                human_bytes(room).c_str());
    }
    problem = first_problem(process, problem);
    require(problem.empty(), "%s", problem.c_str());
}

static SaveOptions in_memory(SaveOptions o, const SnapshotHosts& hosts) {
    if (hosts.several()) o.makers = hosts.makers();
    o.run_folder = restart_folder();
    o.keep = 1, o.keep_every = 0, o.save_every = 0;
    o.background = true;
    o.mark = false;
    o.shard_above = 0;
    return o;
}

Snapshots::Snapshots(Process& process, TrainState& core, RunGuard& health, Log& log, SaveOptions of_checkpoints,
                     const std::string& out, bool keeps)
    : process_(process),
      core_(core),
      health_(health),
      log_(log),
      hosts_(process),
      writer_(process, core.device, core.compute, core.zero, core.table, core.config, [&] {
          SaveOptions how = in_memory(std::move(of_checkpoints), hosts_);
          if (hosts_.several())
              how.mirror = [this](const void* copy, const std::string& folder) { neighbours_->exchange(copy, folder); };
          return how;
      }()) {
    if (hosts_.several()) neighbours_ = std::make_unique<Neighbours>(process, hosts_, writer_.layout());
    core_.device.context->memory.add(DeviceKind::cpu, MemKind::workspace, bytes());
    if (!writer_.note().empty()) std::fprintf(stderr, "train_llama: snapshots: %s\n", writer_.note().c_str());
    if (!hosts_.makes()) return;
    std::error_code none;
    if (keeps)
        snapshot_store().clean();
    else
        fs::remove_all(snapshot_store().folder(), none);
    if (!process.is_root()) write_file_atomically(restart_folder() + "/run", out);  // rank 0 has, when it began
}

Snapshots::~Snapshots() { core_.device.context->memory.remove(DeviceKind::cpu, MemKind::workspace, bytes()); }

int64_t Snapshots::bytes() const {
    const int64_t own = copy_of_state_bytes(core_.zero);
    if (!neighbours_) return snapshot_bytes(own);
    return snapshot_bytes(own + neighbours_->bytes_kept()) + neighbours_->bytes_on_the_way();
}

void Snapshots::take(Manifest manifest) {
    if (hosts_.several()) {  // each host has it, as rank 0 knows it; a manifest in text has a file at least
        manifest.files.push_back({.path = "config.json", .tensors = {}});
        const std::string text = process_.broadcast_text(process_.is_root() ? manifest.to_json() : "", 0);
        manifest = Manifest::from_json(text, "a snapshot's manifest");
        manifest.files.clear();
    }
    writer_.save(std::move(manifest));
    under_way_ = true;
}

void Snapshots::settle() {
    if (!std::exchange(under_way_, false)) return;
    writer_.finish();
    for (const SaveReport& r : writer_.reports()) {
        if (!process_.is_root()) continue;
        if (!r.error.empty()) {
            std::fprintf(stderr, "train_llama: no snapshot of step %ld: %s\n", r.step, r.error.c_str());
            if (r.not_finite) health_.report_end(kExitNumbers, r.error);
        } else if (!std::exchange(told_, true)) {
            log_.line(format(
                "snapshot of step %ld in %s, %s: copied in %.2f s, written in %s", r.step,
                neighbours_ ? "the hosts' memory, with a copy of each host's slices on the next" : "this host's memory",
                human_bytes(r.bytes).c_str(), r.stall_seconds, duration(r.write_seconds).c_str()));
        }
    }
}

}  // namespace rz
