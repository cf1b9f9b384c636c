#include "test/simt/selftest.h"

#include "kernels/cuda/ptx.cuh"

namespace rz::selftest {
namespace {

__global__ void warp_ops_kernel(int* out, const int* in) {
    const int i = int(threadIdx.x), l = i & 31, v = in[i];
    int* r = out + i * kWarpOps;
    r[0] = __shfl_sync(~0u, v, 5, 8);
    r[1] = __shfl_up_sync(~0u, v, 3, 16);
    r[2] = __shfl_down_sync(~0u, v, 3);
    r[3] = __shfl_xor_sync(~0u, v, 17);
    r[4] = int(__ballot_sync(~0u, v & 1));
    r[5] = __any_sync(~0u, v == 1000);
    // Half-warps in different branches, each with its own mask.
    if (l < 16)
        r[6] = __shfl_xor_sync(0x0000ffffu, v, 1);
    else
        r[6] = __shfl_xor_sync(0xffff0000u, v, 2);
    r[7] = __all_sync(~0u, v >= 0);
}

// Warps 0 and 1 produce, 2 and 3 consume; barrier 1 says full, 2 says empty.
__global__ void named_barriers_kernel(int* out, const int* in) {
    __shared__ int buffer[64];
    const int i = int(threadIdx.x);
    for (int t = 0; t < 4; t++) {
        if (i < 64) {
            if (t) ptx::bar_sync(2, 128);
            buffer[i] = in[i] + t;
            ptx::bar_arrive(1, 128);
        } else {
            ptx::bar_sync(1, 128);
            out[t * 64 + i - 64] = buffer[127 - i];
            if (t < 3) ptx::bar_arrive(2, 128);
        }
    }
}

__global__ void deep_stack_kernel(int* out, const int* in) {
    int big[4000];
    for (int i = 0; i < 4000; i++) big[i] = in[i % 128] + i;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 4000; i++) sum += big[(i * 7 + int(threadIdx.x)) % 4000];
    out[threadIdx.x] = sum;
}

__global__ void spin_kernel(int* out, bool set_flag) {
    if (threadIdx.x == 40) {
        if (set_flag) atomicExch(&out[0], 7);
    } else if (threadIdx.x == 3) {
        while (atomicAdd(&out[0], 0) == 0) __nanosleep(20);
        out[1] = 1;
    }
}

// Every block leaves a partial sum; the last one to come adds them in order.
__global__ void last_block_kernel(float* out, float* partial, unsigned* counter, const float* in) {
    __shared__ bool last;
    float v = in[blockIdx.x * 32 + threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        last = atomicAdd(counter, 1u) == gridDim.x - 1;
    }
    __syncwarp();
    if (!last || threadIdx.x != 0) return;
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b];
    *out = sum;
}

__global__ void add_one_kernel(float* x, int n) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] += 1;
}
__global__ void scale_kernel(float* x, float factor, int n) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] *= factor;
}

// Two stages; the tail is masked by src_bytes.
__global__ void cp_async_ring_kernel(float* out, const float* in, int n) {
    __shared__ __align__(16) float stage[2][512];
    const int steps = (n + 511) / 512, i = int(threadIdx.x) * 4;
    const auto fetch = [&](int step) {
        const int at = step * 512 + i, left = n - at;
        ptx::cp_async16(&stage[step & 1][i], left > 0 ? in + at : in, left >= 4 ? 16 : left > 0 ? left * 4 : 0);
        ptx::cp_async_commit();
    };
    fetch(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            fetch(step + 1);
            ptx::cp_async_wait<1>();
        } else {
            ptx::cp_async_wait<0>();
        }
        __syncthreads();
        for (int j = int(threadIdx.x); j < 512; j += 128) {
            const float v = stage[step & 1][511 - j];
            const int at = step * 512 + 511 - j;
            if (at < n) out[at] = v;
        }
        __syncthreads();
    }
}

__global__ void mma_tile_kernel(float* out, const uint16_t* a, const uint16_t* b, bool fp16, bool trans_b) {
    __shared__ __align__(16) uint16_t sa[16][16];
    __shared__ __align__(16) uint16_t sb[128];
    const int lane = int(threadIdx.x);
    for (int i = lane; i < 256; i += 32) sa[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i] = b[i];
    __syncwarp();
    uint32_t ra[4], rb[4];  // of b the matrices come twice
    ptx::ldmatrix_x4(ra, &sa[lane % 16][lane / 16 * 8]);
    if (trans_b)
        ptx::ldmatrix_x4_trans(rb, sb + lane % 16 * 8);
    else
        ptx::ldmatrix_x4(rb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
    const uint32_t first[2] = {rb[0], rb[1]};
    float c[4] = {};
    if (fp16)
        ptx::mma_m16n8k16_fp16(c, ra, first, c);
    else
        ptx::mma_m16n8k16_bf16(c, ra, first, c);
    for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

__global__ void transposed_twice_kernel(uint32_t* out, const uint16_t* in) {
    __shared__ __align__(16) uint16_t x[32][8];
    const int lane = int(threadIdx.x);
    for (int j = 0; j < 8; j++) x[lane][j] = in[lane % 8 * 8 + j];
    __syncwarp();
    uint32_t plain[4], transposed[4];
    ptx::ldmatrix_x4(plain, x[lane]);
    ptx::ldmatrix_x4_trans(transposed, x[lane]);
    out[lane] = ptx::movmatrix(plain[0]), out[32 + lane] = transposed[0];
}

__global__ void tma_read_kernel(uint16_t* out, const __grid_constant__ CUtensorMap map, TmaCase c, int n) {
    GPU_DYN_SMEM(smem);
    uint64_t* bar = reinterpret_cast<uint64_t*>(smem + (n * 2 + 127) / 128 * 128);
    if (threadIdx.x == 0) {
        ptx::mbar_init(bar, 1);
        ptx::fence_mbar_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::mbar_arrive_expect_tx(bar, uint32_t(n) * 2);
        ptx::tma_load_4d(smem, &map, bar, c.at[0], c.at[1], c.at[2], c.at[3]);
    }
    ptx::mbar_wait(bar, 0);
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) out[i] = reinterpret_cast<uint16_t*>(smem)[i];
}

__global__ void bulk_kernel(float* out, const float* in, int n) {
    GPU_DYN_SMEM(smem);
    float* data = reinterpret_cast<float*>(smem);
    uint64_t* bar = reinterpret_cast<uint64_t*>(smem + n * 4);
    if (threadIdx.x == 0) {
        ptx::mbar_init(bar, 1);
        ptx::fence_mbar_init();
        ptx::mbar_arrive_expect_tx(bar, uint32_t(n) * 4);
        ptx::bulk_load(data, in, uint32_t(n) * 4, bar);
    }
    __syncthreads();
    ptx::mbar_wait(bar, 0);
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) out[i] = 2 * data[i];
}

// Offset of element (mn, k) of a 16-bit operand, as wgmma_descriptor's comment says; an independent restatement of the
// layouts, in elements.
__device__ int operand_offset(int mn, int k, int mn_count, int layout, bool trans) {
    if (layout == 0) {
        const int block = trans ? (k / 8) * (mn_count / 8) + mn / 8 : (mn / 8) * 2 + k / 8;
        return block * 64 + (trans ? k % 8 * 8 + mn % 8 : mn % 8 * 8 + k % 8);
    }
    const int width = layout == 1 ? 64 : layout == 2 ? 32 : 16;  // elements per swizzled row
    int byte;
    if (!trans)
        byte = mn * width * 2 + k * 2;  // groups of 8 rows follow each other
    else
        byte = (mn / width) * 16 * width * 2 + k * width * 2 + mn % width * 2;  // 16 rows of k per run of mn
    const int mask = layout == 1 ? 7 : layout == 2 ? 3 : 1;
    return (byte ^ ((byte >> 7 & mask) << 4)) / 2;
}
__device__ uint64_t operand_descriptor(const void* p, int mn_count, int layout, bool trans) {
    const int width = layout == 1 ? 64 : layout == 2 ? 32 : 16;
    if (layout == 0)
        return trans ? ptx::wgmma_descriptor(p, uint32_t(mn_count) * 16, 128, 0)
                     : ptx::wgmma_descriptor(p, 128, 256, 0);
    if (!trans) return ptx::wgmma_descriptor(p, 16, uint32_t(width) * 16, uint32_t(layout));
    return ptx::wgmma_descriptor(p, uint32_t(width) * 32, uint32_t(width) * 16, uint32_t(layout));
}

template <int N, bool kTransA, bool kTransB>
__device__ void one_wgmma(float (&d)[N / 2], const uint32_t (&ra)[4], uint64_t da, uint64_t db, const WgmmaCase& c) {
    ptx::wgmma_fence();
    if (c.a_in_registers) {
        if (c.fp16)
            ptx::wgmma_fp16<N, kTransB>(d, ra, db, false);
        else
            ptx::wgmma_bf16<N, kTransB>(d, ra, db, false);
    } else {
        if (c.fp16)
            ptx::wgmma_fp16<N, kTransA, kTransB>(d, da, db, false);
        else
            ptx::wgmma_bf16<N, kTransA, kTransB>(d, da, db, false);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
}

template <int N>
__global__ void wgmma_tile_kernel(float* out, const uint16_t* a, const uint16_t* b, WgmmaCase c) {
    GPU_DYN_SMEM(smem);
    uint16_t* sa = reinterpret_cast<uint16_t*>(smem);
    uint16_t* sb = reinterpret_cast<uint16_t*>(smem + 8192);
    const int t = int(threadIdx.x);
    for (int i = t; i < 64 * 16; i += 128) sa[operand_offset(i / 16, i % 16, 64, c.layout, c.trans_a)] = a[i];
    for (int i = t; i < N * 16; i += 128) sb[operand_offset(i / 16, i % 16, N, c.layout, c.trans_b)] = b[i];
    ptx::fence_proxy_async();
    __syncthreads();
    uint32_t ra[4];
    for (int r = 0; r < 4; r++) {
        const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, k = t % 4 * 2 + r / 2 * 8;
        ra[r] = a[row * 16 + k] | uint32_t(a[row * 16 + k + 1]) << 16;
    }
    const uint64_t da = operand_descriptor(sa, 64, c.layout, c.trans_a),
                   db = operand_descriptor(sb, N, c.layout, c.trans_b);
    float d[N / 2];
    if (c.trans_a)
        c.trans_b ? one_wgmma<N, true, true>(d, ra, da, db, c) : one_wgmma<N, true, false>(d, ra, da, db, c);
    else
        c.trans_b ? one_wgmma<N, false, true>(d, ra, da, db, c) : one_wgmma<N, false, false>(d, ra, da, db, c);
    for (int i = 0; i < N / 2; i++)
        out[(t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8) * N + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
}

constexpr int kM = 64, kN = 64, kK = 64, kStages = 3, kStageBytes = (kM + kN) * kK * 2;

__global__ void __launch_bounds__(160)
    pipelined_gemm_kernel(float* c, const __grid_constant__ CUtensorMap ta, const __grid_constant__ CUtensorMap tb,
                          int M, int N, int K, GemmFault fault) {
    GPU_DYN_SMEM(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + kStages * kStageBytes);
    uint64_t* empty = full + kStages;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int m0 = int(blockIdx.y) * kM, n0 = int(blockIdx.x) * kN, steps = (K + kK - 1) / kK;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; s++) ptx::mbar_init(&full[s], 1), ptx::mbar_init(&empty[s], 4);
        ptx::fence_mbar_init();
    }
    __syncthreads();
    if (warp == 4) {
        if (lane != 0) return;
        for (int i = 0; i < steps; i++) {
            const int s = i % kStages;
            unsigned char* stage = smem + s * kStageBytes;
            if (i >= kStages && fault != GemmFault::no_empty_wait)
                ptx::mbar_wait(&empty[s], uint32_t(i / kStages - 1) & 1);
            ptx::mbar_arrive_expect_tx(&full[s], kStageBytes);
            ptx::tma_load_4d(stage, &ta, &full[s], i * kK, m0, 0, 0);
            ptx::tma_load_4d(stage + kM * kK * 2, &tb, &full[s], i * kK, n0, 0, 0);
        }
        return;
    }
    // Rows of 128 swizzled bytes, as TMA writes them
    const auto tile = [](const void* p) { return ptx::wgmma_descriptor(p, 16, 1024, 1); };
    float acc[kN / 2];
    for (int i = 0; i < steps; i++) {
        const int s = i % kStages;
        const unsigned char* stage = smem + s * kStageBytes;
        if (fault != GemmFault::no_full_wait) ptx::mbar_wait(&full[s], uint32_t(i / kStages) & 1);
        ptx::wgmma_fence();
        for (int k = 0; k < kK / 16; k++)
            ptx::wgmma_bf16<kN>(acc, tile(stage + k * 32), tile(stage + kM * kK * 2 + k * 32), i > 0 || k > 0);
        ptx::wgmma_commit();
        if (fault != GemmFault::no_wgmma_wait) ptx::wgmma_wait<0>();
        if (lane == 0) ptx::mbar_arrive(&empty[s]);
    }
    ptx::wgmma_wait<0>();
    for (int i = 0; i < kN / 2; i++) {
        const int row = m0 + warp * 16 + lane / 4 + i % 4 / 2 * 8, col = n0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < M && col < N) c[int64_t(row) * N + col] = acc[i];
    }
}

CUtensorMap map_of(const void* tensor, const TmaCase& c) {
    const auto d = [&](int i) { return uint64_t(c.dims[i]); };
    const auto b = [&](int i) { return uint32_t(c.box[i]); };
    return ptx::tensor_map(tensor, {d(0), d(1), d(2), d(3)}, {d(0) * 2, d(0) * d(1) * 2, d(0) * d(1) * d(2) * 2},
                           {b(0), b(1), b(2), b(3)}, c.swizzle);
}

}  // namespace

void warp_ops(int* out, const int* in, cudaStream_t s) {
    launch(kernel<warp_ops_kernel>, LaunchConfig(1, 128, 0, s), out, in);
}
void named_barriers(int* out, const int* in, cudaStream_t s) {
    launch(kernel<named_barriers_kernel>, LaunchConfig(1, 128, 0, s), out, in);
}
void deep_stack(int* out, const int* in, cudaStream_t s) {
    launch(kernel<deep_stack_kernel>, LaunchConfig(1, 128, 0, s), out, in);
}
void spin_on_flag(int* out, bool set_flag, cudaStream_t s) {
    launch(kernel<spin_kernel>, LaunchConfig(1, 64, 0, s), out, set_flag);
}
void last_block_sum(float* out, float* partial, unsigned* counter, const float* in, int blocks, cudaStream_t s) {
    launch(kernel<last_block_kernel>, LaunchConfig(blocks, 32, 0, s), out, partial, counter, in);
}
void add_one(float* x, int n, cudaStream_t s) {
    launch(kernel<add_one_kernel>, LaunchConfig((n + 63) / 64, 64, 0, s), x, n);
}
void scale(float* x, float factor, int n, cudaStream_t s) {
    launch(kernel<scale_kernel>, LaunchConfig((n + 63) / 64, 64, 0, s), x, factor, n);
}
void cp_async_ring(float* out, const float* in, int n, cudaStream_t s) {
    launch(kernel<cp_async_ring_kernel>, LaunchConfig(1, 128, 0, s), out, in, n);
}
void mma_tile(float* c, const uint16_t* a, const uint16_t* b, bool fp16, bool trans_b, cudaStream_t s) {
    launch(kernel<mma_tile_kernel>, LaunchConfig(1, 32, 0, s), c, a, b, fp16, trans_b);
}
int box_elements(const TmaCase& c) {
    int n = 1;
    for (int side : c.box) n *= side;
    return n;
}
void tma_read(uint16_t* out, const uint16_t* tensor, const TmaCase& c, cudaStream_t s) {
    const int n = box_elements(c);
    launch(kernel<tma_read_kernel>, LaunchConfig(1, 64, size_t(n * 2 + 127) / 128 * 128 + 8, s), out, map_of(tensor, c),
           c, n);
}
void bulk_double(float* out, const float* in, int n, cudaStream_t s) {
    launch(kernel<bulk_kernel>, LaunchConfig(1, 64, size_t(n) * 4 + 8, s), out, in, n);
}
void transposed_twice(uint32_t* out, const uint16_t* in, cudaStream_t s) {
    launch(kernel<transposed_twice_kernel>, LaunchConfig(1, 32, 0, s), out, in);
}
void wgmma_tile(float* d, const uint16_t* a, const uint16_t* b, const WgmmaCase& c, cudaStream_t s) {
    const LaunchConfig config(1, 128, 8192 + 32768, s);
    switch (c.n) {
        case 16:
            return launch(kernel<wgmma_tile_kernel<16>>, config, d, a, b, c);
        case 64:
            return launch(kernel<wgmma_tile_kernel<64>>, config, d, a, b, c);
        case 96:
            return launch(kernel<wgmma_tile_kernel<96>>, config, d, a, b, c);
        case 128:
            return launch(kernel<wgmma_tile_kernel<128>>, config, d, a, b, c);
        default:
            fail("wgmma_tile: N=%d", c.n);
    }
}
void pipelined_gemm(float* c, const uint16_t* a, const uint16_t* b, int M, int N, int K, GemmFault fault,
                    cudaStream_t s) {
    const auto map = [&](const uint16_t* p, int rows) {
        const uint64_t row = uint64_t(K) * 2, all = row * uint64_t(rows);
        return ptx::tensor_map(p, {uint64_t(K), uint64_t(rows), 1, 1}, {row, all, all}, {64, 64, 1, 1}, 128);
    };
    launch(kernel<pipelined_gemm_kernel>,
           LaunchConfig(dim3(unsigned(N + kN - 1) / kN, unsigned(M + kM - 1) / kM), 160,
                        kStages * kStageBytes + 2 * kStages * 8, s),
           c, map(a, M), map(b, N), M, N, K, fault);
}

}  // namespace rz::selftest
