// Models of tensor-core operands, swizzles and TMA tiles, as pure functions of addresses, lanes and plain memory. They
// know no caller: the emulator runs them on fibers' arguments, test/ptx on rows of registers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "test/simt/tensor_map.h"

namespace models {

// test/ptx turns one property wrong at a time, to see which proven kernel fails for it. A constant elsewhere.
enum class Flip {
    none,
    a_registers,
    a_halves,
    b_registers,
    d_rows,
    swizzle_32,
    swizzle_64,
    swizzle_128,
    strides_mn,
    strides_k,
    strides_plain,
    transposition,
    parity,
    out_of_bounds,
    tx_bytes,
    multicast,
    accumulate,
    ldmatrix_trans,
    tma_swizzle_32,
    tma_swizzle_64,
    tma_swizzle_128,
    a_register_operand,
    scale_sign,
    k_step,
    count
};
#ifdef MODELS_FLIP
inline Flip flip = Flip::none;
#else
constexpr Flip flip = Flip::none;
#endif

inline float half_to_float(uint16_t bits, bool bf16) {
    return bf16 ? std::bit_cast<float>(uint32_t(bits) << 16) : float(std::bit_cast<_Float16>(bits));
}

// ---- c[rows][n] += a[rows][k_count] b[k_count][n], in order of k in fp32, fused. Tensor cores round and order
// otherwise.

#if defined(__SANITIZE_ADDRESS__)
#define MODELS_UNCHECKED __attribute__((no_sanitize("address", "undefined")))
#else
#define MODELS_UNCHECKED
#endif
__attribute__((always_inline)) MODELS_UNCHECKED inline void multiply_loops(float* __restrict__ c,
                                                                           const float* __restrict__ a,
                                                                           const float* __restrict__ b, int n,
                                                                           int k_count, int rows) {
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < k_count; k++) {
            const float x = a[i * k_count + k];
            for (int j = 0; j < n; j++) c[i * n + j] = __builtin_fmaf(x, b[k * n + j], c[i * n + j]);
        }
}
MODELS_UNCHECKED __attribute__((optimize("O3"))) inline void multiply_baseline(float* c, const float* a, const float* b,
                                                                               int n, int k_count, int rows) {
    multiply_loops(c, a, b, n, k_count, rows);
}
#if defined(__x86_64__)
MODELS_UNCHECKED __attribute__((optimize("O3"), target("avx2,fma"))) inline void multiply_avx2(float* c, const float* a,
                                                                                               const float* b, int n,
                                                                                               int k_count, int rows) {
    multiply_loops(c, a, b, n, k_count, rows);
}
#endif
inline void multiply(float* c, const float* a, const float* b, int n, int k_count = 16, int rows = 16) {
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2) return multiply_avx2(c, a, b, n, k_count, rows);
#endif
    multiply_baseline(c, a, b, n, k_count, rows);
}

// ---- fragments of m16n8k16 and m16n8k8: where lane l's half h of register r lies

inline int a_row(int l, int r) { return l / 4 + (flip == Flip::a_registers ? r / 2 : r % 2) * 8; }
inline int a_column(int l, int r, int h) {
    return l % 4 * 2 + (flip == Flip::a_registers ? r % 2 : r / 2) * 8 + (flip == Flip::a_halves ? 1 - h : h);
}
inline int b_row(int l, int r, int h) { return l % 4 * 2 + (flip == Flip::b_registers ? 1 - r : r) * 8 + h; }
inline int b_column(int l) { return l / 4; }
// Accumulator i of lane l; of wgmma too: 16 rows per warp, any n
inline int d_row(int l, int i) { return l / 4 + (flip == Flip::d_rows ? 1 - i % 4 / 2 : i % 4 / 2) * 8; }
inline int d_column(int l, int i) { return i / 4 * 8 + l % 4 * 2 + i % 2; }
// ldmatrix and stmatrix: lane l's half h of an 8x8 matrix
inline void matrix_place(int l, int h, bool trans, int* row, int* column) {
    *row = l / 4, *column = l % 4 * 2 + h;
    if (trans != (flip == Flip::ldmatrix_trans)) std::swap(*row, *column);
}

// movmatrix: where half h of lane l comes from
inline void transposed_place(int l, int h, int* lane, int* half) {
    int row, column;
    matrix_place(l, h, true, &row, &column);
    *lane = row * 4 + column / 2, *half = column % 2;
}
inline void transpose_matrix(uint32_t (&out)[32], const uint32_t (&in)[32]) {
    for (int l = 0; l < 32; l++) {
        out[l] = 0;
        for (int h = 0; h < 2; h++) {
            int lane, half;
            transposed_place(l, h, &lane, &half);
            out[l] |= uint32_t(uint16_t(in[lane] >> 16 * half)) << 16 * h;
        }
    }
}

// ---- swizzles and wgmma's descriptors

// Exchanges 16-byte chunks within rows of 32, 64 or 128 bytes (mode 1, 2, 3; 0: none) by bits of the address.
inline uint32_t swizzled(uint32_t address, uint32_t mode, bool tma) {
    constexpr uint32_t mask[4] = {0, 0x10, 0x30, 0x70};
    constexpr uint32_t wrong[4] = {0, 0x00, 0x10, 0x30};
    const uint32_t wrong_mode = flip >= Flip::tma_swizzle_32 && flip <= Flip::tma_swizzle_128 && tma
                                    ? uint32_t(flip) - uint32_t(Flip::tma_swizzle_32) + 1
                                : flip >= Flip::swizzle_32 && flip <= Flip::swizzle_128
                                    ? uint32_t(flip) - uint32_t(Flip::swizzle_32) + 1
                                    : 0;
    const bool turned = mode && mode == wrong_mode;
    return address ^ ((address >> 3) & (turned ? wrong : mask)[mode]);
}

// Calls f(mn, k, shared address of 8 elements of 16 bits): along k if K-major, along mn if not.
template <class F>
void for_each_chunk(uint64_t descriptor, int mn_begin, int mn_count, bool trans, F f) {
    const auto field = [descriptor](int bit) { return uint32_t(descriptor >> bit & 0x3fff) << 4; };
    const uint32_t start = field(0), layout = uint32_t(descriptor >> 62);
    const bool swap = flip == Flip::strides_mn      ? layout && trans
                      : flip == Flip::strides_k     ? layout && !trans
                      : flip == Flip::strides_plain ? !layout
                                                    : false;
    const uint32_t leading = field(swap ? 32 : 16), stride = field(swap ? 16 : 32);
    constexpr uint32_t kRow[4] = {16, 128, 64, 32}, kMode[4] = {0, 3, 2, 1};
    const uint32_t row = kRow[layout], atom = row / 2;  // elements per swizzled row
    const auto at = [&](uint32_t a) { return swizzled(a, kMode[layout], false); };
    const auto begin = uint32_t(mn_begin), end = uint32_t(mn_begin + mn_count);
    if (trans == (flip == Flip::transposition)) {
        for (uint32_t mn = begin; mn < end; mn++)
            for (uint32_t k = 0; k < 16; k += 8)
                f(int(mn - begin), int(k),
                  at(start + mn % 8 * row + mn / 8 * stride +
                     (layout ? k * (flip == Flip::k_step ? 4 : 2) : k / 8 * leading)));
        return;
    }
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t mn = begin; mn < end; mn += 8)
            f(int(mn - begin), int(k),
              at(layout ? start + mn % atom * 2 + mn / atom * leading + k % 8 * row + k / 8 * stride
                        : start + k % 8 * 16 + mn / 8 * stride + k / 8 * leading));
}
// True: for_each_chunk gives runs along mn
inline bool along_mn(bool trans) { return trans != (flip == Flip::transposition); }

// PTX demands this of a descriptor ("Matrix Descriptor" of wgmma): null, or what is wrong. A tile begins where its
// swizzle's pattern does, every 1024, 512 or 256 bytes; start may lie within the pattern's first row, steps along k.
inline const char* wrong_descriptor(uint64_t descriptor) {
    constexpr uint64_t kFields = 0x3fff | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62;
    constexpr uint32_t kPattern[4] = {16, 1024, 512, 256};
    if (descriptor & ~kFields) return "bits of its descriptor that must be 0 are set";
    if (descriptor >> 49 & 7) return "its descriptor has a base offset, which no kernel here needs and no model has";
    const uint32_t pattern = kPattern[descriptor >> 62], start = uint32_t(descriptor & 0x3fff) << 4;
    if (start % pattern >= std::max(pattern / 8, 1u))
        return "its operand does not begin where the swizzle's pattern does (1024, 512 or 256 bytes for 128, 64 or 32)";
    return nullptr;
}

// The four warps of a warpgroup execute the same wgmma.mma_async and commit_group in the same order.
class WarpgroupOrder {
   public:
    struct Step {
        uint64_t a, b;  // descriptors; a 0: registers
        int n;          // 0: a commit
        bool accumulate, trans_a, trans_b, bf16;
        bool operator==(const Step&) const = default;
    };
    // Null, or what is wrong. warp: 0 to 3
    const char* next(uint32_t warp, const Step& step) {
        const size_t i = done_[warp]++;
        if (i == steps_.size())
            steps_.push_back(step);
        else if (!(steps_[i] == step))
            return "the warps of the warpgroup disagree on descriptors, or on the order of wgmma and commit_group";
        const size_t oldest = std::min(std::min(done_[0], done_[1]), std::min(done_[2], done_[3]));
        if (oldest < 256) return nullptr;
        steps_.erase(steps_.begin(), steps_.begin() + long(oldest));
        for (size_t& d : done_) d -= oldest;
        return nullptr;
    }
    // At the block's end
    bool level() const { return done_[0] == done_[1] && done_[1] == done_[2] && done_[2] == done_[3]; }

   private:
    std::vector<Step> steps_;
    size_t done_[4] = {};
};

// ---- asynchronous operations of one thread or warp, complete when it has waited for their group

struct Groups {
    std::vector<std::function<void()>> ops;
    std::vector<size_t> ends;
    uint64_t committed = 0;  // groups
    void commit() { ends.push_back(ops.size()), committed++; }
    void wait(size_t keep) {
        if (ends.size() <= keep) return;
        const size_t groups = ends.size() - keep, n = ends[groups - 1];
        for (size_t i = 0; i < n; i++) ops[i]();
        ops.erase(ops.begin(), ops.begin() + long(n));
        ends.erase(ends.begin(), ends.begin() + long(groups));
        for (size_t& end : ends) end -= n;
    }
    void wait_all() { commit(), wait(0); }
};

// ---- TMA tiles

using simt::TensorMap;

struct Coordinates {
    int x[5];
};
// Alignment of a tile: its swizzle's pattern repeats every 1024, 512 or 256 bytes; 128 without one.
inline uint32_t tile_alignment(const TensorMap& m) { return m.swizzle ? 128u << m.swizzle : 128u; }
inline uint32_t tile_bytes(const TensorMap& m) {
    uint32_t n = m.element;
    for (uint32_t d = 0; d < m.rank; d++) n *= m.box[d];
    return n;
}

// Calls f(global pointer, shared offset, bytes, inside) for every run of a tile: at most 16 bytes, in shared memory
// contiguous and aligned to 16 before the tensor's edge cuts it.
template <class F>
void for_each_run(const TensorMap& m, uint32_t shared_address, const int* coordinates, F f) {
    uint32_t rows = 1;
    for (uint32_t d = 1; d < m.rank; d++) rows *= m.box[d];
    const uint32_t per_run = 16u / m.element;
    for (uint32_t row = 0; row < rows; row++) {
        bool row_inside = true;
        int64_t offset = 0;
        for (uint32_t d = 1, rest = row; d < m.rank; rest /= m.box[d++]) {
            const int64_t x = int64_t(coordinates[d]) + rest % m.box[d];
            row_inside &= x >= 0 && x < int64_t(m.dim[d]);
            offset += x * int64_t(m.stride[d]);
        }
        for (uint32_t i = 0; i < m.box[0]; i += per_run) {
            const uint32_t linear = shared_address + (row * m.box[0] + i) * m.element;
            const uint32_t to = swizzled(linear, m.swizzle, true) - shared_address;
            for (uint32_t e = 0; e < per_run;) {
                const int64_t x = int64_t(coordinates[0]) + i + e;
                const bool inside = row_inside && x >= 0 && x < int64_t(m.dim[0]);
                const int64_t edge = !row_inside ? per_run : x < 0 ? -x : inside ? int64_t(m.dim[0]) - x : per_run;
                const auto n = uint32_t(std::min<int64_t>(edge, per_run - e));
                f(m.base + offset + x * m.element, to + e * m.element, n * m.element, inside);
                e += n;
            }
        }
    }
}

// ---- mbarrier: one 64-bit word of shared memory

struct MBarrier {
    uint32_t phase : 1, valid : 7, expected : 12, pending : 12;
    int32_t tx;  // bytes still to come; negative while they run ahead of their announcement
};
static_assert(sizeof(MBarrier) == sizeof(uint64_t));
constexpr uint32_t kMBarrierValid = 0x5a;

inline MBarrier new_mbarrier(uint32_t count) { return {0, kMBarrierValid, count & 0xfff, count & 0xfff, 0}; }
// PTX: "the valid range of tx-count is -(2^20 - 1) to 2^20 - 1".
inline bool add_tx(MBarrier& m, int64_t bytes) {
    const int64_t tx = int64_t(m.tx) + bytes;
    if (tx < -0xfffff || tx > 0xfffff) return false;
    m.tx = int32_t(tx);
    return true;
}
// True if this ends the phase.
inline bool complete_phase(MBarrier& m) {
    if (m.pending || m.tx) return false;
    m.phase ^= 1, m.pending = m.expected;
    return true;
}

}  // namespace models
