// The layouts of test/simt/models.h and the descriptors of the attention kernels against CuTe's own constexpr layouts,
// with which NVIDIA's kernels run on real GPUs. CuTe comes from PyPI's wheel nvidia-cutlass (cute.sh fetches it).
//
// Every check counts the places where a model and CuTe differ, so that a wrong model (models::flip) can be shown to be
// found. What this can't say: timing, phases of barriers, fences.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

// CuTe takes shared addresses from this function; shared memory begins at 1024, as it does in the emulator.
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
constexpr uint32_t kSharedBegin = 1024, kSharedBytes = 1 << 18;
alignas(1024) static unsigned char shared_memory[kSharedBytes];
inline size_t __cvta_generic_to_shared(const void* p) {
    return size_t(static_cast<const unsigned char*>(p) - shared_memory) + kSharedBegin;
}
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm90.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "test/simt/layouts/operands.h"
#include "test/simt/models.h"

namespace {

namespace gmma = cute::SM90::GMMA;
using bf16 = cute::bfloat16_t;
using gmma::Major;

// Places compared, and those that differ
struct Count {
    long checked = 0, wrong = 0;
    void equal(uint64_t a, uint64_t b) { ++checked, wrong += a != b; }
};

// ---- fragments

template <int N>
void accumulator(Count& count) {
    const gmma::CLayout_64xN<N> c;
    for (int t = 0; t < 128; ++t)
        for (int i = 0; i < N / 2; ++i)
            count.equal(c(t, i), 16 * (t / 32) + models::d_row(t % 32, i) + 64 * models::d_column(t % 32, i));
}
Count wgmma_accumulators() {
    Count n;
    accumulator<16>(n), accumulator<32>(n), accumulator<64>(n), accumulator<80>(n), accumulator<96>(n);
    accumulator<128>(n), accumulator<160>(n), accumulator<192>(n), accumulator<256>(n);
    return n;
}
Count wgmma_a_registers() {
    Count n;
    const gmma::ALayout_64x16 a;
    for (int t = 0; t < 128; ++t)
        for (int r = 0; r < 4; ++r)
            for (int h = 0; h < 2; ++h)
                n.equal(a(t, 2 * r + h),
                        16 * (t / 32) + models::a_row(t % 32, r) + 64 * models::a_column(t % 32, r, h));
    return n;
}
Count mma_fragments() {
    Count n;
    using Traits = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;
    const Traits::ALayout a;
    const Traits::BLayout b;
    const Traits::CLayout c;
    for (int l = 0; l < 32; ++l) {
        for (int r = 0; r < 4; ++r)
            for (int h = 0; h < 2; ++h) n.equal(a(l, 2 * r + h), models::a_row(l, r) + 16 * models::a_column(l, r, h));
        for (int r = 0; r < 2; ++r)
            for (int h = 0; h < 2; ++h) n.equal(b(l, 2 * r + h), models::b_column(l) + 8 * models::b_row(l, r, h));
        for (int r = 0; r < 4; ++r) n.equal(c(l, r), models::d_row(l, r) + 16 * models::d_column(l, r));
    }
    return n;
}
// ldmatrix.x4: CuTe maps (lane, bit of its registers) to the bit of 32 rows of 128 bits.
Count ldmatrix() {
    Count n;
    const cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>::DstLayout plain;
    const cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>::DstLayout transposed;
    for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 4; ++i)
            for (int h = 0; h < 2; ++h) {
                int row, column;
                models::matrix_place(l, h, false, &row, &column);
                n.equal(plain(l, i * 32 + h * 16), (i * 8 + row) * 128 + column * 16);
                models::matrix_place(l, h, true, &row, &column);
                n.equal(transposed(l, (i * 2 + h) * 16), (i * 8 + row) * 128 + column * 16);
            }
    return n;
}

// movmatrix: CuTe's layouts for it do not say what it does, but where ldmatrix leaves a matrix that it transposes.
Count movmatrix() {
    Count n;
    const cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>::DstLayout place;
    for (int l = 0; l < 32; ++l)
        for (int h = 0; h < 2; ++h) {
            int lane, half;
            models::transposed_place(l, h, &lane, &half);
            const int to = place(l, h * 16), row = to / 128, column = to % 128 / 16;
            n.equal(place(lane, half * 16), column * 128 + row * 16);
        }
    return n;
}

// ---- operands in shared memory

template <class Atom, Major kMajor, int MN, int K>
auto tile_of() {
    using Order =
        std::conditional_t<kMajor == Major::MN, cute::Step<cute::_2, cute::_1>, cute::Step<cute::_1, cute::_2>>;
    return cute::tile_to_shape(Atom{}, cute::make_shape(cute::Int<MN>{}, cute::Int<K>{}), Order{});
}
// The 16-bit value at an address that a model gave; no place of a tile holds 0.
uint16_t value_at(uint32_t address, int i) {
    uint16_t v = 0;
    const size_t at = size_t(address) - kSharedBegin + size_t(2 * i);
    if (at + 2 <= kSharedBytes) std::memcpy(&v, shared_memory + at, 2);
    return v;
}

// CuTe writes a tile of MN x K values; the model reads every block of 16 k through the descriptor that CuTe makes.
template <class Atom, Major kMajor, int MN, int K>
void operand(Count& count) {
    const auto layout = tile_of<Atom, kMajor, MN, K>();
    std::memset(shared_memory, 0, sizeof(shared_memory));
    auto values = cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<uint16_t*>(shared_memory)), layout);
    const auto expected = [](int mn, int k) { return uint16_t(1 + mn * K + k); };
    for (int mn = 0; mn < MN; ++mn)
        for (int k = 0; k < K; ++k) reinterpret_cast<uint16_t&>(values(mn, k)) = expected(mn, k);
    auto tile = cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<bf16*>(shared_memory)), layout);
    const auto first = cute::local_tile(tile, cute::make_shape(cute::Int<MN>{}, cute::_16{}),
                                        cute::make_coord(cute::_0{}, cute::_0{}));
    const gmma::DescriptorIterator descriptor{gmma::make_gmma_desc<kMajor>(first)};
    constexpr bool kTrans = kMajor == Major::MN;
    for (int block = 0; block < K / 16; ++block) {
        const int skipped = int(layout.layout_b()(0, block * 16));  // elements before the block, swizzle left out
        const uint64_t d = descriptor[skipped * 2 / 16];
        const bool along_mn = models::along_mn(kTrans);
        models::for_each_chunk(d, 0, MN, kTrans, [&](int mn, int k, uint32_t address) {
            for (int i = 0; i < 8; ++i)
                count.equal(value_at(address, i),
                            expected(along_mn ? mn + i : mn, (along_mn ? k : k + i) + block * 16));
        });
    }
}
Count operands_k_major() {
    Count n;
    operand<gmma::Layout_K_SW128_Atom<bf16>, Major::K, 64, 64>(n);
    operand<gmma::Layout_K_SW128_Atom<bf16>, Major::K, 128, 128>(n);
    operand<gmma::Layout_K_SW64_Atom<bf16>, Major::K, 96, 64>(n);
    operand<gmma::Layout_K_SW32_Atom<bf16>, Major::K, 80, 32>(n);
    return n;
}
Count operands_mn_major() {
    Count n;
    operand<gmma::Layout_MN_SW128_Atom<bf16>, Major::MN, 64, 64>(n);
    operand<gmma::Layout_MN_SW128_Atom<bf16>, Major::MN, 128, 128>(n);
    operand<gmma::Layout_MN_SW64_Atom<bf16>, Major::MN, 96, 64>(n);
    operand<gmma::Layout_MN_SW32_Atom<bf16>, Major::MN, 80, 32>(n);
    return n;
}
Count operands_plain() {
    Count n;
    operand<gmma::Layout_K_INTER_Atom<bf16>, Major::K, 64, 64>(n);
    operand<gmma::Layout_MN_INTER_Atom<bf16>, Major::MN, 64, 64>(n);
    return n;
}

// ---- what the attention kernels tell wgmma

template <class Atom, Major kMajor, int MN, int K>
uint64_t cute_descriptor() {
    auto tile =
        cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<bf16*>(shared_memory)), tile_of<Atom, kMajor, MN, K>());
    return gmma::make_gmma_desc<kMajor>(cute::local_tile(tile, cute::make_shape(cute::Int<MN>{}, cute::_16{}),
                                                         cute::make_coord(cute::_0{}, cute::_0{})));
}
// MN x 128: rows of an operand; 128 keys that are summed over
Count our_descriptors() {
    Count n;
    const auto rows = [](int columns) { return descriptor_of_tile(Operand::rows, columns, kSharedBegin, 128); };
    const auto summed = [](int columns, int keys) {
        return descriptor_of_tile(Operand::summed, columns, kSharedBegin, keys);
    };
    n.equal(rows(64), (cute_descriptor<gmma::Layout_K_SW128_Atom<bf16>, Major::K, 128, 64>()));
    n.equal(rows(32), (cute_descriptor<gmma::Layout_K_SW64_Atom<bf16>, Major::K, 128, 32>()));
    n.equal(rows(16), (cute_descriptor<gmma::Layout_K_SW32_Atom<bf16>, Major::K, 128, 16>()));
    n.equal(summed(64, 128), (cute_descriptor<gmma::Layout_MN_SW128_Atom<bf16>, Major::MN, 128, 128>()));
    n.equal(summed(32, 128), (cute_descriptor<gmma::Layout_MN_SW64_Atom<bf16>, Major::MN, 96, 128>()));
    return n;
}
// TMA writes boxes of 64, 32, 16 columns, swizzled, as CuTe's K-major tiles of the same width lie.
template <class Atom, int kColumns>
void tma_box(Count& count, uint8_t swizzle) {
    constexpr int kRows = 128;
    std::vector<uint16_t> global(size_t(kRows) * kColumns);
    for (size_t i = 0; i < global.size(); ++i) global[i] = uint16_t(1 + i);
    simt::TensorMap map{};
    map.rank = 2, map.element = 2, map.swizzle = swizzle, map.base = reinterpret_cast<char*>(global.data());
    map.dim[0] = kColumns, map.dim[1] = kRows, map.box[0] = kColumns, map.box[1] = kRows;
    map.stride[1] = 2 * kColumns;
    std::memset(shared_memory, 0, sizeof(shared_memory));
    const int origin[5] = {};
    models::for_each_run(map, kSharedBegin, origin, [](const char* from, uint32_t to, uint32_t bytes, bool inside) {
        if (inside && to + bytes <= kSharedBytes) std::memcpy(shared_memory + to, from, bytes);
    });
    auto tile = cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<uint16_t*>(shared_memory)),
                                  tile_of<Atom, Major::K, kRows, kColumns>());
    for (int row = 0; row < kRows; ++row)
        for (int x = 0; x < kColumns; ++x)
            count.equal(reinterpret_cast<uint16_t&>(tile(row, x)), global[size_t(row) * kColumns + x]);
}
Count tma_tiles() {
    Count n;
    tma_box<gmma::Layout_K_SW128_Atom<bf16>, 64>(n, 3);
    tma_box<gmma::Layout_K_SW64_Atom<bf16>, 32>(n, 2);
    tma_box<gmma::Layout_K_SW32_Atom<bf16>, 16>(n, 1);
    return n;
}

struct Check {
    const char* name;
    Count (*run)();
};
const Check kChecks[] = {{"wgmma_accumulators", wgmma_accumulators},
                         {"wgmma_a_registers", wgmma_a_registers},
                         {"mma_fragments", mma_fragments},
                         {"ldmatrix", ldmatrix},
                         {"movmatrix", movmatrix},
                         {"operands_k_major", operands_k_major},
                         {"operands_mn_major", operands_mn_major},
                         {"operands_plain", operands_plain},
                         {"our_descriptors", our_descriptors},
                         {"tma_tiles", tma_tiles}};

class CuteLayouts : public testing::TestWithParam<Check> {};
TEST_P(CuteLayouts, EqualTheModels) {
    const Count n = GetParam().run();
    EXPECT_GT(n.checked, 0);
    EXPECT_EQ(n.wrong, 0) << "of " << n.checked;
    RecordProperty("checked", int(n.checked));
    std::printf("%s: %ld places compared\n", GetParam().name, n.checked);
}
INSTANTIATE_TEST_SUITE_P(Layouts, CuteLayouts, testing::ValuesIn(kChecks),
                         [](const auto& info) { return std::string(info.param.name); });

// Each property of a model turned wrong: some check must see it.
struct Mutant {
    const char* name;
    models::Flip flip;
};
const Mutant kMutants[] = {{"a_registers", models::Flip::a_registers},
                           {"a_halves", models::Flip::a_halves},
                           {"b_registers", models::Flip::b_registers},
                           {"d_rows", models::Flip::d_rows},
                           {"swizzle_32", models::Flip::swizzle_32},
                           {"swizzle_64", models::Flip::swizzle_64},
                           {"swizzle_128", models::Flip::swizzle_128},
                           {"strides_mn", models::Flip::strides_mn},
                           {"strides_k", models::Flip::strides_k},
                           {"strides_plain", models::Flip::strides_plain},
                           {"k_step", models::Flip::k_step},
                           {"transposition", models::Flip::transposition},
                           {"ldmatrix_trans", models::Flip::ldmatrix_trans},
                           {"tma_swizzle_32", models::Flip::tma_swizzle_32},
                           {"tma_swizzle_64", models::Flip::tma_swizzle_64},
                           {"tma_swizzle_128", models::Flip::tma_swizzle_128}};

class WrongModels : public testing::TestWithParam<Mutant> {};
TEST_P(WrongModels, AreFoundByCute) {
    models::flip = GetParam().flip;
    long wrong = 0;
    for (const Check& check : kChecks) wrong += check.run().wrong;
    models::flip = models::Flip::none;
    EXPECT_GT(wrong, 0);
    std::printf("%s: %ld places differ\n", GetParam().name, wrong);
}
INSTANTIATE_TEST_SUITE_P(Layouts, WrongModels, testing::ValuesIn(kMutants),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
