// Generation: attention of one new token over a cache, and the choice of the next token.
#include <algorithm>
#include <cmath>
#include <vector>

// Keys and values of the positions so far, D elements each.
struct Cache {
    std::vector<double> k, v;
    int positions = 0;
};

// One new token: o (D) = attention of its query over all positions so far and its own.
void attend(double* o, Cache& cache, const double* q, const double* k, const double* v, int D) {
    // >>> hole 1: its key and value join the cache before its query looks
#ifdef HOLE
    cache.k.assign(k, k + D);
    cache.v.assign(v, v + D);
    cache.positions = 1;
#else
    cache.k.insert(cache.k.end(), k, k + D);
    cache.v.insert(cache.v.end(), v, v + D);
    ++cache.positions;
#endif
    // <<<
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < D; ++i) o[i] = 0;
    for (int s = 0; s < cache.positions; ++s) {
        double score = 0;
        for (int i = 0; i < D; ++i) score += q[i] * cache.k[size_t(s * D + i)];
        score /= std::sqrt(double(D));
        const double grown = std::fmax(largest, score), keep = std::exp(largest - grown), p = std::exp(score - grown);
        for (int i = 0; i < D; ++i) o[i] = o[i] * keep + p * cache.v[size_t(s * D + i)];
        sum = sum * keep + p;
        largest = grown;
    }
    for (int i = 0; i < D; ++i) o[i] /= sum;
}

struct Candidate {
    int token;
    double probability;
};

// The tokens that may come, the likeliest first (of equals the lower number), their probabilities summing to 1.
// top_k 0: all. top_p: the fewest of those whose probabilities, of all that top_k has left, reach top_p.
std::vector<Candidate> candidates(const double* logits, int V, double temperature, int top_k, double top_p) {
    std::vector<Candidate> c;
    for (int v = 0; v < V; ++v) c.push_back({v, logits[v]});
    std::stable_sort(c.begin(), c.end(),
                     [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
    if (top_k > 0 && top_k < V) c.resize(size_t(top_k));
    const double largest = c[0].probability;
    double sum = 0;
    for (Candidate& i : c) {
        // >>> hole 2: the softmax of logits / temperature, not yet divided by its sum
#ifdef HOLE
        i.probability = std::exp(i.probability - largest) / temperature;
#else
        i.probability = std::exp((i.probability - largest) / temperature);
#endif
        // <<<
        sum += i.probability;
    }
    // >>> hole 3: drop the tail once `kept` has reached top_p of the sum; what is kept then sums to 1 again
#ifdef HOLE
    (void)top_p;
#else
    size_t n = 0;
    double kept = 0;
    while (n < c.size() && kept < top_p * sum) kept += c[n++].probability;
    c.resize(n);
    sum = kept;
#endif
    // <<<
    for (Candidate& i : c) i.probability /= sum;
    return c;
}

// The token at which the probabilities, added in order, pass `draw`, which is even in [0, 1).
int choose(const std::vector<Candidate>& c, double draw) {
    double sum = 0;
    for (const Candidate& i : c) {
        sum += i.probability;
        if (draw < sum) return i.token;
    }
    return c.back().token;
}
