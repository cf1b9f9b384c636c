#include "kernels/fp8/fp8_mx_gemm.h"

#include "kernels/checks.h"
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

template <class C>
static void write(const Fp8MxGemm& g, const float* sums) {
    C* c = static_cast<C*>(g.c);
    for (int64_t i = 0; i < g.M * g.N; ++i) c[i] = C(g.beta == 0 ? sums[i] : sums[i] + g.beta * float(c[i]));
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
    with_dtype(g.c_dtype, [&]<class C>() { write<C>(g, sums); });
}

void fp8_mx_gemm(Stream& stream, const Fp8MxGemm& g) {
    const char* op = "fp8_mx_gemm";
    for (const auto& [name, value] : {std::pair("M", g.M), {"N", g.N}, {"K", g.K}})
        require(value >= 0 && value % kMxMultiple == 0, "%s: %s is %lld; it must be a multiple of %lld", op, name,
                (long long)value, (long long)kMxMultiple);
    require(g.c_dtype != DType::f16, "%s: C is fp16; it must be bf16 or fp32", op);
    if (g.M == 0 || g.N == 0) return;
    require(g.K > 0, "%s: K is 0", op);
    check_pointer(op, "c", g.c, 16);
    check_pointer(op, "a", g.a, 16);
    check_pointer(op, "b", g.b, 16);
    check_pointer(op, "a_scales", g.a_scales, 16);
    check_pointer(op, "b_scales", g.b_scales, 16);
    stream.run(g, fp8_mx_gemm_cpu, RZ_CUDA_OP(fp8_mx_gemm_cuda));
}

std::string fp8_mx_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_mx_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
