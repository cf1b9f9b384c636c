#pragma once
// Softmax cross-entropy over logits whose columns, the vocabulary, are cut among ranks (Shoeybi et al. 2019, section
// 3). Each part makes three numbers of a row; with those of all parts, in ascending order, each part has the row's loss
// and the gradient of its own columns. The same three numbers give the same bits of the loss everywhere.
//
//   vocab_softmax         stats[n] = max_v x[n, v],  sum_v exp(x[n, v] - max),  x[n, target] where it is in this part
//   vocab_cross_entropy   lse      = log(sum_v exp(x[n, v]))                             over the columns of all parts
//                         loss[n]  = lse - x[n, target],   z_loss[n] = z * lse^2
//                         x[n, v]  = (softmax(x[n])[v] * (1 + 2 z lse) - [v == target]) * grad_scale * *loss_scale
//                                    if write_gradient
//   vocab_argmax          best[n]  = the likeliest token of the part with the largest max; of equals the lowest part's
//
// A target of kIgnoreTarget gives losses 0 and gradient 0. fp32 arithmetic; the gradient is rounded to dtype once. Two
// runs on one kind of device give the same bits.

#include "kernels/cross_entropy.h"

namespace rz {

constexpr int64_t kVocabStats = 3;  // max, sum of exp(x - max), the target's logit or 0

struct VocabSoftmax {
    float* stats;            // (N, kVocabStats) f32   =
    const void* logits;      // (N, V) dtype
    const int32_t* targets;  // (N) ids of the whole vocabulary, or kIgnoreTarget; checked by vocab_cross_entropy
    int64_t N, V;            // columns of this part
    int64_t first;           // id of its first column
    DType dtype;
};

struct VocabCrossEntropy {
    float* loss;             // (N) f32                    =    the same on all parts
    void* logits;            // (N, V) dtype               in: logits, out: gradient (or untouched)
    const float* stats;      // (parts, N, kVocabStats)    of all parts, ascending
    const int32_t* targets;  // (N) in [0, vocab) or kIgnoreTarget
    int64_t N, V, first;     // as above
    int64_t parts, vocab;    // of the whole vocabulary
    float grad_scale;        // 1 / number of targets in the global batch, for the mean loss
    bool write_gradient;
    DType dtype;
    const float* loss_scale = nullptr;  // (1) f32 optional, on the device: a further factor of the gradient
    float z = 0;
    float* z_loss = nullptr;  // (N) f32  =  with z > 0, the same on all parts
};

struct VocabArgmax {
    int32_t* best;       // (N)                        =    the same on all parts
    const int32_t* own;  // (parts, N)                 each part's argmax, ids of the whole vocabulary
    const float* stats;  // (parts, N, kVocabStats)    of all parts, ascending
    int64_t N, parts;
};

void vocab_softmax(Stream&, const VocabSoftmax&);
void vocab_cross_entropy(Stream&, const VocabCrossEntropy&);

void vocab_argmax(Stream&, const VocabArgmax&);

void vocab_softmax_cpu(const VocabSoftmax&);
void vocab_softmax_cuda(const VocabSoftmax&, CudaStream);
void vocab_cross_entropy_cpu(const VocabCrossEntropy&);
void vocab_cross_entropy_cuda(const VocabCrossEntropy&, CudaStream);
void vocab_argmax_cpu(const VocabArgmax&);
void vocab_argmax_cuda(const VocabArgmax&, CudaStream);

}  // namespace rz
