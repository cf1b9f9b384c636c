#include "llama/parallel/tensor_parallel.h"

#include "comm/watch.h"
#include "kernels/elementwise.h"
#include "kernels/fp8/fold_scales.h"

namespace rz {

int64_t TensorParallel::rows(int64_t N) const { return N / size() + (rank() < N % size() ? 1 : 0); }

std::vector<int64_t> TensorParallel::row_offsets(int64_t N, int64_t C) const {
    std::vector<int64_t> offsets = even_offsets(N, size());
    for (int64_t& o : offsets) o = checked_mul(o, C, "rows of the residual stream");
    return offsets;
}

// Between compute's work so far and its next. `body` holds by value what it needs: a graph calls it again.
template <class Body>
void TensorParallel::ordered(Stream& compute, const Body& body) const {
    between_graphs(graphs_, [this, &compute, body] {
        Stream& comm = mesh_.stream(Axis::tp);
        const Event before = compute.record(/*timing=*/meter_);
        comm.wait(before);
        body(comm);
        compute_waits(compute, comm.record(), before);
    });
}

void TensorParallel::compute_waits(Stream& compute, const Event& event, const Event& before) const {
    if (meter_)
        meter_->wait(compute, event, before);
    else
        compute.wait(event);
}

// An operation of several messages, from the first's start.
void TensorParallel::meter(const char* op, int64_t sent_before, const Event& began, Stream& comm) const {
    if (meter_)
        meter_->add(op, mesh_.tp().transport().bytes_sent() - sent_before, began, comm.record(/*timing=*/true),
                    name_of(Axis::tp));
}

void TensorParallel::gather(Stream& compute, void* all, const void* own, int64_t N, int64_t C, DType dtype,
                            const Product& product) const {
    if (overlap_ && product)
        return gather_parts(compute, static_cast<char*>(all), static_cast<const char*>(own), row_offsets(N, 1), C,
                            dtype, product);
    ordered(compute, [=, this](Stream& comm) {
        mesh_.tp().all_gather(comm, {.out = all, .in = own, .offsets = row_offsets(N, C), .dtype = dtype});
    });
    if (product) product(0, N);
}

Event TensorParallel::start_gather(Stream& compute, void* all, const void* own, int64_t N, int64_t C,
                                   DType dtype) const {
    Stream& comm = mesh_.stream(Axis::tp);
    comm.wait(compute.record());
    mesh_.tp().all_gather(comm, {.out = all, .in = own, .offsets = row_offsets(N, C), .dtype = dtype});
    return comm.record();
}

void TensorParallel::scatter(Stream& compute, void* own, const void* partial, int64_t N, int64_t C, DType dtype,
                             const Product& product, Event* done) {
    if (overlap_ && product)
        return scatter_parts(compute, own, static_cast<const char*>(partial), row_offsets(N, 1), C, dtype, product,
                             done);
    if (product) product(0, N);
    ordered(compute, [=, this](Stream& comm) {
        mesh_.tp().reduce_scatter(comm, {.out = own,
                                         .in = partial,
                                         .offsets = row_offsets(N, C),
                                         .dtype = wire_,
                                         .wire = wire_,
                                         .out_dtype = dtype});
    });
}

// ---- part by part ---------------------------------------------------------------------------------------------------

uint64_t TensorParallel::record(const char* what, int64_t bytes) const {
    const Transport& t = mesh_.tp().transport();
    return t.watch() ? t.watch()->queue(what, t.group().c_str(), t.world_rank(0), bytes) : 0;
}

MessageGroup TensorParallel::step_of(uint64_t seq, bool is_last) const {
    MessageGroup group;
    group.seq = seq;
    group.is_last = is_last && seq != 0;
    return group;
}

// `offsets`: rows. At distance d this rank sends its rows to rank + d and receives those of rank - d.
void TensorParallel::gather_parts(Stream& compute, char* all, const char* own, const std::vector<int64_t>& offsets,
                                  int64_t C, DType dtype, const Product& product) const {
    Stream& comm = mesh_.stream(Axis::tp);
    Transport& transport = mesh_.tp().transport();
    const int64_t row = C * size_of(dtype);
    const auto first = [&](int r) { return offsets[size_t(r)]; };
    const auto rows = [&](int r) { return offsets[size_t(r) + 1] - offsets[size_t(r)]; };
    const uint64_t seq = record("gather by parts", offsets.back() * row);
    comm.wait(compute.record());
    const int64_t sent = transport.bytes_sent();
    const Event began = comm.record(/*timing=*/true);
    std::vector<Transfer> transfers;
    for (int d = 1; d < size(); ++d) {
        MessageGroup group = step_of(seq, d == size() - 1);
        group.send(own, rows(rank()) * row, peer(d));
        group.recv(all + first(peer(-d)) * row, rows(peer(-d)) * row, peer(-d));
        transfers.push_back(transport.start(comm, group));
    }
    compute.copy(all + first(rank()) * row, own, rows(rank()) * row);
    product(first(rank()), rows(rank()));
    for (int d = 1; d < size(); ++d) {
        transport.finish(comm, transfers[size_t(d - 1)]);
        compute_waits(compute, comm.record());
        if (d == size() - 1) meter("gather by parts", sent, began, comm);
        product(first(peer(-d)), rows(peer(-d)));
    }
}

// At distance d the rows of rank + d are made and sent; this rank's come from rank - d. Its own are made last.
void TensorParallel::scatter_parts(Stream& compute, void* own, const char* partial, const std::vector<int64_t>& offsets,
                                   int64_t C, DType dtype, const Product& product, Event* done) {
    Stream& comm = mesh_.stream(Axis::tp);
    Transport& transport = mesh_.tp().transport();
    const int64_t row = C * size_of(wire_);
    const auto first = [&](int r) { return offsets[size_t(r)]; };
    const auto rows = [&](int r) { return offsets[size_t(r) + 1] - offsets[size_t(r)]; };
    const int64_t here = rows(rank()) * row;
    char* terms = static_cast<char*>(arrived(comm, checked_mul(here, size(), "partial sums")));
    const uint64_t seq = record("scatter by parts", offsets.back() * row);
    const int64_t sent = transport.bytes_sent();
    Event began;
    std::vector<Transfer> transfers;
    for (int d = 1; d < size(); ++d) {
        product(first(peer(d)), rows(peer(d)));
        comm.wait(compute.record());
        if (d == 1) began = comm.record(/*timing=*/true);
        MessageGroup group = step_of(seq, d == size() - 1);
        group.send(partial + first(peer(d)) * row, rows(peer(d)) * row, peer(d));
        group.recv(terms + peer(-d) * here, here, peer(-d));
        transfers.push_back(transport.start(comm, group));
    }
    product(first(rank()), rows(rank()));
    comm.wait(compute.record());
    comm.copy(terms + rank() * here, partial + first(rank()) * row, here);
    for (const Transfer& t : transfers) transport.finish(comm, t);
    sum_rows(comm, {.out = own,
                    .x = terms,
                    .rows = size(),
                    .n = rows(rank()) * C,
                    .stride = rows(rank()) * C,
                    .out_dtype = dtype,
                    .dtype = wire_});
    meter("scatter by parts", sent, began, comm);
    if (done)
        *done = comm.record();
    else
        compute_waits(compute, comm.record());
}

void* TensorParallel::arrived(Stream& comm, int64_t bytes) {
    if (bytes > arrived_.bytes()) {
        comm.synchronize();
        arrived_ = Buffer();
        arrived_ = Buffer(mesh_.tp().transport().device(), bytes, MemKind::comm, "values to be added over tp");
    }
    return arrived_.data();
}

// ---- small things ---------------------------------------------------------------------------------------------------

void TensorParallel::share(Stream& compute, float* all, const float* own, int64_t n) const {
    ordered(compute, [=, this](Stream& comm) {
        mesh_.tp().all_gather(
            comm, {.out = all, .in = own, .offsets = even_offsets(n * size(), size()), .dtype = DType::f32});
    });
}

void TensorParallel::share_magnitude(Stream& compute, Fp8Scale* scale, Fp8Scale* parts, Fp8 type) const {
    share(compute, reinterpret_cast<float*>(parts), reinterpret_cast<const float*>(scale), sizeof *scale / 4);
    fold_scales(compute, {.scales = scale, .parts = parts, .ranks = size(), .n = 1, .type = type});
}

void TensorParallel::sum(Stream& compute, void* unit, const Replicated& r, DType dtype) {
    Stream& comm = mesh_.stream(Axis::tp);
    comm.wait(compute.record());
    char* data = at(unit, r.begin, dtype);
    if (r.ranks == size())
        mesh_.tp().all_reduce(
            comm, {.out = data, .in = data, .offsets = even_offsets(r.count, size()), .dtype = dtype, .wire = dtype});
    else
        exchange_sum(comm, data, r, dtype);
    if (&comm != &mesh_.stream()) mesh_.stream().wait(comm.record());
}

// Some of the axis: each sends its values to the others of them, and all add the same rows in the same order.
void TensorParallel::exchange_sum(Stream& comm, void* data, const Replicated& r, DType dtype) {
    Transport& transport = mesh_.tp().transport();
    const int64_t bytes = checked_mul(r.count, size_of(dtype), "gradients of shared heads");
    char* terms = static_cast<char*>(arrived(comm, checked_mul(bytes, r.ranks, "gradients of shared heads")));
    MessageGroup group = step_of(record("sum of shared heads", bytes), true);
    for (int i = 0; i < r.ranks; ++i) {
        const int holder = r.first_rank + i;
        if (holder == rank()) {
            comm.copy(terms + i * bytes, data, bytes);
            continue;
        }
        group.send(data, bytes, holder);
        group.recv(terms + i * bytes, bytes, holder);
    }
    transport.exchange(comm, group);
    sum_rows(comm, {.out = data,
                    .x = terms,
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
