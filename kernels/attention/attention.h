#pragma once
// Causal grouped-query attention. Query head h reads key/value head h / (H / K).
//
//   o = softmax(scale * q k^T + causal mask) v
//
// Which keys a query sees is a range of positions: key j sits at position k_at + j, query t at q_at + t, and it sees
// the keys from first_key[t], or from the first on where there is no such array, up to its own position. One interface
// thus serves whole sequences (Tq == Tk, the default), new tokens that extend a cache (Tq < Tk), a chunk of queries
// against all earlier keys or against one chunk of them (context parallelism), and documents packed into one row, where
// first_key is the position at which the query's document starts. Tiles that no query of a tile sees are not computed.
// A query may see no key of a call: its o is 0 and its lse -infinity.
//
// The T x T matrix is never stored: online softmax forward (Milakov & Gimelshein 2018; Dao et al. 2022), recomputation
// from the row log-sum-exp backward (Dao 2023). Scores, softmax and sums are fp32.
//
// q, k, v and o are strided, so that they may be the parts of one packed qkv row: element (b, t, head, d) of q lies at
// q[b*q_batch + t*q_row + head*D + d], all in elements; o and its gradient use o_*, k and v (and dk, dv) use kv_*.
// Rows are aligned to 16 bytes where D % 8 == 0. Any even D up to 256, any lengths.

#include "kernels/runtime/sm_budget.h"
#include "kernels/rope.h"
#include "kernels/runtime/device.h"

namespace rz {

constexpr int64_t kMaxHeadDim = 256;

// CUDA kernels, the later the faster: what each covers is in attention_cuda.h.
enum class AttentionKernels : uint8_t { fma, mma, wgmma };

struct AttentionShape {
    int64_t B, Tq, Tk;
    int64_t H, K, D;  // query heads, key/value heads (divides H), head dimension
    int64_t q_row, q_batch;
    int64_t kv_row, kv_batch;
    int64_t o_row, o_batch;
    float scale;  // 1 / sqrt(D) unless asked otherwise
    DType dtype;
    int64_t q_at = -1;  // position of query 0, at least k_at; -1: the last query sits at the last key's
    int64_t k_at = 0;   // position of key 0
    // (B, Tq) int32, batch rows first_key_batch apart: positions, none after the query's own, never less than the
    // query before has. On the device; nullptr: every query sees key 0.
    const int32_t* first_key = nullptr;
    int64_t first_key_batch = 0;
    // The fastest kernels that may be used: all; less for tests and to compare them. The CPU op does not ask.
    AttentionKernels fastest = AttentionKernels::wgmma;

    // Place of query 0, counted from key 0
    constexpr int64_t offset() const { return q_at < 0 ? Tk - Tq : q_at - k_at; }
};

struct AttentionForward {
    void* o;        // (B, Tq, H, D) strided   =
    float* lse;     // (B, H, Tq) f32          =   natural log of the row's sum of exp(scale * q k)
    const void* q;  // (B, Tq, H, D) strided
    const void* k;  // (B, Tk, K, D) strided
    const void* v;  // (B, Tk, K, D) strided
    AttentionShape shape;
    uint32_t* amax = nullptr;  // (1) max= magnitudes of o (kernels/magnitude.h); optional
    SmBudget beside = {};      // attention_forward() takes the context's; no bit depends on it
};

// Two runs give the same bits: no atomics; dk and dv are summed over the group's heads in order. lse and o may be those
// of a softmax over more keys than the call's: then the gradients are those of the call's keys in it.
struct AttentionBackward {
    void* dq;         // as q   =
    void* dk;         // as k   =, or += in f32 with sum_dkv
    void* dv;         // as v   likewise
    const void* d_o;  // as o
    const void* q;
    const void* k;
    const void* v;
    const void* o;
    const float* lse;
    void* workspace;       // attention_backward_workspace(shape) bytes, 256-byte aligned
    AttentionShape shape;  // dq has q's strides, dk and dv have k's
    // dk and dv are f32 and added to: what one chunk of queries gives to keys that other chunks see too. On a CPU with
    // one query head per key head, chunks of queries in order give the bits of one call, before its rounding.
    bool sum_dkv = false;
    // Memory for score gradients (attention_kept.h), attention_kept_bytes() or less: heads are worked on in sections
    // that fit. 256-byte aligned; optional. No bit depends on it.
    void* kept = nullptr;
    int64_t kept_bytes = 0;
    // RoPE's backward pass over dq and dk, which then lie with dv in one packed row that begins at back.x = dq. The
    // bits are those of rope() after the call, its amax of all three included; the tensor-core kernels do it in their
    // stores. Without x: none. Not with sum_dkv.
    Rope back = {};
    SmBudget beside = {};  // attention_backward() takes the context's; no bit depends on it
};

int64_t attention_backward_workspace(const AttentionShape&);  // in bytes
// Advice for a user whose head dimension no tensor-core kernel covers, with the cost; else, and in f32, empty.
std::string attention_advice(DType dtype, int64_t D);

void attention_forward(Stream&, const AttentionForward&);
void attention_backward(Stream&, const AttentionBackward&);

void attention_forward_cpu(const AttentionForward&);
void attention_backward_cpu(const AttentionBackward&);
void attention_forward_cuda(const AttentionForward&, CudaStream);
void attention_backward_cuda(const AttentionBackward&, CudaStream);

}  // namespace rz
