// Rotary positions in the half-rotated layout of Hugging Face's LLaMA.
#include <cmath>

// Every pair (x[j], x[j + D/2]) a quarter turn further.
void rotate_half(double* out, const double* x, int D) {
    // >>> hole 1: [1, 2, 3, 4] gives [-3, -4, 1, 2]
#ifdef HOLE
    for (int j = 0; j < D; ++j) out[j] = x[j];
#else
    for (int j = 0; j < D / 2; ++j) {
        out[j] = -x[j + D / 2];
        out[j + D / 2] = x[j];
    }
#endif
    // <<<
}

// x rotated to `position`: pair j turns by position * theta^(-2j / D).
void rope(double* out, const double* x, int D, double position, double theta) {
    double turned[256];
    rotate_half(turned, x, D);
    for (int i = 0; i < D; ++i) {
        // >>> hole 2: both halves of a pair turn by the same angle
#ifdef HOLE
        const int j = i;
        const double angle = position * std::pow(theta, -2.0 * j / D);
#else
        const int j = i % (D / 2);
        const double angle = position * std::pow(theta, -2.0 * j / D);
#endif
        // <<<
        out[i] = x[i] * std::cos(angle) + turned[i] * std::sin(angle);
    }
}
