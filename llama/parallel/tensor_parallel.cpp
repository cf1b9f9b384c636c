#include "llama/parallel/tensor_parallel.h"

#include <algorithm>

#include "comm/watch.h"
#include "kernels/elementwise.h"

namespace rz {

int64_t TensorParallel::rows(int64_t N) const { return N / size() + (rank() < N % size() ? 1 : 0); }

std::vector<int64_t> TensorParallel::row_offsets(int64_t N, int64_t C) const {
    std::vector<int64_t> offsets = even_offsets(N, size());
    for (int64_t& o : offsets) o = checked_mul(o, C, "rows of the residual stream");
    return offsets;
}

// Compute waits for what is enqueued here, and that for compute.
template <class Body>
void TensorParallel::ordered(Stream& compute, const Body& body) const {
    Stream& comm = mesh_.stream();
    comm.wait(compute.record());
    body(comm);
    const Event done = comm.record();
    if (meter_)
        meter_->wait(compute, done);
    else
        compute.wait(done);
}

void TensorParallel::gather(Stream& compute, void* all, const void* own, int64_t N, int64_t C, DType dtype) const {
    ordered(compute, [&](Stream& comm) {
        mesh_.tp().all_gather(comm, {.out = all, .in = own, .offsets = row_offsets(N, C), .dtype = dtype});
    });
}

void TensorParallel::scatter(Stream& compute, void* own, const void* partial, int64_t N, int64_t C, DType dtype) const {
    ordered(compute, [&](Stream& comm) {
        mesh_.tp().reduce_scatter(comm, {.out = own,
                                         .in = partial,
                                         .offsets = row_offsets(N, C),
                                         .dtype = wire_,
                                         .wire = wire_,
                                         .out_dtype = dtype});
    });
}

void TensorParallel::share(Stream& compute, float* all, const float* own, int64_t n) const {
    ordered(compute, [&](Stream& comm) {
        mesh_.tp().all_gather(
            comm, {.out = all, .in = own, .offsets = even_offsets(n * size(), size()), .dtype = DType::f32});
    });
}

void TensorParallel::sum(Stream& compute, void* unit, const Replicated& r, DType dtype) {
    Stream& comm = mesh_.stream();
    comm.wait(compute.record());
    char* data = static_cast<char*>(unit) + r.begin * size_of(dtype);
    if (r.ranks == size())
        mesh_.tp().all_reduce(
            comm, {.out = data, .in = data, .offsets = even_offsets(r.count, size()), .dtype = dtype, .wire = dtype});
    else
        exchange_sum(comm, data, r, dtype);
}

// Some of the axis: each sends its values to the others of them, and all add the same rows in the same order.
void TensorParallel::exchange_sum(Stream& comm, void* data, const Replicated& r, DType dtype) {
    Transport& transport = mesh_.tp().transport();
    const int64_t bytes = checked_mul(r.count, size_of(dtype), "gradients of shared heads");
    if (const int64_t all = checked_mul(bytes, r.ranks, "gradients of shared heads"); all > arrived_.bytes()) {
        comm.synchronize();
        arrived_ = Buffer();
        arrived_ = Buffer(transport.device(), all, MemKind::comm, "gradients of shared heads");
    }
    MessageGroup group;
    if (Watch* watch = transport.watch()) {
        group.seq = watch->queue("sum of shared heads", transport.group().c_str(), transport.world_rank(0), bytes);
        group.is_last = true;
    }
    for (int i = 0; i < r.ranks; ++i) {
        const int peer = r.first_rank + i;
        if (peer == rank()) {
            comm.copy(arrived_.bytes_at(i * bytes), data, bytes);
            continue;
        }
        group.send(data, bytes, peer);
        group.recv(arrived_.bytes_at(i * bytes), bytes, peer);
    }
    transport.exchange(comm, group);
    sum_rows(comm, {.out = data,
                    .x = arrived_.data(),
                    .rows = r.ranks,
                    .n = r.count,
                    .stride = r.count,
                    .out_dtype = dtype,
                    .dtype = dtype});
}

int64_t TensorParallel::sum_bytes(const Replicated& r, DType dtype) const {
    const int64_t e = size_of(dtype);
    if (r.ranks != size()) return (r.ranks - 1) * r.count * e;
    const int64_t own = r.count / size() + (rank() < r.count % size() ? 1 : 0);
    return (r.count - own) * e + own * e * (size() - 1);
}

}  // namespace rz
