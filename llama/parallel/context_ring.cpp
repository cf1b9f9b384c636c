// The ring of context.h: keys and values travel from rank to rank while attention works on those that are here, and
// their gradients follow them home.
#include <utility>

#include "comm/watch.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/copy_rows.h"
#include "kernels/elementwise.h"
#include "llama/parallel/context.h"

namespace rz {

static char* at(const Buffer& base, int64_t elements, DType t) {
    return static_cast<char*>(base.data()) + elements * size_of(t);
}
void ContextParallel::Ring::allocate(Device device, const ContextShape& s, int64_t rows, int64_t q, int64_t kv) {
    const auto take = [&](int64_t columns, DType t, const char* name) {
        const int64_t n = checked_mul(checked_mul(s.B, rows, name), columns, name);
        return Buffer(device, checked_mul(n, size_of(t), name), MemKind::workspace, name);
    };
    for (Buffer& b : keys) b = take(kv, s.dtype, "travelling keys and values");
    for (Buffer& b : gradients) b = take(kv, DType::f32, "gradient of travelling keys and values");
    fresh = take(kv, DType::f32, "gradient of the keys and values here");
    queries = take(q, s.dtype, "queries");
    part = take(q, s.dtype, "attention of the keys here");
    sum = take(q, DType::f32, "attention of the keys so far");
    lse = take(s.heads, DType::f32, "attention lse of the keys here");
}

// From each rank to the next. What is sent and received has been read by compute's work so far.
void ContextParallel::pass_on(Stream& compute, const Buffer& from, const Buffer& to, Event& arrived) {
    between_graphs(graphs_, [this, &compute, &from, &to, &arrived] {
        const int rank = mesh_.cp().rank(), size = mesh_.cp().size();
        Stream& comm = mesh_.stream(Axis::cp);
        comm.wait(compute.record());
        MessageGroup group;
        Transport& transport = mesh_.cp().transport();
        if (Watch* watch = transport.watch()) {
            group.seq = watch->queue("ring hop", transport.group().c_str(), transport.world_rank(0), from.bytes());
            group.is_last = true;
        }
        group.send(from.data(), from.bytes(), (rank + 1) % size);
        group.recv(to.data(), to.bytes(), (rank + size - 1) % size);
        const Event began = comm.record(/*timing=*/true);
        transport.exchange(comm, group);
        arrived = comm.record(/*timing=*/true);
        if (meter_) meter_->add("ring hop", from.bytes(), began, arrived, name_of(Axis::cp));
    });
}
void ContextParallel::wait(Stream& compute, const Event& arrived) {
    between_graphs(graphs_, [this, &compute, &arrived] { compute_waits(compute, arrived); });
}

// Queries of this rank's chunk `slot` against a chunk of the keys here
AttentionShape ContextParallel::ring_shape(int slot, int64_t key_chunk, const int32_t* first_key) const {
    AttentionShape s = shape_of(slot, first_key);
    s.Tk = chunk_;
    s.k_at = key_chunk * chunk_;
    s.kv_batch = own_rows() * kv_columns();
    return s;
}

// Calls f(slot, which chunk of `source`'s, its number) for each pair of a chunk of this rank's queries and one of the
// keys of `source` that they see.
template <class F>
void ContextParallel::for_each_pair(int source, F&& f) const {
    const ContextChunks own(mesh_.place(Axis::cp)), theirs({source, mesh_.cp().size()});
    for (int slot = 0; slot < 2; ++slot)
        for (int key_slot = 0; key_slot < 2; ++key_slot)
            if (theirs[key_slot] <= own[slot] && !is_before_window(own[slot], theirs[key_slot]))
                f(slot, key_slot, theirs[key_slot]);
}

// True: no query of a chunk sees a key of an earlier one: the first query sees furthest back.
bool ContextParallel::is_before_window(int64_t queries, int64_t keys) const {
    return shape_.window > 0 && (queries - keys - 1) * chunk_ + 1 >= shape_.window;
}

void ContextParallel::ring_forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key) {
    const DType t = shape_.dtype;
    const int size = mesh_.cp().size(), rank = mesh_.cp().rank();
    const int64_t q = q_columns(), kv = kv_columns(), lse_slot = shape_.B * shape_.heads * chunk_;
    pack_own_keys(compute, qkv, ring_.keys[0]);
    std::array<bool, 2> first = {true, true};  // of a slot: its rank's own keys, of which it sees some
    for (int step = 0; step < size; ++step) {
        const Buffer& keys = ring_.keys[size_t(step % 2)];
        if (step + 1 < size) pass_on(compute, keys, ring_.keys[size_t((step + 1) % 2)], ring_.keys_arrived);
        for_each_pair((rank - step + size) % size, [&](int slot, int key_slot, int64_t key_chunk) {
            const char* k = at(keys, key_slot * chunk_ * kv, t);
            AttentionShape shape = ring_shape(slot, key_chunk, first_key);
            const int64_t own = slot * chunk_ * q;
            attention_forward(compute, {.o = at(ring_.part, own, t),
                                        .lse = ring_.lse.as<float>(),
                                        .q = at(qkv, slot * chunk_ * row(), t),
                                        .k = k,
                                        .v = k + kv / 2 * size_of(t),
                                        .shape = shape});
            attention_merge(compute, {.o = ring_.sum.as<float>() + own,
                                      .lse = lse + slot * lse_slot,
                                      .part_o = at(ring_.part, own, t),
                                      .part_lse = ring_.lse.as<float>(),
                                      .B = shape_.B,
                                      .T = chunk_,
                                      .H = shape_.heads,
                                      .D = shape_.head_dim,
                                      .o_batch = own_rows() * q,
                                      .part_batch = own_rows() * q,
                                      .first = std::exchange(first[size_t(slot)], false),
                                      .dtype = t});
        });
        if (step + 1 < size) wait(compute, ring_.keys_arrived);
    }
    cast(compute,
         {.out = o, .x = ring_.sum.data(), .n = shape_.B * own_rows() * q, .out_dtype = t, .dtype = DType::f32});
}

// The gradients of a rank's keys arrive here when those of the step before have been added, and go on to the next rank
// while it works; after the last step they are one hop from home.
void ContextParallel::ring_backward(Stream& compute, void* dqkv, const void* d_o, const void* qkv, const void* o,
                                    const float* lse, void* workspace, const int32_t* first_key) {
    const DType t = shape_.dtype;
    const int size = mesh_.cp().size(), rank = mesh_.cp().rank();
    const int64_t q = q_columns(), kv = kv_columns(), rows = shape_.B * own_rows();
    const int64_t lse_slot = shape_.B * shape_.heads * chunk_;
    pack_own_keys(compute, qkv, ring_.keys[0]);
    pack(compute, ring_.queries, qkv, q);
    compute.zero(ring_.sum.data(), ring_.sum.bytes());
    compute.zero(ring_.gradients[0].data(), ring_.gradients[0].bytes());
    for (int step = 0; step < size; ++step) {
        const Buffer &keys = ring_.keys[size_t(step % 2)], &gradients = ring_.gradients[size_t(step % 2)];
        if (step + 1 < size) pass_on(compute, keys, ring_.keys[size_t((step + 1) % 2)], ring_.keys_arrived);
        compute.zero(ring_.fresh.data(), ring_.fresh.bytes());
        for_each_pair((rank - step + size) % size, [&](int slot, int key_slot, int64_t key_chunk) {
            const int64_t key = key_slot * chunk_ * kv, own = slot * chunk_ * q;
            AttentionShape shape = ring_shape(slot, key_chunk, first_key);
            shape.q_row = q, shape.q_batch = own_rows() * q;
            attention_backward(compute, {.dq = at(ring_.part, own, t),
                                         .dk = at(ring_.fresh, key, DType::f32),
                                         .dv = at(ring_.fresh, key + kv / 2, DType::f32),
                                         .d_o = at(d_o, own, t),
                                         .q = at(ring_.queries, own, t),
                                         .k = at(keys, key, t),
                                         .v = at(keys, key + kv / 2, t),
                                         .o = at(o, own, t),
                                         .lse = lse + slot * lse_slot,
                                         .workspace = workspace,
                                         .shape = shape,
                                         .sum_dkv = true});
            for (int64_t b = 0; b < shape_.B; ++b) {
                float* sum = ring_.sum.as<float>() + b * own_rows() * q + own;
                reduce_add(compute, {.out = sum,
                                     .a = sum,
                                     .b = at(ring_.part, b * own_rows() * q + own, t),
                                     .n = chunk_ * q,
                                     .out_dtype = DType::f32,
                                     .a_dtype = DType::f32,
                                     .b_dtype = t});
            }
        });
        if (step > 0) wait(compute, ring_.gradients_arrived);
        reduce_add(compute, {.out = gradients.data(),
                             .a = gradients.data(),
                             .b = ring_.fresh.data(),
                             .n = rows * kv,
                             .out_dtype = DType::f32,
                             .a_dtype = DType::f32,
                             .b_dtype = DType::f32});
        if (step + 1 < size) wait(compute, ring_.keys_arrived);
        pass_on(compute, gradients, ring_.gradients[size_t((step + 1) % 2)], ring_.gradients_arrived);
    }
    unpack_gradients(compute, dqkv, ring_.sum, q);
    wait(compute, ring_.gradients_arrived);
    unpack_gradients(compute, at(dqkv, q, t), ring_.gradients[size_t(size % 2)], kv);
}

}  // namespace rz
