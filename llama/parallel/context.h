#pragma once
// Context parallelism: the sequences of a batch are cut over the cp axis, and attention alone needs what other ranks
// hold. A sequence is cut into 2 cp chunks of which rank r has r and 2 cp - 1 - r, first the earlier one, so that all
// ranks have as many pairs of query and key (Llama 3, Dubey et al. 2024, section 3.3.2). Every other op works on the
// rank's rows alone; a weight's gradient is summed over cp with the data axis, which includes it.
//
// Keys and values are gathered from all ranks before attention, and again in the backward pass; each chunk of queries
// is then one call with the keys up to its end. The gradients of keys and values are summed over the ranks in fp32, in
// ascending order, and rounded once. Everything else has the bits of one rank with whole sequences.

//
// Or they go round in a ring (Liu et al. 2023): attention of the keys that are here, while the next ones come. Outputs
// are joined by their log-sum-exp in fp32; gradients of keys and values follow their keys and are summed on the way, in
// an order that depends on the rank. No buffer is as long as the sequence. In 16 bits each part of o and dq is rounded
// before it is joined.

#include <array>
#include <vector>

#include "comm/mesh.h"
#include "comm/meter.h"
#include "kernels/attention/attention.h"
#include "kernels/runtime/graph.h"
#include "kernels/runtime/memory.h"
#include "kernels/runtime/names.h"

namespace rz {

// The chunks of place `cp` among the 2 cp.size of a sequence, in the order in which its rank holds them
struct ContextChunks {
    int64_t early, late;
    explicit ContextChunks(AxisRank cp) : early(cp.rank), late(2 * cp.size - 1 - cp.rank) {}
    int64_t operator[](int slot) const { return slot == 0 ? early : late; }
};

enum class ContextExchange { gather, ring };
template <>
inline constexpr auto kNames<ContextExchange> =
    std::to_array<Named<ContextExchange>>({{ContextExchange::gather, "gather"}, {ContextExchange::ring, "ring"}});

struct ContextShape {
    int64_t B, T;  // sequences of a micro-batch, and their whole length: a multiple of 2 cp
    int64_t heads, kv_heads, head_dim;
    DType dtype;
    ContextExchange exchange = ContextExchange::gather;
    int64_t window = 0;  // ModelConfig's: a ring leaves out chunks of keys that no query of a chunk sees
};

class ContextParallel {
   public:
    // Collective over the cp axis. The mesh and the meter (nullptr: none) outlive this.
    ContextParallel(Mesh&, Device, const ContextShape&, CommMeter* meter = nullptr);

    int64_t B() const { return shape_.B; }
    int64_t T() const { return shape_.T; }
    int64_t own_rows() const { return 2 * chunk_; }  // of each sequence
    // In the sequence, of one of this rank's rows.
    int64_t position(int64_t row) const {
        return ContextChunks(mesh_.place(Axis::cp))[int(row / chunk_)] * chunk_ + row % chunk_;
    }
    // Bytes that this rank sends: keys and values, in either pass, and in backward() their gradients. In a ring these
    // go one hop more.
    int64_t key_bytes() const { return part_ * size_of(shape_.dtype) * (mesh_.cp().size() - 1); }
    int64_t gradient_bytes() const { return part_ * 4 * (mesh_.cp().size() - (rings() ? 0 : 1)); }

    // Whose piece is enqueued from now on: messages stand between its graphs. nullptr: none is.
    void set_graphs(GraphSet* graphs) { graphs_ = graphs; }

    // Attention of this rank's rows. As AttentionForward and AttentionBackward, of the packed rows of a block:
    // qkv and dqkv (B, own_rows, (heads + 2 kv_heads) head_dim), o and d_o (B, own_rows, heads head_dim), all dtype;
    // lse (2, B, heads, chunk) f32. first_key (B, own_rows) or nullptr, in positions of the whole sequence. Logits are
    // multiplied by `sharpness`.
    void forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key, float sharpness = 1);
    // workspace: attention_backward_workspace of own_rows queries.
    void backward(Stream& compute, void* dqkv, const void* d_o, const void* qkv, const void* o, const float* lse,
                  void* workspace, const int32_t* first_key);

   private:
    struct Ring {
        std::array<Buffer, 2> keys, gradients;  // (B, own_rows) k and v: here, and on their way; f32
        Buffer fresh;                           // likewise f32: what this rank adds
        Buffer queries, part, sum, lse;  // (B, own_rows, heads, head_dim), dtype, dtype and f32; (B, heads, chunk)
        Event keys_arrived, gradients_arrived;  // of the latest step
        void allocate(Device, const ContextShape&, int64_t rows, int64_t q, int64_t kv);
    };
    bool rings() const { return shape_.exchange == ContextExchange::ring; }
    void ring_forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key);
    void ring_backward(Stream& compute, void* dqkv, const void* d_o, const void* qkv, const void* o, const float* lse,
                       void* workspace, const int32_t* first_key);
    AttentionShape ring_shape(int slot, int64_t key_chunk, const int32_t* first_key) const;
    bool is_before_window(int64_t queries, int64_t keys) const;
    template <class F>
    void for_each_pair(int source, F&& f) const;
    void pass_on(Stream& compute, const Buffer& from, const Buffer& to, Event& arrived);
    void wait(Stream& compute, const Event& arrived);
    void compute_waits(Stream& compute, const Event&, const Event& before = {}) const;
    // Columns of this rank's rows: out of a packed row, and f32 gradients into one.
    void pack(Stream& compute, const Buffer& to, const void* first, int64_t columns) const;
    void unpack_gradients(Stream& compute, void* first, const Buffer& from, int64_t columns) const;
    void pack_own_keys(Stream& compute, const void* qkv, const Buffer& to) const;

    void gather_forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key);
    AttentionShape shape_of(int slot, const int32_t* first_key) const;
    int64_t row() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim; }
    int64_t q_columns() const { return shape_.heads * shape_.head_dim; }
    int64_t kv_columns() const { return 2 * shape_.kv_heads * shape_.head_dim; }
    void gather_keys(Stream& compute, const void* qkv);
    template <class Collective>
    void on_mesh(Stream& compute, const Collective& collective);

    Mesh& mesh_;
    CommMeter* meter_;
    GraphSet* graphs_ = nullptr;
    ContextShape shape_;
    float sharpness_ = 1;                    // of the forward pass that is being enqueued
    int64_t chunk_, part_ = 0;               // tokens; elements of this rank's keys and values
    std::vector<int64_t> offsets_;           // of the ranks' parts of by_rank
    Buffer own_keys_, keys_by_rank_, keys_;  // (B, own_rows), (cp, B, own_rows), (B, T): k and v, dtype
    Buffer dkv_, dkv_by_rank_, own_dkv_;     // likewise their gradients, f32
    Ring ring_;
};

}  // namespace rz
