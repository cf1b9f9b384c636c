#pragma once
// Attention on a CPU that also tells each row's largest logit, as its online softmax has it anyway. For --stats-every.

#include "kernels/attention/attention.h"

namespace rz {

struct AttentionLargest {
    AttentionForward forward;
    float* largest;  // (B, H, Tq) f32   =   the largest scale * q k that the query sees; -infinity: it sees no key
};

void attention_largest(Stream&, const AttentionLargest&);
void attention_largest_cpu(const AttentionLargest&);

}  // namespace rz
