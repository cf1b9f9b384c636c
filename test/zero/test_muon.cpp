// Muon over threads: gradients that are whole numbers have sums without rounding, so every layout must give the bits of
// one rank; and those are the weights of the formulas, in double.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "comm/loopback.h"
#include "kernels/gemm/newton_schulz.h"
#include "llama/train/train_state.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

struct Layout {
    int ranks = 1, stage = 0;
    GridOptions grid = {};
    std::optional<Algorithm> algorithm = {};
    int64_t micro_batches = 1;
    bool overlap = true, even = false;
};

struct Kept {
    std::map<int64_t, float> weights, m, rows;  // by logical offset, of rows by that of their first element
    int64_t second = 0, owned = 0;              // elements of v, and of all that is owned
};

int64_t mixed(int64_t i, int64_t step) { return int64_t((uint64_t(i * 64 + step) * 0x9E3779B97F4A7C15ull) >> 40); }
float sum_of(int64_t i, int64_t step) { return float(mixed(i, step) % 2001 - 1000); }

constexpr int kSteps = 3;
constexpr float kRate = 1e-2f;

// Sizes that --tp 2 cuts: k and v are not cut, all others are, o and down by columns.
ModelConfig even() {
    ModelConfig c = toy24();
    c.heads = 4, c.dim = 32, c.ffn = 40;
    c.resolve();
    return c;
}

// Calls body(offset in the whole model, offset from the run's first element on, elements) for what lies in a run of the
// local buffer, without padding.
void for_each_element(TrainState& core, int64_t local, int64_t elements, const auto& body) {
    core.table.for_each_run(local, local + elements, INT64_MAX, [&](const TensorRun& run) {
        for (int64_t i = 0; i < run.count; ++i)
            body(core.table.tensors()[size_t(run.tensor)].offset + run.first + i, run.local - local + i);
    });
}

Kept train(Mesh& mesh, const Layout& how, MuonOptions muon, DType adam, const std::function<void(TrainState&)>& look) {
    ZeroOptions zero_options;
    zero_options.stage = how.stage;
    zero_options.muon = muon;
    zero_options.muon.on = true;
    zero_options.adam_dtype = adam;
    zero_options.overlap = how.overlap;
    TrainState core(how.even ? even() : toy24(),
                    {.zero = zero_options,
                     .adamw = {.max_norm = 0.5f},
                     .stage = {.B = 2, .T = 16, .logits_bytes = 4096},
                     .micro_batches = how.micro_batches,
                     .threads = 1},
                    mesh.data().transport().device(), mesh);
    Zero& zero = core.zero;
    Stream& compute = core.compute;
    initialise_weights(core.table, 11, compute, zero);
    const AxisRank data = mesh.place(Axis::data);
    const int units = int(zero.ownership.units().size());
    for (int step = 1; step <= kSteps; ++step) {
        for (int u = units - 1; u >= 0; --u) {
            const UnitLayout& unit = zero.ownership.unit(u);
            std::vector<float> own(size_t(unit.padded), 0);
            for_each_element(core, unit.offset, unit.size, [&](int64_t at, int64_t i) {
                if (data.rank + 1 < data.size) own[size_t(i)] = float(mixed(at, 1000 * data.rank + step) % 201 - 100);
                for (int r = 0; data.rank + 1 == data.size && r + 1 < data.size; ++r)
                    own[size_t(i)] -= float(mixed(at, 1000 * r + step) % 201 - 100);
                if (data.rank + 1 == data.size) own[size_t(i)] += sum_of(at, step);
            });
            compute.copy(zero.grads.gradients(u), own.data(), unit.padded * 4);
            compute.synchronize();
            zero.grads.reduce(u, true);
        }
        zero.optimizer.gradient_norm();
        zero.optimizer.update(kRate, step);
    }
    if (look) look(core);
    Kept kept;
    for (int u = 0; u < units; ++u) {
        const UnitLayout& unit = zero.ownership.unit(u);
        std::vector<float> whole(static_cast<size_t>(unit.padded));
        zero.params.gather_whole(u, whole.data());
        compute.synchronize();
        for_each_element(core, unit.offset, unit.size,
                         [&](int64_t at, int64_t i) { kept.weights[at] = whole[size_t(i)]; });
    }
    for (const OwnedRange& r : zero.optimizer.owned()) {
        kept.owned += r.elements.size();
        if (r.v) kept.second += r.elements.size();
        if (r.matrix < 0) continue;
        for_each_element(core, r.local_offset, r.elements.size(), [&](int64_t at, int64_t i) {
            if (adam == DType::f32) kept.m[at] = static_cast<const float*>(r.m)[i];
            if (r.row_v && (r.in_matrix + i) % r.columns == 0)
                kept.rows[at] = static_cast<const float*>(r.row_v)[r.rows_in(i)];
        });
    }
    return kept;
}

Kept run(const Layout& how, const MuonOptions& muon = {}, DType adam = DType::f32,
         const std::function<void(TrainState&)>& look = {}) {
    MeshOptions options{.grid = how.grid};
    options.algorithms.data = how.algorithm;
    if (how.ranks == 1) {
        Mesh mesh({DeviceKind::cpu, 0}, options);
        return train(mesh, how, muon, adam, look);
    }
    LoopbackHub hub(how.ranks);
    std::vector<Kept> all(static_cast<size_t>(how.ranks));
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, options);
        all[size_t(rank)] = train(mesh, how, muon, adam, look);
    });
    for (int r = 1; r < how.ranks; ++r) {
        for (const auto& [at, w] : all[size_t(r)].weights) {
            const auto [place, fresh] = all[0].weights.emplace(at, w);
            EXPECT_TRUE(fresh || place->second == w) << "ranks disagree";
        }
        for (const auto& [at, m] : all[size_t(r)].m) all[0].m.emplace(at, m);
        for (const auto& [at, v] : all[size_t(r)].rows)
            EXPECT_TRUE(all[0].rows.emplace(at, v).first->second == v) << "ranks disagree";
        all[0].owned += all[size_t(r)].owned, all[0].second += all[size_t(r)].second;
    }
    return all[0];
}

class MuonLayouts : public testing::TestWithParam<float> {};

TEST_P(MuonLayouts, GiveTheBitsOfOneRank) {
    const MuonOptions muon{.beta2 = GetParam()};
    const Kept want = run({}, muon);
    EXPECT_EQ(want.rows.size(), muon.beta2 > 0 ? 3u * (24 + 8 + 8 + 24 + 20 + 20 + 24) : 0u);
    std::vector<Layout> layouts;
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (int stage = ranks == 1; stage <= 3; ++stage) layouts.push_back({ranks, stage});
    for (int stage = 1; stage <= 3; ++stage)  // hybrid; with shards of one rank nothing is cut
        for (const int shard : {1, 2}) layouts.push_back({4, stage, {.shard_size = shard}});
    for (const int stage : {1, 3}) layouts.push_back({4, stage, {.cp = 2, .shard_size = 2}});
    for (const Algorithm a : {Algorithm::direct, Algorithm::symmetric}) layouts.push_back({3, 2, {}, a});
    layouts.push_back({3, 2, {}, {}, 1, /*overlap=*/false});
    for (const int stage : {0, 1, 3}) {
        layouts.push_back({2, stage, {.cp = 2}});
        layouts.push_back({2, stage, {.pp = 2}, {}, 2});
        layouts.push_back({4, stage, {.pp = 2}, {}, 2});
    }
    for (const Layout& l : layouts) {
        const Kept got = run(l, muon);
        EXPECT_TRUE(got.weights == want.weights) << l.ranks << " ranks, stage " << l.stage << ", shard "
                                                 << l.grid.shard_size << ", pp " << l.grid.pp << ", cp " << l.grid.cp;
        EXPECT_TRUE(got.m == want.m) << l.ranks << " ranks, stage " << l.stage;
        EXPECT_TRUE(got.rows == want.rows) << l.ranks << " ranks, stage " << l.stage;
    }
}
// The tp axis cuts matrices too. What it leaves whole lies on several ranks.
TEST_P(MuonLayouts, WithTensorParallelismGiveTheBitsOfOneRank) {
    const MuonOptions muon{.beta2 = GetParam()};
    const Kept want = run({.even = true}, muon);
    std::vector<Layout> layouts;
    for (const int ranks : {2, 6})
        for (const int stage : {0, 1, 3})
            layouts.push_back({.ranks = ranks, .stage = ranks == 2 ? 0 : stage, .grid = {.tp = 2}, .even = true});
    layouts.push_back({.ranks = 4, .stage = 3, .grid = {.tp = 4}, .even = true});
    layouts.push_back({.ranks = 8, .stage = 2, .grid = {.tp = 2, .shard_size = 2}, .even = true});
    layouts.push_back({.ranks = 4, .stage = 0, .grid = {.tp = 2, .pp = 2}, .micro_batches = 2, .even = true});
    for (const Layout& l : layouts) {
        const Kept got = run(l, muon);
        EXPECT_TRUE(got.weights == want.weights) << l.ranks << " ranks, stage " << l.stage << ", tp " << l.grid.tp;
        EXPECT_TRUE(got.m == want.m && got.rows == want.rows) << l.ranks << " ranks, stage " << l.stage;
    }
    MuonOptions parts = muon;
    parts.whole = false, parts.beta2 = 0;
    EXPECT_FALSE(run(layouts[0], parts).weights == want.weights);
}
INSTANTIATE_TEST_SUITE_P(RowMoments, MuonLayouts, testing::Values(0.0f, 0.9f));

TEST(Muon, MomentaOf16BitsHaveTheBitsOfOneRank) {
    const Kept want = run({}, {}, DType::bf16);
    for (int stage = 0; stage <= 3; ++stage)
        EXPECT_TRUE(run({3, stage}, {}, DType::bf16).weights == want.weights) << stage;
    EXPECT_FALSE(run({}).weights == want.weights);
}

TEST(Muon, MatricesHaveNoSecondMoment) {
    int64_t matrices = 0;
    for (const Layout& l : {Layout{1, 0}, Layout{3, 2}}) {
        const Kept kept = run(l, {}, DType::f32, [&](TrainState& core) {
            matrices = 0;
            for (const auto& unit : core.zero.options.muon.matrices)
                for (const MuonMatrix& m : unit) matrices += m.elements.size();
        });
        EXPECT_EQ(kept.owned - kept.second, matrices);
        EXPECT_EQ(matrices, 3 * (24 * 24 * 2 + 8 * 24 * 2 + 3 * 20 * 24));
    }
}

// ---- the formulas, in double ----------------------------------------------------------------------------------------

using Doubles = std::vector<double>;

// Five times X = a X + (b S + c S S) X with S = X X^T, of a matrix that is wide or tall.
Doubles orthogonal(Doubles x, int64_t rows, int64_t cols) {
    double square = 0;
    for (const double v : x) square += v * v;
    for (double& v : x) v /= std::max(std::sqrt(square), 1e-7);
    const auto product = [](const Doubles& a, const Doubles& b, int64_t M, int64_t N, int64_t K, bool trans_b) {
        Doubles c(size_t(M * N), 0);
        for (int64_t i = 0; i < M; ++i)
            for (int64_t j = 0; j < N; ++j)
                for (int64_t k = 0; k < K; ++k)
                    c[size_t(i * N + j)] += a[size_t(i * K + k)] * b[size_t(trans_b ? j * K + k : k * N + j)];
        return c;
    };
    for (const Quintic& q : jordan_steps(5)) {
        const Doubles s = product(x, x, rows, rows, cols, true), ss = product(s, s, rows, rows, rows, false);
        Doubles p(s.size());
        for (size_t i = 0; i < s.size(); ++i) p[i] = double(q.b) * s[i] + double(q.c) * ss[i];
        const Doubles px = product(p, x, rows, cols, rows, false);
        for (size_t i = 0; i < x.size(); ++i) x[i] = double(q.a) * x[i] + px[i];
    }
    return x;
}

// I - 2 v v^T / |v|^2: orthogonal.
Doubles mirror(int64_t n, int64_t seed) {
    Doubles v, out(size_t(n * n), 0);
    for (int64_t i = 0; i < n; ++i) v.push_back(double(mixed(i, seed) % 2001 - 1000));
    const double square = std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) out[size_t(i * n + j)] = (i == j) - 2 * v[size_t(i)] * v[size_t(j)] / square;
    return out;
}

// U diag(s) V^T, of a matrix that is wide or tall.
Doubles with_singular_values(const Doubles& s, int64_t rows, int64_t cols) {
    const Doubles u = mirror(rows, 1), v = mirror(cols, 2);
    Doubles out(size_t(rows * cols), 0);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
            for (int64_t k = 0; k < int64_t(s.size()); ++k)
                out[size_t(i * cols + j)] += u[size_t(i * rows + k)] * s[size_t(k)] * v[size_t(j * cols + k)];
    return out;
}

double five_times(double s) {
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    return s;
}

// Directions stay, and each singular value goes through the polynomial five times. From 0.0015 of the norm on that ends
// between 0.6798248 and 1.2023687 in exact arithmetic.
TEST(Muon, SingularValuesGoThroughThePolynomial) {
    double least = 9, most = 0;
    for (double s = 0.0015; s <= 1; s += 1e-5)
        least = std::min(least, five_times(s)), most = std::max(most, five_times(s));
    EXPECT_GT(least, 0.679);
    EXPECT_LT(most, 1.203);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 40}, {40, 24}, {32, 32}}) {
        Doubles s, want;
        for (int64_t k = 0; k < std::min(rows, cols); ++k) s.push_back(std::pow(0.75, double(k)));
        const double norm = std::sqrt(std::inner_product(s.begin(), s.end(), s.begin(), 0.0));
        for (const double x : s) want.push_back(five_times(x / norm));
        std::vector<float> x;
        for (const double v : with_singular_values(s, rows, cols)) x.push_back(float(v));
        const Device cpu{DeviceKind::cpu, 0};
        Stream stream(cpu, "test");
        const Buffer work(cpu, newton_schulz_bytes(rows, cols, DType::f32), MemKind::workspace, "work");
        newton_schulz(stream, {.x = x.data(),
                               .rows = rows,
                               .cols = cols,
                               .dtype = DType::f32,
                               .steps = jordan_steps(5),
                               .work = work.data()});
        stream.synchronize();
        const Doubles all = with_singular_values(want, rows, cols);
        // A difference of this Frobenius norm moves no singular value by more (Weyl).
        double square = 0;
        for (size_t i = 0; i < x.size(); ++i) square += std::pow(double(x[i]) - all[i], 2);
        EXPECT_LT(std::sqrt(square), 1e-5) << rows << " x " << cols;
    }
}

double norm_of(const Doubles& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }

// NorMuon's normuon_update (Li et al. 2025).
void divide_rows(Doubles& o, Doubles& v, double beta2) {
    const double before = norm_of(o);
    const size_t cols = o.size() / v.size();
    for (size_t r = 0; r < v.size(); ++r) {
        double mean = 0;
        for (size_t c = 0; c < cols; ++c) mean += o[r * cols + c] * o[r * cols + c] / double(cols);
        v[r] += (1 - beta2) * (mean - v[r]);
        for (size_t c = 0; c < cols; ++c) o[r * cols + c] /= std::sqrt(v[r]) + 1e-10;
    }
    const double after = norm_of(o);
    for (double& x : o) x *= before / (after + 1e-10);
}

TEST(Muon, WeightsAreThoseOfTheFormulas) {
    using enum MuonScale;
    const std::pair<MuonScale, float> cases[] = {
        {match_rms_adamw, 0.0f}, {original, 0.0f}, {spectral_unclamped, 0.0f}, {original, 0.75f}};
    for (const auto& [scale, beta2] : cases) {
        std::vector<std::vector<MuonMatrix>> matrices;
        std::vector<UnitLayout> units;
        const Kept got = run({3, 3}, {.rate = 0.5f, .scale = scale, .beta2 = beta2, .dtype = DType::f32}, DType::f32,
                             [&](TrainState& core) {
                                 if (core.mesh.world().rank != 0) return;
                                 matrices = core.zero.options.muon.matrices, units = core.zero.ownership.units();
                             });
        // The weights before, of a run that makes no step of any size.
        const Kept begin = run({}, {.rate = 0, .dtype = DType::f32});
        std::vector<double> clips;  // of each step: 0.5 / (norm + 1e-6)
        for (int step = 1; step <= kSteps; ++step) {
            double square = 0;
            for (const UnitLayout& u : units)
                for (int64_t i = 0; i < u.size; ++i) square += std::pow(double(sum_of(u.global_offset + i, step)), 2);
            clips.push_back(0.5 / (std::sqrt(square) + 1e-6));
        }
        double worst = 0, moved = 0;
        for (size_t u = 0; u < units.size(); ++u)
            for (const MuonMatrix& mat : matrices[u]) {
                const int64_t at = units[u].global_offset + mat.elements.begin, n = mat.elements.size();
                Doubles w(size_t(n), 0), m(w), x(w), v(size_t(mat.rows), 0);
                for (int64_t i = 0; i < n; ++i) w[size_t(i)] = double(begin.weights.at(at + i));
                const double A = double(mat.rows), B = double(mat.cols), lr = double(kRate) * 0.5;
                const double s = scale == MuonScale::match_rms_adamw ? 0.2 * std::sqrt(std::max(A, B))
                                 : scale == MuonScale::original      ? std::sqrt(std::max(1.0, A / B))
                                                                     : std::sqrt(A / B);
                for (int step = 1; step <= kSteps; ++step) {
                    for (int64_t i = 0; i < n; ++i) {
                        const double g = double(sum_of(at + i, step)) * clips[size_t(step - 1)];
                        m[size_t(i)] = 0.95 * m[size_t(i)] + 0.05 * g;
                        x[size_t(i)] = 0.05 * g + 0.95 * m[size_t(i)];
                    }
                    Doubles o = orthogonal(x, mat.rows, mat.cols);
                    if (beta2 > 0) divide_rows(o, v, double(beta2));
                    for (int64_t i = 0; i < n; ++i)
                        w[size_t(i)] = w[size_t(i)] * (1 - lr * 0.1) - lr * s * o[size_t(i)];
                }
                for (int64_t i = 0; i < n; ++i) {
                    worst = std::max(worst, std::abs(w[size_t(i)] - double(got.weights.at(at + i))));
                    moved = std::max(moved, std::abs(w[size_t(i)] - double(begin.weights.at(at + i))));
                }
            }
        EXPECT_LT(worst, 1e-5 * moved + 1e-7) << name_of(scale);
        EXPECT_GT(moved, 1e-3) << name_of(scale);
    }
}

}  // namespace
}  // namespace rz
