#include "kernels/fp8/fp8_gemm.h"

#include "kernels/checks.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch.h"

namespace rz {

static void decode(float* out, const uint8_t* codes, int64_t n, Fp8 type) {
    const std::array<float, 256>& values = fp8_values(type);
#pragma omp parallel for schedule(static) if (n >= kSerialBelow)
    for (int64_t i = 0; i < n; ++i) out[i] = values[codes[i]];
}

template <class C>
static void write(const Fp8Gemm& g, const float* sums) {
    C* c = static_cast<C*>(g.c);
    const float scale = g.a_scale->inverse * g.b_scale->inverse;
    for (int64_t i = 0; i < g.M * g.N; ++i) {
        const float own = scale * sums[i];
        c[i] = C(g.beta == 0 ? own : own + g.beta * float(c[i]));
    }
}

void fp8_gemm_cpu(const Fp8Gemm& g) {
    float* a = static_cast<float*>(thread_scratch<2>(4 * (g.M * g.K + g.N * g.K + g.M * g.N)));
    float* b = a + g.M * g.K;
    float* sums = b + g.N * g.K;
    decode(a, g.a, g.M * g.K, g.a_type);
    decode(b, g.b, g.N * g.K, g.b_type);
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

void fp8_gemm(Stream& stream, const Fp8Gemm& g) {
    const char* op = "fp8_gemm";
    for (const auto& [name, value] : {std::pair("M", g.M), {"N", g.N}, {"K", g.K}})
        require(value >= 0 && value % 16 == 0, "%s: %s is %lld; fp8 products need a multiple of 16", op, name,
                (long long)value);
    require(g.a_type != Fp8::e5m2 || g.b_type != Fp8::e5m2, "%s: both operands are e5m2; at most one may be", op);
    require(g.c_dtype != DType::f16, "%s: C is fp16; it must be bf16 or fp32", op);
    if (g.M == 0 || g.N == 0) return;
    require(g.K > 0, "%s: K is 0", op);
    check_pointer(op, "c", g.c, 16);
    check_pointer(op, "a", g.a, 16);
    check_pointer(op, "b", g.b, 16);
    check_pointer(op, "a_scale", g.a_scale, 16);
    check_pointer(op, "b_scale", g.b_scale, 16);
    stream.run(g, fp8_gemm_cpu, RZ_CUDA_OP(fp8_gemm_cuda));
}

std::string fp8_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
