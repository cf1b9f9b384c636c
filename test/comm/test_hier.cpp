// Two levels: where ranks stand, and sums that round, against the two sums in plain loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "test/kernels/cpu_device.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

float rounded(float x, DType t) { return t == DType::bf16 ? float(bf16(x)) : x; }

// Nodes outside, the ranks of a node inside, by the job's ranks.
float two_sums(const std::vector<std::vector<int>>& nodes, int64_t i, DType wire, float scale) {
    float sum = 0;
    for (size_t m = 0; m < nodes.size(); ++m) {
        float row = 0;
        for (size_t l = 0; l < nodes[m].size(); ++l)
            row = l ? row + rounded(rough_value(nodes[m][l], i), wire) : rounded(rough_value(nodes[m][l], i), wire);
        if (nodes.size() > 1) row = rounded(row, wire);  // it travels
        sum = m ? sum + row : row;
    }
    return sum * scale;
}

std::vector<std::vector<int>> node_major(int nodes, int locals) {
    std::vector<std::vector<int>> rows(static_cast<size_t>(nodes));
    for (int r = 0; r < nodes * locals; ++r) rows[size_t(r / locals)].push_back(r);
    return rows;
}

struct Shape {
    int nodes, locals;
    int64_t step_bytes;
};

class HierTest : public testing::TestWithParam<Shape> {};

// Even slices, uneven ones, and many empty ones.
std::vector<int64_t> slices(int ranks, int kind) {
    std::mt19937 random{uint32_t(kind)};
    std::vector<int64_t> offsets{0};
    for (int r = 0; r < ranks; ++r)
        offsets.push_back(offsets.back() + (kind == 0   ? 64
                                            : kind == 1 ? int64_t(random() % 300)
                                                        : int64_t(random() % 4 / 3 * (random() % 200))));
    return offsets;
}

void expect_two_sums(Algorithm how, int P, int L, int64_t step) {
    const int N = P * L;
    LoopbackHub hub(N);
    const auto nodes = node_major(P, L);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank,
                  {.algorithms = {.data = how}, .ranks_per_node = N / P, .collectives = {.step_bytes = step}});
        Collectives& hier = mesh.data();
        if (P > 1 && L > 1) {
            EXPECT_STREQ(hier.name(), name_of(how));
        }
        const int own = hier.rank();
        EXPECT_EQ(own, rank % (N / P) * P + rank / (N / P)) << "the map from ranks to slices";
        for (const DType wire : {DType::f32, DType::bf16})
            for (int kind = 0; kind < 3; ++kind) {
                const auto offsets = slices(N, kind);
                const int64_t n = offsets.back(), first = offsets[size_t(own)],
                              own_n = offsets[size_t(own) + 1] - first;
                SharedMemory* shared =
                    kind == 0 ? hier.allocate(n * 4, Alloc::per_rank) : nullptr;  // as ZeRO's buffers
                std::vector<float> memory(static_cast<size_t>(n)), sum(size_t(own_n), NAN), all(size_t(n), NAN);
                const std::span in(shared ? reinterpret_cast<float*>(shared->part(hier.shared_rank())) : memory.data(),
                                   size_t(n));
                for (int64_t i = 0; i < n; ++i) in[size_t(i)] = rough_value(rank, i);
                const std::vector<float> before(in.begin(), in.end());
                ReduceScatter scatter = reduce_scatter_f32(sum.data(), in.data(), offsets);
                scatter.wire = wire, scatter.scale = 0.25f;
                hier.reduce_scatter(mesh.stream(), scatter);
                hier.all_gather(mesh.stream(), all_gather_f32(all.data(), sum.data(), offsets));
                mesh.stream().synchronize();
                EXPECT_TRUE(std::ranges::equal(in, before));
                for (int64_t i = 0; i < n; ++i)
                    ASSERT_EQ(all[size_t(i)], two_sums(nodes, i, wire, 0.25f)) << "element " << i;
                AllReduce reduce = sum_in_place(in.data(), offsets);
                reduce.wire = wire, reduce.scale = 0.25f;
                hier.all_reduce(mesh.stream(), reduce);
                mesh.stream().synchronize();
                EXPECT_TRUE(std::ranges::equal(in, all));
            }
    });
}

TEST_P(HierTest, SumsAreThoseOfTheTwoLoops) {
    const auto [P, L, step] = GetParam();
    expect_two_sums(Algorithm::hier, P, L, step);
    expect_two_sums(Algorithm::hier_symmetric, P, L, step);
}

// A step of 1 << 40 bytes: the levels one after the other; the small ones cut slices in chunks.
INSTANTIATE_TEST_SUITE_P(Shapes, HierTest,
                         testing::Values(Shape{2, 2, int64_t(1) << 40}, Shape{2, 3, 256}, Shape{3, 2, 512},
                                         Shape{4, 2, 64}, Shape{3, 3, 1200}, Shape{3, 1, 256}, Shape{1, 3, 256}),
                         [](const auto& info) {
                             return format("%dNodesOf%dSteps%zu", info.param.nodes, info.param.locals, info.index);
                         });

TEST(Hier, SumsRoundInAnotherOrderThanOneLevel) {  // or the tests above could not tell
    int differ = 0;
    for (int64_t i = 0; i < 1000; ++i)
        differ += two_sums(node_major(3, 3), i, DType::f32, 1) != two_sums(node_major(1, 9), i, DType::f32, 1);
    EXPECT_GT(differ, 300);
}

// Hosts that were filled in turn: the ranks of a node are found all the same.
TEST(Hier, RanksPlacedInTurnAreSortedByNode) {
    GridOptions options{.nodes = {5, 9, 5, 9, 5, 9}, .by_columns = true};
    const Grid grid(6, options);
    EXPECT_EQ(grid.nodes(Axis::data), 2);
    EXPECT_EQ(grid.members(Axis::data, 0), (std::vector<int>{0, 1, 2, 3, 4, 5}));  // columns 0 1, 2 3, 4 5
    options.nodes = {5, 5, 5, 9, 9, 9};
    const Grid filled(6, options);
    EXPECT_EQ(filled.members(Axis::data, 0), (std::vector<int>{0, 3, 1, 4, 2, 5}));
    for (int r = 0; r < 6; ++r) EXPECT_EQ(filled.members(Axis::data, 0)[size_t(filled.place(Axis::data, r).rank)], r);
    options.nodes = {5, 5, 5, 5, 9, 9};
    EXPECT_THROW(Grid(6, options), Error);
}

TEST(Hier, IsTheDefaultOnSeveralNodesWhereItFits) {
    const auto chosen = [](int ranks, int per_node, GridOptions grid = {}) {
        LoopbackHub hub(ranks);
        Algorithm algorithm = Algorithm::library;
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = grid, .ranks_per_node = per_node});
            if (rank == 0) algorithm = mesh.algorithm();
        });
        return algorithm;
    };
    EXPECT_EQ(chosen(4, 4), Algorithm::ring);
    EXPECT_EQ(chosen(4, 2), Algorithm::hier);
    EXPECT_EQ(chosen(5, 3), Algorithm::ring);             // uneven nodes
    EXPECT_EQ(chosen(4, 2, {.tp = 2}), Algorithm::hier);  // one rank of each node
    EXPECT_EQ(chosen(4, 2, {.pp = 2}), Algorithm::ring);  // data is inside a node
    EXPECT_EQ(chosen(4, 2, {.shard_size = 2}), Algorithm::hier);
}

TEST(AxisAlgorithms, AreReadByAxis) {
    EXPECT_EQ(parse_axis_algorithms("hier"), (AxisAlgorithms{Algorithm::hier, Algorithm::direct}));
    EXPECT_EQ(parse_axis_algorithms("tp=ring"), (AxisAlgorithms{std::nullopt, Algorithm::ring}));
    EXPECT_EQ(parse_axis_algorithms("data=direct,tp=library"), (AxisAlgorithms{Algorithm::direct, Algorithm::library}));
    EXPECT_EQ(wrong_axis_algorithms("pp=ring"), "'pp=ring': the axes are tp and data; nearest: data=ring");
    EXPECT_TRUE(says(wrong_axis_algorithms("rings"), "'rings' must be one of ring, direct, library, hier"));
    EXPECT_NE(wrong_axis_algorithms(""), "");
    EXPECT_NE(wrong_axis_algorithms("ring,"), "");
    for (const char* text : {"hier", "tp=ring,data=hier", "tp=library"})
        EXPECT_EQ(text_of(parse_axis_algorithms(text)), text);
}

TEST(AxisAlgorithms, TwoLevelsOfTensorPartsAreRefused) {
    LoopbackHub hub(4);
    hub.run([&](int rank) {
        const MeshOptions options{.grid = {.tp = 4}, .algorithms = {.tp = Algorithm::hier}, .ranks_per_node = 2};
        EXPECT_THROW(Mesh(hub, rank, options), Error);
    });
}

}  // namespace
}  // namespace rz
