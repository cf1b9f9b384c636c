#include "kernels/fp8/fp8_gemm.h"

#include "kernels/fp8/products.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch.h"

namespace rz {

void fp8_gemm_cpu(const Fp8Gemm& g) {
    float* sums = static_cast<float*>(thread_scratch<2>(4 * g.M * g.N + 2 * (g.M + g.N) * g.K));
    bf16* a = reinterpret_cast<bf16*>(sums + g.M * g.N);
    bf16* b = a + g.M * g.K;
    decode_fp8(a, g.a, g.M * g.K, g.a_type);
    decode_fp8(b, g.b, g.N * g.K, g.b_type);
    gemm_cpu({.c = sums,
              .a = a,
              .b = b,
              .M = g.M,
              .N = g.N,
              .K = g.K,
              .trans_b = true,
              .dtype = DType::bf16,
              .c_dtype = DType::f32});
    write_fp8_product(g, sums, g.a_scale->inverse * g.b_scale->inverse);
}

void fp8_gemm(Stream& stream, const Fp8Gemm& g) {
    const char* op = "fp8_gemm";
    require(g.a_type != Fp8::e5m2 || g.b_type != Fp8::e5m2, "%s: both operands are e5m2; at most one may be", op);
    if (!check_fp8_product(op, g, 16, g.a_scale, g.b_scale)) return;
    stream.run(g, fp8_gemm_cpu, RZ_CUDA_OP(fp8_gemm_cuda));
}

std::string fp8_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
