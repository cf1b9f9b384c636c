#include "llama/train/snapshots.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
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
    require_request(
        o.max_restarts == 0 || starts_ranks,
        "--max-restarts %lld is about the ranks that --ranks starts\n"
        "  nearest: --ranks 2 --max-restarts %lld, or dev/run/supervise.sh --max-restarts %lld -- mpirun ...",
        (long long)o.max_restarts, (long long)o.max_restarts, (long long)o.max_restarts);
    if (o.snapshot_every == 0) return;
    require_request(o.keeps(), "--snapshot-every continues a run in its --out, and that is empty: name a folder");
    require_request(
        (starts_ranks && o.max_restarts > 0) || !restart_folder().empty(),
        "--snapshot-every %lld: nothing starts the ranks again, and their snapshots go with them\n"
        "  nearest: --ranks %lld --max-restarts 10, or dev/run/supervise.sh -- mpirun -n %lld ./train_llama ...",
        (long long)o.snapshot_every, (long long)std::max<int64_t>(2, o.ranks),
        (long long)std::max<int64_t>(2, o.ranks));
}

void begin_restarts(const std::string& out) {
    if (const std::string folder = restart_folder(); !folder.empty()) write_file_atomically(folder + "/run", out);
}

void continue_run(TrainOptions& o, Process& process) {
    std::string out;
    if (process.is_root())
        if (const std::string folder = restart_folder(); !folder.empty() && path_exists(folder + "/run"))
            out = read_file(folder + "/run", kRunFile);
    out = process.broadcast_text(out, 0);
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

int64_t snapshot_bytes(const Zero& zero) { return checked_mul(2, copy_of_state_bytes(zero), "snapshots"); }

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
    const std::vector<int> hosts = process.nodes();
    require_request(std::count(hosts.begin(), hosts.end(), hosts[0]) == int64_t(hosts.size()),
                    "--snapshot-every %lld: ranks are on several hosts, and a snapshot lies in the memory of one\n"
                    "  nearest: --snapshot-every 0, with a smaller --save-every",
                    (long long)o.snapshot_every);
    const int64_t needed = int64_t(process.sums({uint64_t(snapshot_bytes(zero))})[0]);
    std::string problem;
    struct statvfs memory;
    if (const std::string folder = restart_folder(); process.is_root() && ::statvfs(folder.c_str(), &memory) == 0) {
        const int64_t room = int64_t(memory.f_bavail) * int64_t(memory.f_frsize) + bytes_in(folder);
        if (room < needed)
            problem = format(
                "--snapshot-every %lld: two snapshots need %s in %s, which has room for %s\n"
                "  make it larger (mount -o remount,size=..., a container's --shm-size), or leave the "
                "snapshots out: restarts then go back to checkpoints",
                (long long)o.snapshot_every, human_bytes(needed).c_str(), parent_folder(folder).c_str(),
                human_bytes(room).c_str());
    }
    problem = process.broadcast_text(problem, 0);
    require(problem.empty(), "%s", problem.c_str());
}

static SaveOptions in_memory(SaveOptions o) {
    o.run_folder = restart_folder();
    o.keep = 1, o.keep_every = 0, o.save_every = 0;
    o.background = true;
    o.mark = false;
    o.shard_above = 0;
    return o;
}

Snapshots::Snapshots(Process& process, TrainingCore& core, Health& health, Log& log, SaveOptions of_checkpoints,
                     bool keeps)
    : process_(process),
      core_(core),
      health_(health),
      log_(log),
      writer_(process, core.device, core.compute, core.zero, core.table, core.config,
              in_memory(std::move(of_checkpoints))) {
    core_.device.context->memory.add(DeviceKind::cpu, MemKind::workspace, snapshot_bytes(core_.zero));
    if (!writer_.note().empty()) std::fprintf(stderr, "train_llama: snapshots: %s\n", writer_.note().c_str());
    if (!process.is_root()) return;
    std::error_code none;
    if (keeps)
        snapshot_store().clean();
    else
        fs::remove_all(snapshot_store().folder(), none);
}

Snapshots::~Snapshots() {
    core_.device.context->memory.remove(DeviceKind::cpu, MemKind::workspace, snapshot_bytes(core_.zero));
}

void Snapshots::take(Manifest manifest) {
    writer_.save(std::move(manifest));
    under_way_ = true;
}

void Snapshots::settle() {
    if (!std::exchange(under_way_, false)) return;
    writer_.finish();
    for (const SaveReport& r : writer_.reports()) {
        if (!process_.is_root()) continue;
        if (!r.error.empty()) {
            std::fprintf(stderr, "train_llama: no snapshot of step %lld: %s\n", (long long)r.step, r.error.c_str());
            if (r.not_finite) health_.report_end(kExitNumbers, r.error);
        } else if (!std::exchange(told_, true)) {
            log_.line(format("snapshot of step %lld in this host's memory, %s: copied in %.2f s, written in %s",
                             (long long)r.step, human_bytes(r.bytes).c_str(), r.stall_seconds,
                             duration(r.write_seconds).c_str()));
        }
    }
}

}  // namespace rz
