#include "llama/parallel/context.h"

#include <cmath>

#include "kernels/copy_rows.h"
#include "kernels/runtime/memory.h"

namespace rz {

ContextParallel::ContextParallel(Mesh& mesh, Device device, const ContextShape& shape, CommMeter* meter)
    : mesh_(mesh), meter_(meter), shape_(shape), chunk_(shape.T / (2 * mesh.cp().size())) {
    const int cp = mesh.cp().size();
    require(shape.T % (2 * cp) == 0, "sequences of %ld tokens do not cut into 2 x %d chunks", shape.T, cp);
    const int64_t part = part_ =
        checked_mul(checked_mul(shape.B, own_rows(), "context: rows"), kv_columns(), "context: keys");
    offsets_ = even_offsets(checked_mul(part, cp, "context: keys"), cp, part);
    const auto take = [&](int64_t n, DType t, const char* name) {
        return Buffer(device, checked_mul(n, size_of(t), name), MemKind::workspace, name);
    };
    if (rings()) {
        ring_.allocate(device, shape, own_rows(), q_columns(), kv_columns());
        return;
    }
    own_keys_ = take(part, shape.dtype, "own keys and values");
    keys_by_rank_ = take(part * cp, shape.dtype, "keys and values by rank");
    keys_ = take(part * cp, shape.dtype, "keys and values");
    dkv_ = take(part * cp, DType::f32, "gradient of keys and values");
    dkv_by_rank_ = take(part * cp, DType::f32, "gradient of keys and values by rank");
    own_dkv_ = take(part, DType::f32, "gradient of own keys and values");
}

// Queries of a chunk, where this rank holds it, against the sequence up to its end
AttentionShape ContextParallel::shape_of(int slot, const int32_t* first_key) const {
    const int64_t c = ContextChunks(mesh_.place(Axis::cp))[slot];
    return {.B = shape_.B,
            .Tq = chunk_,
            .Tk = (c + 1) * chunk_,
            .H = shape_.heads,
            .K = shape_.kv_heads,
            .D = shape_.head_dim,
            .q_row = row(),
            .q_batch = own_rows() * row(),
            .kv_row = kv_columns(),
            .kv_batch = shape_.T * kv_columns(),
            .o_row = q_columns(),
            .o_batch = own_rows() * q_columns(),
            .scale = sharpness_ / std::sqrt(float(shape_.head_dim)),
            .dtype = shape_.dtype,
            .q_at = c * chunk_,
            .first_key = first_key ? first_key + slot * chunk_ : nullptr,
            .first_key_batch = first_key ? own_rows() : 0};
}

// Between compute's work so far and its next. `collective` holds by value what it needs: a graph calls it again.
template <class Collective>
void ContextParallel::on_mesh(Stream& compute, const Collective& collective) {
    between_graphs(graphs_, [this, &compute, collective] {
        Stream& comm = mesh_.stream(Axis::cp);
        const Event before = compute.record(/*timing=*/meter_);
        comm.wait(before);
        collective(comm);
        compute_waits(compute, comm.record(), before);
    });
}

void ContextParallel::compute_waits(Stream& compute, const Event& event, const Event& before) const {
    if (meter_)
        meter_->wait(compute, event, before);
    else
        compute.wait(event);
}

void ContextParallel::pack(Stream& compute, const Buffer& to, const void* first, int64_t columns) const {
    copy_rows(compute, {.out = to.data(),
                        .x = first,
                        .rows = shape_.B * own_rows(),
                        .columns = columns,
                        .out_stride = columns,
                        .stride = row(),
                        .out_dtype = shape_.dtype,
                        .dtype = shape_.dtype});
}

void ContextParallel::pack_own_keys(Stream& compute, const void* qkv, const Buffer& to) const {
    pack(compute, to, at(qkv, q_columns(), shape_.dtype), kv_columns());
}

void ContextParallel::unpack_gradients(Stream& compute, void* first, const Buffer& from, int64_t columns) const {
    copy_rows(compute, {.out = first,
                        .x = from.data(),
                        .rows = shape_.B * own_rows(),
                        .columns = columns,
                        .out_stride = row(),
                        .stride = columns,
                        .out_dtype = shape_.dtype,
                        .dtype = DType::f32});
}

void ContextParallel::gather_keys(Stream& compute, const void* qkv) {
    const int64_t kv = kv_columns(), rows = own_rows();
    const DType t = shape_.dtype;
    pack_own_keys(compute, qkv, own_keys_);
    on_mesh(compute, [this, t](Stream& s) {
        mesh_.cp().all_gather(s,
                              {.out = keys_by_rank_.data(), .in = own_keys_.data(), .offsets = offsets_, .dtype = t});
    });
    for (int rank = 0; rank < mesh_.cp().size(); ++rank)
        for (int slot = 0; slot < 2; ++slot) {
            const int64_t c = ContextChunks({rank, mesh_.cp().size()})[slot];
            copy_rows(compute, {.out = at(keys_.data(), c * chunk_ * kv, t),
                                .x = at(keys_by_rank_.data(), offsets_[size_t(rank)] + slot * chunk_ * kv, t),
                                .rows = shape_.B,
                                .columns = chunk_ * kv,
                                .out_stride = shape_.T * kv,
                                .stride = rows * kv,
                                .out_dtype = t,
                                .dtype = t});
        }
}

void ContextParallel::forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key,
                              float sharpness) {
    sharpness_ = sharpness;
    rings() ? ring_forward(compute, o, lse, qkv, first_key) : gather_forward(compute, o, lse, qkv, first_key);
    sharpness_ = 1;
}

void ContextParallel::gather_forward(Stream& compute, void* o, float* lse, const void* qkv, const int32_t* first_key) {
    const DType t = shape_.dtype;
    gather_keys(compute, qkv);
    for (int slot = 0; slot < 2; ++slot)
        attention_forward(compute, {.o = at(o, slot * chunk_ * q_columns(), t),
                                    .lse = lse + slot * shape_.B * shape_.heads * chunk_,
                                    .q = at(qkv, slot * chunk_ * row(), t),
                                    .k = keys_.data(),
                                    .v = at(keys_.data(), kv_columns() / 2, t),
                                    .shape = shape_of(slot, first_key)});
}

void ContextParallel::backward(Stream& compute, void* dqkv, const void* d_o, const void* qkv, const void* o,
                               const float* lse, void* workspace, const int32_t* first_key) {
    if (rings()) return ring_backward(compute, dqkv, d_o, qkv, o, lse, workspace, first_key);
    const DType t = shape_.dtype;
    const int64_t kv = kv_columns(), rows = own_rows();
    gather_keys(compute, qkv);
    compute.zero(dkv_.data(), dkv_.bytes());
    for (int slot = 0; slot < 2; ++slot)
        attention_backward(compute, {.dq = at(dqkv, slot * chunk_ * row(), t),
                                     .dk = dkv_.data(),
                                     .dv = at(dkv_.data(), kv / 2, DType::f32),
                                     .d_o = at(d_o, slot * chunk_ * q_columns(), t),
                                     .q = at(qkv, slot * chunk_ * row(), t),
                                     .k = keys_.data(),
                                     .v = at(keys_.data(), kv / 2, t),
                                     .o = at(o, slot * chunk_ * q_columns(), t),
                                     .lse = lse + slot * shape_.B * shape_.heads * chunk_,
                                     .workspace = workspace,
                                     .shape = shape_of(slot, first_key),
                                     .sum_dkv = true});
    for (int rank = 0; rank < mesh_.cp().size(); ++rank)
        for (int slot = 0; slot < 2; ++slot) {
            const int64_t c = ContextChunks({rank, mesh_.cp().size()})[slot];
            copy_rows(compute, {.out = at(dkv_by_rank_.data(), offsets_[size_t(rank)] + slot * chunk_ * kv, DType::f32),
                                .x = at(dkv_.data(), c * chunk_ * kv, DType::f32),
                                .rows = shape_.B,
                                .columns = chunk_ * kv,
                                .out_stride = rows * kv,
                                .stride = shape_.T * kv,
                                .out_dtype = DType::f32,
                                .dtype = DType::f32});
        }
    on_mesh(compute, [this](Stream& s) {
        mesh_.cp().reduce_scatter(s, {.out = own_dkv_.data(),
                                      .in = dkv_by_rank_.data(),
                                      .offsets = offsets_,
                                      .dtype = DType::f32,
                                      .wire = DType::f32,
                                      .out_dtype = DType::f32});
    });
    unpack_gradients(compute, at(dqkv, q_columns(), t), own_dkv_, kv);
}

}  // namespace rz
