#include <algorithm>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/cross_entropy.h"
#include "kernels/global_norm.h"

using namespace learn;

double gradient_scale(const int* targets, int micro_batches);
double global_norm(const double* sums_of_squares, int pieces);
double clip_factor(double norm, double most);

constexpr int N = 12, V = 32;

// Gradients of rows [first, first + rows) into `out`, as the program's kernel makes them.
static void gradients(std::vector<float>& out, const int32_t* targets, int first, int rows, double scale) {
    std::vector<float> logits = noises(rows * V, unsigned(first * V), 3), loss(static_cast<size_t>(rows));
    rz::cross_entropy_cpu({.loss = loss.data(),
                           .logits = logits.data(),
                           .targets = targets + first,
                           .N = rows,
                           .V = V,
                           .grad_scale = float(scale),
                           .write_gradient = true,
                           .dtype = rz::DType::f32});
    std::copy(logits.begin(), logits.end(), out.begin() + first * V);
}

static void check_split() {
    int32_t targets[N];
    for (int n = 0; n < N; ++n) targets[n] = n < 4 || n == 11 ? (7 * n) % V : rz::kIgnoreTarget;
    const int in_parts[3] = {4, 0, 1};  // three micro-batches of four rows: 4, 0 and 1 of them with a target
    std::vector<float> whole(N * V), parts(N * V);
    gradients(whole, targets, 0, N, 1.0 / 5);  // the mean over all five targets
    for (int m = 0; m < 3; ++m) gradients(parts, targets, 4 * m, 4, gradient_scale(in_parts, 3));
    close("three uneven micro-batches against one batch", distance(parts, whole, N * V), 0, 1e-7);
}

static void check_clip() {
    // torch.nn.utils.clip_grad_norm_ of gradients [3, 4] and [12], max_norm 1: norm 13, then [0.23.., 0.30..], [0.92..]
    const double squares[2] = {9 + 16, 144};
    const double norm = global_norm(squares, 2);
    close("norm of (3, 4) and (12)", norm, 13, 1e-12);
    close("PyTorch's clipped first gradient", 3 * clip_factor(norm, 1), 0.23076921301775288, 1e-8);
    close("a small gradient is left alone", clip_factor(0.5, 1), 1, 0);
    float program_norm = NAN, program_scale = NAN;
    rz::clip_scale_cpu(
        {.norm = &program_norm, .scale = &program_scale, .partial = squares, .count = 2, .average = 1, .max_norm = 1});
    close("rz::clip_scale's norm", norm, program_norm, 1e-6);
    close("rz::clip_scale's factor", clip_factor(norm, 1), program_scale, 1e-8);
}

int main() {
    const int even[4] = {256, 256, 256, 256}, uneven[3] = {4, 0, 1};
    close("four full micro-batches of 256", gradient_scale(even, 4), 1.0 / 1024, 1e-15);
    close("4, 0 and 1 targets", gradient_scale(uneven, 3), 0.2, 1e-15);
    check_split();
    check_clip();
    return verdict("the mean over all targets of the update is not the mean of the micro-batches' means");
}
