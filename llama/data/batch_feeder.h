#pragma once
// Brings micro-batches to the device. The host prepares them while the device works on earlier ones: pinned staging
// buffers in turn, each reused only after the event that says its copy is done.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/grid.h"
#include "kernels/runtime/memory.h"
#include "llama/data/batch.h"
#include "llama/data/data_loader.h"
#include "llama/data/documents.h"
#include "llama/data/read_ahead.h"

namespace rz {

class BatchFeeder {
   public:
    // ahead: how many batches the host may be ahead of the device, from 1 up; beyond, next() waits.
    // held: how many batches are used at a time, by work that is still to be enqueued.
    // same_plan: every batch's embedding plan has the same number of distinct tokens, some without rows, so that work
    // recorded for one batch fits all.
    // read_ahead: threads that read batches before they are asked for, once train_on() has said which; 0: none.
    // documents: a mask where the data have one. cp: this rank's place among those that cut each sequence; of whole
    // batches it takes the chunks cp.rank and 2 cp.size - 1 - cp.rank, T / (2 cp.size) tokens each.
    BatchFeeder(Device device, Stream& stream, int64_t B, int64_t T, int64_t vocab, int64_t ahead,
                bool same_plan = false, int64_t held = 1, const DocumentMask& documents = {}, AxisRank cp = {},
                int read_ahead = 0);

    // From now on the i-th batch that is taken from this source is that of `position(i)`, and is read ahead by the
    // threads that were asked for; without `position` nothing is. The first call counts.
    void train_on(const SampleSource& data, std::function<int64_t(int64_t)> position);
    // Seconds that next() took to read from that source, or waited until it was read, since this was asked last.
    double take_waited() { return std::exchange(waited_, 0); }

    // Samples [position, position + B) of the loader, or this rank's part of them, with their embedding plan; targets
    // of samples from `end` on are ignored. Valid for work enqueued on the stream until the `held`-th call after this.
    // in_turn: false: it is none of those that train_on() spoke of.
    DeviceBatch next(const SampleSource& data, int64_t position, int64_t end = INT64_MAX, bool in_turn = true);
    // sum_hash of the last one's inputs, in whole, by their place in the stream of tokens: sums over ranks and
    // micro-batches do not depend on how a batch was split.
    uint64_t data_hash() const { return data_hash_; }
    // Pairs of tokens in the last one that attention counts, as a part of those that it would count without documents.
    double attention_share() const { return attention_share_; }
    AttentionTiles tiles() const { return tiles_; }  // of the last one; none without documents

   private:
    void cut(const int32_t* whole, int32_t* own) const;

    Stream& stream_;
    int64_t B_, T_, vocab_;
    bool same_plan_;
    DocumentMask documents_;
    AxisRank cp_;
    std::vector<int32_t> whole_;  // tokens, targets, where documents start and positions of whole sequences, to be cut
    struct Staging {
        Buffer host;
        Event copied;
    };
    std::vector<Staging> staging_;
    std::vector<Buffer> device_;
    size_t turn_ = 0, device_turn_ = 0;
    std::unique_ptr<ReadAhead> ahead_;
    const SampleSource* trains_on_ = nullptr;
    double waited_ = 0;
    uint64_t data_hash_ = 0;
    double attention_share_ = 1;
    AttentionTiles tiles_;
};

}  // namespace rz
