// A checkpoint of hundreds of ranks, which are fibers of this process, in real files: what a rank opens, reads, writes
// and sends does not grow with their number, but for the logarithm.

#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <fstream>
#include <vector>

#include "comm/loopback.h"
#include "comm/virtual_net.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/model/model.h"
#include "test/checks.h"

namespace rz {
namespace {

ModelConfig wide() {  // blocks of 832 times 256 elements: 512 ranks own one or two of them
    ModelConfig c;
    c.dim = 128, c.layers = 2, c.heads = 2, c.kv_heads = 2, c.head_dim = 64, c.ffn = 384, c.vocab = 1024;
    c.max_seq_len = 8;
    c.resolve();
    return c;
}

float content(int64_t logical, int array) { return float((logical * 7 + array * 13) % 1009 - 500) / 64; }

// The kernel's counts for this process.
struct KernelCounts {
    int64_t read = 0, written = 0, reads = 0, writes = 0;
    static KernelCounts now() {
        KernelCounts c;
        std::ifstream file("/proc/self/io");
        for (std::string name; file >> name;) {
            int64_t value = 0;
            file >> value;
            if (name == "rchar:") c.read = value;
            if (name == "wchar:") c.written = value;
            if (name == "syscr:") c.reads = value;
            if (name == "syscw:") c.writes = value;
        }
        return c;
    }
};

struct Counts {  // the most of any rank
    int64_t opens = 0, written = 0, read = 0, save_messages = 0, load_messages = 0, bytes_loaded = 0;
    KernelCounts kernel;  // of all ranks' saves together
};

void raise_to(int64_t& most, int64_t value) { most = std::max(most, value); }

// One rank saves, clears its state, loads.
void save_and_load(Process& process, VirtualNet& net, const std::string& folder, Counts& counts) {
    const int rank = process.rank();
    const Device device = net.device(rank);
    Mesh mesh(net, rank);
    const ModelConfig config = wide();
    const ParamTable table(config);
    Stream compute(device, "compute");
    Zero zero(device, compute, unit_layouts(table), decay_segments(table), {.stage = 3}, {}, mesh);
    const auto each = [&](const auto& body) {  // body(value, logical index, which array)
        for (const OwnedRange& r : zero.optimizer.owned()) {
            const int64_t held = table.units()[size_t(r.unit)].size - r.elements.begin;
            void* const arrays[] = {r.master, r.m, r.v};
            for (int k = 0; k < 3; ++k)
                for (int64_t i = 0; i < std::min(held, r.elements.size()); ++i)
                    body(static_cast<float*>(arrays[k])[i], r.global_offset + i, k);
        }
    };
    each([](float& x, int64_t i, int k) { x = content(i, k); });
    zero.optimizer.all_gather_updated();
    CheckpointWriter writer(process, device, compute, zero, table, config,
                            {.run_folder = folder, .background = false, .timeout_s = 60});
    Manifest manifest;
    manifest.run_id = "test";
    manifest.step = 1;
    int64_t before = process.control_messages();
    writer.save(manifest);
    ASSERT_TRUE(writer.finish());
    raise_to(counts.save_messages, process.control_messages() - before);
    const std::vector<SaveReport> reports = writer.reports();
    ASSERT_EQ(reports.size(), 1u);
    raise_to(counts.opens, reports[0].traffic.opens);
    raise_to(counts.written, reports[0].traffic.written);
    raise_to(counts.read, reports[0].traffic.read);

    each([](float& x, int64_t, int) { x = 0; });
    const std::string path = CheckpointStore(folder).path(1);
    const std::string text =
        process.broadcast_text(process.is_root() ? check_checkpoint(path).to_json() : "", /*root=*/0);
    const Manifest written = Manifest::from_json(text, "manifest");
    before = process.control_messages();
    LoadReport report;
    ASSERT_EQ(load_state(path, written, table, process, device, compute, zero, &report), "");
    raise_to(counts.load_messages, process.control_messages() - before);
    raise_to(counts.bytes_loaded, report.bytes_read);
    int64_t wrong = 0;
    each([&](float x, int64_t i, int k) { wrong += x != content(i, k); });
    EXPECT_EQ(wrong, 0) << "rank " << rank;
}

Counts counts_of(int ranks) {
    omp_set_num_threads(1);
    const TempFolder folder;
    NetMachine machine;
    LoopbackHub hub(ranks);
    VirtualNet net(ranks, machine, /*executes=*/true);
    Counts counts;
    const KernelCounts before = KernelCounts::now();
    net.run([&](int rank) {
        Process process(hub, rank);
        EXPECT_EQ(process.run([&] {
            save_and_load(process, net, folder.path, counts);
            return 0;
        }),
                  0);
        return Ticks(0);
    });
    const KernelCounts after = KernelCounts::now();
    counts.kernel = {after.read - before.read, after.written - before.written, after.reads - before.reads,
                     after.writes - before.writes};
    return counts;
}

TEST(CheckpointOfManyRanks, NothingOfARankGrowsButTheLogarithm) {
    const int few = 64, many = 512;
    const Counts a = counts_of(few), b = counts_of(many);
    const int levels = std::bit_width(unsigned(many)) - 1, fewer = std::bit_width(unsigned(few)) - 1;
    // Three files of tensors, and the folder until it is there: rank 0 makes it once it has told all of the save.
    EXPECT_LE(a.opens, 3 + 1 + fewer);
    EXPECT_LE(b.opens, 3 + 1 + levels);
    EXPECT_LE(b.written, a.written);  // a smaller share
    EXPECT_LE(b.read, a.read);
    EXPECT_LE(b.bytes_loaded, a.bytes_loaded);
    EXPECT_LE(a.save_messages, 5 * fewer);
    EXPECT_LE(b.save_messages, 5 * levels);
    EXPECT_LE(b.load_messages, 6 * levels);
    // The kernel's count for all ranks: 448 more ranks write nothing more, and read three headers each.
    EXPECT_LE(b.kernel.written - a.kernel.written, 4096);
    EXPECT_LE((b.kernel.writes - a.kernel.writes) / (many - few), 20);
    EXPECT_LE((b.kernel.reads - a.kernel.reads) / (many - few), 40);
}

}  // namespace
}  // namespace rz
