// Muon over threads: gradients that are whole numbers have sums without rounding, so every layout must give the bits of
// one rank; and those are the weights of the formulas, in double.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "comm/loopback.h"
#include "kernels/gemm/newton_schulz.h"
#include "llama/train/core.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

struct Layout {
    int ranks = 1, stage = 0;
    GridOptions grid = {};
    std::optional<Algorithm> algorithm = {};
    int64_t micro_batches = 1;
    bool overlap = true;
};

struct Kept {
    std::map<int64_t, float> weights, m;  // by logical offset
    int64_t second = 0, owned = 0;        // elements of v, and of all that is owned
};

int64_t mixed(int64_t i, int64_t step) { return int64_t((uint64_t(i * 64 + step) * 0x9E3779B97F4A7C15ull) >> 40); }
float sum_of(int64_t i, int64_t step) { return float(mixed(i, step) % 2001 - 1000); }

constexpr int kSteps = 3;
constexpr float kRate = 1e-2f;

Kept train(Mesh& mesh, const Layout& how, MuonOptions muon, DType adam,
           const std::function<void(TrainingCore&)>& look) {
    ZeroOptions zero_options;
    zero_options.stage = how.stage;
    zero_options.muon = muon;
    zero_options.muon.on = true;
    zero_options.adam_dtype = adam;
    zero_options.overlap = how.overlap;
    TrainingCore core(zero_case::toy(false),
                      {.zero = zero_options,
                       .adamw = {.max_norm = 0.5f},
                       .stage = {.B = 2, .T = 16, .logits_bytes = 4096},
                       .micro_batches = how.micro_batches,
                       .threads = 1},
                      mesh.data().transport().device(), mesh);
    Zero& zero = core.zero;
    Stream& compute = core.compute;
    initialise_weights(core.table, 11, compute, zero);
    const Place data = mesh.place(Axis::data);
    const int units = int(zero.ownership.units().size());
    for (int step = 1; step <= kSteps; ++step) {
        for (int u = units - 1; u >= 0; --u) {
            const UnitLayout& unit = zero.ownership.unit(u);
            std::vector<float> own(size_t(unit.padded), 0);
            for (int64_t i = 0; i < unit.size; ++i) {
                const int64_t at = unit.logical + i;
                if (data.rank + 1 < data.size) own[size_t(i)] = float(mixed(at, 1000 * data.rank + step) % 201 - 100);
                for (int r = 0; data.rank + 1 == data.size && r + 1 < data.size; ++r)
                    own[size_t(i)] -= float(mixed(at, 1000 * r + step) % 201 - 100);
                if (data.rank + 1 == data.size) own[size_t(i)] += sum_of(at, step);
            }
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
        for (int64_t i = 0; i < unit.size; ++i) kept.weights[unit.logical + i] = whole[size_t(i)];
    }
    for (const OwnedRange& r : zero.optimizer.owned()) {
        kept.owned += r.elements.size();
        if (r.v) kept.second += r.elements.size();
        for (int64_t i = 0; i < r.elements.size() && r.matrix >= 0 && adam == DType::f32; ++i)
            kept.m[r.logical + i] = static_cast<const float*>(r.m)[i];
    }
    return kept;
}

Kept run(const Layout& how, const MuonOptions& muon = {}, DType adam = DType::f32,
         const std::function<void(TrainingCore&)>& look = {}) {
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
        all[0].owned += all[size_t(r)].owned, all[0].second += all[size_t(r)].second;
    }
    return all[0];
}

TEST(Muon, EveryLayoutGivesTheBitsOfOneRank) {
    const Kept want = run({});
    std::vector<Layout> layouts;
    for (const int ranks : {1, 2, 3, 4, 8})
        for (int stage = ranks == 1; stage <= 3; ++stage) layouts.push_back({ranks, stage});
    for (int stage = 1; stage <= 3; ++stage) layouts.push_back({4, stage, {.shard_size = 2}});  // hybrid
    for (const Algorithm a : {Algorithm::direct, Algorithm::symmetric}) layouts.push_back({3, 2, {}, a});
    layouts.push_back({3, 2, {}, {}, 1, /*overlap=*/false});
    for (const int stage : {0, 1, 3}) {
        layouts.push_back({2, stage, {.cp = 2}});
        layouts.push_back({2, stage, {.pp = 2}, {}, 2});
        layouts.push_back({4, stage, {.pp = 2}, {}, 2});
    }
    for (const Layout& l : layouts) {
        const Kept got = run(l);
        EXPECT_TRUE(got.weights == want.weights) << l.ranks << " ranks, stage " << l.stage << ", shard "
                                                 << l.grid.shard_size << ", pp " << l.grid.pp << ", cp " << l.grid.cp;
        EXPECT_TRUE(got.m == want.m) << l.ranks << " ranks, stage " << l.stage;
    }
}

TEST(Muon, MomentaOf16BitsHaveTheBitsOfOneRank) {
    const Kept want = run({}, {}, DType::bf16);
    for (int stage = 0; stage <= 3; ++stage)
        EXPECT_TRUE(run({3, stage}, {}, DType::bf16).weights == want.weights) << stage;
    EXPECT_FALSE(run({}).weights == want.weights);
}

TEST(Muon, MatricesHaveNoSecondMoment) {
    int64_t matrices = 0;
    for (const Layout& l : {Layout{1, 0}, Layout{3, 2}}) {
        const Kept kept = run(l, {}, DType::f32, [&](TrainingCore& core) {
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

TEST(Muon, WeightsAreThoseOfTheFormulas) {
    for (const MuonScale scale : {MuonScale::match_rms_adamw, MuonScale::original, MuonScale::spectral_unclamped}) {
        std::vector<std::vector<MuonMatrix>> matrices;
        std::vector<UnitLayout> units;
        const Kept got =
            run({3, 3}, {.rate = 0.5f, .scale = scale, .dtype = DType::f32}, DType::f32, [&](TrainingCore& core) {
                if (core.mesh.world().rank != 0) return;
                matrices = core.zero.options.muon.matrices, units = core.zero.ownership.units();
            });
        // The weights before, of a run that makes no step of any size.
        const Kept begin = run({}, {.rate = 0, .dtype = DType::f32});
        std::vector<double> clips;  // of each step: 0.5 / (norm + 1e-6)
        for (int step = 1; step <= kSteps; ++step) {
            double square = 0;
            for (const UnitLayout& u : units)
                for (int64_t i = 0; i < u.size; ++i) square += std::pow(double(sum_of(u.logical + i, step)), 2);
            clips.push_back(0.5 / (std::sqrt(square) + 1e-6));
        }
        double worst = 0, moved = 0;
        for (size_t u = 0; u < units.size(); ++u)
            for (const MuonMatrix& mat : matrices[u]) {
                const int64_t at = units[u].logical + mat.elements.begin, n = mat.elements.size();
                Doubles w(size_t(n), 0), m(w), x(w);
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
                    const Doubles o = orthogonal(x, mat.rows, mat.cols);
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
