#pragma once
// AdamW, and Muon for matrices, on what a rank owns: the norm of the global gradient, clipping, the update, and the new
// parameters on their way to the ranks that share them. Everything enqueues and returns.
//
//   const float* norm = optimizer.gradient_norm();   after the step's last reduce
//   optimizer.update(learning_rate, step);
//
// Logical offsets draw the stochastic rounding and order the sums of the gradient norm, so neither depends on how many
// ranks there are, on the stage or on a pipeline.

#include <functional>
#include <optional>
#include <vector>

#include "kernels/loss_scale.h"
#include "zero/gradient_store.h"
#include "zero/muon.h"
#include "zero/offload.h"
#include "zero/ownership.h"
#include "zero/parameter_cache.h"
#include "zero/streams.h"
#include "zero/zero_options.h"

namespace rz {

// Sees AdamW at work on the compute stream, a piece of what this rank owns at a time, in every array on the device.
class UpdateWatcher {
   public:
    virtual ~UpdateWatcher() = default;
    virtual int64_t most() const = 0;  // elements of a piece
    // `local`: where the piece lies in this rank's flat buffer. Before AdamW on it is enqueued, and after.
    virtual void before(const OwnedRange& piece, int64_t local, int64_t elements) = 0;
    virtual void after(const OwnedRange& piece, int64_t local, int64_t elements) = 0;
};

class ShardedAdamW {
   public:
    // All references outlive this. `decay` covers the logical offsets of the units.
    ShardedAdamW(const Ownership& ownership, ParameterCache& params, GradientStore& grads, const DecaySegments& decay,
                 const ZeroOptions& options, const AdamWOptions& adamw, ZeroStreams streams);
    ~ShardedAdamW();

    // Norm of the global gradient before clipping: sums of blocks, added in logical order in double. (1) f32, device,
    // valid on the compute stream until the next call. Collective over the ranks that hold the model.
    const float* gradient_norm();
    // Clips by that norm, updates what this rank owns, publishes it, and zeroes the gradients. A non-finite norm leaves
    // parameters, masters and moments as they are. `step` counts from 1 and draws the stochastic rounding. AdamW's bias
    // correction uses the number of updates that were made, which only the device counts.
    void update(float learning_rate, int64_t step);
    // Between gradient_norm() and update(), on every rank: this update leaves parameters, masters, moments, the count
    // of updates and the loss scale as they are, as one with a non-finite norm does.
    void leave_out();
    // From now on (nullptr: no longer) update() shows its pieces to this. Not with OffloadOptimizer::cpu.
    void watch(UpdateWatcher* watcher) { watcher_ = watcher; }
    // The last result of gradient_norm().
    const float* norm() const { return scalars_.as<float>(); }
    // (1) int64 on the device: updates made, valid on the compute stream after update().
    const int64_t* updates() const { return count_.as<int64_t>(); }
    void set_updates(int64_t updates);  // for resuming; waits for the compute stream

    // With loss scaling. (1) on the device, valid on the compute stream: the state after the last update(), by whose
    // scale the next step multiplies its loss's gradient. nullptr without. The norm and the update are those of the
    // unscaled gradient; what is not finite is skipped, and the scale adapts.
    const LossScaleState* loss_scale() const { return loss_scale_.as<LossScaleState>(); }
    void set_loss_scale(const LossScaleState&);  // for resuming; waits for the compute stream

    // For initialisation, checkpoints and export; none is empty. Masters may be written through these on the compute
    // stream; all_gather_updated() then rounds them into the parameters of every rank. Elements beyond the unit's size
    // must stay zero.
    const std::vector<OwnedRange>& owned() const { return owned_; }
    void all_gather_updated();

    // With ZeroOptions::ema, which update() moves; without, nothing. The average becomes what the masters are now.
    void begin_average();
    // From here to show_weights() every rank's parameters are the average, rounded, for forward passes alone: they are
    // read by no rank any more when either is called. No memory but a tile where parameters are their own masters.
    void show_average();
    void show_weights();

   private:
    void index_owned();
    int64_t second_moments() const;
    int64_t row_moments() const;
    void copy_decay(const DecaySegments& decay);
    std::vector<int64_t> gather_stages(const std::vector<int64_t>& own);
    void index_block_sums();
    void sum_blocks();
    void move_average(Stream& stream, const OwnedRange& r, const float* grad_scale) const;
    void exchange_average();
    Buffer take_state(int64_t elements, DType dtype, const char* name) const;
    void watched(const OwnedRange& piece, int64_t local, int64_t elements,
                 const std::function<void(const OwnedRange&)>& change);
    void for_each_rate(const OwnedRange& range, int64_t elements,
                       const std::function<void(const OwnedRange& piece, int64_t elements, float rate)>& body) const;
    Event on_device(const OwnedRange& range, int64_t elements,
                    const std::function<void(const OwnedRange&, int64_t)>& body);
    Event update_range(const OwnedRange& range, int64_t elements, float learning_rate, int64_t step);
    void update_whole(float learning_rate, int64_t step);
    void update_slices(const std::function<Event(const OwnedRange&)>& change);
    void update_in_rounds(float learning_rate, int64_t step);
    void begin_round(int round, int64_t step);
    void finish_round(int round, float learning_rate, int64_t step);
    float* scale() const { return scalars_.as<float>() + 1; }
    double* correction() const { return count_.as<double>() + 1; }

    const Ownership& ownership_;
    ParameterCache& params_;
    GradientStore& grads_;
    ZeroOptions options_;
    AdamWOptions adamw_;
    ZeroStreams streams_;

    Buffer master_, m_, v_, ema_, row_v_;
    Buffer exchange_;  // a tile between parameters and average, where those are their own masters
    std::vector<OwnedRange> owned_;
    Buffer segment_end_, segment_decays_;
    int64_t segments_ = 0;
    std::vector<int64_t> rate_end_;  // by segment; none: all rates are 1
    std::vector<float> rates_;
    Buffer scalars_;           // float norm, scale
    Buffer loss_scale_;        // LossScaleState, with loss scaling
    Buffer count_;             // int64 updates made, double[2] bias correction
    bool norm_known_ = false;  // of this step
    bool left_out_ = false;    // this step's update
    UpdateWatcher* watcher_ = nullptr;
    // The sums of the gradient norm's blocks: doubles, part by part of the model, rank by rank in a part; and int32,
    // from logical order to that. Offsets are in halves of a double.
    Buffer block_sums_, block_order_;
    std::vector<int64_t> rank_sums_, stage_sums_;  // by rank of those that share slices; by rank of the model
    int64_t blocks_ = 0;
    std::optional<StateTiles> tiles_;  // with OffloadOptimizer::stream, and Muon's with cpu
    std::optional<HostAdamW> host_;    // with OffloadOptimizer::cpu
    std::optional<Muon> muon_;         // with MuonOptions::on
};

}  // namespace rz
