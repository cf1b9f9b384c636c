#include "llama/train/plan_memory.h"

#include <algorithm>

#include "kernels/runtime/context.h"
#include "llama/data/batch_feeder.h"
#include "llama/train/metrics.h"
#include "llama/train/trainer.h"

namespace rz {

PlannedMemory plan_memory(const TrainOptions& o, const ModelConfig& config, DeviceKind kind, int rank, int ranks) {
    RankContext context;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device, rank, ranks, PlannedLink{}, mesh_options(o));
    CoreOptions options = core_options(o, Device{kind}, mesh);
    options.graphs = false;
    TrainingCore core(config, options, device, mesh);
    const BatchFeeder feeder(device, core.compute, o.batch, o.seq_len, config.vocab,
                             Batches::ahead(options.micro_batches), /*same_plan=*/false, core.model.batches_held(),
                             {.boundary = o.doc_boundary});
    const Metrics::Numbers numbers = Metrics::make_numbers(device);
    std::optional<Scorer::Buffers> evaluation;
    if (o.eval_every > 0) evaluation.emplace(device, o.batch, o.seq_len);

    // A batch that nobody reads.
    const int64_t tokens = checked_mul(o.batch, o.seq_len, "tokens of a batch");
    const Buffer ids(Device{DeviceKind::planned}, 4 * (tokens + 1), MemKind::data, "token ids");
    const int32_t* id = ids.as<int32_t>();
    core.model.run(core.program, {.pass = Pass::train, .grad_scale = 1}, [&](int64_t) -> DeviceBatch {
        return {o.batch, o.seq_len, id, id, id, id, id, std::min(tokens, config.vocab)};
    });
    core.zero.optimizer.gradient_norm();
    core.zero.optimizer.update(0, 1);

    PlannedMemory memory;
    memory.sent = step_traffic(core);
    const bool host_too = kind == DeviceKind::cpu;
    const MemoryLedger& ledger = context.memory;
    for (int k = 0; k < int(MemKind::count_); ++k)
        memory.peak[size_t(k)] =
            ledger.peak(DeviceKind::planned, MemKind(k)) + (host_too ? ledger.peak(DeviceKind::cpu, MemKind(k)) : 0);
    memory.total = ledger.peak(DeviceKind::planned) + (host_too ? ledger.peak(DeviceKind::cpu) : 0);
    return memory;
}

}  // namespace rz
