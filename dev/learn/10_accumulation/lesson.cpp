// One update from several micro-batches, and clipping by the global norm.
#include <algorithm>
#include <cmath>

// Factor of every micro-batch's gradient of its *sum* of losses, such that adding up all micro-batches of all
// ranks gives the gradient of the mean loss. targets[i]: how many tokens of micro-batch i have a target.
double gradient_scale(const int* targets, int micro_batches) {
    int all = 0;
    for (int i = 0; i < micro_batches; ++i) {
        all += targets[i];
    }
    // >>> hole 1: one over the targets of the whole update
#ifdef HOLE
    return all > 0 ? 1.0 / micro_batches : 0;
#else
    return 1.0 / all;
#endif
    // <<<
}

// Norm of a gradient that lies in pieces (on ranks, in units), from each piece's sum of squares.
double global_norm(const double* sums_of_squares, int pieces) {
    // >>> hole 2: one root, at the end
#ifdef HOLE
    double sum = 0;
    for (int i = 0; i < pieces; ++i) sum += std::sqrt(sums_of_squares[i]);
    return sum;
#else
    double sum = 0;
    for (int i = 0; i < pieces; ++i) sum += sums_of_squares[i];
    return std::sqrt(sum);
#endif
    // <<<
}

// Factor of all gradients: the direction stays, the norm becomes `most` if it is larger.
double clip_factor(double norm, double most) {
    // >>> hole 3
#ifdef HOLE
    return most / (norm + 1e-6);
#else
    return std::min(1.0, most / (norm + 1e-6));
#endif
    // <<<
}
