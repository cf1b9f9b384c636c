#include "llama/plan/batch_auto.h"

#include <algorithm>

#include "kernels/runtime/capability.h"
#include "kernels/runtime/host_memory.h"
#include "llama/plan/plan.h"
#include "llama/train/batches.h"

namespace rz {

// What is left when every pair of ranks that a step uses is connected: NCCL takes memory at first messages.
static int64_t free_beside_nccl(const TrainOptions& o, Process& process, Device device, MeteredMesh& mesh) {
    if (process.size() == 1 || !device.is_cuda()) return device.free_bytes();
    device = process.choose_device(o.device, o.transport, nullptr);
    if (!process.uses_nccl(o.transport, device)) return device.free_bytes();
    mesh = make_mesh(o, process, device);
    return device.free_bytes();
}

std::string choose_batch(TrainOptions& o, Process& process, MeteredMesh& mesh, const std::optional<FreeMemory>& is) {
    const Device device = pick_device(o.device, process.local_rank(), nullptr);
    const FreeMemory now = is ? *is
                              : FreeMemory{.device = free_beside_nccl(o, process, device, mesh),
                                           .host = std::min(available_host_memory(), int64_t(1) << 50)};
    // For one rank, on the rank that has least.
    const int64_t free = -process.max(-(now.device / (device.is_cuda() ? 1 : process.local_size())));
    const int64_t host = -process.max(-(now.host / process.local_size()));
    PlanCase c{.options = o, .config = model_config(o, find_data(o).vocab), .machine = {}, .ranks = process.size()};
    if (const std::optional<Machine> known = find_machine(device)) c.machine = *known;
    c.machine.cpu = !device.is_cuda();
    if (device.is_cuda()) c.machine.compute_capability = compute_capability(device) / 10.0;
    const int64_t local = process.max(process.local_size());
    c.machine.ranks_per_node = local;
    c.machine.memory_gib = double(free * (c.machine.cpu ? local : 1)) / double(int64_t(1) << 30);  // `free`: of a rank
    c.machine.host_memory_gib = double(host * local) / double(int64_t(1) << 30);
    // Kept free: a twentieth, for what the allocator can't use, and what libraries take later. The context is there.
    c.machine.outside_min_mib = c.machine.outside_max_mib = double(free) / 20 / (1 << 20) + (device.is_cuda()     ? 512
                                                                                             : process.size() > 1 ? 128
                                                                                                                  : 64);
    c.nccl_is_taken = true;
    const std::optional<Change> best = largest_batch(c);
    if (!best) {
        c.options.batch = 1;
        const Plan one = make_plan(c, {.timed = false, .one_rank = true});
        fail(
            "--batch auto: not even one sequence fits: %s planned, %s free, %s of them kept as margin\n"
            "  nearest: what `train_llama plan --batch 1` names",
            human_bytes(one.largest().memory.total).c_str(), human_bytes(free).c_str(),
            human_bytes(c.outside_max()).c_str());
    }
    o.batch = best->to.options.batch;
    o.kept_flags["batch"] = std::to_string(o.batch);
    return format("batch    --batch auto: %ld sequences, %s planned of %s free; the margin is %s", o.batch,
                  human_bytes(best->plan.largest().memory.total).c_str(), human_bytes(free).c_str(),
                  human_bytes(c.outside_max()).c_str());
}

}  // namespace rz
