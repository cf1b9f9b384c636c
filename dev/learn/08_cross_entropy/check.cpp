#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/cross_entropy.h"

using namespace learn;

double cross_entropy(double* dlogits, const double* logits, int V, int target, double scale);

constexpr int V = 300;

static void check_against_program(const double* logits) {
    std::vector<float> row(logits, logits + V);
    const int32_t target = 17;
    float loss = NAN;
    rz::cross_entropy_cpu({.loss = &loss,
                           .logits = row.data(),
                           .targets = &target,
                           .N = 1,
                           .V = V,
                           .grad_scale = 0.125f,
                           .write_gradient = true,
                           .dtype = rz::DType::f32});
    double mine[V];
    close("rz::cross_entropy: the loss", cross_entropy(mine, logits, V, target, 0.125), loss, 1e-5);
    close("rz::cross_entropy: largest difference of the gradient", distance(mine, row, V), 0, 1e-7);
}

int main() {
    // PyTorch 2.15, in double: torch.nn.functional.cross_entropy(torch.tensor([1., 2., 3., 4.]), torch.tensor(2))
    const double four[4] = {1, 2, 3, 4};
    const double torch_gradient[4] = {0.03205860328008499, 0.08714431874203257, -0.7631171819100898,
                                      0.6439142598879724};
    double d4[4];
    close("logits 1, 2, 3, 4, target 2: PyTorch's loss", cross_entropy(d4, four, 4, 2, 1), 1.4401896985611953, 1e-12);
    close("PyTorch's gradient: largest difference", distance(d4, torch_gradient, 4), 0, 1e-12);

    double logits[V], d[V], shifted[V], unused[V];
    for (int v = 0; v < V; ++v) logits[v] = 0;
    close("equal logits: log 300", cross_entropy(d, logits, V, 5, 1), 5.703782475, 1e-8);
    for (unsigned v = 0; v < V; ++v) logits[v] = 8 * noise(v), shifted[v] = logits[v] + 1000;
    const double loss = cross_entropy(d, logits, V, 17, 1);
    close("all logits 1000 higher: the loss changes by", cross_entropy(unused, shifted, V, 17, 1) - loss, 0, 1e-9);
    double sum = 0;
    for (const double x : d) sum += x;
    close("the gradient's sum", sum, 0, 1e-12);
    double worst = 0;
    for (int v = 0; v < V; ++v) {
        const double want = slope(logits[v], 1e-5, [&] { return cross_entropy(unused, logits, V, 17, 1); });
        worst = std::fmax(worst, std::fabs(d[v] - want));
    }
    close("gradient against finite differences", worst, 0, 1e-8);
    check_against_program(logits);
    return verdict("the gradient of softmax and log together is p - 1[target]: bounded, and it sums to zero");
}
