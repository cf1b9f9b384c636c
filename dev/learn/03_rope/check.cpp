#include <algorithm>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/rope.h"

using namespace learn;

void rotate_half(double* out, const double* x, int D);
void rope(double* out, const double* x, int D, double position, double theta);

constexpr int D = 64;

// Attention sees q at position m, k at position n.
static double score(const double* q, const double* k, int m, int n) {
    double qm[D], kn[D];
    rope(qm, q, D, m, 10000);
    rope(kn, k, D, n, 10000);
    return dot(qm, kn, D);
}

static void check_against_program(const double* q) {
    constexpr int64_t kPositions = 2048;
    std::vector<float> cosine(kPositions * D / 2), sine(kPositions * D / 2), x(q, q + D);
    rz::rope_tables(cosine.data(), sine.data(), kPositions, D, 10000, {});
    rz::rope_cpu({.x = x.data(),
                  .cos_table = cosine.data(),
                  .sin_table = sine.data(),
                  .N = 1,
                  .T = 1,
                  .first_position = 1234,
                  .heads = 1,
                  .D = D,
                  .row_stride = D,
                  .dtype = rz::DType::f32});
    double mine[D];
    rope(mine, q, D, 1234, 10000);
    // The table's cosine and sine are rounded to fp32 once, and so is the result: 2^-21 is eight roundings.
    close("rz::rope at position 1234: largest difference", distance(mine, x, D), 0, 1.0 / (1 << 21));
}

int main() {
    const double x[4] = {1, 2, 3, 4}, want[4] = {-3, -4, 1, 2}, negated[4] = {-1, -2, -3, -4};
    double once[4], twice[4];
    rotate_half(once, x, 4);
    expect(std::equal(once, once + 4, want), "rotate_half([1,2,3,4]) = [%g,%g,%g,%g], [-3,-4,1,2] expected", once[0],
           once[1], once[2], once[3]);
    rotate_half(twice, once, 4);
    expect(std::equal(twice, twice + 4, negated), "two quarter turns are a half turn: [%g,%g,%g,%g]", twice[0],
           twice[1], twice[2], twice[3]);

    const double unit[2] = {1, 0};
    double turned[2];
    rope(turned, unit, 2, 1, 10000);  // D = 2: one pair, one radian per position
    close("(1, 0) at position 1: cos 1", turned[0], 0.540302306, 1e-8);
    close("(1, 0) at position 1: sin 1", turned[1], 0.841470985, 1e-8);

    double q[D], k[D], rotated[D];
    for (unsigned i = 0; i < D; ++i) q[i] = noise(i), k[i] = noise(500 + i);
    rope(rotated, q, D, 0, 10000);
    close("position 0 changes nothing: largest difference", distance(rotated, q, D), 0, 1e-14);
    rope(rotated, q, D, 777, 10000);
    close("a rotation keeps the length", std::sqrt(dot(rotated, rotated, D) / dot(q, q, D)), 1, 1e-12);
    close("score(9, 5) - score(1004, 1000)", score(q, k, 9, 5) - score(q, k, 1004, 1000), 0, 1e-10);
    close("score(0, 7) - score(93, 100)", score(q, k, 0, 7) - score(q, k, 93, 100), 0, 1e-10);
    expect(std::fabs(score(q, k, 9, 5) - score(q, k, 9, 6)) > 1e-3, "another distance gives another score");
    check_against_program(q);
    return verdict("a score depends on the distance of two tokens, never on where they stand");
}
