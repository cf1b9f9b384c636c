#include <vector>

#include "dev/learn/heads.h"

using namespace learn;

double attend(double* o, const double* q, const double* k, const double* v, int t, int D, double scale);

constexpr int T = 40, D = 16;
using Matrix = std::vector<double>;

static double worst_difference(const Matrix& q, const Matrix& k, const Matrix& v, double scale) {
    Matrix o(T * D, NAN), want, lse;
    for (int t = 0; t < T; ++t) attend(o.data(), q.data(), k.data(), v.data(), t, D, scale);
    textbook_attention(want, lse, q, k, v, D, scale);
    return distance(o, want, T * D);
}

static void check_against_program(const Matrix& q, const Matrix& k, const Matrix& v, double scale) {
    const std::vector<float> fq(q.begin(), q.end()), fk(k.begin(), k.end()), fv(v.begin(), v.end());
    std::vector<float> fo(T * D), lse(T);
    const rz::AttentionShape shape = packed(T, 1, 1, D, float(scale));
    rz::attention_forward_cpu({fo.data(), lse.data(), fq.data(), fk.data(), fv.data(), shape});
    Matrix o(T * D, NAN);
    double my_lse[T];
    for (int t = 0; t < T; ++t) my_lse[t] = attend(o.data(), q.data(), k.data(), v.data(), t, D, scale);
    // fp32: a score of size 10 is off by 16 terms * 2^-24 * 10, and exp passes that on: 2^-16 covers both.
    close("rz::attention_forward: largest difference", distance(o, fo, T * D), 0, 1.0 / (1 << 16));
    close("its log-sum-exp: largest difference", distance(my_lse, lse, T), 0, 1.0 / (1 << 16));
}

int main() {
    Matrix q = noises<double>(T * D, 0), o(T * D, NAN);
    const Matrix k = noises<double>(T * D, 1000), v = noises<double>(T * D, 2000);
    attend(o.data(), q.data(), k.data(), v.data(), 0, D, 1);
    close("the first token sees itself: o[0] - v[0]", distance(o, v, D), 0, 1e-15);

    const Matrix zero(T * D, 0.0);
    const double lse = attend(o.data(), zero.data(), k.data(), v.data(), 9, D, 1);
    double mean = 0;
    for (int s = 0; s < 10; ++s) mean += v[size_t(s * D)] / 10;
    close("equal scores give the mean of the first ten values", o[9 * D], mean, 1e-14);
    close("and their log-sum-exp is log 10", lse, 2.302585093, 1e-8);

    close("against the textbook's softmax: largest difference", worst_difference(q, k, v, 0.25), 0, 1e-13);
    for (double& x : q) x *= 1000;  // scores of several thousand: exp alone would overflow
    close("scores of thousands: largest difference", worst_difference(q, k, v, 1), 0, 1e-9);
    for (double& x : q) x /= 250;
    check_against_program(q, k, v, 0.25);
    return verdict("one pass, O(D) memory: a new maximum rescales what was summed before");
}
