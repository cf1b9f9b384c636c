#pragma once
// Context parallelism: the sequences of a batch are cut over the cp axis, and attention alone needs what other ranks
// hold. A sequence is cut into 2 cp chunks of which rank r has r and 2 cp - 1 - r, first the earlier one, so that all
// ranks have as many pairs of query and key (Llama 3, Dubey et al. 2024, section 3.3.2). Every other op works on the
// rank's rows alone; a weight's gradient is summed over cp with the data axis, which includes it.
//
// Keys and values are gathered from all ranks before attention, and again in the backward pass; each chunk of queries
// is then one call with the keys up to its end. The gradients of keys and values are summed over the ranks in fp32, in
// ascending order, and rounded once. Everything else has the bits of one rank with whole sequences.

#include <vector>

#include "comm/mesh.h"
#include "kernels/attention/attention.h"

namespace rz {

// The chunks of place `cp` among the 2 cp.size of a sequence, in the order in which its rank holds them
struct ContextChunks {
    int64_t early, late;
    explicit ContextChunks(Place cp) : early(cp.rank), late(2 * cp.size - 1 - cp.rank) {}
    int64_t operator[](int slot) const { return slot == 0 ? early : late; }
};

struct ContextShape {
    int64_t B, T;  // sequences of a micro-batch, and their whole length: a multiple of 2 cp
    int64_t heads, kv_heads, head_dim;
    DType dtype;
};

class ContextParallel {
   public:
    // Collective over the cp axis. The mesh outlives this.
    ContextParallel(Mesh&, Device, const ContextShape&);

    int64_t T() const { return shape_.T; }
    int64_t own_rows() const { return 2 * chunk_; }  // of each sequence
    // Bytes that this rank sends in forward(), and in backward() besides.
    int64_t gather_bytes() const { return own_keys_.bytes() * (mesh_.cp().size() - 1); }
    int64_t scatter_bytes() const { return own_dkv_.bytes() * (mesh_.cp().size() - 1); }

    // Attention of this rank's rows. As AttentionForward and AttentionBackward, of the packed rows of a block:
    // qkv and dqkv (B, own_rows, (heads + 2 kv_heads) head_dim), o and d_o (B, own_rows, heads head_dim), all dtype;
    // lse (2, B, heads, chunk) f32. first_key (B, own_rows) or nullptr, in positions of the whole sequence.
    void forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key);
    // workspace: attention_backward_workspace of own_rows queries.
    void backward(Stream& compute, void* dqkv, const void* d_o, const void* qkv, const void* o, const float* lse,
                  void* workspace, const int32_t* first_key);

   private:
    AttentionShape shape_of(int slot, const int32_t* first_key) const;
    int64_t row() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim; }
    int64_t q_columns() const { return shape_.heads * shape_.head_dim; }
    int64_t kv_columns() const { return 2 * shape_.kv_heads * shape_.head_dim; }
    void gather_keys(Stream& compute, const void* qkv);
    template <class Collective>
    void on_mesh(Stream& compute, Collective&& collective);

    Mesh& mesh_;
    ContextShape shape_;
    int64_t chunk_;
    std::vector<int64_t> offsets_;           // of the ranks' parts of by_rank
    Buffer own_keys_, keys_by_rank_, keys_;  // (B, own_rows), (cp, B, own_rows), (B, T): k and v, dtype
    Buffer dkv_, dkv_by_rank_, own_dkv_;     // likewise their gradients, f32
};

}  // namespace rz
