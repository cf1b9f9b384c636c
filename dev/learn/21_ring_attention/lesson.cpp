// Attention of a sequence that is cut over N ranks: keys and values go round in a ring.
#include <cmath>
#include <vector>

#include "comm/transport.h"

// The average of the values that some queries have over some keys, and the log of the sum of exponentials it was
// divided by: o (rows, D), lse (rows). A query that sees no key has lse -infinity.
struct Part {
    std::vector<double> o, lse;
};

// `sum` and `more` are of the same queries over different keys: sum becomes what they have over both.
void join(Part& sum, const Part& more, int D) {
    for (size_t row = 0; row < sum.lse.size(); ++row) {
        if (more.lse[row] == -INFINITY) continue;
        const double largest = std::fmax(sum.lse[row], more.lse[row]);
        const double lse = largest + std::log(std::exp(sum.lse[row] - largest) + std::exp(more.lse[row] - largest));
        for (size_t i = row * size_t(D); i < (row + 1) * size_t(D); ++i) {
            // >>> hole 1: each part counts by its share of the exponentials, exp(its lse - lse)
#ifdef HOLE
            sum.o[i] = (sum.o[i] + more.o[i]) / 2;
#else
            sum.o[i] = sum.o[i] * std::exp(sum.lse[row] - lse) + more.o[i] * std::exp(more.lse[row] - lse);
#endif
            // <<<
        }
        sum.lse[row] = lse;
    }
}

// A sequence is cut into 2 N chunks of which each rank has two, so that all have equally many pairs of query and key:
// late chunks see many keys, early ones few.
void chunks_of(int chunk[2], int rank, int ranks) {
    // >>> hole 2: an early one, and the late one that makes up for it
#ifdef HOLE
    chunk[0] = 2 * rank, chunk[1] = 2 * rank + 1;
#else
    chunk[0] = rank, chunk[1] = 2 * ranks - 1 - rank;
#endif
    // <<<
}

// Whose keys rank `rank` holds after `hop` hops, each to the right neighbour.
int owner_after(int hop, int rank, int ranks) {
    // >>> hole 3: they came from the left
#ifdef HOLE
    return (rank + hop) % ranks;
#else
    return (rank - hop + ranks) % ranks;
#endif
    // <<<
}

// Causal attention of `rows` queries from position q_at over `rows` keys from position k_at; counts pairs.
static Part attend(const float* q, int q_at, const float* k, const float* v, int k_at, int rows, int D, long& pairs) {
    Part p{std::vector<double>(size_t(rows * D)), std::vector<double>(size_t(rows), -INFINITY)};
    for (int t = 0; t < rows; ++t) {
        double largest = -INFINITY, sum = 0;
        for (int s = 0; s < rows && k_at + s <= q_at + t; ++s, ++pairs) {
            double score = 0;
            for (int i = 0; i < D; ++i) score += double(q[t * D + i]) * k[s * D + i] / std::sqrt(double(D));
            const double grown = std::fmax(largest, score), keep = std::exp(largest - grown);
            const double w = std::exp(score - grown);
            for (int i = 0; i < D; ++i) p.o[size_t(t * D + i)] = p.o[size_t(t * D + i)] * keep + w * v[s * D + i];
            sum = sum * keep + w;
            largest = grown;
        }
        if (sum == 0) continue;
        for (int i = 0; i < D; ++i) p.o[size_t(t * D + i)] /= sum;
        p.lse[size_t(t)] = largest + std::log(sum);
    }
    return p;
}

// Attends with this rank's queries to all keys. q: its two chunks, `rows` rows of D each; kv: keys of both, then values
// of both, which are overwritten by those of the other ranks. Returns the number of pairs that this rank computed.
long ring_attention(Part out[2], rz::Transport& transport, rz::Stream& stream, const float* q, std::vector<float> kv,
                    int rows, int D) {
    const int ranks = transport.size(), rank = transport.rank(), size = rows * D;
    int mine[2], theirs[2];
    chunks_of(mine, rank, ranks);
    long pairs = 0;
    std::vector<float> next(kv.size());
    for (int slot = 0; slot < 2; ++slot)
        out[slot] = {std::vector<double>(size_t(size)), std::vector<double>(size_t(rows), -INFINITY)};
    for (int hop = 0; hop < ranks; ++hop) {
        chunks_of(theirs, owner_after(hop, rank, ranks), ranks);
        for (int slot = 0; slot < 2; ++slot)
            for (int from = 0; from < 2; ++from)
                join(out[slot],
                     attend(q + slot * size, mine[slot] * rows, kv.data() + from * size, kv.data() + (2 + from) * size,
                            theirs[from] * rows, rows, D, pairs),
                     D);
        if (hop + 1 == ranks) break;
        rz::MessageGroup group;
        group.send(kv.data(), int64_t(kv.size()) * 4, (rank + 1) % ranks);
        group.recv(next.data(), int64_t(kv.size()) * 4, (rank + ranks - 1) % ranks);
        transport.exchange(stream, group);
        stream.synchronize();
        kv.swap(next);
    }
    return pairs;
}
