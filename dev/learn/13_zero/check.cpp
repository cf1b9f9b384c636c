#include <atomic>
#include <vector>

#include "comm/loopback.h"
#include "dev/learn/lesson.h"
#include "kernels/embedding.h"
#include "kernels/runtime/context.h"
#include "llama/model/model.h"
#include "llama/model/presets.h"

using namespace learn;

double bytes_per_parameter(int stage, int N);
int passes(int stage);

constexpr int kRanks = 4;
constexpr rz::DType kNarrow = rz::DType::bf16;

static rz::ModelConfig small_model() {
    rz::ModelConfig c = rz::find_preset("bytes").config;
    c.dim = 64, c.layers = 3, c.ffn = 128, c.heads = 4, c.kv_heads = 2, c.vocab = 512;
    c.resolve();
    return c;
}

// A micro-batch of two rows of 32 tokens.
struct Batch {
    static constexpr int64_t B = 2, T = 32, N = B * T;
    std::vector<int32_t> tokens = std::vector<int32_t>(N), targets = tokens, rows = tokens, starts, ids = tokens;
    int64_t distinct;
    explicit Batch(int64_t vocab) : starts(N + 1) {
        for (unsigned i = 0; i < N; ++i) tokens[i] = int32_t(i * 37 % 512), targets[i] = int32_t(i * 91 % 512);
        distinct = rz::embedding_plan(tokens.data(), N, vocab, rows.data(), starts.data(), ids.data());
    }
    rz::DeviceBatch on_device() const {
        return {B, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct};
    }
};

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
    const rz::ModelConfig config = small_model();
    const rz::ParamTable table(config);
    const Batch batch(config.vocab);
    rz::LoopbackHub hub(kRanks, /*timeout_s=*/10);
    std::atomic<int64_t> bytes{0}, sent{0};
    hub.run([&](int rank) {
        const rz::Device device = hub.device(rank);
        rz::Stream stream(device, "compute");
        rz::Mesh mesh(hub, rank);
        rz::Zero zero(device, stream, rz::unit_layouts(table), rz::decay_segments(table),
                      {.stage = stage, .param_dtype = kNarrow, .grad_dtype = kNarrow, .wire_dtype = kNarrow}, {}, mesh);
        bytes += state_bytes(device.context->memory);
        rz::Model model(config, table, {.B = Batch::B, .T = Batch::T, .dtype = kNarrow, .grad_dtype = kNarrow}, device,
                        stream, zero.params, &zero.grads);
        rz::initialise_weights(table, 1, stream, zero);
        stream.synchronize();
        const int64_t before = mesh.bytes_sent();
        model.train(batch.on_device(), 1.0f / (kRanks * Batch::N));
        zero.optimizer.gradient_norm();
        zero.optimizer.update(1e-3f, 1);
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
