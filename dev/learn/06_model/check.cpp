#include <string>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/swiglu.h"
#include "llama/model/model.h"
#include "llama/model/presets.h"

using namespace learn;

double swiglu(double gate, double up);
void swiglu_backward(double* dgate, double* dup, double gate, double up);
struct Shape {
    int64_t dim, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
};
int64_t parameters(const Shape& s);
double first_loss(int64_t vocab, int64_t dim, double std);

static void check_swiglu() {
    close("swiglu(1, 2) = 2 / (1 + 1/e)", swiglu(1, 2), 1.462117157, 1e-8);
    close("swiglu(0, 5)", swiglu(0, 5), 0, 0);
    double worst = 0;
    for (unsigned i = 0; i < 100; ++i) {
        constexpr double kStep = 1e-5;
        const double gate = 4 * noise(i), up = 2 * noise(1000 + i);
        double dgate, dup;
        swiglu_backward(&dgate, &dup, gate, up);
        const double by_gate = (swiglu(gate + kStep, up) - swiglu(gate - kStep, up)) / (2 * kStep);
        const double by_up = (swiglu(gate, up + kStep) - swiglu(gate, up - kStep)) / (2 * kStep);
        worst = std::fmax(worst, std::fmax(std::fabs(dgate - by_gate), std::fabs(dup - by_up)));
    }
    close("derivatives against finite differences", worst, 0, 1e-9);
    constexpr int F = 64;
    std::vector<float> gate_up(2 * F), h(F);
    for (unsigned i = 0; i < 2 * F; ++i) gate_up[i] = float(4 * noise(2000 + i));
    rz::swiglu_forward_cpu({.h = h.data(), .gate_up = gate_up.data(), .N = 1, .F = F, .dtype = rz::DType::f32});
    double mine[F];
    for (size_t i = 0; i < F; ++i) mine[i] = swiglu(gate_up[i], gate_up[F + i]);
    close("rz::swiglu_forward: largest difference", distance(mine, h, F), 0, 1.0 / (1 << 18));
}

// Numbers that the models' authors publish.
static void check_parameters() {
    struct Known {
        const char* preset;
        int64_t parameters;
    };
    for (const Known& known : {Known{"llama3.1-8b", 8030261248},
                               {"llama3.1-70b", 70553706496},
                               {"llama3.2-1b", 1235814400},
                               {"tinyllama-1.1b", 1100048384},
                               {"smollm2-135m", 134515008}}) {
        rz::ModelConfig c = rz::find_preset(known.preset).config;
        c.resolve();
        const int64_t mine = parameters({c.dim, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.tied});
        expect(mine == known.parameters, "%s has %lld parameters, found %lld", known.preset,
               (long long)known.parameters, (long long)mine);
    }
}

// The program's own model, freshly initialised, on random tokens.
static void check_first_loss() {
    rz::ModelConfig c = rz::find_preset("bytes").config;
    c.dim = 128, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.ffn = 256, c.vocab = 512;
    c.resolve();
    constexpr int64_t B = 8, T = 64, N = B * T;
    const rz::ParamTable table(c);
    rz::Stream stream(rz::Device{}, "compute");
    rz::Mesh mesh{rz::Device{}};
    rz::Zero zero(rz::Device{}, stream, rz::unit_layouts(table), rz::decay_segments(table), {}, {}, mesh);
    rz::Model model(c, table, {.B = B, .T = T}, rz::Device{}, stream, zero.params, &zero.grads);
    rz::initialise_weights(table, 1337, stream, zero);
    std::vector<int32_t> tokens(N), targets(N);
    for (unsigned i = 0; i < N; ++i) {
        tokens[i] = int32_t((noise(i) + 1) / 2 * 512);
        targets[i] = int32_t((noise(5000 + i) + 1) / 2 * 512);
    }
    model.evaluate({.B = B, .T = T, .tokens = tokens.data(), .targets = targets.data()});
    stream.synchronize();
    const double loss = *model.loss_sum() / N;
    // The mean of 512 losses whose deviation is that of a logit, sqrt(128) * 0.02: four deviations.
    close("first loss of the program, V = 512, as predicted", first_loss(512, 128, 0.02), loss,
          4 * std::sqrt(128.0) * 0.02 / std::sqrt(double(N)));
    close("log V is most of it", first_loss(512, 128, 0.02) - std::log(512.0), 0, 0.03);
}

int main() {
    check_swiglu();
    check_parameters();
    check_first_loss();
    return verdict("a first loss far from log V is a bug in the head, the labels or the initialisation");
}
