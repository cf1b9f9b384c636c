#pragma once
// Log-likelihoods of many token sequences by one model, in batches, shared out over the data axis. The batches are the
// same however many ranks there are, so the numbers are too.

#include <vector>

#include "comm/grid.h"
#include "comm/process.h"
#include "kernels/runtime/memory.h"
#include "llama/model/model.h"
#include "llama/train/eval_tasks.h"

namespace rz {

class Scorer {
   public:
    // Memory for batches of at most B x T.
    struct Buffers {
        Buffers(Device, int64_t B, int64_t T);
        Buffer host, device;  // int32 tokens, targets, fp32 losses, int32 best, positions, (B*T) each
    };

    // The model was built for batches of B x T at least. dp: this rank's place on the data axis. counts: whether it is
    // the one of its tp peers, which compute the same, whose scores count. cp: its place among those that cut each
    // sequence (BatchFeeder's chunks); the model was then built for B x T, and every batch is that large. The tokens of
    // a batch are a multiple of `multiple`, as B x T is: what fp8 products need.
    Scorer(Process&, Model&, Device, Stream&, AxisRank dp, bool counts, int64_t B, int64_t T, int64_t vocab,
           AxisRank cp = {}, int64_t multiple = 1);

    // Collective: a score for each item, the same on all ranks. An item has at most T + 1 tokens, each below `vocab`.
    std::vector<Score> score(const std::vector<const ScoreItem*>&);

   private:
    struct Batch {
        size_t first, end;  // of the sorted items
        int64_t T;
    };
    // Scores of this rank's tokens; 0 and greedy where it has none.
    std::vector<Score> run(const Batch&, const std::vector<const ScoreItem*>& sorted);
    std::vector<int64_t> own_places(int64_t rows, int64_t T) const;

    Process& process_;
    Model& model_;
    Stream& stream_;
    AxisRank dp_, cp_;
    bool counts_;
    int64_t B_, T_, vocab_, multiple_;
    Buffers buffers_;
};

}  // namespace rz
