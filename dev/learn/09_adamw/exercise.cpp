// AdamW, who decays, and the learning rate over a run.
#include <cmath>

struct Moments {
    double m, v;
};

// One update of one weight. `step` counts from 1.
double adamw(double w, Moments& s, double gradient, int step, double lr, double beta1, double beta2, double eps,
             double decay) {
    s.m = beta1 * s.m + (1 - beta1) * gradient;
    s.v = beta2 * s.v + (1 - beta2) * gradient * gradient;
    // >>> hole 1: both averages began at zero; undo that
    const double m = s.m, v = s.v;
    // <<<
    // >>> hole 2: the decay stands beside the gradient's step, not inside it
    return w - lr * (m + decay * w) / (std::sqrt(v) + eps);
    // <<<
}

// True: a tensor with so many dimensions decays.
bool decays(int dimensions) {
    // >>> hole 3: matrices do; a norm's gain has no reason to be near zero
    return dimensions > 0;
    // <<<
}

// Linear warm-up to `peak` at step `warmup`, then half a cosine to `floor` at step `steps`.
double learning_rate(int step, double peak, double floor, int warmup, int steps) {
    if (step <= warmup) return peak * step / warmup;
    // >>> hole 4
    return peak;
    // <<<
}
