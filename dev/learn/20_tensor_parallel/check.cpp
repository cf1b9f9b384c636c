#include <functional>
#include <vector>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "dev/learn/lesson.h"

using namespace learn;

using Sum = std::function<void(float* data, int64_t n)>;
std::vector<float> part_of_up(const float* up, int C, int F, int rank, int ranks);
std::vector<float> part_of_down(const float* down, int C, int F, int rank, int ranks);
void forward(float* y, float* h, const float* x, const float* up, const float* down, int rows, int C, int n,
             const Sum& sum);
void backward(float* dx, float* dup, float* ddown, const float* dy, const float* x, const float* h, const float* up,
              const float* down, int rows, int C, int n, const Sum& sum);

constexpr int kRows = 6, C = 8, F = 24;

using Values = std::vector<float>;
// Small whole numbers: products and sums are exact in any order, so parts can be compared to the bit.
static Values whole_numbers(int n, unsigned from) {
    Values v(static_cast<size_t>(n));
    for (unsigned i = 0; i < v.size(); ++i) v[i] = float(int(4 * noise(from + i)));
    return v;
}

struct Model {
    Values x = whole_numbers(kRows * C, 0), up = whole_numbers(F * C, 1000), down = whole_numbers(C * F, 2000),
           dy = whole_numbers(kRows * C, 3000);
};

static double output(const Model& m, int row, int c) {
    double y = 0;
    for (int f = 0; f < F; ++f) {
        const double h = dot(&m.x[size_t(row * C)], &m.up[size_t(f * C)], C);
        y += (h > 0 ? h : 0) * m.down[size_t(c * F + f)];
    }
    return y;
}

// d (sum of dy y) / d parameters. The model is made of straight lines, so the difference quotient is exact where no h
// passes relu's knee; main() sees to that.
static Values gradient(const Model& m, Values& parameters) {
    Values out;
    for (float& parameter : parameters)
        out.push_back(float(slope(parameter, 1.0 / 1024, [&] {
            double loss = 0;
            for (int r = 0; r < kRows; ++r)
                for (int c = 0; c < C; ++c) loss += m.dy[size_t(r * C + c)] * output(m, r, c);
            return loss;
        })));
    return out;
}

struct Outcome {
    Values y, dx, dup, ddown;  // dup and ddown put together of all ranks'
    int64_t sums = 0, bytes = 0;
    bool alike = true;  // y and dx on all ranks
};

static Outcome run(const Model& m, int ranks) {
    rz::LoopbackHub hub(ranks, /*timeout_s=*/10);
    const int n = F / ranks;
    Outcome all{{}, {}, Values(F * C), Values(C * F)};
    std::vector<Outcome> each(static_cast<size_t>(ranks));
    hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        rz::Stream stream(rz::Device{}, "tp");
        auto collectives = rz::make_collectives(rz::Algorithm::ring, *transport);
        Outcome& o = each[size_t(rank)];
        const Sum sum = [&](float* data, int64_t count) {
            ++o.sums;
            const std::vector<int64_t> offsets = rz::even_offsets(count, ranks);
            collectives->all_reduce(
                stream, {.out = data, .in = data, .offsets = offsets, .dtype = rz::DType::f32, .wire = rz::DType::f32});
            stream.synchronize();
        };
        const Values up = part_of_up(m.up.data(), C, F, rank, ranks);
        const Values down = part_of_down(m.down.data(), C, F, rank, ranks);
        Values h(size_t(kRows * n));
        o.y.resize(kRows * C), o.dx.resize(kRows * C), o.dup.resize(size_t(n * C)), o.ddown.resize(size_t(C * n));
        forward(o.y.data(), h.data(), m.x.data(), up.data(), down.data(), kRows, C, n, sum);
        backward(o.dx.data(), o.dup.data(), o.ddown.data(), m.dy.data(), m.x.data(), h.data(), up.data(), down.data(),
                 kRows, C, n, sum);
        o.bytes = transport->bytes_sent();
    });
    for (int r = 0; r < ranks; ++r) {
        const Outcome& o = each[size_t(r)];
        all.alike &= o.y == each[0].y && o.dx == each[0].dx;
        for (int f = 0; f < n; ++f)
            for (int c = 0; c < C; ++c) {
                all.dup[size_t((r * n + f) * C + c)] = o.dup[size_t(f * C + c)];
                all.ddown[size_t(c * F + r * n + f)] = o.ddown[size_t(c * n + f)];
            }
    }
    all.y = each[0].y, all.dx = each[0].dx, all.sums = each[0].sums, all.bytes = each[0].bytes;
    return all;
}

int main() {
    Model m;
    // Every h is a half of an odd number, so none is near 0
    for (int r = 0; r < kRows; ++r) m.x[size_t(r * C)] += 0.5f;
    for (int f = 0; f < F; ++f) m.up[size_t(f * C)] = float(2 * (f % 3) - 1);
    Values y(kRows * C);
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < C; ++c) y[size_t(r * C + c)] = float(output(m, r, c));
    const Values dx = gradient(m, m.x), dup = gradient(m, m.up), ddown = gradient(m, m.down);
    for (const int ranks : {1, 2, 4}) {
        const Outcome o = run(m, ranks);
        std::printf("%d ranks, sums of halves are exact:\n", ranks);
        close("y and the whole product: largest difference", distance(o.y, y, kRows * C), 0, 0);
        close("dx and finite differences of the whole", distance(o.dx, dx, kRows * C), 0, 0);
        close("dU, put together", distance(o.dup, dup, F * C), 0, 0);
        close("dD, put together", distance(o.ddown, ddown, C * F), 0, 0);
        expect(o.alike, "y and dx are the same on every rank");
        expect(o.sums == 2, "one sum forward, one backward; found %lld in all", (long long)o.sums);
        const int64_t want = 2 * 2 * (ranks - 1) * kRows * C * 4 / ranks;
        expect(o.bytes == want, "each rank sent %lld bytes; twice 2 (N - 1) / N of rows x C are %lld",
               (long long)o.bytes, (long long)want);
    }
    return verdict("cut the first product by outputs, the second by inputs: one sum per pass for both");
}
