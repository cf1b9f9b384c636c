// How a unit is cut: the slices of ranks, equal where that costs little, and the blocks of the gradient norm, which no
// number of ranks moves. What two ranks share of a block is summed in ascending order.

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "zero/zero.h"

namespace rz {
namespace {

// The smallest number of whole elements that 16 x 1024 and 16 x ranks both divide, by trying.
int64_t together(int64_t ranks) {
    int64_t n = 16 * 1024;
    while (n % (16 * ranks) != 0) n += 16 * 1024;
    return n;
}

// A block of Llama 3.1 8B, one of 405B, the embedding of 1B, a block of the smallest preset, a norm, and one that 0.5 %
// just reaches and just misses on 3 ranks (49,152 - 245 and 246).
constexpr int64_t kSizes[] = {218'112'000, 3'187'703'808, 262'668'288, 725'504, 4096, 48'908, 48'907};

TEST(UnitSlices, AreEqualWherePaddingIsCheap) {
    int equal = 0, unequal = 0;
    for (const int64_t size : kSizes)
        for (const int ranks : {2, 3, 4, 5, 8, 48, 300, 512, 1000, 1023, 1024, 2048}) {
            SCOPED_TRACE(format("%lld elements on %d ranks", (long long)size, ranks));
            const UnitLayout u = make_unit("unit", 0, size, ranks);
            const int64_t step = together(ranks), padded = (size + step - 1) / step * step;
            EXPECT_EQ(u.equal, 200 * (padded - size) <= size);
            if (!u.equal) {
                ++unequal;
                continue;
            }
            ++equal;
            EXPECT_EQ(u.padded, padded);
            for (int r = 0; r < ranks; ++r) {
                ASSERT_EQ(u.slice(r, ranks), (ElementRange{padded / ranks * r, padded / ranks * (r + 1)})) << r;
                ASSERT_EQ(u.slice(r, ranks).begin % 16, 0) << r;
            }
        }
    EXPECT_GT(equal, 30);
    EXPECT_GT(unequal, 30);
}

TEST(UnitSlices, AreWholeBlocksWherePaddingIsDear) {
    for (const int64_t size : kSizes)
        for (const int ranks : {1, 2, 3, 5, 8, 64, 300, 1000, 1023}) {
            SCOPED_TRACE(format("%lld elements on %d ranks", (long long)size, ranks));
            const UnitLayout of_one = make_unit("unit", 0, size);
            EXPECT_FALSE(of_one.equal);
            for (const UnitLayout& u : {make_unit("unit", 0, size, ranks), of_one}) {
                if (u.equal) continue;
                EXPECT_EQ(u.padded, (size + u.block - 1) / u.block * u.block);
                int64_t end = 0, blocks = u.padded / u.block;
                for (int r = 0; r < ranks; ++r) {
                    const ElementRange s = u.slice(r, ranks);
                    ASSERT_EQ(s.begin, end);
                    ASSERT_EQ(s.size(), (blocks / ranks + (r < blocks % ranks ? 1 : 0)) * u.block);
                    end = s.end;
                }
                EXPECT_EQ(end, u.padded);
            }
        }
}

// No rank owns two blocks while another owns none.
TEST(UnitSlices, AreFinerThanBlocksPast1024Ranks) {
    for (const int64_t size : kSizes)
        for (const int ranks : {1100, 1536, 2000, 4096}) {
            SCOPED_TRACE(format("%lld elements on %d ranks", (long long)size, ranks));
            const UnitLayout u = make_unit("unit", 0, size, ranks);
            int64_t end = 0, least = INT64_MAX, most = 0;
            for (int r = 0; r < ranks; ++r) {
                const ElementRange s = u.slice(r, ranks);
                ASSERT_EQ(s.begin, end);
                ASSERT_EQ(s.begin % 16, 0);
                end = s.end, least = std::min(least, s.size()), most = std::max(most, s.size());
            }
            EXPECT_EQ(end, u.padded);
            EXPECT_LE(most - least, u.equal ? 0 : 16);
        }
}

TEST(UnitSlices, DoNotMoveTheBlocksOfTheNorm) {
    for (const int64_t size : kSizes) {
        const UnitLayout one = make_unit("unit", 0, size);
        for (const int ranks : {2, 3, 8, 300, 1024, 2048}) {
            const UnitLayout u = make_unit("unit", 0, size, ranks);
            EXPECT_EQ(u.block, one.block);
            EXPECT_EQ(u.blocks(), one.blocks());
            EXPECT_EQ(u.blocks() * u.block, one.padded) << "where the next unit begins in the whole model";
            // The ranks' sums, one after the other: every parameter once, no sum over the end of a block.
            int64_t at = 0;
            for (int r = 0; r < ranks; ++r)
                for (const ElementRange& run : u.counted(u.slice(r, ranks))) {
                    ASSERT_EQ(run.begin, at);
                    int64_t sums = 0;
                    for (; at < run.end; ++sums) at = std::min(run.end, (at / u.block + 1) * u.block);
                    ASSERT_EQ(u.blocks_in(run), sums);
                }
            EXPECT_GE(at, size);
            EXPECT_LE(at, one.padded);
        }
    }
}

// ---- a block that two ranks share -----------------------------------------------------------------------------------

// The norm of a gradient that rank 0 alone has, on so many ranks as threads.
float norm_of(const UnitLayout& unit, int ranks, int stage, const std::vector<std::pair<int64_t, float>>& gradient) {
    std::vector<float> norms(static_cast<size_t>(ranks));
    LoopbackHub hub(ranks);
    hub.run([&](int rank) {
        const Device device = hub.device(rank);
        Mesh mesh(hub, rank);
        Stream compute(device, "compute");
        compute.enqueue_host([] { omp_set_num_threads(1); });
        Zero zero(device, compute, {unit}, {.end = {unit.padded}, .decays = {1}}, {.stage = stage}, {}, mesh);
        auto* g = static_cast<float*>(zero.grads.gradients(0));
        compute.synchronize();
        for (const auto& [i, x] : gradient)
            if (rank == 0) g[i] = x;
        zero.grads.reduce(0, /*last=*/true);
        for (int time = 0; time < 2; ++time) EXPECT_EQ(zero.optimizer.gradient_norm(), zero.optimizer.norm());
        compute.synchronize();
        norms[size_t(rank)] = *zero.optimizer.norm();
        mesh.data().barrier(mesh.stream());
        mesh.stream().synchronize();
    });
    for (const float n : norms) EXPECT_EQ(n, norms[0]) << "ranks disagree";
    return norms[0];
}

// (1.5 + 2^-24)^2, whose root lies between two floats and is rounded to the lower, is made of squares before the cut.
// Added to it one by one, the squares of `small` are too small to count (0.28 of the last bit each). Added to each
// other first they count, and the norm is the upper float. So it tells in which order the parts of the shared block
// came.
TEST(SharedBlock, ItsPartsAreAddedInAscendingOrder) {
    const float small = std::ldexp(1.5f, -27);
    struct {
        int ranks;
        int64_t size;
    } const cases[] = {{2, 556'800}, {3, 638'720}, {4, 556'800}, {5, 655'104}, {8, 556'800}};
    for (const auto& [ranks, size] : cases) {
        const UnitLayout unit = make_unit("unit", 0, size, ranks);
        ASSERT_TRUE(unit.equal);
        const int64_t cut = unit.slice(1, ranks).begin, begin = cut / unit.block * unit.block;
        ASSERT_GE(cut - begin, 5) << "the first slice ends within a block";
        ASSERT_GE(begin, unit.block);
        std::vector<std::pair<int64_t, float>> gradient = {{0, small}, {begin, 1.5f}};
        for (int k = 1; k <= 3; ++k) gradient.emplace_back(begin + k, std::ldexp(1.0f, -12));
        gradient.emplace_back(begin + 4, std::ldexp(1.0f, -24));
        gradient.emplace_back(cut, small);
        const double before = double(small) * small;
        double part = 0;
        for (size_t i = 1; i + 1 < gradient.size(); ++i) part += double(gradient[i].second) * gradient[i].second;
        ASSERT_EQ(float(std::sqrt((before + part) + before)), 1.5f);
        ASSERT_EQ(float(std::sqrt((before + before) + part)), std::nextafter(1.5f, 2.0f)) << "the order shows";
        for (const int stage : {1, 2, 3})
            EXPECT_EQ(norm_of(unit, ranks, stage, gradient), 1.5f) << ranks << " ranks, stage " << stage;
        EXPECT_EQ(norm_of(unit, ranks, 0, gradient), 1.5f) << "each has all";
        EXPECT_EQ(norm_of(make_unit("unit", 0, size), 1, 3, gradient), 1.5f) << "nobody shares a block";
    }
}

// Values of many sizes: the norm is the float next to what long double gives, on every number of ranks.
TEST(SharedBlock, NormsThatRoundAreThoseOfLongDouble) {
    for (const auto& [ranks, size] : {std::pair{2, 556'800}, {3, 638'720}, {8, 556'800}}) {
        std::vector<std::pair<int64_t, float>> gradient;
        long double sum = 0;
        for (int64_t i = 0; i < size; ++i) {
            const uint64_t x = uint64_t(i + 1) * 0x9e3779b97f4a7c15ull;
            const float g = float(int64_t(x >> 40) - (1 << 23)) * std::exp2(float((x >> 8) % 12) - 34);
            gradient.emplace_back(i, g);
            sum += static_cast<long double>(g) * static_cast<long double>(g);
        }
        const UnitLayout unit = make_unit("unit", 0, size, ranks);
        ASSERT_TRUE(unit.equal);
        EXPECT_EQ(norm_of(unit, ranks, 2, gradient), float(std::sqrt(sum))) << ranks << " ranks";
    }
}

}  // namespace
}  // namespace rz
