#include "llama/report/device_peak.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm.h"
#include "kernels/runtime/memory.h"

namespace rz {

// The fastest product so far: matrices grow until one takes milliseconds. Counted in no ledger: it is over when the run
// begins.
static Peak measured_peak(const Device& card, DType dtype) {
    const Device device{card.kind, card.index, nullptr};
    Stream stream(device, "peak");
    double best = 0;
    int64_t of = 0;
    for (int64_t n = 256; n <= 8192; n *= 2) {
        const int64_t bytes = n * n * size_of(dtype);
        if (6 * bytes > device.free_bytes()) break;
        const Buffer a(device, bytes, MemKind::workspace, "a"), b(device, bytes, MemKind::workspace, "b"),
            c(device, bytes, MemKind::workspace, "c");
        stream.zero(a.data(), bytes);
        stream.zero(b.data(), bytes);
        double least = INFINITY;
        for (int i = 0; i < 4; ++i) {
            const Event start = stream.record(/*timing=*/true);
            gemm(stream, {.c = c.data(),
                          .a = a.data(),
                          .b = b.data(),
                          .M = n,
                          .N = n,
                          .K = n,
                          .trans_b = true,
                          .dtype = dtype,
                          .c_dtype = dtype});
            const Event stop = stream.record(/*timing=*/true);
            stream.synchronize();
            if (i > 0) least = std::min(least, stop.seconds_since(start));  // the first makes plans
        }
        const double flops = 2 * std::pow(double(n), 3) / least;
        if (flops > best) best = flops, of = n;
        if (least > 2e-3) break;
    }
    return {best,
            format("%.4g TFLOP/s, that a %s product of %ld^3 reached just now: %s is not in llama/configs/machines",
                   best / 1e12, name_of(dtype), of, card.name().c_str())};
}

Peak find_peak(const Device& device, DType dtype, double asked) {
    if (asked > 0) return {1e12 * asked, format("%.4g TFLOP/s, as --peak-tflops says", asked)};
    const std::optional<Machine> m = find_machine(device);
    if (device.is_cuda() && (!m || m->peak_flops() == 0)) return measured_peak(device, dtype);
    if (!m) return {};
    return {m->peak_flops(), format("%.4g TFLOP/s, %s, dense bf16", m->peak_flops() / 1e12, m->name.c_str())};
}

}  // namespace rz
