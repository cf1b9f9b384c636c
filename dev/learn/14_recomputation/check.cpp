#include <cstdint>

#include "dev/learn/toy.h"
#include "kernels/runtime/context.h"

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
    rz::RankContext context;
    const rz::Device device{rz::DeviceKind::cpu, 0, &context};
    rz::Mesh mesh{device};
    const Batch batch(2, 32, 256);
    rz::TrainState core(toy(64, 6, 256), {.stage = {.B = batch.B, .T = batch.T, .recompute = recompute}}, device, mesh);
    const int64_t bytes = context.memory.now(rz::DeviceKind::cpu, rz::MemKind::activations);
    rz::initialise_weights(core.table, 1, core.compute, core.zero);
    return {bytes, train_step(core, batch, 1.0f / 64)};
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
