// Kernels that are proven on GPUs, run by the interpreter and compared with plain arithmetic in double. If the model of
// an instruction were wrong, they would not come out right.
// SIMT_ARCH=80 or 90 says which kernels.
//   proven_tests                 GoogleTest: in order, and with seeds and the checks of memory order
//   proven_tests --flips         turns one property of the models wrong at a time: which kernel fails? A table
//   proven_tests --list          the kernels and the operands of their wgmma instructions
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "test/ptx/census.h"
#include "test/ptx/cudart.h"
#include "test/ptx/flips.h"
#include "test/ptx/proven/proven.h"
#include "test/simt/control.h"

namespace {

using proven::Attention;
using proven::Gemm;

uint16_t narrow(double x, bool fp16) {
    if (fp16) return std::bit_cast<uint16_t>(_Float16(x));
    uint32_t b = std::bit_cast<uint32_t>(float(x));
    b += 0x7fff + (b >> 16 & 1);
    return uint16_t(b >> 16);
}
double wide(uint16_t bits, bool fp16) {
    return fp16 ? double(std::bit_cast<_Float16>(bits)) : double(std::bit_cast<float>(uint32_t(bits) << 16));
}

// Memory that the kernels may touch; filled with 0xff, which is NaN in every format here.
template <class T>
struct Device {
    T* p = nullptr;
    size_t n;
    explicit Device(size_t count) : n(count) {
        if (cudaMalloc(reinterpret_cast<void**>(&p), n * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
        memset(static_cast<void*>(p), 0xff, n * sizeof(T));
    }
    ~Device() { cudaFree(p); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
};

// What a kernel got wrong, or nothing. Eighths of small integers: every product and sum is exact in f32.
std::string check(const Gemm& g) {
    std::mt19937 rng(7);
    const auto small = [&] { return int(rng() % 17) - 8; };
    const auto count = [](int rows, int columns) { return size_t(rows) * size_t(columns); };
    Device<uint16_t> a16(g.a_int8 ? 1 : count(g.m, g.k)), b(count(g.k, g.n));
    Device<int8_t> a8(g.a_int8 ? count(g.m, g.k) : 1);
    Device<float> c(count(g.m, g.n)), d(count(g.m, g.n));
    if (g.a_int8)
        for (size_t i = 0; i < a8.n; i++) a8.p[i] = int8_t(small());
    else
        for (size_t i = 0; i < a16.n; i++) a16.p[i] = narrow(small() / 8.0, false);
    for (size_t i = 0; i < b.n; i++) b.p[i] = narrow(small() / 8.0, false);
    for (size_t i = 0; i < c.n; i++) c.p[i] = float(small());
    const std::string failed = g.run(g, g.a_int8 ? static_cast<const void*>(a8.p) : a16.p, b.p, c.p, d.p);
    if (!failed.empty()) return failed;
    size_t wrong = 0;
    for (int i = 0; i < g.m; i++)
        for (int j = 0; j < g.n; j++) {
            double x = 0;
            for (int k = 0; k < g.k; k++) {
                const auto at = size_t(g.a_row ? i * g.k + k : k * g.m + i);
                x += (g.a_int8 ? a8.p[at] : wide(a16.p[at], false)) *
                     wide(b.p[size_t(g.b_row ? k * g.n + j : j * g.k + k)], false);
            }
            const auto at = size_t(i * g.n + j);
            wrong += !(2 * x + 3 * double(c.p[at]) == double(d.p[at]));
        }
    return wrong ? std::to_string(wrong) + " of " + std::to_string(d.n) + " elements are wrong" : "";
}

// A value in double, and how far from it the kernel may be: the sum of the magnitudes that each rounding touches.
struct Bounded {
    std::vector<double> value, bound;
    explicit Bounded(size_t n) : value(n), bound(n) {}
    void add(size_t at, double x, double may_err) { value[at] += x, bound[at] += may_err; }
    // Largest error as a part of its bound; infinite for a NaN
    double worst(const uint16_t* have, bool fp16, double unit) const {
        double w = 0;
        for (size_t i = 0; i < value.size(); i++) {
            const double e = std::fabs(wide(have[i], fp16) - value[i]) / (bound[i] + unit * std::fabs(value[i]) + 1e-6);
            w = e <= w ? w : std::isnan(e) ? INFINITY : e;
        }
        return w;
    }
};

// Softmax attention and its gradients in double. Where kernels round: P to 16 bits before P V and P^T dO (once each),
// dS to 16 bits from that (twice), O before delta = rowsum(dO O); the results once. exp2 and sums in f32: 2^-14.
struct Reference {
    Bounded o, dq, dk, dv;
    std::vector<double> lse;
    size_t at(const Attention& a, int heads, int b, int t, int head) const {
        return size_t(a.head_major ? (b * heads + head) * a.t + t : (b * a.t + t) * heads + head) * size_t(a.d);
    }
    Reference(const Attention& a, const Attention::Arrays& x, double unit)
        : o(elements(a)), dq(elements(a)), dk(elements(a)), dv(elements(a)), lse(size_t(a.batch * a.heads * a.t)) {
        for (int b = 0; b < a.batch; b++)
            for (int h = 0; h < a.heads; h++)
                for (int i = 0; i < a.t; i++) row(a, x, unit, b, h, i);
    }
    static size_t elements(const Attention& a) { return size_t(a.batch * a.t * a.heads * a.d); }
    void row(const Attention& a, const Attention::Arrays& x, double unit, int b, int h, int i) {
        const int end = a.causal ? i + 1 : a.t, kv = h / (a.heads / a.kv_heads);
        const double scale = 1 / std::sqrt(double(a.d)), slack = std::ldexp(1, -14);
        const size_t qi = at(a, a.heads, b, i, h), d = size_t(a.d);
        const auto dot = [&](const uint16_t* u, const uint16_t* v) {
            double sum = 0;
            for (size_t e = 0; e < d; e++) sum += wide(u[e], a.fp16) * wide(v[e], a.fp16);
            return sum;
        };
        std::vector<double> p(size_t(end), 0.0), dp(size_t(end), 0.0);
        double sum = 0, delta = 0, delta_err = 0;
        for (int j = 0; j < end; j++) {
            const size_t kj = at(a, a.kv_heads, b, j, kv);
            sum += p[size_t(j)] = std::exp(scale * dot(x.q + qi, x.k + kj));  // |scores| stay small: no maximum needed
            dp[size_t(j)] = dot(x.d_o + qi, x.v + kj);
        }
        lse[size_t((b * a.heads + h) * a.t + i)] = std::log(sum);
        for (size_t j = 0; j < size_t(end); j++) delta += (p[j] /= sum) * dp[j];
        for (int j = 0; j < end; j++)
            for (size_t e = 0; e < d; e++) {
                const double pv = p[size_t(j)] * wide(x.v[at(a, a.kv_heads, b, j, kv) + e], a.fp16);
                o.add(qi + e, pv, (unit + slack) * std::fabs(pv));
            }
        for (size_t e = 0; e < d; e++) delta_err += 2 * unit * std::fabs(o.value[qi + e] * wide(x.d_o[qi + e], a.fp16));
        for (int j = 0; j < end; j++) {
            const size_t kj = at(a, a.kv_heads, b, j, kv), mine = at(a, a.heads, b, j, h);
            const double pj = p[size_t(j)], ds = pj * (dp[size_t(j)] - delta) * scale;
            const double err = (2 * unit + slack) * std::fabs(ds) +
                               pj * scale * (delta_err + slack * (std::fabs(dp[size_t(j)]) + std::fabs(delta)));
            for (size_t e = 0; e < d; e++) {
                const double k = wide(x.k[kj + e], a.fp16), q = wide(x.q[qi + e], a.fp16),
                             g = wide(x.d_o[qi + e], a.fp16);
                dq.add(qi + e, ds * k, err * std::fabs(k));
                dk.add(mine + e, ds * q, err * std::fabs(q));
                dv.add(mine + e, pj * g, (unit + slack) * std::fabs(pj * g));
            }
        }
    }
};

std::string check(const Attention& a) {
    const double unit = std::ldexp(1, a.fp16 ? -11 : -8);  // rounding moves by half of it; truncation by all
    const size_t n = Reference::elements(a), nk = n / size_t(a.heads) * size_t(a.kv_heads);
    Device<uint16_t> q(n), k(nk), v(nk), d_o(n), o(n), dq(n), dk(n), dv(n);
    Device<float> lse(size_t(a.batch * a.heads * a.t));
    std::mt19937 rng(11);
    for (Device<uint16_t>* x : {&q, &k, &v, &d_o})
        for (size_t i = 0; i < x->n; i++) x->p[i] = narrow(double(rng()) / 2147483648.0 - 1, a.fp16);
    const Attention::Arrays x{q.p, k.p, v.p, d_o.p, o.p, lse.p, dq.p, dk.p, dv.p};
    const Reference want(a, x, unit);
    if (a.backward) {
        for (size_t i = 0; i < n; i++) o.p[i] = narrow(want.o.value[i], a.fp16);
        for (size_t i = 0; i < lse.n; i++) lse.p[i] = float(want.lse[i]);
    }
    const std::string failed = a.run(a, x);
    if (!failed.empty()) return failed;
    double lse_err = 0;
    for (size_t i = 0; i < lse.n; i++) {
        const double e = std::fabs(double(lse.p[i]) - want.lse[i]);
        lse_err = e <= lse_err ? lse_err : e;
    }
    const double worst = a.backward ? std::max({want.dq.worst(dq.p, a.fp16, unit), want.dk.worst(dk.p, a.fp16, unit),
                                                want.dv.worst(dv.p, a.fp16, unit)})
                                    : want.o.worst(o.p, a.fp16, unit);
    char text[100];
    snprintf(text, sizeof text, "largest error: %.2f of its bound; of log-sum-exp: %.1e", worst, lse_err);
    if (getenv("PROVEN_ERRORS")) fprintf(stderr, "%s: %s\n", a.name, text);
    return worst <= 1 && lse_err < 1e-4 ? "" : text;
}

struct Case {
    std::string name;
    std::function<std::string()> check;
};
// Those for the device that SIMT_ARCH says
std::vector<Case> cases() {
    std::vector<Case> all;
    const std::string arch = "sm" + std::to_string(ptx::device_arch());
    for (const Gemm& g : proven::gemms())
        if (g.name == arch + (g.name + 4)) all.push_back({g.name, [&g] { return check(g); }});
    for (const Attention& a : proven::attentions())
        if (a.name == arch + (a.name + 4)) all.push_back({a.name, [&a] { return check(a); }});
    return all;
}

// seed 0: in order, asynchronous work at once
std::string run(const Case& c, unsigned seed, bool order) {
    ptx::options().in_order = seed == 0, ptx::options().check_order = order;
    simt::options().seed = seed;
    ptx::take_launched();
    std::string failed = c.check();
    if (ptx::take_launched().empty() && failed.empty()) failed = "no kernel was launched";
    return failed;
}

class Proven : public testing::TestWithParam<size_t> {};
TEST_P(Proven, EqualsDoubleInOrder) { EXPECT_EQ(run(cases()[GetParam()], 0, false), ""); }
TEST_P(Proven, EqualsDoubleInRandomOrder) { EXPECT_EQ(run(cases()[GetParam()], 5, false), ""); }
TEST_P(Proven, BreaksNoRuleOfMemoryOrder) { EXPECT_EQ(run(cases()[GetParam()], 6, true), ""); }
INSTANTIATE_TEST_SUITE_P(Kernels, Proven, testing::Range(size_t(0), cases().size()), [](const auto& info) {
    std::string s = cases()[info.param].name;
    for (char& c : s) c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return s;
});

// True: the kernel comes out right all the same. In a process of its own, so that it may hang or crash.
bool survives(const Case& c, int flip) {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit seconds{60, 60}, none{0, 0};
        setrlimit(RLIMIT_CPU, &seconds), setrlimit(RLIMIT_CORE, &none);
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        ptx::set_flip(flip);
        _exit(run(c, 0, false).empty() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int flips() {
    const std::vector<Case> all = cases();
    printf("| property turned wrong | kernels that fail |\n|---|---|\n");
    int unpinned = 0;
    for (int f = 1; f < ptx::flip_count(); f++) {
        std::string failing;
        int count = 0;
        for (size_t i = 0; i < all.size(); i++)
            if (!survives(all[i], f)) failing += (failing.empty() ? "" : ", ") + std::to_string(i + 1), count++;
        unpinned += count == 0;
        printf("| %s | %s |\n", ptx::flip_name(f), count ? failing.c_str() : "none");
        fflush(stdout);
    }
    for (size_t i = 0; i < all.size(); i++) printf("%s%zu %s", i ? "; " : "\n", i + 1, all[i].name.c_str());
    printf("\n%d of %d properties are pinned by no kernel\n", unpinned, ptx::flip_count() - 1);
    return 0;
}

int list() {
    for (const Case& c : cases()) {
        for (auto& [form, n] : ptx::descriptors()) n = 0;
        const std::string failed = run(c, 0, false);
        printf("%s: %s\n", c.name.c_str(), failed.empty() ? "right" : failed.c_str());
        for (const auto& [form, n] : ptx::descriptors())
            if (n) printf("    %6llu %s\n", (unsigned long long)n, form.c_str());
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && !strcmp(argv[1], "--flips")) return flips();
    if (argc == 2 && !strcmp(argv[1], "--list")) return list();
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
