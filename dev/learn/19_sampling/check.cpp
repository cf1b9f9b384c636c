#include <algorithm>
#include <vector>

#include "dev/learn/heads.h"
#include "kernels/philox.h"
#include "llama/model/generate.h"

using namespace learn;

struct Cache {
    std::vector<double> k, v;
    int positions = 0;
};
void attend(double* o, Cache& cache, const double* q, const double* k, const double* v, int D);
struct Candidate {
    int token;
    double probability;
};
std::vector<Candidate> candidates(const double* logits, int V, double temperature, int top_k, double top_p);
int choose(const std::vector<Candidate>& c, double draw);

// Token by token with a cache, beside the program's attention over the whole sequence at once.
static void check_cache() {
    constexpr int T = 24, D = 16;
    const std::vector<float> q = noises(T * D, 0, 2), k = noises(T * D, 10000, 2), v = noises(T * D, 20000);
    std::vector<float> o(T * D), lse(T);
    const rz::AttentionShape shape = packed(T, 1, 1, D, 1 / std::sqrt(float(D)));
    rz::attention_forward_cpu({o.data(), lse.data(), q.data(), k.data(), v.data(), shape});
    Cache cache;
    const std::vector<double> wide_q(q.begin(), q.end()), wide_k(k.begin(), k.end()), wide_v(v.begin(), v.end());
    std::vector<double> mine(T * D);
    for (size_t at = 0; at < T * D; at += D) attend(&mine[at], cache, &wide_q[at], &wide_k[at], &wide_v[at], D);
    close("24 tokens one by one and the whole sequence: largest difference", distance(mine, o, T * D), 0, 1e-5);
    expect(cache.positions == T && cache.k.size() == T * D, "the cache holds %d positions, %zu numbers of keys",
           cache.positions, cache.k.size());
}

static double of_token(const std::vector<Candidate>& c, int token) {
    for (const Candidate& i : c)
        if (i.token == token) return i.probability;
    return 0;
}

// Logits log 1, log 2, log 3, log 4: probabilities 0.1, 0.2, 0.3, 0.4.
static void check_numbers() {
    const double logits[4] = {std::log(1.0), std::log(2.0), std::log(3.0), std::log(4.0)};
    const auto all = candidates(logits, 4, 1, 0, 1);
    for (int t = 0; t < 4; ++t) close("temperature 1, all", of_token(all, t), 0.1 * (t + 1), 1e-12);
    const auto half = candidates(logits, 4, 0.5, 0, 1);  // probabilities squared: 1, 4, 9, 16 of 30
    for (int t = 0; t < 4; ++t) close("temperature 0.5", of_token(half, t), (t + 1) * (t + 1) / 30.0, 1e-12);
    const auto two = candidates(logits, 4, 1, 2, 1);
    expect(two.size() == 2, "top_k 2 leaves 2, found %zu", two.size());
    close("top_k 2: the likeliest", of_token(two, 3), 4 / 7.0, 1e-12);
    const auto nucleus = candidates(logits, 4, 1, 0, 0.65);
    expect(nucleus.size() == 2, "top_p 0.65: 0.4 and 0.3 reach it, found %zu", nucleus.size());
    close("and then sum to 1", of_token(nucleus, 3) + of_token(nucleus, 2), 1, 1e-12);
    const auto cold = candidates(logits, 4, 0.01, 0, 1);
    close("temperature to 0: the likeliest alone", of_token(cold, 3), 1, 1e-9);
}

// The program's own choice, with the draws of its counter-based generator.
static void check_against_program() {
    constexpr int V = 200;
    constexpr uint64_t kStream = 0x73616d706c65ull;
    int different = 0;
    for (unsigned position = 0; position < 2000; ++position) {
        std::vector<float> logits(V);
        std::vector<double> mine(V);
        for (unsigned v = 0; v < V; ++v) mine[v] = logits[v] = float(4 * noise(position * V + v));
        const rz::Sampling how{.temperature = 0.5 + 0.1 * (position % 10),
                               .top_k = position % 3 == 0 ? 0 : 5 + position % 40,
                               .top_p = position % 2 == 0 ? 1.0 : 0.9,
                               .seed = 7};
        const double draw = rz::philox4x32(how.seed, position, kStream).w[0] * 0x1p-32;
        const auto c = candidates(mine.data(), V, how.temperature, int(how.top_k), how.top_p);
        different += c.empty() || choose(c, draw) != rz::choose_token(logits, how, position);
    }
    // A draw within 2^-50 of the border between two tokens may fall on either side.
    expect(different == 0, "2000 choices: %d differ from rz::choose_token's", different);
}

int main() {
    check_cache();
    check_numbers();
    check_against_program();
    return verdict("the past of a token never changes: keep its keys and values, compute one row per new token");
}
