// ZeRO over MPI: the same cases as test_zero.cpp, between processes.

#include "comm/mesh.h"
#include "test/comm/mpi_main.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

using zero_case::Case;

TEST(ZeroOverMpi, AllStagesGiveTheSameBits) {
    Process& process = test_process();
    const Device cpu{DeviceKind::cpu, 0};
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct, Algorithm::hier, Algorithm::symmetric}) {
        Mesh mesh(process, cpu, {.algorithms = {.data = algorithm}});
        Case base;
        base.steps = 4;
        const auto want = zero_case::train(mesh, base);
        for (int s = 1; s <= 3; ++s) {
            Case c = base;
            c.zero.stage = s;
            EXPECT_EQ(zero_case::train(mesh, c), want) << name_of(algorithm) << ", stage " << s;
        }
    }
}

TEST(ZeroOverMpi, HybridAndAccumulationAgreeBetweenRanks) {
    Process& process = test_process();
    if (process.size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
    Mesh mesh(process, {DeviceKind::cpu, 0}, {.grid = {.shard_size = 2}});
    Case c;
    c.steps = 2;
    c.micro_batches = 2;
    c.zero.stage = 3;
    const auto result = zero_case::train(mesh, c);
    std::vector<float> all(result.norms.size() * size_t(process.size()));
    process.all_gather(result.norms.data(), int64_t(result.norms.size() * 4), all.data());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], result.norms[i % result.norms.size()]);
}

}  // namespace
}  // namespace rz
