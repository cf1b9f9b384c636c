#include <cstdint>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/embedding.h"
#include "kernels/runtime/context.h"
#include "llama/model/model.h"
#include "llama/model/presets.h"

using namespace learn;

struct Chain {
    int layers;
    double (*forward)(int l, double x);
    double (*backward)(int l, double x, double dy);
    void (*keep)(int values);
    void (*drop)(int values);
};
double gradient(const Chain& c, double x, double dy, int k);
int best_segment(int layers);

static int held, most_held, forwards;

static double forward(int l, double x) {
    ++forwards;
    return std::sin(x + 0.1 * l);
}
static double backward(int l, double x, double dy) { return dy * std::cos(x + 0.1 * l); }
static void keep(int values) {
    held += values;
    most_held = held > most_held ? held : most_held;
}
static void drop(int values) { held -= values; }

struct Run {
    double gradient;
    int most_held, forwards;
};

static Run run(int layers, int k) {
    held = most_held = forwards = 0;
    const double g = gradient({layers, forward, backward, keep, drop}, 0.3, 1, k);
    return {g, most_held, forwards};
}

// The program's own model: the bytes of its activations by ledger, and its loss and gradient norm to the bit.
struct Program {
    int64_t activation_bytes;
    float norm;
};
static Program program(rz::Recompute recompute) {
    rz::ModelConfig c = rz::find_preset("bytes").config;
    c.dim = 64, c.layers = 6, c.heads = 4, c.kv_heads = 2, c.ffn = 128, c.vocab = 256;
    c.resolve();
    constexpr int64_t B = 2, T = 32, N = B * T;
    const rz::ParamTable table(c);
    rz::RankContext context;
    const rz::Device device{rz::DeviceKind::cpu, 0, &context};
    rz::Stream stream(device, "compute");
    rz::Mesh mesh{device};
    rz::Zero zero(device, stream, rz::unit_layouts(table), rz::decay_segments(table), {}, {}, mesh);
    rz::Model model(c, table, {.B = B, .T = T, .recompute = recompute}, device, stream, zero.params, &zero.grads);
    const int64_t bytes = context.memory.now(rz::DeviceKind::cpu, rz::MemKind::activations);
    rz::initialise_weights(table, 1, stream, zero);
    std::vector<int32_t> tokens(N), targets(N), rows(N), starts(N + 1), ids(N);
    for (unsigned i = 0; i < N; ++i) tokens[i] = int32_t(i * 37 % 256), targets[i] = int32_t(i * 91 % 256);
    for (unsigned i = 0; i < N; ++i) ids[i] = tokens[i], rows[i] = int32_t(i);
    const int64_t distinct = rz::embedding_plan(tokens.data(), N, c.vocab, rows.data(), starts.data(), ids.data());
    model.train({B, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct}, 1.0f / N);
    zero.optimizer.gradient_norm();
    zero.optimizer.update(1e-3f, 1);
    stream.synchronize();
    return {bytes, *zero.optimizer.norm()};
}

int main() {
    double x = 0.3, want = 1;
    for (int l = 0; l < 64; ++l) want *= std::cos(x + 0.1 * l), x = std::sin(x + 0.1 * l);
    for (const int k : {1, 4, 8, 64}) {
        const Run r = run(64, k);
        std::printf("64 layers in segments of %d:\n", k);
        close("gradient, by the chain rule written out", r.gradient, want, std::fabs(want) * 1e-12);
        expect(r.most_held == 64 / k + k - 1, "%d values held at most, %d expected", r.most_held, 64 / k + k - 1);
        expect(r.forwards == 64 + 64 - 64 / k, "%d layers computed forward, %d expected", r.forwards, 128 - 64 / k);
    }
    const Run uneven = run(10, 4);  // segments of 4, 4 and 2
    expect(uneven.most_held == 5 && uneven.forwards == 17, "10 layers by 4: %d held (5), %d forward (17)",
           uneven.most_held, uneven.forwards);
    expect(best_segment(64) == 8 && best_segment(32) == 6 && best_segment(1) == 1,
           "best segments for 64, 32 and 1 layers: %d, %d, %d; 8, 6 and 1 expected", best_segment(64), best_segment(32),
           best_segment(1));

    const Program none = program(rz::Recompute::none), block = program(rz::Recompute::block);
    std::printf("the program, 6 blocks: activations %lld bytes, with --recompute block %lld\n",
                (long long)none.activation_bytes, (long long)block.activation_bytes);
    expect(block.activation_bytes < none.activation_bytes, "fewer bytes");
    expect(block.norm == none.norm, "the same gradient norm to the bit: %.9g and %.9g", block.norm, none.norm);
    return verdict("sqrt(L) memory for one more forward pass, and not one bit of the result changes");
}
