#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/rmsnorm.h"

using namespace learn;

double rmsnorm(double* y, const double* x, const double* w, int C, double eps);
void rmsnorm_backward(double* dx, double* dw, const double* dy, const double* x, const double* w, double rstd, int C);

constexpr int C = 64;
constexpr double kEps = 1e-5;

static double dot(const double* a, const double* b) {
    double sum = 0;
    for (int i = 0; i < C; ++i) sum += a[i] * b[i];
    return sum;
}

// d(dy . y) / d parameter by central differences in double: error about step^2.
static double slope(double* parameter, const double* x, const double* w, const double* dy) {
    constexpr double kStep = 1e-5;
    double y[C], loss[2];
    const double kept = *parameter;
    for (int side = 0; side < 2; ++side) {
        *parameter = kept + (side ? kStep : -kStep);
        rmsnorm(y, x, w, C, kEps);
        loss[side] = dot(dy, y);
    }
    *parameter = kept;
    return (loss[1] - loss[0]) / (2 * kStep);
}

static void check_against_program(const double* x, const double* w, const double* dy) {
    std::vector<float> fx(C), fw(C), fdy(C), y(C), dx(C), dw(C), scratch(size_t(rz::rmsnorm_backward_scratch(C)));
    for (int i = 0; i < C; ++i) fx[size_t(i)] = float(x[i]), fw[size_t(i)] = float(w[i]), fdy[size_t(i)] = float(dy[i]);
    float rstd = 0;
    rz::rmsnorm_forward_cpu({.y = y.data(),
                             .rstd = &rstd,
                             .x = fx.data(),
                             .w = fw.data(),
                             .N = 1,
                             .C = C,
                             .eps = float(kEps),
                             .dtype = rz::DType::f32});
    rz::rmsnorm_backward_cpu({.dx = dx.data(),
                              .dw = dw.data(),
                              .dy = fdy.data(),
                              .x = fx.data(),
                              .w = fw.data(),
                              .rstd = &rstd,
                              .scratch = scratch.data(),
                              .N = 1,
                              .C = C,
                              .dtype = rz::DType::f32,
                              .grad_dtype = rz::DType::f32});
    double my_y[C], my_dx[C], my_dw[C] = {};
    const double my_rstd = rmsnorm(my_y, x, w, C, kEps);
    rmsnorm_backward(my_dx, my_dw, dy, x, w, my_rstd, C);
    // fp32 keeps 2^-24 of a value; a sum of 64 terms and a few products stay below 2^-18 here.
    close("rz::rmsnorm_forward: largest difference", distance(my_y, y, C), 0, 1.0 / (1 << 18));
    close("rz::rmsnorm_backward, dx: largest difference", distance(my_dx, dx, C), 0, 1.0 / (1 << 18));
    close("rz::rmsnorm_backward, dw: largest difference", distance(my_dw, dw, C), 0, 1.0 / (1 << 18));
}

int main() {
    const double x2[2] = {3, 4}, ones[2] = {1, 1};
    double y2[2];
    rmsnorm(y2, x2, ones, 2, 0);
    close("rmsnorm(3, 4)[0] = 3 / sqrt(12.5)", y2[0], 0.848528137, 1e-8);
    close("rmsnorm(3, 4)[1] = 4 / sqrt(12.5)", y2[1], 1.131370850, 1e-8);

    double x[C], w[C], dy[C], y[C], dx[C], dw[C] = {};
    for (unsigned i = 0; i < C; ++i) x[i] = 3 * noise(i), w[i] = 1 + 0.5 * noise(100 + i), dy[i] = noise(200 + i);
    const double rstd = rmsnorm(y, x, w, C, kEps);
    rmsnorm_backward(dx, dw, dy, x, w, rstd, C);
    double worst_dx = 0, worst_dw = 0;
    for (int i = 0; i < C; ++i) {
        worst_dx = std::fmax(worst_dx, std::fabs(dx[i] - slope(&x[i], x, w, dy)));
        worst_dw = std::fmax(worst_dw, std::fabs(dw[i] - slope(&w[i], x, w, dy)));
    }
    close("dx against finite differences", worst_dx, 0, 1e-8);
    close("dw against finite differences", worst_dw, 0, 1e-8);

    // Without eps the output does not change when x grows, so the gradient has nothing along x.
    double flat_dx[C], flat_dw[C] = {};
    rmsnorm_backward(flat_dx, flat_dw, dy, x, w, rmsnorm(y, x, w, C, 0), C);
    close("dx . x with eps = 0", dot(flat_dx, x), 0, 1e-10);
    check_against_program(x, w, dy);
    return verdict("a norm's gradient has no part along its input: growing the row changes nothing");
}
