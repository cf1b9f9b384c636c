#include "comm/library.h"

namespace rz {

// ---- on the host's memory -------------------------------------------------------------------------------------------

void HostLibrary::do_all_reduce(Stream& stream, const AllReduce& a) {
    const int64_t first = a.offsets.front(), n = a.offsets.back() - first;
    const char* in = static_cast<const char*>(a.in) + first * size_of(a.dtype);
    char* out = static_cast<char*>(a.out) + first * size_of(a.dtype);
    const bool in_wire = !staged_ && a.wire == a.dtype;  // the library works where the values lie
    char* sums = in_wire ? out : wire_values(stream, in, a.dtype, a.wire, n);
    sum(stream, in_wire && in != out ? in : nullptr, sums, n, a.wire);
    scale_into(stream, out, a.dtype, sums, a.wire, n, a.scale);
}

void HostLibrary::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    const int64_t first = a.offsets.front(), n = a.offsets.back() - first, own = count(a.offsets, rank());
    const char* in = static_cast<const char*>(a.in) + first * size_of(a.dtype);
    const bool in_wire = !staged_ && a.wire == a.dtype;
    const bool apart = static_cast<const char*>(a.out) < in || a.out >= in + n * size_of(a.dtype);
    char* sums = nullptr;
    if (!in_wire)
        sums = wire_values(stream, in, a.dtype, a.wire, n);
    else if (apart && a.out_dtype == a.wire)
        sums = static_cast<char*>(a.out);
    else
        sums = static_cast<char*>(host_scratch(stream, own * size_of(a.wire)));
    sum_slices(stream, in_wire ? in : nullptr, sums, a.offsets, a.wire);
    scale_into(stream, a.out, a.out_dtype, sums, a.wire, own, a.scale);
}

void HostLibrary::do_all_gather(Stream& stream, const AllGather& a) {
    const int64_t n = a.offsets.back();
    char* values = static_cast<char*>(a.out);
    if (staged_) values = wire_values(stream, a.out, a.dtype, a.dtype, n);
    gather_slices(stream, values, a.offsets, a.dtype);
    if (staged_) stream.copy(a.out, values, n * size_of(a.dtype));
}

void HostLibrary::do_broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    void* values = data;
    if (staged_) {
        values = host_scratch(stream, bytes);
        stream.copy(values, data, bytes);
    }
    spread(stream, values, bytes, root);
    if (staged_) stream.copy(data, values, bytes);
}

void* HostLibrary::host_scratch(Stream& stream, int64_t bytes) {
    if (bytes > staging_.bytes()) {
        stream.synchronize();
        staging_ = Buffer();
        staging_ = Buffer::host_for(transport_.device(), bytes, MemKind::comm, "library staging");
    }
    return staging_.data();
}

// A copy of the values in the wire's type, in host memory, for the library to work in place.
char* HostLibrary::wire_values(Stream& stream, const void* in, DType dtype, DType wire, int64_t n) {
    char* values = static_cast<char*>(host_scratch(stream, n * size_of(wire)));
    if (staged_ && wire != dtype) {
        void* converted = scratch(stream, n * size_of(wire));
        scale_into(stream, converted, wire, in, dtype, n, 1);
        in = converted;
        dtype = wire;
    }
    scale_into(stream, values, wire, in, dtype, n, 1);
    return values;
}

// ---- on the device's ------------------------------------------------------------------------------------------------

void DeviceLibrary::do_all_reduce(Stream& stream, const AllReduce& a) {
    const int64_t first = a.offsets.front(), n = a.offsets.back() - first;
    const char* in = static_cast<const char*>(a.in) + first * size_of(a.dtype);
    char* out = static_cast<char*>(a.out) + first * size_of(a.dtype);
    char* sums = out;
    const void* values = in;
    if (a.wire != a.dtype) {
        values = sums = static_cast<char*>(scratch(stream, n * size_of(a.wire)));
        scale_into(stream, sums, a.wire, in, a.dtype, n, 1);
    }
    sum(stream, values, sums, n, a.wire);
    scale_into(stream, out, a.dtype, sums, a.wire, n, a.scale);
}

void DeviceLibrary::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    const int64_t wire = size_of(a.wire), first = a.offsets.front(), n = a.offsets.back() - first;
    const int64_t own = count(a.offsets, rank());
    const int64_t converted = a.wire == a.dtype ? 0 : round_up(n * wire, 256);
    char* memory = static_cast<char*>(scratch(stream, converted + own * wire));
    const char* values = static_cast<const char*>(a.in) + first * size_of(a.dtype);
    if (converted) {
        scale_into(stream, memory, a.wire, values, a.dtype, n, 1);
        values = memory;
    }
    char* sums = memory + converted;
    sum_slices(stream, values, sums, a.offsets, a.wire);
    scale_into(stream, a.out, a.out_dtype, sums, a.wire, own, a.scale);
}

void DeviceLibrary::do_all_gather(Stream& stream, const AllGather& a) {
    gather_slices(stream, static_cast<char*>(a.out), a.offsets, a.dtype);
}

void DeviceLibrary::do_broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    spread(stream, data, bytes, root);
}

}  // namespace rz
