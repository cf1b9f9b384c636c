#include <atomic>
#include <string>

#include "comm/loopback.h"
#include "dev/learn/toy.h"
#include "kernels/runtime/context.h"

using namespace learn;

double bytes_per_parameter(int stage, int N);
int passes(int stage);

constexpr int kRanks = 4;
constexpr rz::DType kNarrow = rz::DType::bf16;

static int64_t state_bytes(const rz::MemoryLedger& ledger) {
    int64_t bytes = 0;
    for (const rz::MemKind kind : {rz::MemKind::parameters, rz::MemKind::gradients, rz::MemKind::optimizer})
        bytes += ledger.now(rz::DeviceKind::cpu, kind);
    return bytes;
}

struct Measured {
    double bytes_per_parameter, passes;
};

// The program's own Zero on four ranks (threads): what its ledger counts, and what its ring sends in one step.
static Measured measure(int stage) {
    const rz::ModelConfig config = toy(64, 3, 512);
    const Batch batch(2, 32, config.vocab);
    const rz::CoreOptions options{
        .zero = {.stage = stage, .param_dtype = kNarrow, .grad_dtype = kNarrow, .wire_dtype = kNarrow},
        .stage = {.B = batch.B, .T = batch.T}};
    rz::LoopbackHub hub(kRanks, /*timeout_s=*/10);
    std::atomic<int64_t> bytes{0}, sent{0};
    hub.run([&](int rank) {
        const rz::Device device = hub.device(rank);
        rz::Mesh mesh(hub, rank);
        rz::TrainState core(config, options, device, mesh);
        bytes += state_bytes(device.context->memory);
        rz::initialise_weights(core.table, 1, core.compute, core.zero);
        core.compute.synchronize();
        const int64_t before = mesh.bytes_sent();
        train_step(core, batch, 1.0f / (kRanks * 64));
        sent += mesh.bytes_sent() - before;
    });
    const double parameters = double(rz::ParamTable(config).size());
    return {double(bytes) / kRanks / parameters,
            double(sent) / kRanks / (2 * parameters * (kRanks - 1) / double(kRanks))};
}

int main() {
    // Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 GPUs, in GB
    const double paper[4] = {120, 31.4, 16.6, 1.9};
    for (int stage = 0; stage <= 3; ++stage) {
        const std::string what = "stage " + std::to_string(stage) + ", 7.5e9 parameters, 64 ranks, in GB";
        close(what.c_str(), 7.5 * bytes_per_parameter(stage, 64), paper[stage], 0.05);
    }
    close("stage 1 saves at most 4x", bytes_per_parameter(0, 1) / bytes_per_parameter(1, 1 << 30), 4, 1e-6);
    close("stage 2 saves at most 8x", bytes_per_parameter(0, 1) / bytes_per_parameter(2, 1 << 30), 8, 1e-6);
    close("stage 3 saves Nx: 1024", bytes_per_parameter(0, 1) / bytes_per_parameter(3, 1024), 1024, 1e-6);

    for (int stage = 0; stage <= 3; ++stage) {
        const Measured m = measure(stage);
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
