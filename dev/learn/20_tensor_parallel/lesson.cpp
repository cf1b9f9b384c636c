// y = relu(x U^T) D^T on ranks that each hold a part of U and D: x is (rows, C), U is (F, C), D is (C, F).
#include <cstdint>
#include <functional>
#include <vector>

using Sum = std::function<void(float* data, int64_t n)>;  // each rank's data becomes the sum over all ranks

// A rank's part of U: F / ranks of its rows, so F / ranks outputs of the first product (column-parallel).
std::vector<float> part_of_up(const float* up, int C, int F, int rank, int ranks) {
    const int n = F / ranks;
    return {up + rank * n * C, up + (rank + 1) * n * C};
}

// A rank's part of D: what multiplies just those outputs (row-parallel); (C, F / ranks).
std::vector<float> part_of_down(const float* down, int C, int F, int rank, int ranks) {
    const int n = F / ranks;
    std::vector<float> part(size_t(C) * size_t(n));
    for (int c = 0; c < C; ++c)
        for (int f = 0; f < n; ++f) {
            // >>> hole 1: some columns of every row
#ifdef HOLE
            part[size_t(c * n + f)] = down[(rank * C * n) + c * n + f];
#else
            part[size_t(c * n + f)] = down[c * F + rank * n + f];
#endif
            // <<<
        }
    return part;
}

// c (M, N) += a b^T, or, with their strides given, any of the products of the backward pass.
static void multiply(float* c, const float* a, const float* b, int M, int N, int K, int a_m, int a_k, int b_n,
                     int b_k) {
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            for (int k = 0; k < K; ++k) c[m * N + n] += a[m * a_m + k * a_k] * b[n * b_n + k * b_k];
}

// h (rows, n) and y (rows, C) of this rank's up (n, C) and down (C, n); they are 0 before.
void forward(float* y, float* h, const float* x, const float* up, const float* down, int rows, int C, int n,
             const Sum& sum) {
    multiply(h, x, up, rows, n, C, C, 1, C, 1);
    for (int i = 0; i < rows * n; ++i) h[i] = h[i] > 0 ? h[i] : 0;
    multiply(y, h, down, rows, C, n, n, 1, n, 1);
    // >>> hole 2: relu needs whole numbers, which h has: each rank has all of its own columns. What is partial is y
#ifdef HOLE
    sum(h, int64_t(rows) * n);
#else
    sum(y, int64_t(rows) * C);
#endif
    // <<<
}

// dx (rows, C), dup (n, C), ddown (C, n) of dy (rows, C), which is the same on every rank; they are 0 before.
void backward(float* dx, float* dup, float* ddown, const float* dy, const float* x, const float* h, const float* up,
              const float* down, int rows, int C, int n, const Sum& sum) {
    multiply(ddown, dy, h, C, n, rows, 1, C, 1, n);
    std::vector<float> dh(size_t(rows) * size_t(n));
    multiply(dh.data(), dy, down, rows, n, C, C, 1, 1, n);
    for (int i = 0; i < rows * n; ++i) dh[size_t(i)] *= float(h[i] > 0);
    multiply(dup, dh.data(), x, n, C, rows, 1, n, 1, C);
    multiply(dx, dh.data(), up, rows, C, n, n, 1, 1, C);
    // >>> hole 3: x went to every rank, so its gradient is what comes back from all of them
#ifdef HOLE
    (void)sum;
#else
    sum(dx, int64_t(rows) * C);
#endif
    // <<<
}
