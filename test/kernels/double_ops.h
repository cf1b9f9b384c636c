#pragma once
// Forward passes in double, written as the formulas stand in the headers: what the CPU ops are tested against. And
// tensors whose values both sides read from the same bits.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "dev/bench/ops.h"
#include "kernels/adamw.h"
#include "kernels/runtime/memory.h"
#include "kernels/cpu/simd_level.h"
#include "test/kernels/attention_double.h"

namespace rz::test {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

using Doubles = std::vector<double>;

// Largest relative error of one rounding to t.
inline double rounding(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// Largest error of rounding x to t once, and a hair. fp16 has fewer bits below 2^-14.
inline double rounding_at(DType t, double x) {
    return std::max(1.01 * rounding(t) * std::abs(x), t == DType::f16 ? 0x1p-25 : 1e-37);
}

inline Doubles random_doubles(int64_t n, uint64_t seed, double std = 1) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> draw(0, std);
    Doubles x(static_cast<size_t>(n));
    for (double& v : x) v = draw(generator);
    return x;
}

// The contents of an argument's pointer
inline std::string bits_of(const void* x, int64_t n, DType dtype) {
    return {static_cast<const char*>(x), size_t(n * size_of(dtype))};
}
inline Doubles values_of(const void* x, int64_t n, DType dtype) {
    Doubles values(static_cast<size_t>(n));
    with_dtype(dtype, [&]<class T>() {
        for (int64_t i = 0; i < n; ++i) values[size_t(i)] = double(float(static_cast<const T*>(x)[i]));
    });
    return values;
}

// n elements of dtype, 256-byte aligned, with a guard after them that finish() checks.
class Tensor {
   public:
    // NaN everywhere: an element that the op leaves out can't pass.
    Tensor(int64_t n, DType dtype)
        : n_(n), dtype_(dtype), memory_(Device{}, n * size_of(dtype) + kGuard, MemKind::workspace, "test") {
        memset(memory_.data(), 0xff, size_t(memory_.bytes()));
    }
    // Values rounded to dtype.
    Tensor(const Doubles& values, DType dtype) : Tensor(int64_t(values.size()), dtype) {
        with_dtype(dtype, [&]<class T>() {
            for (int64_t i = 0; i < n_; ++i) static_cast<T*>(memory_.data())[i] = T(float(values[size_t(i)]));
        });
    }
    ~Tensor() {
        for (int64_t i = 0; i < kGuard; ++i)
            if (memory_.as<unsigned char>()[n_ * size_of(dtype_) + i] != 0xff) {
                ADD_FAILURE() << "byte " << i << " after a tensor of " << n_ << " elements was overwritten";
                break;
            }
    }

    void* data() const { return memory_.data(); }
    template <class T>
    T* as() const {
        return memory_.as<T>();
    }
    int64_t size() const { return n_; }
    DType dtype() const { return dtype_; }
    Doubles values() const { return values_of(memory_.data(), n_, dtype_); }
    std::string bits() const { return {memory_.as<char>(), size_t(n_ * size_of(dtype_))}; }

   private:
    static constexpr int64_t kGuard = 64;
    int64_t n_;
    DType dtype_;
    Buffer memory_;
};

inline Tensor random_tensor(int64_t n, DType dtype, uint64_t seed, double std = 1) {
    return Tensor(random_doubles(n, seed, std), dtype);
}

// The tensors of a case of dev/bench/ops.h in the CPU's memory
class CpuTensors : public ops::Tensors {
   public:
    Stream& stream() override { return stream_; }
    ops::Placed in(int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        Doubles x = random_doubles(n, seed, double(std));
        for (double& v : x) v += double(mean);
        return {tensors_.emplace_back(x, dtype).data()};
    }
    ops::Placed inout(ops::Output, int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        const ops::Placed x = in(n, dtype, seed, std, mean);
        results_.push_back(&tensors_.back());
        return x;
    }
    ops::Placed out(ops::Output, int64_t n, DType dtype) override {
        results_.push_back(&tensors_.emplace_back(n, dtype));
        return {results_.back()->data()};
    }
    ops::Placed scratch(int64_t bytes) override {
        return {tensors_.emplace_back(ceil_div(bytes, int64_t(4)), DType::f32).data()};
    }
    // The bits of everything that was written
    std::string results() const {
        std::string all;
        for (const Tensor* x : results_) all += x->bits();
        return all;
    }

   private:
    ops::Placed copy_of(const void* host, int64_t bytes) override {
        const ops::Placed to = scratch(bytes);
        memcpy(to.data, host, size_t(bytes));
        return to;
    }
    Stream stream_{Device{}, "test"};
    std::list<Tensor> tensors_;
    std::vector<const Tensor*> results_;
};

// A range of AdamW's flat buffers
struct AdamCase {
    int64_t n = 70001, first = 1000;
    std::vector<int64_t> ends = {900, 1000, 1500, 40000, 40001, 80000};
    std::vector<uint8_t> decays = {1, 0, 1, 0, 1, 0};
    float grad_scale = 0.25f;

    AdamW args(const Tensor& param, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
               int64_t step) {
        return {.param = param.data(),
                .master = master.data(),
                .m = m.data(),
                .v = v.data(),
                .grad = grad.data(),
                .grad_scale = &grad_scale,
                .n = n,
                .segment_end = ends.data(),
                .decays = decays.data(),
                .segments = int64_t(ends.size()),
                .first = first,
                .lr = 1e-2f,
                .beta1 = 0.9f,
                .beta2 = 0.95f,
                .eps = 1e-8f,
                .weight_decay = 0.1f,
                .step = step,
                .param_dtype = param.dtype(),
                .grad_dtype = grad.dtype(),
                .master_dtype = master.dtype(),
                .adam_dtype = m.dtype(),
                .seed = 99};
    }
};

inline double largest(const Doubles& x) {
    double m = 0;
    for (double v : x) m = std::max(m, std::abs(v));
    return m;
}

inline void expect_close(const char* what, const Doubles& got, const Doubles& want,
                         const std::function<double(size_t)>& tolerance) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_LE(std::abs(got[i] - want[i]), tolerance(i))  // a NaN is not less
            << what << "[" << i << "]: got " << got[i] << ", want " << want[i];
}

// Central differences of loss at x, at up to `samples` elements, against grad. In double with this step the difference
// itself errs by less than 1e-7 of the gradient's scale.
inline void expect_gradient(const char* what, const Doubles& grad, Doubles x,
                            const std::function<double(const Doubles&)>& loss,
                            const std::function<double(size_t)>& tolerance, int64_t samples = 60) {
    ASSERT_EQ(grad.size(), x.size()) << what;
    const double h = 1e-5, own_error = 1e-7 * (1 + largest(grad));
    const size_t stride = std::max<size_t>(1, x.size() / size_t(samples));
    for (size_t i = 0; i < x.size(); i += stride) {
        const double keep = x[i];
        x[i] = keep + h;
        const double above = loss(x);
        x[i] = keep - h;
        const double below = loss(x);
        x[i] = keep;
        const double want = (above - below) / (2 * h);
        ASSERT_LE(std::abs(grad[i] - want), tolerance(i) + own_error)
            << what << "[" << i << "]: got " << grad[i] << ", central difference " << want;
    }
}

inline double dot(const Doubles& a, const Doubles& b) {
    double s = 0;
    for (size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
    return s;
}

// ---- the formulas ---------------------------------------------------------------------------------------------------

inline Doubles rmsnorm(const Doubles& x, const Doubles& w, double eps) {
    const size_t C = w.size();
    Doubles y(x.size());
    for (size_t row = 0; row < x.size(); row += C) {
        double squares = 0;
        for (size_t c = 0; c < C; ++c) squares += x[row + c] * x[row + c];
        const double rstd = 1 / std::sqrt(squares / double(C) + eps);
        for (size_t c = 0; c < C; ++c) y[row + c] = x[row + c] * rstd * w[c];
    }
    return y;
}

inline Doubles swiglu(const Doubles& gate_up, int64_t F) {
    Doubles h(gate_up.size() / 2);
    for (size_t i = 0; i < h.size(); ++i) {
        const size_t n = i / size_t(F), f = i % size_t(F);
        const double g = gate_up[n * size_t(2 * F) + f], u = gate_up[n * size_t(2 * F) + size_t(F) + f];
        h[i] = g / (1 + std::exp(-g)) * u;
    }
    return h;
}

// log(sum exp) - logit of the target, per row; 0 where the target is negative
inline Doubles cross_entropy(const Doubles& logits, const std::vector<int32_t>& targets) {
    const size_t V = logits.size() / targets.size();
    Doubles loss(targets.size());
    for (size_t n = 0; n < targets.size(); ++n) {
        if (targets[n] < 0) continue;
        double max = -1e300, sum = 0;
        for (size_t v = 0; v < V; ++v) max = std::max(max, logits[n * V + v]);
        for (size_t v = 0; v < V; ++v) sum += std::exp(logits[n * V + v] - max);
        loss[n] = max + std::log(sum) - logits[n * V + size_t(targets[n])];
    }
    return loss;
}

// A packed qkv row: H query heads, K key heads, K value heads; o (B, Tq, H, D) dense. Queries are the last Tq of Tk
// rows.
struct PackedAttention {
    int64_t B, Tq, Tk, H, K, D;

    int64_t row() const { return (H + 2 * K) * D; }
    int64_t query(int64_t b, int64_t t, int64_t h) const { return (b * Tk + Tk - Tq + t) * row() + h * D; }
    int64_t key(int64_t b, int64_t t, int64_t kv) const { return (b * Tk + t) * row() + (H + kv) * D; }
    int64_t value(int64_t b, int64_t t, int64_t kv) const { return key(b, t, kv) + K * D; }
    int64_t out(int64_t b, int64_t t, int64_t h) const { return ((b * Tq + t) * H + h) * D; }
    AttentionShape shape(DType dtype) const {
        AttentionShape s = ops::AttentionCase{B, Tq, Tk, H, K, D, dtype, /*packed=*/true}.shape();
        s.q_batch = s.kv_batch;  // queries are rows of the keys' tensor
        return s;
    }

    // Attention over these values; beside each result the sum of its terms' magnitudes. Without d_o no gradients
    attention_double::Result exact(const Doubles& qkv, const Doubles& d_o = {}) const {
        attention_double::Problem a{B, Tq, Tk, H, K, D, 1 / std::sqrt(double(D)), {}, {}, {}, d_o, {}, {}};
        for (int64_t b = 0; b < B; ++b)
            for (int64_t t = 0; t < Tk; ++t) {
                const auto keys = qkv.begin() + long(key(b, t, 0)), values = keys + K * D;
                if (t >= Tk - Tq) a.q.insert(a.q.end(), keys - H * D, keys);
                a.k.insert(a.k.end(), keys, values);
                a.v.insert(a.v.end(), values, values + K * D);
            }
        a.first = [](int64_t, int64_t) { return 0; };
        a.end = [this](int64_t, int64_t t) { return Tk - Tq + t + 1; };
        return {a, attention_double::kMagnitudes};
    }
    Doubles forward(const Doubles& qkv) const { return exact(qkv).o.value; }

    // The scale of rounding errors, where Tq is Tk: the effect of a relative error of every probability, dS term and
    // stored o, added up per element of dqkv. Multiply by the size of one rounding.
    Doubles backward_scale(const attention_double::Result& r) const {
        Doubles scale_of;
        for (int64_t n = 0; n < B * Tk; ++n)
            for (const auto& [x, width] : {std::pair(&r.dq, H * D), {&r.dk, K * D}, {&r.dv, K * D}})
                scale_of.insert(scale_of.end(), x->bound.begin() + n * width, x->bound.begin() + (n + 1) * width);
        return scale_of;
    }
};

// Every instruction set of this CPU, and back to the best afterwards.
inline std::vector<SimdLevel> simd_levels() {
    const SimdLevel best = simd_level();
    std::vector<SimdLevel> levels;
    for (SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::avx512_bf16})
        if (set_simd_level(level)) levels.push_back(level);
    set_simd_level(best);
    return levels;
}

struct AtSimdLevel {
    SimdLevel before = simd_level();
    explicit AtSimdLevel(SimdLevel level) { set_simd_level(level); }
    ~AtSimdLevel() { set_simd_level(before); }
};

// A suite for INSTANTIATE_TEST_SUITE_P(Simd, ..., testing::ValuesIn(simd_levels()), SimdTest::name)
class SimdTest : public testing::TestWithParam<SimdLevel> {
   public:
    static std::string name(const testing::TestParamInfo<SimdLevel>& info) { return name_of(info.param); }

   private:
    AtSimdLevel level_{GetParam()};
};

}  // namespace rz::test
