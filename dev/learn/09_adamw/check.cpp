#include <string>
#include <vector>

#include "dev/learn/optimizer.h"
#include "dev/learn/toy.h"
#include "llama/train/schedule.h"

using namespace learn;

struct Moments {
    double m, v;
};
double adamw(double w, Moments& s, double gradient, int step, double lr, double beta1, double beta2, double eps,
             double decay);
bool decays(int dimensions);
double learning_rate(int step, double peak, double floor, int warmup, int steps);

constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

// torch.optim.AdamW([w], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1) in double, w = 1 (PyTorch 2.15)
static void check_against_torch() {
    const double gradients[5] = {0.5, -0.25, 2, 0, -1};
    const double torch_w[5] = {0.9890000002, 0.9853273057873828, 0.9777786428634756, 0.971354467836926,
                               0.9685801359420554};
    double w = 1;
    Moments s = {0, 0};
    for (int step = 1; step <= 5; ++step) {
        w = adamw(w, s, gradients[step - 1], step, kLr, kBeta1, kBeta2, kEps, kDecay);
        close(("PyTorch's weight after step " + std::to_string(step)).c_str(), w, torch_w[step - 1], 1e-12);
    }
}

static void check_against_program() {
    constexpr int n = 256;
    std::vector<float> w = noises(n, 0), m(n), v(n);
    std::vector<double> mine(w.begin(), w.end());
    std::vector<Moments> state(n, {0, 0});
    for (int step = 1; step <= 3; ++step) {
        const std::vector<float> g = noises(n, 1000 * unsigned(step));
        program_adamw(w.data(), m.data(), v.data(), g.data(), n, /*decaying=*/100, step, float(kLr));
        for (unsigned i = 0; i < n; ++i)
            mine[i] = adamw(mine[i], state[i], g[i], step, kLr, kBeta1, kBeta2, kEps, i < 100 ? kDecay : 0);
    }
    // Weights of size 1 in fp32, three roundings: 3 * 2^-24, and as much again in the steps.
    close("rz::adamw after three steps: largest difference", distance(mine, w, n), 0, 1.0 / (1 << 21));
}

static void check_decay_groups() {
    const rz::ParamTable table(preset("bytes"));
    int wrong = 0;
    for (const rz::Tensor& t : table.tensors()) wrong += decays(int(t.shape.size())) != t.decay;
    expect(wrong == 0, "%d of %zu tensors decay otherwise than in the program", wrong, table.tensors().size());
}

int main() {
    Moments fresh = {0, 0};
    close("the first step is lr, whatever the gradient's size", adamw(0, fresh, 1e-3, 1, kLr, kBeta1, kBeta2, 1e-30, 0),
          -kLr, 1e-12);
    Moments idle = {0, 0};
    double w = 1;
    for (int step = 1; step <= 10; ++step) w = adamw(w, idle, 0, step, kLr, kBeta1, kBeta2, kEps, kDecay);
    close("no gradient, ten steps: (1 - lr * decay)^10", w, std::pow(1 - kLr * kDecay, 10), 1e-14);
    check_against_torch();
    check_decay_groups();
    check_against_program();

    const rz::Schedule schedule{rz::Decay::cosine, 1e-3, 1e-4, 20, 0, 100};
    close("learning rate half way up", learning_rate(10, 1e-3, 1e-4, 20, 100), 5e-4, 1e-15);
    close("half way down", learning_rate(60, 1e-3, 1e-4, 20, 100), 5.5e-4, 1e-15);
    close("at the end", learning_rate(100, 1e-3, 1e-4, 20, 100), 1e-4, 1e-15);
    double worst = 0;
    for (int s = 1; s <= 100; ++s)
        worst = std::fmax(worst, std::fabs(learning_rate(s, 1e-3, 1e-4, 20, 100) - schedule.at(s)));
    close("rz::Schedule at all steps: largest difference", worst, 0, 1e-15);
    return verdict("Adam's step has the learning rate's size, not the gradient's; decay is not divided by sqrt(v)");
}
