#pragma once
// A rank's gradients: where they are added, and how they are summed over the ranks.
//
//   stage 0        whole; all-reduced once a step
//   stage 1        whole; reduce-scattered once a step into the owned slices, in place
//   stages 2, 3    whole for one unit at a time (unit_pool.h); reduce-scattered after each micro-batch and added to the
//                  owned slices. With `accumulate_locally` as stage 1
//
// Hybrid sharding: gradients are reduce-scattered among the ranks that share a unit, then each slice is all-reduced
// among the ranks that own it, with the last reduce of a step.

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "zero/gradient_sink.h"
#include "zero/moved_buffer.h"
#include "zero/ownership.h"
#include "zero/streams.h"
#include "zero/unit_pool.h"
#include "zero/zero_options.h"

namespace rz {

class GradientStore : public GradientSink {
   public:
    // `ownership` and the streams outlive this.
    GradientStore(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams);
    ~GradientStore() override;

    void* gradients(int unit) override;
    void reduce(int unit, bool last) override;
    bool reduces_each_micro_batch() const override { return !options_.whole_gradients(); }

    // The owned slice, summed over the ranks; valid on the compute stream after wait(), until begin_step().
    void* owned(int unit) const;
    // Compute waits for all that was reduced.
    void wait();
    // The owned gradients have been read by the compute work enqueued so far: they begin at zero again.
    void begin_step();

    // Called for each unit whose gradients of this step are final, with when they are. One may listen.
    void on_final(std::function<void(int unit, const Event& ready)> listener) { final_ = std::move(listener); }

   private:
    void reduce_slices(int unit, void* whole, bool last);

    const Ownership& ownership_;
    ZeroOptions options_;
    ZeroStreams streams_;
    int64_t element_;    // bytes
    MovedBuffer whole_;  // this
    Buffer own_;         // or this
    Buffer arrived_;     // a reduced slice on its way to be added, or to the host
    // Where own_ is on the host: the slice's earlier micro-batches come, the sum goes.
    Buffer earlier_;
    std::optional<Stream> from_host_, to_host_;
    Event gone_;  // the last sum is on the host
    UnitPool unreduced_;
    std::function<void(int, const Event&)> final_;
    std::vector<uint8_t> begun_;  // by unit: own_ holds earlier micro-batches of this step
};

}  // namespace rz
