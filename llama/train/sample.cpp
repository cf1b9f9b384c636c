#include "llama/train/sample.h"

namespace rz {

static Decoder decoder_of(TrainState& core, ParameterSource& source, int64_t positions) {
    const DType dtype = core.zero.options.param_dtype;
    TensorParallel* tp = core.tp ? &*core.tp : nullptr;
    if (!core.plan) return Decoder(core.config, core.table, dtype, core.device, core.compute, source, positions, tp);
    return Decoder(core.config, core.table, dtype, core.device, core.compute, source, positions,
                   core.plan->evaluation[size_t(core.mesh.place(Axis::pp).rank)], core.mesh,
                   core.plan->schedule.rank_of.back()[0], tp);
}

static std::optional<GatheredUnits> whole_units(TrainState& core) {
    if (core.zero.options.fp8_matrices.empty()) return std::nullopt;
    return std::optional<GatheredUnits>(std::in_place, core.zero.params, core.zero.ownership, core.device,
                                        core.zero.options.param_dtype);
}

SampleDecoder::SampleDecoder(TrainState& core, int64_t positions)
    : whole_(whole_units(core)),
      decoder_(decoder_of(core, whole_ ? static_cast<ParameterSource&>(*whole_) : core.units, positions)) {}

bool draws_samples(const TrainOptions& o, int64_t first_step, int64_t validations) {
    if (o.sample_every == 0 || first_step > o.steps) return false;
    const int64_t before = validations + (o.val_every > 0 && first_step == 1);  // one before the first step
    const int64_t count = o.val_every > 0 ? ceil_div(o.steps, o.val_every) - (first_step - 1) / o.val_every : 1;
    return round_up(before, o.sample_every) < before + count;
}

}  // namespace rz
