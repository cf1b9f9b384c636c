#pragma once
// Brings micro-batches to the device. The host prepares them while the device works on earlier ones: pinned staging
// buffers in turn, each reused only after the event that says its copy is done.

#include <vector>

#include "kernels/runtime/memory.h"
#include "llama/data/batch.h"
#include "llama/data/data_loader.h"
#include "llama/data/documents.h"

namespace rz {

class BatchFeeder {
   public:
    // ahead: how many batches the host may be ahead of the device, from 1 up; beyond, next() waits.
    // held: how many batches are used at a time, by work that is still to be enqueued.
    // same_plan: every batch's embedding plan has the same number of distinct tokens, some without rows, so that work
    // recorded for one batch fits all.
    BatchFeeder(Device device, Stream& stream, int64_t B, int64_t T, int64_t vocab, int64_t ahead,
                bool same_plan = false, int64_t held = 1, const DocumentMask& documents = {});

    // Samples [position, position + B) of the loader, with their embedding plan; targets of samples from `end` on are
    // ignored. Valid for work enqueued on the stream until the `held`-th call after this one.
    DeviceBatch next(const DataLoader& data, int64_t position, int64_t end = INT64_MAX);
    // sum_hash of the last one's inputs, by their place in the stream of tokens: sums over ranks and micro-batches do
    // not depend on how a batch was split.
    uint64_t data_hash() const { return data_hash_; }
    // Pairs of tokens in the last one that attention counts, as a part of those that it would count without documents.
    double attention_share() const { return attention_share_; }

   private:
    Stream& stream_;
    int64_t B_, T_, vocab_;
    bool same_plan_;
    DocumentMask documents_;
    struct Staging {
        Buffer host;
        Event copied;
    };
    std::vector<Staging> staging_;
    std::vector<Buffer> device_;
    size_t turn_ = 0, device_turn_ = 0;
    uint64_t data_hash_ = 0;
    double attention_share_ = 1;
};

}  // namespace rz
