#include "kernels/fp8/fp8_block_gemm.h"

#include "kernels/checks.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch.h"

namespace rz {

template <class C>
static void write(const Fp8BlockGemm& g, const float* sums) {
    C* c = static_cast<C*>(g.c);
    for (int64_t i = 0; i < g.M * g.N; ++i) c[i] = C(g.beta == 0 ? sums[i] : sums[i] + g.beta * float(c[i]));
}

void fp8_block_gemm_cpu(const Fp8BlockGemm& g) {
    float* a = static_cast<float*>(thread_scratch<2>(4 * ((g.M + g.N) * g.K + 2 * g.M * g.N)));
    float* b = a + g.M * g.K;
    float* part = b + g.N * g.K;
    float* sums = part + g.M * g.N;
    for (int64_t i = 0; i < g.M * g.K; ++i) a[i] = kE4m3Values[g.a[i]];
    for (int64_t i = 0; i < g.N * g.K; ++i) b[i] = kE4m3Values[g.b[i]];
    for (int64_t k = 0; k < g.K / kFp8Tile; ++k) {
        gemm_reference({.c = part,
                        .a = a + k * kFp8Tile,
                        .b = b + k * kFp8Tile,
                        .M = g.M,
                        .N = g.N,
                        .K = kFp8Tile,
                        .trans_b = true,
                        .dtype = DType::f32,
                        .c_dtype = DType::f32,
                        .lda = g.K,
                        .ldb = g.K});
        for (int64_t m = 0; m < g.M; ++m) {
            const float row = g.a_scales[fp8_scale_at(Fp8Tiles::rows, g.M, g.K, m, k)];
            for (int64_t n = 0; n < g.N; ++n) {
                const float scaled = part[m * g.N + n] * (row * g.b_scales[fp8_scale_at(g.b_tiles, g.N, g.K, n, k)]);
                sums[m * g.N + n] = k == 0 ? scaled : sums[m * g.N + n] + scaled;
            }
        }
    }
    with_dtype(g.c_dtype, [&]<class C>() { write<C>(g, sums); });
}

void fp8_block_gemm(Stream& stream, const Fp8BlockGemm& g) {
    const char* op = "fp8_block_gemm";
    for (const auto& [name, value] : {std::pair("M", g.M), {"N", g.N}, {"K", g.K}})
        require(value >= 0 && value % kFp8Tile == 0, "%s: %s is %lld; it must be a multiple of %lld", op, name,
                (long long)value, (long long)kFp8Tile);
    require(g.c_dtype != DType::f16, "%s: C is fp16; it must be bf16 or fp32", op);
    if (g.M == 0 || g.N == 0) return;
    require(g.K > 0, "%s: K is 0", op);
    check_pointer(op, "c", g.c, 16);
    check_pointer(op, "a", g.a, 16);
    check_pointer(op, "b", g.b, 16);
    check_pointer(op, "a_scales", g.a_scales, 16);
    check_pointer(op, "b_scales", g.b_scales, 16);
    stream.run(g, fp8_block_gemm_cpu, RZ_CUDA_OP(fp8_block_gemm_cuda));
}

std::string fp8_blocks_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_blocks_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
