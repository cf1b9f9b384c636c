// Muon: a step for matrices whose singular values are all about one.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

using Matrix = std::vector<double>;  // row by row

// (M, K) times (K, N); the second one stored as (N, K) where it is transposed.
static Matrix product(const Matrix& a, const Matrix& b, int M, int N, int K, bool transposed) {
    Matrix c(size_t(M) * size_t(N), 0);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j)
            for (int k = 0; k < K; ++k)
                c[size_t(i * N + j)] += a[size_t(i * K + k)] * b[size_t(transposed ? j * K + k : k * N + j)];
    return c;
}

// m becomes the new momentum; returns Nesterov's sum, which looks one gradient further ahead.
double momentum(double& m, double gradient, double mu) {
    m = mu * m + (1 - mu) * gradient;
    // >>> hole 1: the new gradient again, and the new momentum, in the same proportions
#ifdef HOLE
    return m;
#else
    return mu * m + (1 - mu) * gradient;
#endif
    // <<<
}

// u (rows, cols) with rows <= cols: U s V^T becomes about U V^T, in five steps.
Matrix orthogonal(Matrix x, int rows, int cols) {
    const double a = 3.4445, b = -4.7750, c = 2.0315;
    // >>> hole 2: the polynomial wants singular values of at most one
#ifdef HOLE
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (double& v : x) v /= std::max(squares, 1e-7);
#else
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (double& v : x) v /= std::max(std::sqrt(squares), 1e-7);
#endif
    // <<<
    for (int step = 0; step < 5; ++step) {
        const Matrix s = product(x, x, rows, rows, cols, true), ss = product(s, s, rows, rows, rows, false);
        Matrix p(s.size());
        // >>> hole 3: X = a X + (b S + c S S) X takes every singular value s to a s + b s^3 + c s^5
#ifdef HOLE
        for (size_t i = 0; i < p.size(); ++i) p[i] = (b + c) * ss[i];
#else
        for (size_t i = 0; i < p.size(); ++i) p[i] = b * s[i] + c * ss[i];
#endif
        // <<<
        const Matrix px = product(p, x, rows, cols, rows, false);
        for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + px[i];
    }
    return x;
}

// Factor of a step, such that its elements are as large as AdamW's, 0.2 in the root of their mean square.
double scale(int rows, int cols) {
    // >>> hole 4: of min(rows, cols) singular values of one, the squares of all elements sum to min(rows, cols)
#ifdef HOLE
    return 0.2 * std::sqrt(std::min(rows, cols));
#else
    return 0.2 * std::sqrt(std::max(rows, cols));
#endif
    // <<<
}

// FLOPs of the five steps, as a part of the 6 rows cols tokens of the forward and backward pass.
double overhead(double rows, double cols, double tokens) {
    const double m = std::min(rows, cols), n = std::max(rows, cols);
    // >>> hole 5: of each step, S = X X^T, S S, and (b S + c S S) X
#ifdef HOLE
    const double step = m * n * n;
#else
    const double step = 2 * m * m * n + 2 * m * m * m + 2 * m * m * n;
#endif
    // <<<
    return 5 * step / (6 * m * n * tokens);
}
