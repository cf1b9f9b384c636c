#include <string>
#include <vector>

#include "dev/learn/toy.h"
#include "kernels/swiglu.h"

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
        double gate = 4 * noise(i), up = 2 * noise(1000 + i), dgate, dup;
        swiglu_backward(&dgate, &dup, gate, up);
        const auto value = [&] { return swiglu(gate, up); };
        worst = std::fmax(worst, std::fabs(dgate - slope(gate, kStep, value)));
        worst = std::fmax(worst, std::fabs(dup - slope(up, kStep, value)));
    }
    close("derivatives against finite differences", worst, 0, 1e-9);
    constexpr int F = 64;
    std::vector<float> gate_up = noises(2 * F, 2000, 4), h(F);
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
        const rz::ModelConfig c = preset(known.preset);
        const int64_t mine = parameters({c.dim, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.tied});
        expect(mine == known.parameters, "%s has %lld parameters, found %lld", known.preset,
               (long long)known.parameters, (long long)mine);
    }
}

// The program's own model, freshly initialised, on random tokens.
static void check_first_loss() {
    constexpr int64_t B = 8, T = 64, N = B * T;
    rz::Mesh mesh{rz::Device{}};
    rz::TrainState core(toy(128, 2, 512), {.stage = {.B = B, .T = T}}, rz::Device{}, mesh);
    rz::initialise_weights(core.table, 1337, core.compute, core.zero);
    const Batch batch(B, T, 512);
    core.model.evaluate(batch);
    core.compute.synchronize();
    const double loss = *core.model.loss_sum() / N;
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
