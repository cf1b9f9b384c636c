#pragma once
// Causal grouped-query attention. Query head h reads key/value head h / (H / K).
//
//   o = softmax(scale * q k^T + causal mask) v
//
// Query t of Tq sits at position Tk - Tq + t and sees keys up to its own position; Tq == Tk in training, Tq < Tk when
// new tokens extend a cache. The T x T matrix is never stored: online softmax forward (Milakov & Gimelshein 2018; Dao
// et al. 2022), recomputation from the row log-sum-exp backward (Dao 2023). Scores, softmax and sums are fp32.
//
// q, k, v and o are strided, so that they may be the parts of one packed qkv row: element (b, t, head, d) of q lies at
// q[b*q_batch + t*q_row + head*D + d], all in elements; o and its gradient use o_*, k and v (and dk, dv) use kv_*.
// Rows are aligned to 16 bytes where D % 8 == 0. Any even D up to 256, any lengths.

#include "kernels/runtime/device.h"

namespace rz {

struct AttentionShape {
    int64_t B, Tq, Tk;
    int64_t H, K, D;  // query heads, key/value heads (divides H), head dimension
    int64_t q_row, q_batch;
    int64_t kv_row, kv_batch;
    int64_t o_row, o_batch;
    float scale;  // 1 / sqrt(D) unless asked otherwise
    DType dtype;
};

struct AttentionForward {
    void* o;        // (B, Tq, H, D) strided   =
    float* lse;     // (B, H, Tq) f32          =   natural log of the row's sum of exp(scale * q k)
    const void* q;  // (B, Tq, H, D) strided
    const void* k;  // (B, Tk, K, D) strided
    const void* v;  // (B, Tk, K, D) strided
    AttentionShape shape;
};

// Needs Tq == Tk. Two runs give the same bits: no atomics; dk and dv are summed over the group's heads in order.
struct AttentionBackward {
    void* dq;         // as q   =
    void* dk;         // as k   =
    void* dv;         // as v   =
    const void* d_o;  // as o
    const void* q;
    const void* k;
    const void* v;
    const void* o;
    const float* lse;
    void* workspace;       // attention_backward_workspace(shape) bytes, 256-byte aligned
    AttentionShape shape;  // dq has q's strides, dk and dv have k's
};

int64_t attention_backward_workspace(const AttentionShape&);  // in bytes

void attention_forward(Stream&, const AttentionForward&);
void attention_backward(Stream&, const AttentionBackward&);

void attention_forward_cpu(const AttentionForward&);
void attention_backward_cpu(const AttentionBackward&);
void attention_forward_cuda(const AttentionForward&, CudaStream);
void attention_backward_cuda(const AttentionBackward&, CudaStream);

}  // namespace rz
