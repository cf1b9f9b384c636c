// The sum of a message's bits: the CUDA kernel and the CPU op against a loop over single bytes, to the bit.
#include "kernels/bit_sum.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

// Byte b of word i counts 2^(8 b) times the word's factor.
uint64_t by_bytes(const unsigned char* p, int64_t bytes, uint64_t start) {
    uint64_t sum = start + uint64_t(bytes);
    for (int64_t k = 0; k < bytes; ++k) sum += (uint64_t(p[k]) << (8 * (k % 8))) * bit_sum_factor(k / 8);
    return sum;
}

struct Range {
    int64_t offset, bytes;
};
class BitSumTest : public testing::TestWithParam<Range> {};

TEST_P(BitSumTest, IsThatOfItsBytes) {
    const auto [offset, bytes] = GetParam();
    if (bytes > 1000000 && runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
    const Data data = normal((offset + bytes) / 4 + 1, DType::f32, 5);
    const uint64_t start = 0xfedcba9876543210ull, want = by_bytes(data.bytes.data() + offset, bytes, start);
    const auto op = [&, offset = offset, bytes = bytes](KernelRun& run) {
        const char* all = run.input(data);
        bit_sum(run.stream(), {run.inout("sum", raw(std::vector<uint64_t>{start})), all + offset, bytes});
    };
    for (const Device& device : both_devices()) EXPECT_EQ(run_on(device, op).at("sum").as<uint64_t>()[0], want);
}

TEST(BitSum, EveryBitCounts) {
    std::vector<unsigned char> bytes(77);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(37 * i);
    const auto sum = [&] {
        uint64_t total = 0;
        bit_sum_cpu({.sum = &total, .data = bytes.data(), .bytes = int64_t(bytes.size())});
        return total;
    };
    const uint64_t before = sum();
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
        EXPECT_NE(sum(), before) << "bit " << bit;
        bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranges, BitSumTest,
                         testing::Values(Range{0, 1}, Range{0, 8}, Range{1, 7}, Range{2, 64}, Range{0, 4099},
                                         Range{0, 4103}, Range{4, 20001}, Range{8, 70000},
                                         // more than all threads of the largest grid take at a time
                                         Range{0, 2100007}, Range{4, 2100003}));

}  // namespace
}  // namespace rz::test
