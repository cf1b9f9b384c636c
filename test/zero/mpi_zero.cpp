// ZeRO over MPI: the same cases as test_zero.cpp, between processes.

#include "test/comm/mpi_main.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// A run, with the results that this process has.
Outcome train_here(const Layout& how) {
    Mesh mesh(test_process(), {DeviceKind::cpu, 0}, mesh_options(how));
    LayoutRun run(how);
    run.on(mesh);
    return run.end();
}

TEST(ZeroOverMpi, AllStagesGiveTheSameBits) {
    for (const char* algorithm : {"ring", "direct", "hier", "symmetric"}) {
        const Layout base =
            with(data_ranks(test_process().size()), std::string("--steps 4 --collectives ") + algorithm);
        const Outcome want = train_here(base);
        for (const std::string& stage : kSlicing) {
            const Outcome got = train_here(with(base, stage));
            EXPECT_EQ(got.weights, want.weights) << algorithm << ", " << stage;
            EXPECT_EQ(got.norms, want.norms) << algorithm << ", " << stage;
        }
    }
}

TEST(ZeroOverMpi, HybridAndAccumulationAgreeBetweenRanks) {
    Process& process = test_process();
    if (process.size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
    const Outcome got =
        train_here(with(data_ranks(process.size()), "--steps 2 --micro-batches 2 --zero 3 --shard-size 2"));
    const std::vector<float>& norms = got.norms[size_t(process.rank())];
    std::vector<float> all(norms.size() * size_t(process.size()));
    process.all_gather(norms.data(), int64_t(norms.size() * 4), all.data());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], norms[i % norms.size()]);
}

}  // namespace
}  // namespace rz
