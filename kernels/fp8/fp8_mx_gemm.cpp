#include "kernels/fp8/fp8_mx_gemm.h"

#include "kernels/fp8/products.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch.h"

namespace rz {

// Decoded and scaled: exact, unless a number leaves fp32's range, which the sum would too.
static void decode(float* out, const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t K) {
#pragma omp parallel for schedule(static) if (rows * K >= kSerialBelow)
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < K; ++k)
            out[i * K + k] = kE4m3Values[codes[i * K + k]] * from_e8m0(scales[mx_scale_at(K, i, k / kMxTile)]);
}

void fp8_mx_gemm_cpu(const Fp8MxGemm& g) {
    float* a = static_cast<float*>(thread_scratch<2>(4 * ((g.M + g.N) * g.K + g.M * g.N)));
    float* b = a + g.M * g.K;
    float* sums = b + g.N * g.K;
    decode(a, g.a, g.a_scales, g.M, g.K);
    decode(b, g.b, g.b_scales, g.N, g.K);
    gemm_reference({.c = sums,
                    .a = a,
                    .b = b,
                    .M = g.M,
                    .N = g.N,
                    .K = g.K,
                    .trans_b = true,
                    .dtype = DType::f32,
                    .c_dtype = DType::f32});
    write_fp8_product(g, sums, 1);
}

void fp8_mx_gemm(Stream& stream, const Fp8MxGemm& g) {
    if (!check_fp8_product("fp8_mx_gemm", g, kMxMultiple, g.a_scales, g.b_scales)) return;
    stream.run(g, fp8_mx_gemm_cpu, RZ_CUDA_OP(fp8_mx_gemm_cuda));
}

std::string fp8_mx_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_mx_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
