// Checkpoints do not know who held what: written and read by ranks that hold all of the model, some units, some rows
// and columns, and by any of ZeRO's slices.

#include <filesystem>

#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/checkpoint/export_weights.h"
#include "llama/checkpoint/finite.h"
#include "llama/checkpoint/replicas.h"
#include "llama/model/model.h"
#include "test/comm/mpi_main.h"
#include "test/llama/toys.h"
#include "test/checks.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

struct Layout {
    int tp, pp, stage, shard = 0;
    std::string text() const { return format("--tp %d --pp %d --zero %d --shard-size %d", tp, pp, stage, shard); }
};

// Those of 5 units that fit the number of ranks, with as many of them as can be.
std::vector<Layout> layouts(int ranks) {
    std::vector<Layout> list;
    for (const Layout& l : {Layout{1, 1, 3}, Layout{1, 1, 0}, Layout{1, 1, 1}, Layout{1, 1, 3, ranks / 2},
                            Layout{ranks, 1, 0}, Layout{1, ranks, 0}, Layout{2, ranks / 2, 1}, Layout{ranks / 2, 1, 2},
                            Layout{2, 1, 0}, Layout{1, 2, 0}, Layout{2, 2, 3}})
        if (l.tp > 0 && l.pp > 0 && l.pp <= 5 && ranks % (l.tp * l.pp * std::max(1, l.shard)) == 0) list.push_back(l);
    return list;
}

LocalShard holding(const Mesh& mesh) {
    const AxisRank stage = mesh.place(Axis::pp), part = mesh.place(Axis::tp);
    const std::vector<int64_t> cuts = even_offsets(5, stage.size);
    LocalShard h{.units = {}, .part = part.rank, .parts = part.size};
    for (int64_t u = cuts[size_t(stage.rank)]; u < cuts[size_t(stage.rank) + 1]; ++u) h.units.push_back(int(u));
    return h;
}

// The embedding and the head are cut into equal slices on 2, 3 and 4 ranks, with padding at their end.
struct Held {
    Held(Process& process, const Layout& l, DType param = DType::bf16,
         OffloadOptimizer offload = OffloadOptimizer::none)
        : mesh(process, kCpu, {.grid = {.tp = l.tp, .pp = l.pp, .shard_size = l.shard}}),
          config(toy24(false, 3, kEqualVocab)),
          table(config, holding(mesh)),
          stream(kCpu, "compute"),
          zero(kCpu, stream, unit_layouts(table), decay_segments(table),
               {.stage = l.stage,
                .param_dtype = param,
                .grad_dtype = param,
                .ema = 0.5,
                .offload_optimizer = offload,
                .offload_tile = 256},
               AdamWOptions{}, mesh) {}
    template <class Body>
    void each(const Body& body) {  // body(master, m, v, average, tensor, element)
        for (const OwnedRange& r : zero.optimizer.owned())
            table.for_each_run(
                r.local_offset, r.local_offset + r.elements.size(), INT64_MAX, [&](const TensorRun& run) {
                    const int64_t at = run.local - r.local_offset;
                    for (int64_t i = at; i < at + run.count; ++i)
                        body(static_cast<float*>(r.master)[i], static_cast<float*>(r.m)[i], static_cast<float*>(r.v)[i],
                             static_cast<float*>(r.ema)[i], run.tensor, run.first + i - at);
                });
    }
    Mesh mesh;
    ModelConfig config;
    ParamTable table;
    Stream stream;
    Zero zero;
};

float value(int tensor, int64_t element, int k) {
    return float((element * 7 + tensor * 31 + k * 13) % 1009 - 500) / 64;
}

// All write the same bytes, and each reads them, offloaded (tile by tile) and not: so any reads what any wrote.
TEST(LayoutsOverMpi, SavedByAnyReadByAnyTheSameBytes) {
    Process& process = test_process();
    const SharedFolder shared(process);
    const std::string& folder = shared.path;
    const std::vector<Layout> all = layouts(process.size());
    ASSERT_GE(all.size(), 1u);
    const CheckpointStore store(folder);
    int64_t step = 0;
    for (const DType param : {DType::f32, DType::bf16}) {
        const int64_t first_step = step + 1;
        std::vector<std::string> written;  // by the first layout: path and contents of each file of tensors
        for (size_t l = 0; l < all.size(); ++l) {
            SCOPED_TRACE(all[l].text() + ", " + name_of(param));
            Held held(process, all[l], param);
            initialise_weights(held.table, 5, held.stream, held.zero);
            held.stream.synchronize();
            held.each([](float&, float& m, float& v, float& average, int t, int64_t i) {
                m = value(t, i, 1), v = value(t, i, 2), average = value(t, i, 3);
            });
            CheckpointWriter writer(process, kCpu, held.stream, held.zero, held.table, held.config,
                                    {.run_folder = folder, .keep = 0, .timeout_s = 30});
            Manifest manifest;
            manifest.run_id = "test";
            manifest.step = ++step;
            writer.save(manifest);
            ASSERT_TRUE(writer.finish());
            const std::string path = store.path(step);
            const std::string exported = folder + "/export";
            export_weights(exported, held.config, held.table, process, kCpu, held.stream, held.zero, "");
            std::vector<std::string> files = {read_file(exported + "/model.safetensors")};
            for (const StateArray& a : state_arrays(held.zero.options))
                files.push_back(read_file(path + "/" + path_of(a.part)));
            EXPECT_TRUE(files[0] == files[1]) << "what is exported is not the checkpoint's";
            if (l == 0) written = files;
            for (size_t f = 0; f < files.size(); ++f)
                EXPECT_TRUE(files[f] == written[f]) << "file " << f << " is not that of " << all[0].text();
            const Manifest first = check_checkpoint(store.path(first_step)), now = check_checkpoint(path);
            EXPECT_EQ(first.find("optimizer/m.safetensors")->tensors, now.find("optimizer/m.safetensors")->tensors);
            process.barrier();
            // Read by the next layout, into a state of other values.
            const Layout& reader = all[(l + 1) % all.size()];
            const bool offloads = (l + (param == DType::bf16)) % 2 == 1;
            Held next(process, reader, param, offloads ? OffloadOptimizer::stream : OffloadOptimizer::none);
            next.each([](float& w, float& m, float& v, float& average, int, int64_t) { w = m = v = average = -1; });
            LoadReport report;
            ASSERT_EQ(load_state(path, now, next.table, process, kCpu, next.stream, next.zero, &report), "");
            // Each element once by one rank: masters, moments and averages, and parameters in a file of their own for
            // the sum over it.
            const uint64_t once = uint64_t(next.table.parameters()) * (param == DType::f32 ? 4 * 4 : 4 * 4 + 2);
            const uint64_t bytes = process.sums({uint64_t(report.bytes_read)})[0];
            if (reader.tp * reader.pp == 1) {
                EXPECT_EQ(bytes, once) << reader.text();
            }
            const Safetensors file(path + "/" + path_of(param == DType::f32 ? StatePart::model : StatePart::master));
            std::vector<std::vector<float>> masters;
            for (const Tensor& t : next.table.tensors()) masters.push_back(stored(file, t.name));
            int64_t wrong = 0, seen = 0;
            next.each([&](float w, float m, float v, float average, int t, int64_t i) {
                wrong += w != masters[size_t(t)][size_t(i)] || m != value(t, i, 1) || v != value(t, i, 2) ||
                         average != value(t, i, 3);
                ++seen;
            });
            EXPECT_EQ(wrong, 0) << "of " << seen << ", read with " << reader.text();
            EXPECT_EQ(find_not_finite(process, kCpu, next.stream, next.zero, next.table), "");
            process.barrier();
        }
    }
}

// The last rank's disk is full: every rank knows, no file stays, and the next export works.
TEST(LayoutsOverMpi, AnExportFailsOnAllRanksOrNone) {
    Process& process = test_process();
    const SharedFolder shared(process);
    const std::string& folder = shared.path;
    Held held(process, {1, 1, 1});
    initialise_weights(held.table, 5, held.stream, held.zero);
    const auto run = [&] {
        return error_of(
            [&] { export_weights(folder, held.config, held.table, process, kCpu, held.stream, held.zero, ""); });
    };
    const int last = process.size() - 1, hit = last == 0 ? 2 : 1;  // rank 0 writes the header first
    const std::string text = [&] {
        const FaultScope armed(Faults(process.rank(), format("file.write:%d:%d:enospc", last, hit)));
        return run();
    }();
    EXPECT_TRUE(says(text, "model.safetensors: write failed: No space left on device"));
    EXPECT_EQ(text.find(format("rank %d: ", last)) == 0, last > 0) << text;
    process.barrier();
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << "half an export stays";
    process.barrier();
    EXPECT_EQ(run(), "");
    EXPECT_TRUE(std::filesystem::exists(folder + "/config.json"));
    process.barrier();
}

// A copy that differs is named, with the rank, whatever the axes: here the last rank of the job. Where ranks of the tp
// axis hold the same part and share its slices with others, the rank named stands for those that share.
TEST(LayoutsOverMpi, ADamagedCopyIsNamed) {
    Process& process = test_process();
    for (const Layout& l : layouts(process.size())) {
        Held held(process, l);
        initialise_weights(held.table, 5, held.stream, held.zero);
        const Mesh& mesh = held.mesh;
        EXPECT_EQ(compare_replicas(process, mesh, kCpu, held.stream, held.zero, held.table), "") << l.text();
        if (mesh.world().rank == mesh.world().size - 1) damage_state(held.stream, held.zero, StatePart::m, false);
        const std::string text = compare_replicas(process, mesh, kCpu, held.stream, held.zero, held.table);
        const int copies = mesh.grid().size(l.stage == 0 ? Axis::data : Axis::replicate);
        int holders = 1;  // of the element that is damaged, on the tp axis
        const auto holders_of = [&](const TensorRun& run) {
            holders = held.table.part_of(held.table.tensors()[size_t(run.tensor)]).parts;
        };
        for (const OwnedRange& r : held.zero.optimizer.owned())
            held.table.for_each_run(r.local_offset, r.local_offset + 1, 1, holders_of);
        process.broadcast(&holders, sizeof holders, process.size() - 1);
        const std::string last = format("rank %d (hash", mesh.world().size - 1);
        if (holders > 1)
            EXPECT_TRUE(says(text, " (hash")) << l.text();
        else
            EXPECT_EQ(text.find(last) != std::string::npos, copies > 1) << l.text() << ": " << text;
    }
}

}  // namespace
}  // namespace rz
