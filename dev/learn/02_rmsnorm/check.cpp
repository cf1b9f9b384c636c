#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/rmsnorm.h"

using namespace learn;

double rmsnorm(double* y, const double* x, const double* w, int C, double eps);
void rmsnorm_backward(double* dx, double* dw, const double* dy, const double* x, const double* w, double rstd, int C);

constexpr int C = 64;
constexpr double kEps = 1e-5;

// `step` of x is small beside x.
static void check_differences(const char* what, double* x, double* w, const double* dy, double step) {
    double y[C], dx[C], dw[C] = {}, worst_dx = 0, worst_dw = 0;
    const auto loss = [&] {
        rmsnorm(y, x, w, C, kEps);
        return dot(dy, y, C);
    };
    rmsnorm_backward(dx, dw, dy, x, w, rmsnorm(y, x, w, C, kEps), C);
    for (int i = 0; i < C; ++i) {
        const double want = slope(x[i], step, loss);
        worst_dx = std::fmax(worst_dx, std::fabs(dx[i] - want) / std::fmax(1, std::fabs(want)));
        worst_dw = std::fmax(worst_dw, std::fabs(dw[i] - slope(w[i], 1e-5, loss)));
    }
    std::printf("%s:\n", what);
    close("dx against finite differences", worst_dx, 0, 2e-8);
    close("dw against finite differences", worst_dw, 0, 1e-8);
}

static void check_against_program(const double* x, const double* w, const double* dy) {
    const std::vector<float> fx(x, x + C), fw(w, w + C), fdy(dy, dy + C);
    std::vector<float> y(C), dx(C), dw(C), scratch(size_t(rz::rmsnorm_backward_scratch(C)));
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
    // dx is about rstd large, so it is compared in units of it.
    for (int i = 0; i < C; ++i) my_dx[i] /= std::fmax(1, my_rstd), dx[size_t(i)] /= float(std::fmax(1, my_rstd));
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

    // Rows near zero, where eps is what counts: mean of squares 1.25e-5 and 1e-5, together 2.25e-5.
    const double tiny2[2] = {0.003, 0.004}, zeros[2] = {};
    rmsnorm(y2, tiny2, ones, 2, kEps);
    close("rmsnorm(0.003, 0.004)[0] = 2 / sqrt(10), with eps = 1e-5", y2[0], 0.632455532, 1e-8);
    close("a row of zeros: rstd = 1 / sqrt(eps)", rmsnorm(y2, zeros, ones, 2, kEps), 316.227766017, 1e-8);
    close("and y is 0", y2[0], 0, 0);

    double x[C], w[C], dy[C];
    for (unsigned i = 0; i < C; ++i) x[i] = 3 * noise(i), w[i] = 1 + 0.5 * noise(100 + i), dy[i] = noise(200 + i);
    check_differences("dx, dw", x, w, dy, 1e-5);
    check_against_program(x, w, dy);
    // Without eps the output does not change when x grows, so the gradient has nothing along x.
    double y[C], flat_dx[C], flat_dw[C] = {};
    rmsnorm_backward(flat_dx, flat_dw, dy, x, w, rmsnorm(y, x, w, C, 0), C);
    close("dx . x with eps = 0", dot(flat_dx, x, C), 0, 1e-10);

    // A thousandth of it: eps is as large as the mean of squares, rstd a hundred times what it was.
    for (double& v : x) v /= 1000;
    check_differences("near zero: dx, dw", x, w, dy, 1e-8);
    check_against_program(x, w, dy);
    return verdict("a norm's gradient has no part along its input: growing the row changes nothing");
}
