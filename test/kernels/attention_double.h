#pragma once
// Softmax attention and its gradients in double, from the same rounded inputs, and beside each element how far a kernel
// may be from it: the sum of what each of its roundings can move. A kernel is compared with this, not only with another
// kernel that rounds at the same places.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace attention_double {

// Values, and how far a kernel may be from each
struct Bounded {
    std::vector<double> value, bound;
    explicit Bounded(int64_t n) : value(size_t(n)), bound(size_t(n)) {}
    void add(int64_t at, double x, double may_err) { value[size_t(at)] += x, bound[size_t(at)] += may_err; }

    // Largest error as a part of its bound, to which `unit` of the value comes for its own rounding. Infinite for a NaN
    template <class Have>
    double worst(double unit, Have have) const {
        double w = 0;
        for (size_t i = 0; i < value.size(); i++) {
            const double e = std::fabs(have(int64_t(i)) - value[i]) / (bound[i] + unit * std::fabs(value[i]) + 1e-6);
            w = e <= w ? w : std::isnan(e) ? std::numeric_limits<double>::infinity() : e;
        }
        return w;
    }
    // Root of the mean square error, relative to that of the values
    template <class Have>
    double rms(Have have) const {
        double error = 0, all = 0;
        for (size_t i = 0; i < value.size(); i++) {
            const double e = have(int64_t(i)) - value[i];
            error += e * e, all += value[i] * value[i];
        }
        return all > 0 ? std::sqrt(error / all) : 0;
    }
};

struct Problem {
    int64_t B, Tq, Tk, H, K, D;  // H query heads over K heads of keys
    double scale;
    std::vector<double> q, k, v, d_o;                         // (B, T, heads, D); no d_o: no gradients
    std::function<int64_t(int64_t b, int64_t t)> first, end;  // the keys that query t sees
    bool dkv_per_query_head = false;                          // else summed over the query heads of a key head

    int64_t q_at(int64_t b, int64_t t, int64_t h) const { return ((b * Tq + t) * H + h) * D; }
    int64_t kv_at(int64_t b, int64_t t, int64_t h) const { return ((b * Tk + t) * K + h) * D; }
    int64_t dkv_at(int64_t b, int64_t t, int64_t h) const {
        return dkv_per_query_head ? ((b * Tk + t) * H + h) * D : kv_at(b, t, h / (H / K));
    }
};

// Roundings of a kernel, relative to the value: p, where o and dv sum it; ds in all; o before delta = rowsum(d_o o).
// `slack`: exponentials, and sums in fp32.
struct Rounding {
    double p, ds, o, slack = std::ldexp(1.0, -14);
    bool terms = false;  // no roundings: bounds are the sums of all terms' magnitudes, the scale of rounding errors
};
constexpr Rounding kMagnitudes{1, 0, 0, 0, true};

struct Result {
    Bounded o, dq, dk, dv;
    std::vector<double> lse, largest;  // (B, H, Tq): of each row, and its largest score

    Result(const Problem& a, const Rounding& r)
        : o(a.B * a.Tq * a.H * a.D),
          dq(a.B * a.Tq * a.H * a.D),
          dk(keys(a)),
          dv(keys(a)),
          lse(size_t(a.B * a.H * a.Tq)),
          largest(lse) {
        for (int64_t b = 0; b < a.B; b++)
            for (int64_t h = 0; h < a.H; h++)
                for (int64_t i = 0; i < a.Tq; i++) row(a, r, b, h, i);
    }

   private:
    static int64_t keys(const Problem& a) { return a.B * a.Tk * (a.dkv_per_query_head ? a.H : a.K) * a.D; }

    void row(const Problem& a, const Rounding& r, int64_t b, int64_t h, int64_t i) {
        const int64_t first = a.first(b, i), end = a.end(b, i), kv = h / (a.H / a.K), D = a.D;
        if (first >= end) return;  // sees no key: all zero
        const double* q = &a.q[size_t(a.q_at(b, i, h))];
        const auto dot = [D](const double* x, const double* y, bool magnitude = false) {
            double sum = 0;
            for (int64_t e = 0; e < D; e++) sum += magnitude ? std::fabs(x[e] * y[e]) : x[e] * y[e];
            return sum;
        };
        const auto n = size_t(end - first);
        std::vector<double> p(n), dp(n);
        double top = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        for (size_t j = 0; j < n; j++) {
            const auto at = size_t(a.kv_at(b, first + int64_t(j), kv));
            p[j] = a.scale * dot(q, &a.k[at]);
            top = std::max(top, p[j]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        const auto at_row = size_t((b * a.H + h) * a.Tq + i);
        lse[at_row] = top + std::log(sum), largest[at_row] = top;
        const int64_t mine = a.q_at(b, i, h);
        for (size_t j = 0; j < n; j++) {
            p[j] /= sum;
            const double* v = &a.v[size_t(a.kv_at(b, first + int64_t(j), kv))];
            for (int64_t e = 0; e < D; e++) o.add(mine + e, p[j] * v[e], (r.p + r.slack) * std::fabs(p[j] * v[e]));
        }
        if (a.d_o.empty()) return;
        const double* g = &a.d_o[size_t(mine)];
        for (size_t j = 0; j < n; j++)
            delta += p[j] * (dp[j] = dot(g, &a.v[size_t(a.kv_at(b, first + int64_t(j), kv))]));
        const double delta_terms = dot(&o.value[size_t(mine)], g, true);
        const double delta_err = r.o * delta_terms;
        for (size_t j = 0; j < n; j++) {
            const int64_t at = a.dkv_at(b, first + int64_t(j), h);
            const double* k = &a.k[size_t(a.kv_at(b, first + int64_t(j), kv))];
            const double ds = p[j] * (dp[j] - delta) * a.scale;
            const double* v = &a.v[size_t(a.kv_at(b, first + int64_t(j), kv))];
            const double err = r.terms
                                   ? p[j] * a.scale * (dot(g, v, true) + delta_terms)
                                   : (r.ds + r.slack) * std::fabs(ds) +
                                         p[j] * a.scale * (delta_err + r.slack * (std::fabs(dp[j]) + std::fabs(delta)));
            for (int64_t e = 0; e < D; e++) {
                dq.add(mine + e, ds * k[e], err * std::fabs(k[e]));
                dk.add(at + e, ds * q[e], err * std::fabs(q[e]));
                dv.add(at + e, p[j] * g[e], (r.p + r.slack) * std::fabs(p[j] * g[e]));
            }
        }
    }
};

}  // namespace attention_double
