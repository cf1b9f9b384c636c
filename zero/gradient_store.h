#pragma once
// A rank's gradients: where they are added, and how they are summed over the ranks.
//
//   stage 0        whole; all-reduced once a step
//   stage 1        whole; reduce-scattered once a step into the owned slices, in place
//   stages 2, 3    whole for one unit at a time (unit_pool.h); reduce-scattered after each micro-batch and added to the
//                  owned slices. With `accumulate_locally` as stage 1
//
// Types. Gradients are options.grad_dtype. In stages 2 and 3 an unreduced unit has the type on the wire if that is the
// parameters' bf16, if one operation makes each element in a micro-batch (`added_once`: blocks without tp, which
// adds its ranks' norms; a head is added chunk by chunk, a tied one by both of its uses), and if the collective rounds
// all values before it adds any, as all between ranks do but the ring. Each element is rounded once either way, so the
// bits are the same.
//
// Buckets. With `bucket_bytes` the units whose gradients are complete wait until the next one would not fit, and are
// then reduced together by one collective: slice r of the bucket is slice r of each of its units, one after the other,
// copied there and back. So an element's owner, and with it the order of its sum, is the same for any bucket; but not
// under `library` and `hier` on one node, which choose how they sum by the size of a call. A unit is never cut: what a
// hop carries is CollectiveOptions::chunk_bytes. A unit that is alone is reduced where it lies.
// Larger buckets are fewer messages and start later. wait() reduces what is left.
//
// By default each unit is alone, which suits attention: the reduction of a block starts when its backward pass has
// ended, under the products of the next block's MLP, the longest time until the next attention kernel, which may hold
// every multiprocessor of a GPU. Cut finer, the MLP's part would start when its own attention does.
//
// Hybrid sharding: gradients are reduce-scattered among the ranks that share a unit, then each slice is all-reduced
// among the ranks that own it, with the last reduce of a step.

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "zero/gradient_sink.h"
#include "zero/comm_buffer.h"
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
    DType dtype(int unit) const {
        return once_.has_value() && options_.added_once[size_t(unit)] ? *once_ : options_.grad_dtype;
    }
    DType block_dtype() const { return once_.value_or(options_.grad_dtype); }  // of units that are added once
    bool reduces_each_micro_batch() const override { return !options_.whole_gradients(); }

    // The owned slice, summed over the ranks; valid on the compute stream after wait(), until begin_step().
    void* owned(int unit) const;
    // Compute waits for all that was reduced.
    void wait();
    // The owned gradients have been read by the compute work enqueued so far: they begin at zero again.
    void begin_step();

    // Called for each unit whose gradients of this step are final, with when they are. One may listen.
    void on_reduced(std::function<void(int unit, const Event& ready)> listener) { final_ = std::move(listener); }

   private:
    void reduce_bucket();
    void reduce_together(const std::vector<int>& units, bool last);
    void reduce_slices(int unit, void* whole, bool last);
    void all_reduce(void* whole, Offsets offsets);
    void reduce_scatter(void* out, const void* whole, Offsets offsets, DType dtype);
    void add(void* sum, const void* earlier, const void* arrived, int64_t n);
    void all_reduce_copies(int unit, void* slice);

    const Ownership& ownership_;
    ZeroOptions options_;
    ZeroStreams streams_;
    int64_t element_;                             // bytes
    std::optional<DType> once_;                   // of unreduced units that are added once; none: grad_dtype
    CommBuffer whole_;                            // this
    Buffer own_;                                  // or this
    Buffer arrived_;                              // a reduced slice on its way to be added, or to the host
    CommBuffer packed_;                           // the bucket
    std::vector<int> waiting_;                    // units of the bucket that fills
    int64_t waiting_bytes_ = 0, full_bytes_ = 0;  // full: no block fits any more
    bool waiting_last_ = false;
    Event complete_;  // the last of them
    // If own_ is on the host: the slice's earlier micro-batches come, the sum goes.
    Buffer earlier_;
    std::optional<Stream> from_host_, to_host_;
    Event gone_;  // the last sum is on the host
    UnitPool unreduced_;
    std::function<void(int, const Event&)> final_;
    std::vector<uint8_t> begun_;  // by unit: own_ holds earlier micro-batches of this step
};

}  // namespace rz
