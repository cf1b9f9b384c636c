#include "kernels/attention/attention_check.h"

#include <cmath>

#include "kernels/attention/attention_kept.h"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

// Values of about 1, the same on both devices after they are rounded to `dtype`.
std::vector<unsigned char> sample_values(int64_t n, DType dtype, uint64_t seed) {
    std::vector<unsigned char> bytes(size_t(n * size_of(dtype)));
    with_dtype(dtype, [&]<class T>() {
        T* out = reinterpret_cast<T*>(bytes.data());
        for (int64_t i = 0; i < n; ++i) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            out[i] = T(float(int32_t(seed >> 32)) * 0x1p-30f);
        }
    });
    return bytes;
}

// Memory of one device that a stream fills and reads.
struct SampleMemory {
    Device device;
    Stream& stream;
    std::vector<Buffer> all = {};

    char* take(int64_t bytes) {
        all.emplace_back(device, bytes, MemKind::workspace, "sample of attention");
        return all.back().bytes_at(0);
    }
    char* with(const std::vector<unsigned char>& values) {
        char* to = take(int64_t(values.size()));
        stream.copy(to, values.data(), int64_t(values.size()));
        stream.synchronize();
        return to;
    }
    std::vector<float> read(const void* from, int64_t n, DType dtype) {
        std::vector<unsigned char> bytes(size_t(n * size_of(dtype)));
        stream.copy(bytes.data(), from, int64_t(bytes.size()));
        stream.synchronize();
        std::vector<float> values(static_cast<size_t>(n));
        with_dtype(dtype, [&]<class T>() {
            for (int64_t i = 0; i < n; ++i) values[size_t(i)] = float(reinterpret_cast<const T*>(bytes.data())[i]);
        });
        return values;
    }
};

}  // namespace

AttentionNumbers attention_numbers(Device device, const AttentionSample& s) {
    const Device own{device.kind, device.index};  // counted nowhere, and the run's draws stay its own
    Stream stream(own, "sample");
    SampleMemory memory{own, stream};
    const int64_t e = size_of(s.dtype), q_row = s.H * s.D, kv_row = s.K * s.D;
    AttentionShape shape{.B = 1,
                         .Tq = s.T,
                         .Tk = s.T,
                         .H = s.H,
                         .K = s.K,
                         .D = s.D,
                         .q_row = q_row,
                         .q_batch = s.T * q_row,
                         .kv_row = kv_row,
                         .kv_batch = s.T * kv_row,
                         .o_row = q_row,
                         .o_batch = s.T * q_row,
                         .scale = 1 / std::sqrt(float(s.D)),
                         .dtype = s.dtype};
    std::vector<unsigned char> first(size_t(s.T) * 4);
    for (int64_t t = 0; t < s.T; ++t) reinterpret_cast<int32_t*>(first.data())[t] = t < s.T / 2 ? 0 : int32_t(s.T / 2);
    if (s.documents)
        shape.first_key = reinterpret_cast<const int32_t*>(memory.with(first)), shape.first_key_batch = s.T;
    const char *q = memory.with(sample_values(s.T * q_row, s.dtype, 1)),
               *k = memory.with(sample_values(s.T * kv_row, s.dtype, 2)),
               *v = memory.with(sample_values(s.T * kv_row, s.dtype, 3)),
               *d_o = memory.with(sample_values(s.T * q_row, s.dtype, 4));
    char *o = memory.take(s.T * q_row * e), *dq = memory.take(s.T * q_row * e), *dk = memory.take(s.T * kv_row * e),
         *dv = memory.take(s.T * kv_row * e);
    float* lse = reinterpret_cast<float*>(memory.take(s.H * s.T * 4));
    attention_forward(stream, {.o = o, .lse = lse, .q = q, .k = k, .v = v, .shape = shape});
    const int64_t kept = attention_kept_bytes(shape, device);
    attention_backward(stream, {.dq = dq,
                                .dk = dk,
                                .dv = dv,
                                .d_o = d_o,
                                .q = q,
                                .k = k,
                                .v = v,
                                .o = o,
                                .lse = lse,
                                .workspace = memory.take(attention_backward_workspace(shape)),
                                .shape = shape,
                                .kept = kept > 0 ? memory.take(kept) : nullptr,
                                .kept_bytes = kept});
    return {memory.read(o, s.T * q_row, s.dtype), memory.read(lse, s.H * s.T, DType::f32),
            memory.read(dq, s.T * q_row, s.dtype), memory.read(dk, s.T * kv_row, s.dtype),
            memory.read(dv, s.T * kv_row, s.dtype)};
}

void require_attention(const AttentionNumbers& found, const AttentionNumbers& cpu, const AttentionSample& s,
                       const std::string& where) {
    // Relative to the largest value. In 16 bits weights and score gradients are rounded to 2^-8, summed over T keys or
    // queries, then the output is rounded; in fp32 the exponential's few units count.
    const double allowed = s.dtype == DType::f32 ? 0x1p-13 : 0x1p-5;
    const auto compare = [&](const char* name, const std::vector<float>& x, const std::vector<float>& y) {
        double largest = 0, worst = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            largest = std::max(largest, double(std::abs(y[i])));
            const double off = std::abs(double(x[i]) - double(y[i]));
            worst = std::isnan(off) ? INFINITY : std::max(worst, off);
        }
        require(worst <= allowed * largest,
                "attention on %s: %s differs from the CPU's by %.3g of its largest value, roundings explain %.3g (%s, "
                "head dimension %ld)\n  build the program for this GPU (make SM=...; kernels/README.md); if it is, the "
                "GPU computes wrongly",
                where.c_str(), name, worst / largest, allowed, name_of(s.dtype), s.D);
    };
    compare("o", found.o, cpu.o);
    compare("the log-sum-exp", found.lse, cpu.lse);
    compare("dq", found.dq, cpu.dq);
    compare("dk", found.dk, cpu.dk);
    compare("dv", found.dv, cpu.dv);
}

void check_attention(Device device, const AttentionSample& s) {
    require_attention(attention_numbers(device, s), attention_numbers(Device{}, s), s, device.name());
}

}  // namespace rz
