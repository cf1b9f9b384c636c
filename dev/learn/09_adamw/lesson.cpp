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
#ifdef HOLE
    const double m = s.m, v = s.v;
#else
    const double m = s.m / (1 - std::pow(beta1, step)), v = s.v / (1 - std::pow(beta2, step));
#endif
    // <<<
    // >>> hole 2: the decay stands beside the gradient's step, not inside it
#ifdef HOLE
    return w - lr * (m + decay * w) / (std::sqrt(v) + eps);
#else
    return w - lr * (m / (std::sqrt(v) + eps) + decay * w);
#endif
    // <<<
}

// True: a tensor with so many dimensions decays.
bool decays(int dimensions) {
    // >>> hole 3: matrices do; a norm's gain has no reason to be near zero
#ifdef HOLE
    return dimensions > 0;
#else
    return dimensions > 1;
#endif
    // <<<
}

// Linear warm-up to `peak` at step `warmup`, then half a cosine to `floor` at step `steps`.
double learning_rate(int step, double peak, double floor, int warmup, int steps) {
    if (step <= warmup) {
        return peak * step / warmup;
    }
    // >>> hole 4
#ifdef HOLE
    return peak;
#else
    const double done = double(step - warmup) / (steps - warmup);
    return floor + (peak - floor) * 0.5 * (1 + std::cos(M_PI * done));
#endif
    // <<<
}
