// Checkpoints between ranks: written in one sharding, read in every other.

#include "llama/checkpoint/checkpoint.h"
#include "llama/base/fault.h"
#include "llama/train/train_state.h"
#include "test/comm/mpi_main.h"
#include "test/llama/toys.h"
#include "test/checks.h"

namespace rz {
namespace {

// One value per logical element and array, so that any rank knows what any other wrote.
float value(int64_t i, int k) { return float((i * 7 + k * 13) % 1009 - 500) / 64; }

Manifest manifest_of(int64_t step) {
    Manifest m;
    m.run_id = "test", m.step = step;
    return m;
}

// The embedding and the head are cut into equal slices on 2, 3 and 4 ranks, with padding at their end.
struct Sharded {
    Sharded(Mesh& mesh, int stage, DType param, OffloadOptimizer offload = OffloadOptimizer::none)
        : core(toy24(false, 3, kEqualVocab),
               {.zero = {.stage = stage,
                         .param_dtype = param,
                         .grad_dtype = param,
                         .wire_dtype = param,
                         .offload_optimizer = offload,
                         .offload_tile = 256},
                .adamw = {},
                .stage = {.B = 1, .T = 8}},
               {DeviceKind::cpu, 0}, mesh) {}
    template <class Body>
    void each(const Body& body) {  // body(master, m, v, logical index) of elements that are no padding
        for (const OwnedRange& r : zero.optimizer.owned()) {
            const int64_t held = table.units()[size_t(r.unit)].size - r.elements.begin;
            for (int64_t i = 0; i < std::min(held, r.elements.size()); ++i)
                body(static_cast<float*>(r.master)[i], static_cast<float*>(r.m)[i], static_cast<float*>(r.v)[i],
                     r.global_offset + i);
        }
    }
    TrainState core;
    const ModelConfig& config = core.config;
    const ParamTable& table = core.table;
    Stream& stream = core.compute;
    Zero& zero = core.zero;
};

TEST(CheckpointOverMpi, EveryShardingReadsEveryOther) {
    Process& process = test_process();
    if (process.size() > 5) GTEST_SKIP() << "four and five ranks have every kind of slice";
    const SharedFolder shared(process);
    const std::string& folder = shared.path;
    const Device cpu{DeviceKind::cpu, 0};
    std::vector<std::pair<int, int>> shardings = {{0, 0}, {1, 0}, {3, 0}};  // stage, shard size
    if (process.size() % 2 == 0) shardings.push_back({3, process.size() / 2});
    int64_t step = 0;
    for (const DType param : {DType::f32, DType::bf16})
        for (const auto& [stage, shard] : shardings) {
            Mesh mesh(process, cpu, {.grid = {.shard_size = shard}});
            Sharded a(mesh, stage, param);
            a.each([](float& w, float& m, float& v, int64_t i) { w = value(i, 1), m = value(i, 2), v = value(i, 3); });
            a.zero.optimizer.all_gather_updated();
            CheckpointWriter writer(process, cpu, a.stream, a.zero, a.table, a.config,
                                    {.run_folder = folder, .timeout_s = 30});
            writer.save(manifest_of(++step));
            ASSERT_TRUE(writer.finish());
            const std::string path = CheckpointStore(folder).path(step);
            const Manifest written = check_checkpoint(path);
            const auto reads = [&, &stage = stage](int to_stage, int to_shard, OffloadOptimizer offload) {
                Mesh to_mesh(process, cpu, {.grid = {.shard_size = to_shard}});
                Sharded b(to_mesh, to_stage, param, offload);
                LoadReport report;
                ASSERT_EQ(load_state(path, written, b.table, process, cpu, b.stream, b.zero, &report), "");
                // Each element once by one rank: masters and moments, and parameters in a file of their own for the
                // sum over it.
                uint64_t once = 0;
                for (const Tensor& t : b.table.tensors())
                    once += uint64_t(t.size) * (param == DType::f32 ? 3 * 4 : 3 * 4 + 2);
                EXPECT_EQ(process.sums({uint64_t(report.bytes_read)})[0], once) << "stage " << to_stage;
                int64_t wrong = 0, seen = 0;
                b.each([&](float w, float m, float v, int64_t i) {
                    wrong += w != value(i, 1) || m != value(i, 2) || v != value(i, 3);
                    ++seen;
                });
                EXPECT_EQ(wrong, 0) << "of " << seen << ": stage " << stage << " to " << to_stage << ", "
                                    << name_of(offload);
            };
            for (const auto& [to_stage, to_shard] : shardings) reads(to_stage, to_shard, OffloadOptimizer::none);
            // Offloaded state is read tile by tile.
            reads(shardings.front().first, shardings.front().second, OffloadOptimizer::stream);
            reads(shardings.back().first, shardings.back().second, OffloadOptimizer::stream);
            process.barrier();
        }
}

// Rank 1's disk fails: no rank has a checkpoint, all ranks know, and the next save works.
TEST(CheckpointOverMpi, OneRanksFailureIsEveryones) {
    Process& process = test_process();
    if (process.size() < 2) GTEST_SKIP() << "needs two ranks";
    const SharedFolder shared(process);
    const std::string& folder = shared.path;
    const Device cpu{DeviceKind::cpu, 0};
    Mesh mesh(process, cpu);
    Sharded a(mesh, 3, DType::f32);
    CheckpointWriter writer(process, cpu, a.stream, a.zero, a.table, a.config, {.run_folder = folder, .timeout_s = 30});
    const FaultScope armed(Faults(process.rank(), "checkpoint.fsync:1:1:eio"));
    writer.save(manifest_of(1));
    EXPECT_FALSE(writer.finish());
    writer.save(manifest_of(2));
    EXPECT_TRUE(writer.finish());
    if (process.is_root()) {
        const std::vector<SaveReport> reports = writer.reports();
        ASSERT_EQ(reports.size(), 2u);
        EXPECT_TRUE(says(reports[0].error, "rank 1"));
        EXPECT_EQ(CheckpointStore(folder).steps(), (std::vector<int64_t>{2}));
    }
    process.barrier();
}

}  // namespace
}  // namespace rz
