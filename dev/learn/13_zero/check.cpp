#include <atomic>
#include <vector>

#include "comm/loopback.h"
#include "dev/learn/lesson.h"
#include "llama/model/model.h"
#include "llama/model/presets.h"

using namespace learn;

double bytes_per_parameter(int stage, int N);
int passes(int stage);

constexpr int kRanks = 4;

static rz::ParamTable small_table() {
    rz::ModelConfig c = rz::find_preset("bytes").config;
    c.dim = 64, c.layers = 3, c.ffn = 128, c.heads = 4, c.kv_heads = 2, c.vocab = 512;
    c.resolve();
    return rz::ParamTable(c);
}

static int64_t state_bytes() {
    const rz::MemoryLedger& ledger = rz::MemoryLedger::get();
    int64_t bytes = 0;
    for (const rz::MemKind kind : {rz::MemKind::parameters, rz::MemKind::gradients, rz::MemKind::optimizer})
        bytes += ledger.now(rz::DeviceKind::cpu, kind);
    return bytes;
}

struct Measured {
    double bytes_per_parameter, passes;
};

// The program's own Zero on four ranks (threads): what its ledger counts, and what its ring sends in one step.
static Measured measure(int stage, const rz::ParamTable& table) {
    rz::LoopbackHub hub(kRanks, /*timeout_s=*/10);
    std::atomic<int64_t> bytes{0}, sent{0};
    hub.run([&](int rank) {
        rz::Stream stream(rz::Device{}, "compute");
        rz::Mesh mesh(hub, rank);
        rz::Zero zero(rz::Device{}, stream, rz::unit_layouts(table), rz::decay_segments(table),
                      {.stage = stage,
                       .param_dtype = rz::DType::bf16,
                       .grad_dtype = rz::DType::bf16,
                       .wire_dtype = rz::DType::bf16},
                      {}, mesh);
        mesh.data().barrier(stream);  // everybody's state exists
        stream.synchronize();
        if (rank == 0) bytes = state_bytes();
        mesh.data().barrier(stream);
        stream.synchronize();
        const int64_t before = mesh.bytes_sent();
        const int units = int(zero.units().size());
        for (int u = 0; u < units; ++u) {
            zero.gather(u);
            zero.parameters(u);
            if (u < units - 1) zero.release(u);
        }
        for (int u = units - 1; u >= 0; --u) {
            if (u > 0 && u < units - 1) zero.gather(u);  // the last is still there; nobody reads the embedding's now
            zero.gradients(u);
            if (u > 0) zero.release(u);
            zero.reduce(u, /*last=*/true);
        }
        zero.update(1e-3f, 1);
        if (stage < 3) zero.parameters(0);
        stream.synchronize();
        sent += mesh.bytes_sent() - before;
    });
    const double parameters = double(table.size());
    return {double(bytes) / kRanks / parameters,
            double(sent) / kRanks / (2 * parameters * (kRanks - 1) / double(kRanks))};
}

int main() {
    // Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 GPUs, in GB
    const double paper[4] = {120, 31.4, 16.6, 1.9};
    for (int stage = 0; stage <= 3; ++stage) {
        char what[64];
        std::snprintf(what, sizeof what, "stage %d, 7.5e9 parameters, 64 ranks, in GB", stage);
        close(what, 7.5 * bytes_per_parameter(stage, 64), paper[stage], 0.05);
    }
    close("stage 1 saves at most 4x", bytes_per_parameter(0, 1) / bytes_per_parameter(1, 1 << 30), 4, 1e-6);
    close("stage 2 saves at most 8x", bytes_per_parameter(0, 1) / bytes_per_parameter(2, 1 << 30), 8, 1e-6);
    close("stage 3 saves Nx: 1024", bytes_per_parameter(0, 1) / bytes_per_parameter(3, 1024), 1024, 1e-6);

    const rz::ParamTable table = small_table();
    for (int stage = 0; stage <= 3; ++stage) {
        const Measured m = measure(stage, table);
        std::printf("the program's state, stage %d on %d ranks:\n", stage, kRanks);
        // Besides, there are a few dozen bytes of decay segments per rank.
        close("bytes per parameter by its ledger", bytes_per_parameter(stage, kRanks), m.bytes_per_parameter, 0.005);
        // Stage 3's last unit and embedding are gathered once only, so less than three passes; block sums add a little.
        expect(std::fabs(passes(stage) - m.passes) <= (stage == 3 ? 0.45 : 0.02),
               "passes over the parameters: %.3f by its counters, %d", m.passes, passes(stage));
    }
    return verdict(
        "sharing the optimizer and the gradients costs no traffic at all; sharing the parameters half as much again");
}
