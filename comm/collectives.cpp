#include "comm/collectives.h"

#include <algorithm>

#include "comm/meter.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"

namespace rz {

std::vector<int64_t> even_offsets(int64_t n, int ranks, int64_t align) {
    require(n >= 0 && ranks > 0 && align > 0, "slices of %lld elements over %d ranks in multiples of %lld",
            (long long)n, ranks, (long long)align);
    const int64_t blocks = ceil_div(n, align), each = blocks / ranks, longer = blocks % ranks;
    std::vector<int64_t> offsets;
    for (int64_t r = 0; r <= ranks; ++r) offsets.push_back(std::min(n, (r * each + std::min(r, longer)) * align));
    return offsets;
}

void scale_into(Stream& stream, void* out, DType out_dtype, const void* x, DType dtype, int64_t n, float scale) {
    if (n == 0) return;
    if (out_dtype == dtype && scale == 1) {
        if (out != x) stream.copy(out, x, n * size_of(dtype));
        return;
    }
    sum_rows(
        stream,
        {.out = out, .x = x, .rows = 1, .n = n, .stride = n, .scale = scale, .out_dtype = out_dtype, .dtype = dtype});
}

static void check_offsets(const char* op, Offsets offsets, int size) {
    require(int64_t(offsets.size()) == size + 1, "%s: %zu offsets for %d ranks; one more than ranks is needed", op,
            offsets.size(), size);
    for (int r = 0; r < size; ++r)
        require(offsets[size_t(r)] >= 0 && offsets[size_t(r)] <= offsets[size_t(r) + 1],
                "%s: offsets must ascend from 0 or more; slice %d is [%lld, %lld)", op, r,
                (long long)offsets[size_t(r)], (long long)offsets[size_t(r) + 1]);
}

template <class Body>
void Collectives::measured(Stream& stream, const char* op, int64_t bytes, Body&& body) {
    Watch* watch = size() > 1 ? transport_.watch() : nullptr;
    seq_ = watch ? watch->queue(op, transport_.group().c_str(), transport_.world_rank(0), bytes) : 0;
    const Event before = held_ ? held_->record(/*timing=*/true) : Event();
    stream.wait(before);
    if (!options_.meter) {
        body();
        mark_done(stream);
        if (held_) held_->wait(stream.record());
        return;
    }
    const int64_t sent = transport_.bytes_sent();
    Event began = stream.record(/*timing=*/true);
    body();
    mark_done(stream);
    const Event ended = stream.record(/*timing=*/true);
    options_.meter->add(op, transport_.bytes_sent() - sent, std::move(began), ended, options_.axis);
    if (held_) options_.meter->wait(*held_, ended, before);
}

int64_t Collectives::longest(Offsets offsets) const {
    int64_t most = 0;
    for (int r = 0; r < size(); ++r) most = std::max(most, count(offsets, r));
    return most;
}

int64_t Collectives::scatter_bytes(Offsets offsets, DType wire) const {
    return (offsets.back() - offsets.front() - count(offsets, rank())) * size_of(wire);
}

int64_t Collectives::gather_bytes(Offsets offsets, DType dtype) const {
    return (offsets.back() - offsets.front() - count(offsets, wrap(rank() + 1))) * size_of(dtype);
}

void Collectives::all_reduce(Stream& stream, const AllReduce& a) {
    check_offsets("all_reduce", a.offsets, size());
    measured(stream, "all_reduce", a.offsets.back() * size_of(a.wire), [&] {
        if (size() == 1) {
            scale_into(stream, a.out, a.dtype, a.in, a.dtype, a.offsets.back(), a.scale);
            return;
        }
        do_all_reduce(stream, a);
        if (uses_transport()) return;
        const bool gathers = gather_moves(a.out, a.offsets.back() * size_of(a.dtype));
        transport_.count_sent(scatter_bytes(a.offsets, a.wire) + (gathers ? gather_bytes(a.offsets, a.dtype) : 0));
    });
}

void Collectives::reduce_scatter(Stream& stream, const ReduceScatter& a) {
    check_offsets("reduce_scatter", a.offsets, size());
    measured(stream, "reduce_scatter", a.offsets.back() * size_of(a.wire), [&] {
        if (size() == 1) {
            const char* own = static_cast<const char*>(a.in) + a.offsets[0] * size_of(a.dtype);
            scale_into(stream, a.out, a.out_dtype, own, a.dtype, count(a.offsets, 0), a.scale);
            return;
        }
        do_reduce_scatter(stream, a);
        if (!uses_transport()) transport_.count_sent(scatter_bytes(a.offsets, a.wire));
    });
}

void Collectives::all_gather(Stream& stream, const AllGather& a) {
    check_offsets("all_gather", a.offsets, size());
    measured(stream, "all_gather", a.offsets.back() * size_of(a.dtype), [&] {
        char* own = static_cast<char*>(a.out) + a.offsets[size_t(rank())] * size_of(a.dtype);
        if (own != a.in && count(a.offsets, rank()) > 0 && (size() == 1 || !brings_own_slice(a)))
            stream.copy(own, a.in, count(a.offsets, rank()) * size_of(a.dtype));
        if (size() == 1) return;
        do_all_gather(stream, a);
        if (!uses_transport() && gather_moves(a.out, a.offsets.back() * size_of(a.dtype)))
            transport_.count_sent(gather_bytes(a.offsets, a.dtype));
    });
}

void Collectives::broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    require(bytes >= 0 && root >= 0 && root < size(), "broadcast of %lld bytes from rank %d of %d", (long long)bytes,
            root, size());
    measured(stream, "broadcast", bytes, [&] {
        if (size() == 1) return;
        do_broadcast(stream, data, bytes, root);
        if (!uses_transport() && wrap(rank() + 1) != root && gather_moves(data, bytes)) transport_.count_sent(bytes);
    });
}

void Collectives::exchange(Stream& stream, const char* op, const std::vector<Message>& messages, int64_t bytes) {
    measured(stream, op, bytes, [&] {
        MessageGroup group = hop();
        for (const Message& m : messages)
            if (m.bytes > 0) group.messages.push_back(m);
        transport_.exchange(stream, group);
    });
}

void Collectives::do_all_reduce(Stream& stream, const AllReduce& a) {
    const ReduceScatter first = first_half(a);
    do_reduce_scatter(stream, first);
    do_all_gather(stream, {.out = a.out, .in = first.out, .offsets = a.offsets, .dtype = a.dtype});
}

// Rank root + d receives each chunk from root + d - 1 and passes it on while the next one arrives.
void Collectives::do_broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    const int distance = wrap(rank() - root);
    const int64_t chunk = std::max<int64_t>(1, options_.chunk_bytes), chunks = ceil_div(bytes, chunk);
    auto at = [&](int64_t c) { return static_cast<char*>(data) + c * chunk; };
    auto length = [&](int64_t c) { return std::min(chunk, bytes - c * chunk); };
    for (int64_t c = 0; c <= chunks; ++c) {
        MessageGroup group = hop();
        if (distance > 0 && c < chunks) group.recv(at(c), length(c), wrap(rank() - 1));
        const int64_t out = distance > 0 ? c - 1 : c;
        if (distance < size() - 1 && out >= 0 && out < chunks) group.send(at(out), length(out), wrap(rank() + 1));
        transport_.exchange(stream, group);
    }
}

void Collectives::barrier(Stream& stream) {
    measured(stream, "barrier", 0, [&] {
        if (size() == 1) return;
        if (!barrier_bytes_) {
            barrier_bytes_ = Buffer(transport_.device(), 2, MemKind::comm, "barrier");
            stream.zero(barrier_bytes_.data(), 2);
        }
        for (int distance = 1; distance < size(); distance *= 2) {
            MessageGroup group = hop();
            group.send(barrier_bytes_.bytes_at(0), 1, wrap(rank() + distance));
            group.recv(barrier_bytes_.bytes_at(1), 1, wrap(rank() - distance));
            transport_.exchange(stream, group);
        }
    });
}

ReduceScatter Collectives::first_half(const AllReduce& a) const {
    return {.out = static_cast<char*>(a.out) + offset(a.offsets, rank()) * size_of(a.dtype),
            .in = a.in,
            .offsets = a.offsets,
            .dtype = a.dtype,
            .wire = a.wire,
            .out_dtype = a.dtype,
            .scale = a.scale};
}

void* Collectives::scratch(Stream& stream, int64_t bytes) {
    if (bytes > scratch_.bytes()) {
        stream.synchronize();
        scratch_ = Buffer();
        scratch_ = Buffer(transport_.device(), bytes, MemKind::comm, std::string(name()) + " scratch");
    }
    return scratch_.data();
}

MessageGroup Collectives::hop() const {
    MessageGroup group;
    group.seq = seq_;
    return group;
}

void Collectives::mark_done(Stream& stream) {
    if (seq_ == 0) return;
    MessageGroup group = hop();
    group.is_last = true;
    transport_.exchange(stream, group);
}

std::unique_ptr<Collectives> make_collectives(Algorithm algorithm, Transport& transport,
                                              const CollectiveOptions& asked) {
    CollectiveOptions options = asked;
    if (options.chunk_bytes == 0) {
        options.chunk_bytes = asked.largest_chunk_bytes ? asked.largest_chunk_bytes : transport.good_chunk_bytes();
        options.largest_chunk_bytes = options.chunk_bytes;
    }
    if (options.lanes == 0) options.lanes = transport.good_lanes();
    require(options.chunk_bytes >= 256 && options.lanes >= 1, "chunks of %lld bytes in %d lanes: at least 256 and 1",
            (long long)options.chunk_bytes, options.lanes);
    switch (algorithm) {
        case Algorithm::ring:
            return make_ring(transport, options);
        case Algorithm::direct:
            return make_direct(transport, options);
        case Algorithm::hier:
            return make_hier(transport, options);
        case Algorithm::symmetric:
            return transport.size() == 1 ? make_ring(transport, options) : make_symmetric(transport, options);
        case Algorithm::hier_symmetric:
            if (transport.size() == 1) return make_ring(transport, options);
            if (options.nodes == 1) return make_symmetric(transport, options);
            return options.nodes == transport.size() ? make_direct(transport, options)
                                                     : make_hier_symmetric(transport, options);
        case Algorithm::library:
            return transport.size() == 1 ? make_ring(transport, options) : transport.library_collectives(options);
    }
    __builtin_unreachable();
}

std::string text_of(const AxisAlgorithms& chosen) {
    const std::string tp = std::string("tp=") + name_of(chosen.tp);
    if (!chosen.data) return tp;
    return chosen.tp == AxisAlgorithms{}.tp ? name_of(*chosen.data) : tp + ",data=" + name_of(*chosen.data);
}

// Calls chosen(axis, algorithm) for each part; what is wrong with the text.
template <class Chosen>
static std::string read_axis_algorithms(const std::string& text, Chosen chosen) {
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string part = text.substr(at, end - at);
        const size_t equals = part.find('=');
        const std::string axis = equals == std::string::npos ? "data" : part.substr(0, equals);
        const std::string name = equals == std::string::npos ? part : part.substr(equals + 1);
        if (axis != "data" && axis != "tp") return "'" + part + "': the axes are tp and data; nearest: data=" + name;
        std::string all;
        const Named<Algorithm>* found = nullptr;
        for (const Named<Algorithm>& n : kNames<Algorithm>) {
            all += (all.empty() ? "" : ", ") + std::string(n.name);
            if (name == n.name) found = &n;
        }
        if (!found) return "'" + name + "' must be one of " + all;
        chosen(axis, found->value);
        at = end + 1;
    }
    return "";
}

std::string wrong_axis_algorithms(const std::string& text) {
    return read_axis_algorithms(text, [](const std::string&, Algorithm) {});
}

AxisAlgorithms parse_axis_algorithms(const std::string& text) {
    AxisAlgorithms chosen;
    const std::string wrong = read_axis_algorithms(text, [&](const std::string& axis, Algorithm how) {
        if (axis == "tp")
            chosen.tp = how;
        else
            chosen.data = how;
    });
    require(wrong.empty(), "collectives: %s", wrong.c_str());
    return chosen;
}

}  // namespace rz
