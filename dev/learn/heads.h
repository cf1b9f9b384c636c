#pragma once
// Attention as the lessons ask the program for it: one batch of T positions, fp32.

#include "dev/learn/lesson.h"
#include "kernels/attention/attention.h"

namespace learn {

// q and o are (T, H, D), k and v (T, K, D).
inline rz::AttentionShape packed(int T, int H, int K, int D, float scale) {
    return {.B = 1,
            .Tq = T,
            .Tk = T,
            .H = H,
            .K = K,
            .D = D,
            .q_row = H * D,
            .q_batch = T * H * D,
            .kv_row = K * D,
            .kv_batch = T * K * D,
            .o_row = H * D,
            .o_batch = T * H * D,
            .scale = scale,
            .dtype = rz::DType::f32};
}

// Causal attention of one head the long way, row by row: all scores, their maximum, their sum, the average. q, k, v and
// o are (T, D).
template <class T>
void textbook_attention(std::vector<double>& o, std::vector<double>& lse, const std::vector<T>& q,
                        const std::vector<T>& k, const std::vector<T>& v, int D, double scale) {
    const int rows = int(q.size()) / D;
    o.assign(q.size(), 0), lse.clear();
    for (int t = 0; t < rows; ++t) {
        std::vector<double> p;
        double largest = -INFINITY, sum = 0;
        for (int s = 0; s <= t; ++s) {
            p.push_back(scale * dot(&q[size_t(t * D)], &k[size_t(s * D)], D));
            largest = std::fmax(largest, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - largest);
        for (int s = 0; s <= t; ++s)
            for (int d = 0; d < D; ++d) o[size_t(t * D + d)] += p[size_t(s)] / sum * v[size_t(s * D + d)];
        lse.push_back(largest + std::log(sum));
    }
}

}  // namespace learn
