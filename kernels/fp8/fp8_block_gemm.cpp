#include "kernels/fp8/fp8_block_gemm.h"

#include "kernels/fp8/products.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch.h"

namespace rz {

// sums (M, N) =, or += after the first of K's tiles, what the tile's products add up to, scaled.
static void add_tile(const Fp8BlockGemm& g, float* sums, const float* part, int64_t k) {
#pragma omp parallel for schedule(static) if (g.M * g.N >= kSerialBelow)
    for (int64_t m = 0; m < g.M; ++m) {
        const float row = g.a_scales[fp8_scale_at(Fp8Tiles::rows, g.M, g.K, m, k)];
        for (int64_t n = 0; n < g.N; ++n) {
            const float scaled = part[m * g.N + n] * (row * g.b_scales[fp8_scale_at(g.b_tiles, g.N, g.K, n, k)]);
            sums[m * g.N + n] = k == 0 ? scaled : sums[m * g.N + n] + scaled;
        }
    }
}

void fp8_block_gemm_cpu(const Fp8BlockGemm& g) {
    float* sums = static_cast<float*>(thread_scratch<2>(8 * g.M * g.N + 2 * (g.M + g.N) * g.K));
    float* part = sums + g.M * g.N;
    bf16* a = reinterpret_cast<bf16*>(part + g.M * g.N);
    bf16* b = a + g.M * g.K;
    decode_fp8(a, g.a, g.M * g.K, Fp8::e4m3);
    decode_fp8(b, g.b, g.N * g.K, Fp8::e4m3);
    for (int64_t k = 0; k < g.K / kFp8Tile; ++k) {
        gemm_cpu({.c = part,
                  .a = a + k * kFp8Tile,
                  .b = b + k * kFp8Tile,
                  .M = g.M,
                  .N = g.N,
                  .K = kFp8Tile,
                  .trans_b = true,
                  .dtype = DType::bf16,
                  .c_dtype = DType::f32,
                  .lda = g.K,
                  .ldb = g.K});
        add_tile(g, sums, part, k);
    }
    write_fp8_product(g, sums, 1);
}

void fp8_block_gemm(Stream& stream, const Fp8BlockGemm& g) {
    if (!check_fp8_product("fp8_block_gemm", g, kFp8Tile, g.a_scales, g.b_scales)) return;
    stream.run(g, fp8_block_gemm_cpu, RZ_CUDA_OP(fp8_block_gemm_cuda));
}

std::string fp8_blocks_missing(Device device) {
    std::string (*cuda)(Device) = RZ_CUDA_OP(fp8_blocks_missing_cuda);
    return device.is_cuda() && cuda ? cuda(device) : "";
}

}  // namespace rz
