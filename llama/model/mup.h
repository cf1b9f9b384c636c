#pragma once
// Maximal update parametrisation for Adam (Yang et al. 2022, tables 3 and 8): the best learning rate of a narrow model
// is that of a wide one. Nothing in the model changes: every multiplier is in the initial values and the learning rate
// of its tensor, since Adam's steps do not depend on the scale of a gradient. What is trained, saved and exported is a
// LLaMA.
//
//   with m = dim / base width            initial values     learning rate
//   embedding, head, norms of blocks     1                  1
//   q, k, v, gate, up                    1 / sqrt(m)        1 / m
//   o, down (fan-in grows with width)    1 / sqrt(m)        1 / m
//   final norm (logits x 1 / m)          1 / m              1 / m
//   q, attention scaled by 1 / head_dim  x sqrt(base head_dim / head_dim), both
//   o, down, CompleteP (Dey et al. 2025): branches x base depth / layers, both; initial values as the base's layers ask
//
// A tensor's weight decay is divided by the factor of its rate: every tensor shrinks by lr x decay a step.

#include "llama/model/param_table.h"

namespace rz {

struct Mup {
    int64_t base_width = 0;     // 0: none of this
    int64_t base_depth = 0;     // 0: branches as they are
    int64_t base_head_dim = 0;  // 0: the model's own
    bool on() const { return base_width > 0; }
};

struct MupFactors {
    double init = 1, rate = 1;
};
MupFactors mup_factors(const Mup&, const ModelConfig&, const ParamTable&, int tensor);
// By tensor of the table; empty: all are 1.
std::vector<MupFactors> mup_table(const Mup&, const ModelConfig&, const ParamTable&);

}  // namespace rz
