#include <algorithm>
#include <vector>

#include "comm/loopback.h"
#include "dev/learn/heads.h"
#include "kernels/attention/attention_merge.h"

using namespace learn;

struct Part {
    std::vector<double> o, lse;
};
void join(Part& sum, const Part& more, int D);
void chunks_of(int chunk[2], int rank, int ranks);
int owner_after(int hop, int rank, int ranks);
long ring_attention(Part out[2], rz::Transport& transport, rz::Stream& stream, const float* q, std::vector<float> kv,
                    int rows, int D);

constexpr int T = 48, D = 8;

struct Whole {
    std::vector<float> q = noises(T * D, 0, 3), k = noises(T * D, 10000, 3), v = noises(T * D, 20000);
    std::vector<double> o, lse;
    Whole() { textbook_attention(o, lse, q, k, v, D, 1 / std::sqrt(double(D))); }
};

static void check_join() {
    // Two keys with scores log 1 and log 3, values 10 and 20: (1 * 10 + 3 * 20) / 4
    Part a{{10}, {std::log(1.0)}};
    join(a, {{20}, {std::log(3.0)}}, 1);
    close("values 10 and 20 with weights 1 and 3", a.o[0], 17.5, 1e-12);
    close("log of the sum of both", a.lse[0], std::log(4.0), 1e-12);
    join(a, {{99}, {-INFINITY}}, 1);
    close("a part that sees no key changes nothing", a.o[0], 17.5, 1e-12);

    constexpr int kRows = 16;
    std::vector<float> o = noises(kRows * D, 0), lse = noises(kRows, 900, 20);
    const std::vector<float> part = noises(kRows * D, 500), part_lse = noises(kRows, 950, 20);
    Part mine{{o.begin(), o.end()}, {lse.begin(), lse.end()}};
    join(mine, {{part.begin(), part.end()}, {part_lse.begin(), part_lse.end()}}, D);
    rz::attention_merge_cpu({.o = o.data(),
                             .lse = lse.data(),
                             .part_o = part.data(),
                             .part_lse = part_lse.data(),
                             .B = 1,
                             .T = kRows,
                             .H = 1,
                             .D = D,
                             .o_batch = kRows * D,
                             .part_batch = kRows * D,
                             .first = false,
                             .dtype = rz::DType::f32});
    close("rz::attention_merge: largest difference", distance(mine.o, o, kRows * D), 0, 1e-5);
}

static void check_ring(const Whole& whole, int ranks) {
    std::printf("%d ranks:\n", ranks);
    rz::LoopbackHub hub(ranks, /*timeout_s=*/10);
    const int rows = T / (2 * ranks), size = rows * D;
    std::vector<double> o(T * D, NAN), lse(T, NAN);
    std::vector<long> pairs(static_cast<size_t>(ranks));
    std::vector<int64_t> bytes(static_cast<size_t>(ranks));
    hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        rz::Stream stream(rz::Device{}, "cp");
        int chunk[2];
        chunks_of(chunk, rank, ranks);
        std::vector<float> q, kv;
        const auto cut = [&](std::vector<float>& to, const std::vector<float>& from) {
            for (const int c : chunk) to.insert(to.end(), from.begin() + c * size, from.begin() + (c + 1) * size);
        };
        cut(q, whole.q), cut(kv, whole.k), cut(kv, whole.v);
        Part out[2];
        pairs[size_t(rank)] = ring_attention(out, *transport, stream, q.data(), kv, rows, D);
        bytes[size_t(rank)] = transport->bytes_sent();
        for (int slot = 0; slot < 2; ++slot) {
            std::copy(out[slot].o.begin(), out[slot].o.end(), o.begin() + chunk[slot] * size);
            std::copy(out[slot].lse.begin(), out[slot].lse.end(), lse.begin() + chunk[slot] * rows);
        }
    });
    close("outputs and the full softmax: largest difference", distance(o, whole.o, T * D), 0, 1e-12);
    close("log-sum-exp: largest difference", distance(lse, whole.lse, T), 0, 1e-12);
    const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
    expect(*least == *most && *most * ranks == T * (T + 1) / 2,
           "pairs of query and key on a rank: %ld to %ld, %d / %d each", *least, *most, T * (T + 1) / 2, ranks);
    const int64_t want = int64_t(ranks - 1) * 2 * (T / ranks) * D * 4;
    expect(bytes[0] == want, "each rank sent %lld bytes; (N - 1) / N of all keys and values are %lld",
           (long long)bytes[0], (long long)want);
}

int main() {
    check_join();
    const Whole whole;
    for (const int ranks : {1, 2, 3, 4}) check_ring(whole, ranks);
    return verdict("softmax over parts joins by one number per row: the keys can go round, the queries stay");
}
