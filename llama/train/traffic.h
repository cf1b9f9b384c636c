#pragma once
// Bytes that a rank sends in a step, by axis. The formulas stand here alone, for readers and for
// `train_llama plan --help`; traffic.cpp computes them from the same program that the step runs, and tests compare the
// collectives' own counts with them.

#include <utility>

#include "llama/train/train_state.h"

namespace rz {

inline constexpr const char* kTrafficFormulas =
    R"(Bytes that a rank sends in a step, by axis. R: its rows of the residual
stream, tokens of a micro-batch / (cp x tp).

tp  in passes over R x dim numbers: G, a gather, this rank's rows to each other rank, in --dtype; S, a scatter,
    the others' rows, in --tp-wire. For each micro-batch:
                     forward   backward   input_grad   weight_grad   recomputed, attention or mlp / block
    block            2G 2S     4G 2S      2G 2S        4G            1G / 2G 2S
    embedding        1S        1G         -            1G
    head, its loss   -         1G 1S L    1G 1S L      -             forward only: 1G L
    L: 12 bytes a token to each other rank. With --fp8 tensor a block gathers codes, a byte a number, in all its G; its
    forward pass, backward or input_grad, and recomputed norms also send 32 bytes to each other rank, their
    magnitudes. With --post-norm a block's forward and backward pass, and recomputed attention, send 8 bytes a token to
    each other rank. With each reduce of a unit also the gradients of what several ranks hold: (tp - 1) / tp of them
    twice if all do, else once to each other holder.
cp  for each block and micro-batch its keys and values to each other rank, in --dtype, once forward (twice with
    recomputed attention) and once backward, and then their gradients in fp32; in a ring from rank to rank, the
    gradients cp times.
pp  R x dim numbers in --dtype for each send; gradients of units that two ranks hold, once.
data       ZeRO's gathers and reduces of units among the n ranks that share a unit's state: a pass is (n - 1) / n of the
           unit. --zero 0 and 1: 2 passes a step; 2: one a micro-batch (or one, accumulated locally) and 1; 3: one for
           each gather (2 a micro-batch) and one for each reduce. With --fp8-gather on, a gather sends a byte for each
           number of a matrix in fp8, and once a step 16 bytes for each such matrix go to each other rank, and in one
           pass the other numbers of those units.
replicate  the all-reduce of the owned slices (hybrid sharding): 2 passes over them.
model      the gradient norm's sums, 8 bytes for each block of this rank's gradients, to each other rank of tp x pp.

With --collectives symmetric the parameters of --zero 1 and 2 on the CPUs of a host are one
memory: their gather is no pass.
A pass of a ring's all-gather sends all slices but the right neighbour's; that of direct this rank's, to each other.
--check-wire adds nothing to messages; a comparison sends 8 bytes up a tree of the ranks and back.
)";

struct Traffic {
    int64_t tp = 0, cp = 0, pp = 0, data = 0, replicate = 0, model = 0;  // bytes
    int64_t total() const { return tp + cp + pp + data + replicate + model; }
};

constexpr std::pair<const char*, int64_t Traffic::*> kTrafficAxes[] = {{"tp", &Traffic::tp},
                                                                       {"cp", &Traffic::cp},
                                                                       {"pp", &Traffic::pp},
                                                                       {"data", &Traffic::data},
                                                                       {"replicate", &Traffic::replicate},
                                                                       {"model", &Traffic::model}};

// Traffic of a step of training; of the ranks of core's mesh, this one's.
Traffic step_traffic(const TrainState& core);

}  // namespace rz
