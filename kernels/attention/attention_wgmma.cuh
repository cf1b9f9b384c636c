#pragma once
// Shared by the attention kernels for Hopper (sm_90a): the pipeline through shared memory, products by wgmma of tiles
// that TMA has brought, and on the host the order of their work.
//
// A tile in shared memory is a row of panels, each of 64, 32 or 16 elements per row under TMA's swizzle of that width.
// Tiles of which rows are summed over have panels that D is a multiple of: 64 elements at D = 64 and 128, 32 at D = 96,
// 16 at D = 80. Other tiles have panels of 64; TMA fills the last one's columns beyond D with zeros, and no product
// reads them. Summed over, these are operands in the forms of CUTLASS's kernels for sm_90 (dev/notes/ptx.md).

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_kept.h"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_order.h"

namespace rz {

template <int D, int kColumns_>
struct Panels {
    static constexpr int kColumns = kColumns_, kRowBytes = 2 * kColumns, kCount = (D + kColumns - 1) / kColumns;
    static constexpr uint32_t kLayout = kColumns == 64 ? 1 : kColumns == 32 ? 2 : 3;  // of wgmma's descriptors
    static constexpr int bytes(int rows) { return rows * kRowBytes; }
    static constexpr int tile(int rows) { return kCount * bytes(rows); }
};
// Panels of tiles whose rows are the rows or columns of products alone, and of those that are summed over too
template <int D>
using WidePanels = Panels<D, 64>;
template <int D>
using SummedPanels = Panels<D, D % 64 == 0   ? 64
                               : D % 32 == 0 ? 32
                                             : 16>;

// Score gradients of a section of heads (attention_kept.h)
struct KeptScores {
    uint4* ds;
    KeptPlaces places;
    int of_head;                     // tiles
    int first_key_head, first_head;  // batch * K + key head, batch * H + head

    // head: batch * H + head
    __device__ __forceinline__ int tile(int head, int q, int k) const {
        return (head - first_head) * of_head + places.at(q, k);
    }
};

// Work of a block in a round: rows of one head, and with them tiles of each of `heads` heads, from y_head on.
struct Item {
    int head, batch, row;  // the first row
    int y_head, heads, first_tile;
    int tiles;  // of each head; below 0: there is no item, and no other will come
};

// A round's item is decoded once, by one thread, for the producer and the consumers. The producer asks for the next
// when it has enqueued all loads of a round. By then every warp has left the round before the last, so four places,
// used in turn, are enough; consumers may read theirs after the barrier that the round's tile of rows completes.
struct Items {
    uint64_t asked, full;
    Item of[4];

    __device__ __forceinline__ void init() {
        ptx::mbar_init(&asked, 1);
        ptx::mbar_init(&full, 1);
    }
    // One thread that is in no other's warp. Decodes what it draws, or in a fixed order where there is no counter.
    template <class Decode>
    __device__ __forceinline__ void deal(const WorkOrder& order, uint32_t* next, const Decode& decode) {
        for (int round = 0;; ++round) {
            WorkOrder now = order;  // or what is divided by would be kept, divided, in registers that are not there
            ptx::forget(now.heads), ptx::forget(now.section);
            if (round > 0) ptx::mbar_wait(&asked, uint32_t(round & 1) ^ 1);
            const int taken = next ? int(atomicInc(next, order.last_draw())) : order.item(int(blockIdx.x), round);
            const bool some = taken < order.items();
            of[round & 3] = some ? decode(now.at(taken)) : Item{0, 0, 0, 0, 0, 0, -1};
            ptx::mbar_arrive(&full);
            if (!some) return;
        }
    }
    // The producer
    __device__ __forceinline__ const Item& next(int round) {
        if (round > 0) ptx::mbar_arrive(&asked);
        ptx::mbar_wait(&full, uint32_t(round & 1));
        return of[round & 3];
    }
    // A consumer warp: as values that the compiler knows to be the whole warp's
    __device__ __forceinline__ Item get(int round) const {
        static_assert(sizeof(Item) == 28);
        uint32_t lane = threadIdx.x % 32;
        ptx::forget(lane);  // or its address would be kept in registers from one item to the next
        const int mine = reinterpret_cast<const int*>(&of[round & 3])[lane < 7 ? lane : 0];
        const auto word = [&](int i) { return __shfl_sync(kFullWarp, mine, i); };
        return {word(0), word(1), word(2), word(3), word(4), word(5), word(6)};
    }
};

// ---- pipeline

template <int kStages>
struct Cursor {
    int stage = 0;
    uint32_t parity = 0;  // of the stage's barrier `full` in this pass
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

// One lane of each consumer warp, when every lane has seen the phase of `full` that is left and has read what it needs.
__device__ __forceinline__ void release(uint64_t* empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbar_arrive(empty);
}

// parity, known only when `sum`, a sum of exponentials, is. What waits for it can't be moved before their computation,
// nor they behind it. (Such a sum is never that negative number.)
__device__ __forceinline__ uint32_t once_known(float sum, uint32_t parity) {
    return __float_as_uint(sum) == 0x80000001u ? parity ^ 1 : parity;
}

// A tile of `rows` rows by its panels
template <class P>
__device__ __forceinline__ void load_panels(unsigned char* tile, int rows, const CUtensorMap* map, uint64_t* bar,
                                            int head, int row, int batch) {
    for (int p = 0; p < P::kCount; ++p)
        ptx::tma_load_4d(tile + p * P::bytes(rows), map, bar, P::kColumns * p, head, row, batch);
}

// The warpgroup of the calling thread, as a value that the compiler knows to be the same in the whole warp
__device__ __forceinline__ int warpgroup() { return __shfl_sync(kFullWarp, int(threadIdx.x) / 128, 0); }

// ---- products. Each enqueues and commits one group; what it reads and writes is not to be touched before the wait.

template <class T, int N, bool kTransB, class A>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const A& a, uint64_t b, bool accumulate) {
    if constexpr (std::is_same_v<A, uint64_t> && std::is_same_v<T, __nv_bfloat16>)
        ptx::wgmma_bf16<N, false, kTransB>(d, a, b, accumulate);
    else if constexpr (std::is_same_v<A, uint64_t>)
        ptx::wgmma_fp16<N, false, kTransB>(d, a, b, accumulate);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        ptx::wgmma_bf16<N, kTransB>(d, a, b, accumulate);
    else
        ptx::wgmma_fp16<N, kTransB>(d, a, b, accumulate);
}

// The descriptor of 16 columns from 16 step of a tile of kRows rows that operand_rows() describes
template <class P, int kRows>
__device__ __forceinline__ uint64_t columns(uint64_t tile, int step) {
    constexpr int kSteps = P::kColumns / 16;
    return ptx::wgmma_advance(tile, uint32_t(step / kSteps * P::bytes(kRows) + step % kSteps * 32));
}

// out (64 x N) = x y^T: x are 64 rows of a tile of kRowsX, y are the N rows of a tile, both of D elements in panels P.
template <class T, int D, int N, class P, int kRowsX>
__device__ __forceinline__ void start_product(float (&out)[N / 2], uint64_t x, uint64_t y) {
    if constexpr (D > 96) {  // or the descriptors of all steps stay in registers that are needed
        uint32_t low = uint32_t(x);
        ptx::forget(low);
        x = (x & 0xffffffff00000000) | low;
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
        wgmma<T, N, false>(out, columns<P, kRowsX>(x, step), columns<P, N>(y, step), step > 0);
    ptx::wgmma_commit();
}

// The same with x in registers, as A operands of D / 16 steps.
template <class T, int D, int N, class P>
__device__ __forceinline__ void start_product(float (&out)[N / 2], uint32_t (&x)[D / 16][4], uint64_t y) {
    ptx::wgmma_pin(x);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) wgmma<T, N, false>(out, x[step], columns<P, N>(y, step), step > 0);
    ptx::wgmma_commit();
}

// A tile as an operand whose rows are the product's rows or columns, and as one whose rows are summed over
template <class P>
__device__ __forceinline__ uint64_t operand_rows(const unsigned char* tile) {
    return ptx::wgmma_descriptor(tile, 16, 8 * P::kRowBytes, P::kLayout);
}
template <class P>
__device__ __forceinline__ uint64_t operand_summed(const unsigned char* tile, int rows) {
    return ptx::wgmma_descriptor(tile, uint32_t(P::bytes(rows)), 8 * P::kRowBytes, P::kLayout);
}

// sum (64 x D) += weights y, y the 16 kSteps rows of a tile in SummedPanels. Panels of 16 columns are multiplied one by
// one: no kernel that is proven on hardware steps from one to the next within an instruction.
template <class T, int D, int kSteps>
__device__ __forceinline__ void start_weighted(float (&sum)[D / 2], uint32_t (&weights)[kSteps][4],
                                               const unsigned char* tile) {
    using P = SummedPanels<D>;
    const uint64_t y = operand_summed<P>(tile, 16 * kSteps);
    ptx::wgmma_pin(sum);
    ptx::wgmma_pin(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const uint64_t rows = ptx::wgmma_advance(y, uint32_t(P::bytes(16 * step)));
        if constexpr (P::kColumns == 16) {
#pragma unroll
            for (int p = 0; p < P::kCount; ++p)
                wgmma<T, 16, true>(reinterpret_cast<float(&)[8]>(sum[8 * p]), weights[step],
                                   ptx::wgmma_advance(rows, uint32_t(p * P::bytes(16 * kSteps))), true);
        } else {
            wgmma<T, D, true>(sum, weights[step], rows, true);
        }
    }
    ptx::wgmma_commit();
}

// A thread's part of 64 x N accumulators as A operands of the next product
template <class T, int N>
__device__ __forceinline__ void pack_operand(uint32_t (&a)[N / 16][4], const float (&x)[N / 2]) {
#pragma unroll
    for (int step = 0; step < N / 16; ++step)
#pragma unroll
        for (int r = 0; r < 4; ++r) a[step][r] = pack_pair<T>(x[8 * step + 2 * r], x[8 * step + 2 * r + 1]);
}

// A warp stores its 16 rows (`count` of them exist) of 64 x D accumulators, times a factor for rows g and g + 8,
// through its rows of a tile that no other warp uses. With `back` they are rotated, the first by its place t.
template <class T, int D>
__device__ __forceinline__ void store_rows(T* out, int64_t row_stride, int count, unsigned char* tile, int row,
                                           const float (&sum)[D / 2], float factor_low, float factor_high,
                                           uint32_t* amax = nullptr, const Rope* back = nullptr, int batch = 0,
                                           int t = 0) {
    float acc[D / 8][4];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) acc[i / 4][i % 4] = sum[i];
    uint32_t first = uint32_t(row);
    ptx::forget(first);  // or its addresses would be kept in registers from one item to the next
    row = int(first);
    __syncwarp();  // what was stored through these rows before has been read
    accumulators_to_tile<T, D>(tile, row, acc, factor_low, factor_high);
    __syncwarp();
    if (back != nullptr && back->x != nullptr) rotate_tile_rows<T, D, 16>(tile, row, count, *back, batch, t);
    store_tile_rows<T, D, 16>(out, row_stride, count, tile, row, amax);
}

// ---- host side

// Computes dq from the score gradients that are kept.
void attention_backward_dq_wgmma(const AttentionBackward&, const KeptScores&, int64_t heads, CudaStream);

// True: the wgmma kernels take this shape on the current device, given its pointers.
template <class... P>
bool wgmma_covers(const AttentionShape& s, const P*... pointers) {
    return s.fastest >= AttentionKernels::wgmma && mma_covers(s, pointers...);
}

// True: this kernel, whose body exists in code for sm_90a only, can run on the current device: a build for other
// architectures leaves it empty. A body takes more than a hundred registers, nothing a handful. (Its shared memory says
// less: the system's KiB may be counted.)
inline bool compiled_for_sm90a(const void* kernel) {
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
#if defined(__CUDACC__)
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.numRegs > 64;
#else
    return kernel != nullptr;
#endif
}

// The order for the current device, less the multiprocessors that are left free. A thread keeps what it has chosen for
// its last shapes.
inline WorkOrder work_order(const WorkShape& shape, const SmBudget& beside) {
    struct Known {
        WorkShape shape;
        int blocks;
        int64_t l2;
        WorkOrder order;
    };
    constexpr size_t kKeep = 16;
    static thread_local std::vector<Known> known;
    const int blocks = std::max(1, device_attribute(cudaDevAttrMultiProcessorCount) - beside.reserved_sms);
    const int64_t l2 = device_attribute(cudaDevAttrL2CacheSize);
    for (const Known& k : known)
        if (k.shape == shape && k.blocks == blocks && k.l2 == l2) return k.order;
    if (known.size() == kKeep) known.erase(known.begin());
    known.push_back({shape, blocks, l2, choose_work_order(shape, blocks, l2)});
    return known.back().order;
}

// A tensor (B, T, heads, D) for TMA, in boxes of `rows` rows of a panel of one head. Rows beyond T and columns beyond D
// read as zero.
template <class P>
CUtensorMap wgmma_map(const void* base, int64_t D, int64_t heads, int64_t T, int64_t B, int64_t row, int64_t batch,
                      int rows) {
    const auto u = [](int64_t x) { return uint64_t(x); };
    return ptx::tensor_map(base, {u(D), u(heads), u(T), u(B)}, {u(2 * D), u(2 * row), u(2 * batch)},
                           {P::kColumns, 1, uint32_t(rows), 1}, P::kRowBytes);
}

}  // namespace rz
