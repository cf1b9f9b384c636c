#include "test/simt/planted.h"

#include "kernels/cuda/ptx.cuh"
#include "test/simt/selftest.h"

template <>
constexpr bool simt::atomics_allowed<float> = true;  // for what is planted

namespace rz::planted {
namespace {

__device__ float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

__global__ void missing_barrier(float* out, const float* in, bool fixed) {
    __shared__ float part[8];
    const float v = warp_sum(in[threadIdx.x]);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    if (fixed) __syncthreads();
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += part[i];
    out[threadIdx.x] = sum;
}

// The loop of flash attention: tiles of keys come by cp.async, one ahead; each thread keeps one query, its running
// maximum, sum and output. Without the barrier at the tail, the next fetch overwrites keys that other warps still read.
__global__ void missing_tail_barrier(float* out, const float* in, bool fixed) {
    __shared__ __align__(16) float keys[2][128];
    const int t = int(threadIdx.x), tiles = 8;
    const auto fetch = [&](int j) {
        if (t < 32) ptx::cp_async16(&keys[j & 1][t * 4], in + j * 128 + t * 4);
        ptx::cp_async_commit();
    };
    const float query = in[t] * 0.01f;
    float top = -INFINITY, sum = 0, value = 0;
    fetch(0);
    for (int j = 0; j < tiles; j++) {
        if (j + 1 < tiles) {
            fetch(j + 1);
            ptx::cp_async_wait<1>();
        } else {
            ptx::cp_async_wait<0>();
        }
        __syncthreads();
        for (int k = 0; k < 128; k++) {
            const float score = query * keys[j & 1][k], higher = fmaxf(top, score), shrink = __expf(top - higher);
            const float p = __expf(score - higher);
            sum = sum * shrink + p, value = value * shrink + p * keys[j & 1][k];
            top = higher;
        }
        if (fixed) __syncthreads();
    }
    out[t] = value / sum;
}

__global__ void missing_syncwarp(float* out, const float* in, bool fixed) {
    __shared__ float t[4][32];
    const int w = int(threadIdx.x) / 32, l = int(threadIdx.x) % 32;
    t[w][l] = in[threadIdx.x];
    if (fixed) __syncwarp();
    out[threadIdx.x] = t[w][l ^ 1];
}

__global__ void plain_accumulation(float* out, const float* in, bool fixed) {
    if (fixed)
        atomicAdd(out, in[threadIdx.x]);
    else
        *out += in[threadIdx.x];
}

__global__ void two_blocks_one_address(float* out, const float* in, bool fixed) {
    out[(fixed ? blockIdx.x * 32 : 0) + threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
}

// Reads its neighbour's element of the same buffer that it writes.
__global__ void in_place_shift(float* out, const float* in, bool fixed) {
    __shared__ float x[128];
    const int t = int(threadIdx.x);
    x[t] = in[t];
    __syncthreads();
    const float left = x[(t + 127) % 128];
    if (fixed) __syncthreads();
    x[t] = left * 2;
    __syncthreads();
    out[t] = x[t];
}

// Two rows per warp, the last row missing: `<=` where `<` is meant.
__global__ void row_guard_off_by_one(float* out, const float* in, int rows, bool fixed) {
    const int row = int(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    if (fixed ? row < rows : row <= rows) out[row * 32 + lane] = in[row * 32 + lane];
}

__global__ void static_overrun(float* out, const float* in, bool fixed) {
    __shared__ float a[96];
    __shared__ float b[96];
    float* p = a;  // through a pointer: only a redzone can tell
    p[threadIdx.x + (fixed ? 0 : 1)] = in[threadIdx.x];
    b[threadIdx.x] = 0;
    __syncthreads();
    out[threadIdx.x] = a[95 - threadIdx.x] + b[threadIdx.x];
}

__global__ void dynamic_overrun(float* out, const float* in, int n, bool fixed) {
    GPU_DYN_SMEM(smem);
    float* p = reinterpret_cast<float*>(smem);
    p[threadIdx.x + (fixed ? 0 : 1)] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = p[n - 1 - int(threadIdx.x)];
}

__global__ void local_overrun(float* out, const float* in, bool fixed) {
    float r[4];
    for (int i = 0; i < 4; i++) r[i] = in[i];
    out[threadIdx.x] = r[fixed ? threadIdx.x % 4 : threadIdx.x % 5];
}

__global__ void misaligned_vector(float* out, const float* in, bool fixed) {
    const float4 v = *reinterpret_cast<const float4*>(in + threadIdx.x * 4 + (fixed ? 0 : 1));
    *reinterpret_cast<float4*>(out + threadIdx.x * 4) = v;
}

__global__ void cp_async_faults(float* out, const float* in, bool wait, bool barrier) {
    __shared__ __align__(16) float t[128];
    if (threadIdx.x < 32) ptx::cp_async16(t + threadIdx.x * 4, in + threadIdx.x * 4);
    ptx::cp_async_commit();
    if (wait) ptx::cp_async_wait<0>();
    if (barrier) __syncthreads();
    out[threadIdx.x] = t[threadIdx.x];
    ptx::cp_async_wait<0>();
}

__global__ void divergent_barrier(float* out, const float* in, bool fixed) {
    __shared__ float t[128];
    t[threadIdx.x] = in[threadIdx.x];
    if (fixed) {
        __syncthreads();
    } else if (threadIdx.x < 64) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = t[127 - threadIdx.x];
}

__global__ void early_return(float* out, const float* in, int n, bool fixed) {
    __shared__ float t[128];
    const int i = int(threadIdx.x);
    if (!fixed && i >= n) return;
    t[i] = i < n ? in[i] : 0;
    __syncthreads();
    if (i < n) out[i] = t[n - 1 - i];
}

__global__ void shuffle_with_missing_lanes(float* out, const float* in, bool fixed) {
    if (threadIdx.x >= 24) return;
    out[threadIdx.x] = __shfl_xor_sync(fixed ? 0x00ffffffu : ~0u, in[threadIdx.x], 1);
}

__global__ void divergent_collective(float* out, const float* in, bool fixed) {
    float v = in[threadIdx.x];
    if (fixed || threadIdx.x < 16)
        v = __shfl_xor_sync(~0u, v, 1);
    else
        v = float(__ballot_sync(~0u, v > 0));
    out[threadIdx.x] = v;
}

__global__ void unwritten_shared(float* out, const float* in, bool fixed) {
    __shared__ float t[128];
    if (fixed || threadIdx.x < 100) t[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = t[127 - threadIdx.x];
}

__global__ void livelock(float* out, const float* in, bool fixed) {
    __shared__ int flag;
    if (threadIdx.x == 0) flag = fixed;
    __syncthreads();
    while (atomicAdd(&flag, 0) == 0) __nanosleep(10);
    out[threadIdx.x] = in[threadIdx.x];
}

// Each block waits until all have come. On a device that works as long as all are resident.
__device__ unsigned arrived_blocks;
__global__ void wait_for_every_block(float* out, const float* in, bool fixed) {
    if (threadIdx.x == 0 && !fixed) {
        atomicAdd(&arrived_blocks, 1u);
        while (atomicAdd(&arrived_blocks, 0u) % gridDim.x != 0) __nanosleep(10);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
}

__global__ void deadlock(float* out, const float* in, bool fixed) {
    if (threadIdx.x < 32 || fixed) ptx::bar_sync(1, 64);
    out[threadIdx.x] = in[threadIdx.x];
}

// Two warps take turns; the second forgets to pass the last one on, or passes on a turn that it has not taken.
__global__ void lost_turn(float* out, const float* in, bool fixed) {
    const int warp = int(threadIdx.x) / 32;
    if (warp == 1) ptx::bar_arrive(1, 64);
    for (int i = 0; i < 3; i++) {
        ptx::bar_sync(1 + warp, 64);
        out[threadIdx.x] = in[threadIdx.x] + float(i);
        if (warp == 0 || i < 1 || fixed) ptx::bar_arrive(2 - warp, 64);
    }
    if (warp == 0) ptx::bar_sync(1, 64);
}

__global__ void turn_not_taken(float* out, const float* in, bool fixed) {
    __shared__ float shared_value;
    const int warp = int(threadIdx.x) / 32;
    if (warp == 1) ptx::bar_arrive(1, 64);
    for (int i = 0; i < 4; i++) {
        if (warp == 0 || i != 2 || fixed) ptx::bar_sync(1 + warp, 64);
        if (threadIdx.x % 32 == 0) shared_value = in[warp] + float(i);
        __syncwarp();
        out[i * 64 + int(threadIdx.x)] = shared_value;
        __syncwarp();
        if (i < 3 || warp == 0) ptx::bar_arrive(2 - warp, 64);
    }
}

// The A operand's registers get their next values while the product may still read them.
__global__ void operand_registers_changed(float* out, const float* in, bool fixed) {
    GPU_DYN_SMEM(smem);
    uint16_t* b = reinterpret_cast<uint16_t*>(smem);
    for (int i = int(threadIdx.x); i < 256; i += 128) b[i] = uint16_t(0x3f80 + i % 7);
    ptx::fence_proxy_async();
    __syncthreads();
    uint32_t a[4];
    for (int r = 0; r < 4; r++) a[r] = 0x3f803f80u + (in[threadIdx.x] > 0);
    float d[8];
    for (int step = 0; step < 2; step++) {
        ptx::wgmma_fence();
        ptx::wgmma_bf16<16, false>(d, a, ptx::wgmma_descriptor(b, 128, 256, 0), step > 0);
        ptx::wgmma_commit();
        if (fixed) ptx::wgmma_wait<0>();
        for (int r = 0; r < 4; r++) a[r] += 1;
        ptx::wgmma_wait<0>();
    }
    for (int i = 0; i < 8; i++) out[i * 128 + int(threadIdx.x)] = d[i];
}

// Demands of wgmma and mbarriers beyond their operands' values.
enum class Contract { warps_agree, warps_all_execute, tile_aligned, no_base_offset, transaction_count };
__global__ void broken_contract(float* out, const float*, bool fixed, Contract contract) {
    GPU_DYN_SMEM(smem);
    uint16_t* b = reinterpret_cast<uint16_t*>(smem);
    for (int i = int(threadIdx.x); i < 2048; i += 128) b[i] = uint16_t(0x3f80 + i % 7);
    ptx::fence_proxy_async();
    __syncthreads();
    const bool breaks = !fixed, last_warp = threadIdx.x / 32 == 3;
    uint32_t a[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    const int rows = breaks && contract == Contract::tile_aligned ? 1 : 0;  // of 128 bytes
    uint64_t tile = ptx::wgmma_descriptor(smem + rows * 128, 16, 1024, 1);
    if (breaks && contract == Contract::warps_agree && last_warp) tile = ptx::wgmma_advance(tile, 32);
    if (breaks && contract == Contract::no_base_offset) tile |= uint64_t(1) << 49;
    float d[8] = {};
    for (int step = 0; step < 2; step++) {
        if (breaks && contract == Contract::warps_all_execute && last_warp && step) break;
        ptx::wgmma_fence();
        ptx::wgmma_bf16<16, false>(d, a, tile, step > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
    }
    for (int i = 0; i < 8; i++) out[i * 128 + int(threadIdx.x)] = d[i];
    if (contract != Contract::transaction_count || threadIdx.x) return;
    auto* bar = reinterpret_cast<uint64_t*>(smem + 4096);
    ptx::mbar_init(bar, 1);
    ptx::mbar_arrive_expect_tx(bar, breaks ? 1 << 20 : 0);
}

template <selftest::GemmFault kFault>
void run_gemm(float* out, const float* in, bool fixed, cudaStream_t s) {
    // 32 x 64 results fit `out`; the operands are the bits of small integers.
    static uint16_t* operands = nullptr;
    constexpr int M = 32, N = 64, K = 512;
    if (!operands) {
        require(cudaMalloc(reinterpret_cast<void**>(&operands), (M + N) * K * 2) == cudaSuccess, "no memory");
        std::vector<uint16_t> host((M + N) * K);
        for (size_t i = 0; i < host.size(); i++)
            host[i] = __bfloat16_as_ushort(__float2bfloat16(float(i * 7 % 13) - 6));
        require(cudaMemcpy(operands, host.data(), host.size() * 2, cudaMemcpyHostToDevice) == cudaSuccess, "copy");
    }
    (void)in;
    selftest::pipelined_gemm(out, operands, operands + M * K, M, N, K, fixed ? selftest::GemmFault::none : kFault, s);
}

// The second stream reads what the first one writes.
void missing_event_wait(float* out, const float* in, bool fixed, cudaStream_t s) {
    static float* middle = nullptr;
    static cudaStream_t side = nullptr;
    static cudaEvent_t written = nullptr;
    if (!middle) {
        require(cudaMalloc(reinterpret_cast<void**>(&middle), kValues * 4) == cudaSuccess, "no memory");
        cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&written, cudaEventDisableTiming);
    }
    cudaMemsetAsync(middle, 0, kValues * 4, s);
    cudaStreamSynchronize(s);
    cudaMemcpyAsync(middle, in, kValues * 4, cudaMemcpyDeviceToDevice, s);
    selftest::add_one(middle, kValues, s);
    cudaEventRecord(written, s);
    if (fixed) cudaStreamWaitEvent(side, written, 0);
    cudaMemcpyAsync(out, middle, kValues * 4, cudaMemcpyDeviceToDevice, side);
    cudaStreamSynchronize(side);
    cudaStreamSynchronize(s);
}

// A pinned buffer is changed before the copy out of it is done.
void host_buffer_reused(float* out, const float*, bool fixed, cudaStream_t s) {
    static float* host = nullptr;
    if (!host) require(cudaMallocHost(reinterpret_cast<void**>(&host), kValues * 4) == cudaSuccess, "no memory");
    for (int i = 0; i < kValues; i++) host[i] = float(i);
    cudaMemcpyAsync(out, host, kValues * 4, cudaMemcpyHostToDevice, s);
    if (fixed) cudaStreamSynchronize(s);
    for (int i = 0; i < kValues; i++) host[i] = -1;
}

#define KERNEL(name, grid, block, smem, ...)                                        \
    [](float* out, const float* in, bool fixed, cudaStream_t s) {                   \
        (void)in;                                                                   \
        launch(kernel<name>, LaunchConfig(grid, block, smem, s), out, __VA_ARGS__); \
    }

#define CONTRACT(name) KERNEL(broken_contract, 1, 128, 4104, in, fixed, Contract::name)

}  // namespace

const Bug bugs[] = {
    {"missing __syncthreads", "pr", KERNEL(missing_barrier, 1, 256, 0, in, fixed)},
    {"missing tail barrier in flash attention", "pr", KERNEL(missing_tail_barrier, 1, 128, 0, in, fixed)},
    {"missing __syncwarp", "pr", KERNEL(missing_syncwarp, 1, 128, 0, in, fixed)},
    {"read-write race on shared memory", "pr", KERNEL(in_place_shift, 1, 128, 0, in, fixed)},
    {"non-atomic accumulation", "r", KERNEL(plain_accumulation, 4, 128, 0, in, fixed)},
    {"two blocks write one address", "pr", KERNEL(two_blocks_one_address, 4, 32, 0, in, fixed)},
    {"row guard off by one", "a", KERNEL(row_guard_off_by_one, 17, 128, 0, in, kValues / 32, fixed)},
    {"overrun of static shared memory", "a", KERNEL(static_overrun, 1, 96, 0, in, fixed)},
    {"overrun of dynamic shared memory", "a", KERNEL(dynamic_overrun, 1, 128, 512, in, 128, fixed)},
    {"overrun of a local array", "a", KERNEL(local_overrun, 1, 32, 0, in, fixed)},
    {"misaligned vector load", "a", KERNEL(misaligned_vector, 1, 32, 0, in, fixed)},
    {"cp.async without wait", "pr", KERNEL(cp_async_faults, 1, 128, 0, in, fixed, true)},
    {"cp.async without barrier", "pr", KERNEL(cp_async_faults, 1, 128, 0, in, true, fixed)},
    {"divergent barrier", "par", KERNEL(divergent_barrier, 1, 128, 0, in, fixed)},
    {"early return before a barrier", "par", KERNEL(early_return, 1, 128, 0, in, 100, fixed)},
    {"shuffle names lanes that returned", "par", KERNEL(shuffle_with_missing_lanes, 1, 32, 0, in, fixed)},
    {"divergent warp collective", "par", KERNEL(divergent_collective, 1, 32, 0, in, fixed)},
    {"read of unwritten shared memory", "pr", KERNEL(unwritten_shared, 1, 128, 0, in, fixed)},
    {"spin loop that never ends", "par", KERNEL(livelock, 1, 32, 0, in, fixed)},
    {"a block waits for one that is not resident", "par", KERNEL(wait_for_every_block, 2, 32, 0, in, fixed)},
    {"deadlock on a named barrier", "par", KERNEL(deadlock, 1, 64, 0, in, fixed)},
    {"turn lost between named barriers", "par", KERNEL(lost_turn, 1, 64, 0, in, fixed)},
    {"turn of another warp taken", "pr", KERNEL(turn_not_taken, 1, 64, 0, in, fixed)},
    {"TMA tile used without wait", "pr", run_gemm<selftest::GemmFault::no_full_wait>},
    {"wgmma result and stage released without wait", "pr", run_gemm<selftest::GemmFault::no_wgmma_wait>},
    {"wgmma's A registers changed before its wait", "pr", KERNEL(operand_registers_changed, 1, 128, 512, in, fixed)},
    {"the warps of a wgmma name different tiles", "par", CONTRACT(warps_agree)},
    {"a warp leaves a wgmma out", "par", CONTRACT(warps_all_execute)},
    {"a swizzled tile begins within the pattern", "par", CONTRACT(tile_aligned)},
    {"a base offset in a descriptor", "par", CONTRACT(no_base_offset)},
    {"a transaction count beyond 20 bits", "par", CONTRACT(transaction_count)},
    {"TMA overwrites a stage in use", "r", run_gemm<selftest::GemmFault::no_empty_wait>},
    {"missing event wait between streams", "p", missing_event_wait},
    {"host buffer reused before its copy", "p", host_buffer_reused},
};
const int n_bugs = int(sizeof bugs / sizeof *bugs);

}  // namespace rz::planted
