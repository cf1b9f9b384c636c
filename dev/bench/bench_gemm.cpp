// GEMM in the layouts of a linear layer: y = x W^T, also with a bias, dx = dy W, dW += dy^T x (in --grad-dtype).
// 2 M N K operations.
// If cuBLASLt's algorithms are tuned (--gemm-tune, --gemm-cache) each product has two lines: tuned, and the
// library's own first choice.

#include <utility>

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("GEMM: M rows, N outputs, K inputs of a linear layer", "M,N,K",
                       {"2048x512x256", "2048x1376x256", "2048x256x688", "512x2560x512", "512x32000x512"},
                       {"8192x6144x4096", "8192x28672x4096", "8192x4096x14336", "4096x32000x2048"});
    std::string grad;
    bench.app().add_option("--grad-dtype", grad, "Data type of dW. [--dtype, as in training]");
    return bench.run(argc, argv, [&grad](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t M = shape[0], N = shape[1], K = shape[2];
        const DType t = b.dtype();
        const double flops = 2.0 * double(M) * double(N) * double(K);
        const auto measure = [&](const char* name, const ops::GemmCase& g) {
            const bool check = flops < 2e11;  // the reference takes its time
            const bench::Op op = [=](bench::Memory& m) {
                const Gemm a = g.args(m);
                // The library is checked against our loops.
                const bool plain = check && !m.device().is_cuda() && simd_level() == SimdLevel::baseline;
                return [a, plain](Stream& s) {
                    if (plain)
                        s.enqueue_host([a] { gemm_reference(a); });
                    else
                        gemm(s, a);
                };
            };
            GemmTuning& tuning = gemm_tuning(*b.device().context);
            const bool tuned = b.device().is_cuda() && (tuning.tune != GemmTune::off || !tuning.cache_file.empty());
            b.measure({tuned ? std::string(name) + ", tuned" : name, bench::joined(shape), 0, flops, 0, check}, op);
            if (!tuned) return;
            const GemmTuning asked = std::exchange(tuning, {});
            b.measure({std::string(name) + ", first choice", bench::joined(shape), 0, flops, 0, check}, op);
            tuning = asked;
        };
        const DType grad_dtype = grad.empty() ? t : parse_dtype("--grad-dtype", grad);
        ops::GemmCase y{M, N, K, false, true, 1, 0, t, t};
        measure("y = x W^T", y);
        y.biased = true;
        measure("y = x W^T + b", y);
        measure("dx = dy W", {M, K, N, false, false, 1, 0, t, t});
        measure("dW += dy^T x", {N, K, M, true, false, 1, 1, t, grad_dtype});
    });
}
