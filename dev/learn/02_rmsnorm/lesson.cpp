// RMSNorm of one row, forward and backward.
#include <cmath>

// y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps), which is returned.
double rmsnorm(double* y, const double* x, const double* w, int C, double eps) {
    double squares = 0;
    for (int i = 0; i < C; ++i) {
        squares += x[i] * x[i];
    }
    // >>> hole 1: one over the root mean square
#ifdef HOLE
    const double rstd = 1 / std::sqrt(squares);
#else
    const double rstd = 1 / std::sqrt(squares / C + eps);
#endif
    // <<<
    for (int i = 0; i < C; ++i) y[i] = x[i] * rstd * w[i];
    return rstd;
}

// dx = gradient of x, dw += gradient of w; dy is the gradient of y.
void rmsnorm_backward(double* dx, double* dw, const double* dy, const double* x, const double* w, double rstd, int C) {
    double along = 0;  // how far dy * w points along the normalised row
    for (int i = 0; i < C; ++i) along += dy[i] * w[i] * x[i] * rstd;
    for (int i = 0; i < C; ++i) {
        const double normalised = x[i] * rstd;
        dw[i] += dy[i] * normalised;
        // >>> hole 2: rstd depends on every x, so a part must go: that along the row itself
#ifdef HOLE
        dx[i] = rstd * dy[i] * w[i];
#else
        dx[i] = rstd * (dy[i] * w[i] - normalised * along / C);
#endif
        // <<<
    }
}
