#pragma once
// What a rank sends in a step, by axis: the one place with the formulas, to the byte. They read the same program that
// the step runs; the collectives' own counts are compared with them by tests.
//
// tp, in passes over this rank's rows of the residual stream (G: a gather, this rank's rows to each other rank, in
// --dtype; S: a scatter, the others' rows, in --tp-wire):
//
//                    forward   backward   input_grad   weight_grad   recomputed, mlp / block
//   block            2G 2S     4G 2S      2G 2S        4G            1G / 2G 2S
//   embedding        1S        1G         -            1G
//   head, its loss   -         1G 1S L    1G 1S L      -             forward only: 1G L
//
// L: 12 bytes a token to each other rank. With each reduce of a unit also the gradients of what several ranks hold:
// (n - 1) / n of them twice if all n do, else once to each other holder.
//
//   cp          for each block its keys and values to each other rank, in --dtype, once forward (twice with
//               --recompute block) and once backward, and then their gradients in fp32; in a ring from rank to rank,
//               the gradients cp times
//   pp          this rank's rows of the residual stream for each send; gradients of units that two ranks hold, once
//   data        ZeRO's gathers and reduces of units (zero/zero.h) among the ranks that share a unit's state
//   replicate   the all-reduce of the owned slices (hybrid sharding)
//   model       the gradient norm's block sums of this part of the model to each other part
//
// A ring's all-gather sends all slices but the right neighbour's; that of `direct` this rank's slice, to each other.

#include "llama/train/core.h"

namespace rz {

struct Traffic {
    int64_t tp = 0, cp = 0, pp = 0, data = 0, replicate = 0, model = 0;  // bytes
    int64_t total() const { return tp + cp + pp + data + replicate + model; }
};

// Of a step of training; of the ranks of core's mesh, this one.
Traffic step_traffic(const TrainingCore& core);

}  // namespace rz
