// Kernels that are proven on GPUs, run by the interpreter and compared with plain arithmetic in double. If the model of
// an instruction were wrong, they would not come out right.
// SIMT_ARCH=80 or 90 says which kernels.
//   proven_tests                 GoogleTest: in order, and with seeds and the checks of memory order
//   proven_tests --flips [TEXT]  turns one property of the models wrong at a time: which kernel fails? A table
//                                TEXT: only the properties whose names contain it
//   PROVEN_ONLY=TEXT             only the kernels whose names contain it
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

#include "kernels/fp8/fp8.h"
#include "test/kernels/attention_double.h"
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

// The error of a kernel, or nothing. Eighths of small integers: every product and sum is exact in f32.
std::string check(const Gemm& g) {
    std::mt19937 rng(7);
    const auto small = [&] { return int(rng() % 17) - 8; };
    const auto count = [](int rows, int columns) { return size_t(rows) * size_t(columns); };
    using proven::Types;
    const bool wide_a = g.types == Types::bf16, wide_b = g.types != Types::e4m3;
    const auto narrow_8 = [&](double x) {  // int8 or e4m3
        return g.types == Types::e4m3 ? rz::to_fp8<rz::Fp8::e4m3>(float(x)) : uint8_t(int8_t(x));
    };
    Device<uint8_t> a(count(g.m, g.k) * (wide_a ? 2 : 1)), b(count(g.k, g.n) * (wide_b ? 2 : 1));
    Device<float> c(count(g.m, g.n)), d(count(g.m, g.n));
    std::vector<double> a_values(count(g.m, g.k)), b_values(count(g.k, g.n));
    const auto fill = [&](std::vector<double>& values, bool wide_type, bool eighths, uint8_t* to) {
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = eighths ? small() / 8.0 : small();
            const uint16_t bits = wide_type ? narrow(values[i], false) : narrow_8(values[i]);
            memcpy(to + i * (wide_type ? 2 : 1), &bits, wide_type ? 2 : 1);
        }
    };
    fill(a_values, wide_a, g.types != Types::int8_by_bf16, a.p), fill(b_values, wide_b, true, b.p);
    for (size_t i = 0; i < c.n; i++) c.p[i] = float(small());
    const std::string failed = g.run(g, a.p, b.p, c.p, d.p);
    if (!failed.empty()) return failed;
    size_t wrong = 0;
    for (int i = 0; i < g.m; i++)
        for (int j = 0; j < g.n; j++) {
            double x = 0;
            for (int k = 0; k < g.k; k++) {
                x += a_values[size_t(g.a_row ? i * g.k + k : k * g.m + i)] *
                     b_values[size_t(g.b_row ? k * g.n + j : j * g.k + k)];
            }
            const auto at = size_t(i * g.n + j);
            wrong += !(2 * x + 3 * double(c.p[at]) == double(d.p[at]));
        }
    return wrong ? std::to_string(wrong) + " of " + std::to_string(d.n) + " elements are wrong" : "";
}

// In double. P is rounded to 16 bits before P V and P^T dO, dS from that (twice), O before delta = rowsum(dO O).
size_t place(const Attention& a, int heads, int64_t i) {  // of element i of (B, T, heads, D)
    const int64_t e = i % a.d, h = i / a.d % heads, t = i / a.d / heads % a.t, b = i / a.d / heads / a.t;
    return size_t(a.head_major ? ((b * heads + h) * a.t + t) * a.d + e : i);
}
attention_double::Result reference(const Attention& a, const Attention::Arrays& x, double unit) {
    const auto values = [&](const uint16_t* from, int heads) {
        std::vector<double> v(size_t(a.batch * a.t * heads * a.d));
        for (size_t i = 0; i < v.size(); i++) v[i] = wide(from[place(a, heads, int64_t(i))], a.fp16);
        return v;
    };
    attention_double::Problem p{a.batch, a.t, a.t, a.heads, a.kv_heads, a.d, 1 / std::sqrt(double(a.d)),
                                {},      {},  {},  {},      {},         {}};
    p.q = values(x.q, a.heads), p.k = values(x.k, a.kv_heads), p.v = values(x.v, a.kv_heads);
    p.d_o = values(x.d_o, a.heads);
    p.first = [](int64_t, int64_t) { return 0; };
    p.end = [&a](int64_t, int64_t t) { return a.causal ? t + 1 : a.t; };
    p.dkv_per_query_head = true;
    return {p, {unit, 2 * unit, 2 * unit}};
}

std::string check(const Attention& a) {
    const double unit = std::ldexp(1, a.fp16 ? -11 : -8);  // rounding moves by half of it; truncation by all
    const size_t n = size_t(a.batch * a.t * a.heads * a.d), nk = n / size_t(a.heads) * size_t(a.kv_heads);
    Device<uint16_t> q(n), k(nk), v(nk), d_o(n), o(n), dq(n), dk(n), dv(n);
    Device<float> lse(size_t(a.batch * a.heads * a.t));
    std::mt19937 rng(11);
    for (Device<uint16_t>* x : {&q, &k, &v, &d_o})
        for (size_t i = 0; i < x->n; i++) x->p[i] = narrow(double(rng()) / 2147483648.0 - 1, a.fp16);
    const Attention::Arrays x{q.p, k.p, v.p, d_o.p, o.p, lse.p, dq.p, dk.p, dv.p};
    const attention_double::Result want = reference(a, x, unit);
    if (a.backward) {
        for (size_t i = 0; i < n; i++) o.p[place(a, a.heads, int64_t(i))] = narrow(want.o.value[i], a.fp16);
        for (size_t i = 0; i < lse.n; i++) lse.p[i] = float(want.lse[i]);
    }
    const std::string failed = a.run(a, x);
    if (!failed.empty()) return failed;
    double lse_err = 0;
    for (size_t i = 0; i < lse.n; i++) {
        const double e = std::fabs(double(lse.p[i]) - want.lse[i]);
        lse_err = e <= lse_err ? lse_err : e;
    }
    const auto error = [&](const attention_double::Bounded& w, const uint16_t* have) {
        return w.worst(unit, [&](int64_t i) { return wide(have[place(a, a.heads, i)], a.fp16); });
    };
    const double worst =
        a.backward ? std::max({error(want.dq, dq.p), error(want.dk, dk.p), error(want.dv, dv.p)}) : error(want.o, o.p);
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
    if (const char* only = getenv("PROVEN_ONLY"))
        std::erase_if(all, [only](const Case& c) { return c.name.find(only) == std::string::npos; });
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

int flips(const char* only) {
    const std::vector<Case> all = cases();
    printf("| property turned wrong | kernels that fail |\n|---|---|\n");
    int unpinned = 0, turned = 0;
    for (int f = 1; f < ptx::flip_count(); f++) {
        if (!strstr(ptx::flip_name(f), only)) continue;
        turned++;
        std::string failing;
        int count = 0;
        for (size_t i = 0; i < all.size(); i++)
            if (!survives(all[i], f)) failing += (failing.empty() ? "" : ", ") + std::to_string(i + 1), count++;
        unpinned += count == 0;
        printf("| %s | %s |\n", ptx::flip_name(f), count ? failing.c_str() : "none");
        fflush(stdout);
    }
    for (size_t i = 0; i < all.size(); i++) printf("%s%zu %s", i ? "; " : "\n", i + 1, all[i].name.c_str());
    printf("\n%d of %d properties are pinned by no kernel\n", unpinned, turned);
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
    if (argc >= 2 && !strcmp(argv[1], "--flips")) return flips(argc > 2 ? argv[2] : "");
    if (argc == 2 && !strcmp(argv[1], "--list")) return list();
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
