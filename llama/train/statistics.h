#pragma once
// --stats-every: of every tensor the norm of its gradient, its own norm and that of its update over it; of every block
// the size of the residual stream that enters it and the largest logit of attention. Over all ranks, micro-batches and
// tokens of a step, so that the values do not depend on how ranks are laid out; sums are in double.
//
//   statistics.begin();                 before the step is enqueued
//   goal.watch = statistics.watch();    for its forward passes
//   statistics.end(step);               after it
//   statistics.report(...)              when the device has come so far: collective

#include <array>
#include <string>
#include <vector>

#include "comm/process.h"
#include "llama/train/train_state.h"

namespace rz {

class Statistics : public UpdateWatcher {
   public:
    explicit Statistics(TrainState& core);
    ~Statistics() override { core_.zero.optimizer.watch(nullptr); }

    void begin();
    BlockStats watch() const;
    void end(int64_t step);
    // Reports the step that end() was called for; two can be under way. The gradient's norm is before clipping, of the
    // unscaled gradient. JSON: {"tensors":{"NAME":{"grad_norm":..,"norm":..,"update_ratio":..},..},
    // "blocks":[{"residual_rms":..,"largest_logit":..},..]}, on rank 0; null: not a number, or infinite.
    std::string report(int64_t step, Process& process, double loss_scale, int64_t tokens) const;

    int64_t most() const override { return int64_t(1) << 20; }
    void before(const OwnedRange& piece, int64_t local, int64_t elements) override;
    void after(const OwnedRange& piece, int64_t local, int64_t elements) override;

   private:
    enum Sum { kGradient, kWeight, kUpdate, kSums };
    void cut_into_segments();
    void add(Sum which, const void* x, const void* minus, int64_t local, int64_t n, DType dtype);
    int64_t segments() const { return int64_t(tensors_.size()); }
    int64_t blocks() const { return core_.config.layers; }
    int64_t squares_at() const { return kSums * segments() * 8; }        // bytes, in sums_
    int64_t logits_at() const { return squares_at() + 8 * blocks(); }    // likewise
    int64_t result_bytes() const { return logits_at() + 4 * blocks(); }  // likewise

    TrainState& core_;
    bool counts_;                   // no other rank that owns the same does
    std::vector<int64_t> bounds_;   // of segments of this rank's flat buffer
    std::vector<int> tensors_;      // that a segment is of; -1: another rank's to count, or padding
    std::vector<float> no_logits_;  // -infinity for each block
    Buffer bounds_there_;
    Buffer sums_;      // (kSums, segments) and (blocks) double, (blocks) float
    Buffer previous_;  // masters before the update: most() of them
    std::array<Buffer, 2> results_;
};

}  // namespace rz
