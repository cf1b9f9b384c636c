// ZeRO-3 on hundreds of ranks in one process, on a virtual network with real bytes: slices, padding, norm and update
// give the bits of one rank. Gradients are integers, whose sums are exact in any order.

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/mesh.h"
#include "comm/virtual_net.h"
#include "zero/zero.h"

namespace rz {
namespace {

// Blocks that many ranks have none of, that some have one more of, and a unit that ends inside a block. `equal`, if
// any: a size whose slices are equal; of three such units two take turns in one slot, so that one finds in its padding
// what the longer one left there.
std::vector<UnitLayout> virtual_units(int64_t blocks, int64_t equal, int ranks) {
    std::vector<int64_t> sizes = {100, 256 * blocks, 1700};
    if (equal > 0) sizes = {equal - 40, 100, equal - 16, equal};
    std::vector<UnitLayout> list;
    int64_t offset = 0, logical = 0;
    for (const int64_t size : sizes) {
        list.push_back(make_unit(format("unit of %lld", (long long)size), offset, size, ranks));
        offset += list.back().padded;
        list.back().global_offset = logical;
        logical += list.back().blocks() * list.back().block;
    }
    return list;
}

// Rank 0 makes up what the others' add to the total, which does not depend on how many there are.
float gradient(int rank, int ranks, int64_t i, int step) {
    const auto others = [&](int r) { return float((i + r) % 5 - 2); };
    if (rank > 0) return others(rank);
    float sum = float((i * 7 + step * 3) % 23 - 11);
    for (int r = 1; r <= (ranks - 1) % 5; ++r) sum -= others(r);  // five in a row add up to nothing
    return sum;
}

struct VirtualResult {
    std::vector<std::vector<float>> units;
    std::vector<float> norms;
    bool operator==(const VirtualResult&) const = default;
};

struct Shape {
    int ranks, per_node;
    Algorithm algorithm;
    int64_t blocks, equal = 0;
};

VirtualResult train(const Shape& shape) {
    const auto& [ranks, per_node, algorithm, blocks, equal] = shape;
    omp_set_num_threads(1);
    NetMachine machine;
    machine.ranks_per_node = machine.cards = per_node;
    VirtualNet net(ranks, machine, /*executes=*/true);
    VirtualResult result;
    std::vector<float> last;
    MeshOptions how;
    how.algorithms.data = algorithm;
    net.run([&](int rank) {
        const Device device = net.device(rank);
        Mesh mesh(net, rank, how);
        Stream compute(device, "compute");
        const auto layout = virtual_units(blocks, equal, ranks);
        EXPECT_EQ(layout[0].equal, equal > 0 && ranks > 1);
        const DecaySegments decay{{500, layout.back().global_offset + layout.back().padded}, {1, 0}};
        Zero zero(device, compute, layout, decay, {.stage = 3}, {.max_norm = 3}, mesh);
        for (const OwnedRange& o : zero.optimizer.owned()) {
            const int64_t size = layout[size_t(o.unit)].size;
            for (int64_t i = 0; i < o.elements.size(); ++i)
                if (o.elements.begin + i < size)
                    static_cast<float*>(o.master)[i] = float((o.global_offset + i) * 13 % 31 - 15) / 8;
        }
        zero.optimizer.all_gather_updated();
        std::vector<float> norms;
        for (int step = 1; step <= 2; ++step) {
            for (int u = int(layout.size()) - 1; u >= 0; --u) {
                zero.params.gather(u);
                const auto* weights = static_cast<const float*>(zero.params.parameters(u));
                auto* g = static_cast<float*>(zero.grads.gradients(u));
                // From the second step on a gradient depends on the weight that was gathered: a wrong one shows.
                for (int64_t i = 0; i < layout[size_t(u)].size; ++i)
                    g[i] = gradient(rank, ranks, i + u, step) + (rank == 0 ? float(int(4 * weights[i])) : 0);
                zero.params.release(u);
                zero.grads.reduce(u, true);
            }
            norms.push_back(*zero.optimizer.gradient_norm());
            zero.optimizer.update(0.05f, step);
        }
        std::vector<std::vector<float>> whole;
        for (size_t u = 0; u < layout.size(); ++u) {
            whole.emplace_back(size_t(layout[u].padded));
            zero.params.gather_whole(int(u), whole.back().data());
            EXPECT_EQ(std::count(whole.back().begin() + layout[u].size, whole.back().end(), 0.0f),
                      layout[u].padded - layout[u].size)
                << "padding is zero";
            whole.back().resize(size_t(layout[u].size));
        }
        if (rank == 0) result = {whole, norms};
        if (rank == ranks - 1) last = norms;
        return compute.clock();
    });
    EXPECT_EQ(last, result.norms) << "the last rank has another norm than the first";
    return result;
}

class ZeroOnManyRanks : public testing::TestWithParam<Shape> {};

TEST_P(ZeroOnManyRanks, BitsAreThoseOfOne) {
    const Shape shape = GetParam();
    const VirtualResult one = train({1, 1, Algorithm::ring, shape.blocks, shape.equal}), many = train(shape);
    ASSERT_EQ(one.norms.size(), 2u);
    EXPECT_GT(one.norms[0], 3) << "the norm is clipped";
    EXPECT_EQ(many.norms, one.norms);
    ASSERT_EQ(many.units.size(), one.units.size());
    for (size_t u = 0; u < one.units.size(); ++u)
        EXPECT_EQ(std::memcmp(many.units[u].data(), one.units[u].data(), one.units[u].size() * 4), 0) << "unit " << u;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ZeroOnManyRanks,
    testing::Values(Shape{300, 6, Algorithm::hier, 700}, Shape{300, 300, Algorithm::ring, 340},
                    Shape{1000, 8, Algorithm::hier, 130}, Shape{1023, 3, Algorithm::hier, 130},
                    Shape{2, 2, Algorithm::ring, 0, 556'800}, Shape{3, 3, Algorithm::ring, 0, 638'720},
                    Shape{4, 2, Algorithm::hier, 0, 556'800}, Shape{5, 5, Algorithm::direct, 0, 655'104},
                    Shape{8, 4, Algorithm::hier, 0, 556'800}, Shape{1024, 8, Algorithm::hier, 0, 16'344},
                    Shape{2048, 8, Algorithm::hier, 33}),
    [](const auto& info) {
        return format("%dRanks%s%lld%s", info.param.ranks, name_of(info.param.algorithm),
                      (long long)(info.param.equal > 0 ? info.param.equal : info.param.blocks),
                      info.param.equal > 0 ? "Equal" : "Blocks");
    });

}  // namespace
}  // namespace rz
