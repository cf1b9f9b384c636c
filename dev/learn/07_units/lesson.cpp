// Units: how finely the flat buffer is cut for communication, who owns which part of a unit, and the pass through them.
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

// Rank r's part of a unit of `blocks` blocks of `block` elements: whole blocks in rank order, and ranks differ by one
// block at most, the first ones having the longer parts. Offsets are within the unit.
void slice(int64_t* begin, int64_t* end, int64_t blocks, int64_t block, int rank, int ranks) {
    // >>> hole 1: blocks / ranks each, and the first blocks % ranks ranks one more
#ifdef HOLE
    *begin = 0;
    *end = blocks * block;
#else
    const int64_t each = blocks / ranks, extra = blocks % ranks;
    const int64_t first = rank * each + (rank < extra ? rank : extra);
    *begin = first * block;
    *end = (first + each + (rank < extra ? 1 : 0)) * block;
#endif
    // <<<
}

// The most elements that are gathered at once when units 0, 1, ... are used one after the other and `ahead` more are
// already being gathered while one is used.
int64_t peak_gathered(const int64_t* unit, int units, int ahead) {
    int64_t most = 0;
    for (int u = 0; u < units; ++u) {
        // >>> hole 2: the one in use and those ahead of it
#ifdef HOLE
        most = unit[u] > most ? unit[u] : most;
#else
        int64_t held = 0;
        for (int i = u; i < units && i <= u + ahead; ++i) held += unit[i];
        most = held > most ? held : most;
#endif
        // <<<
    }
    return most;
}

// A model as its units: the first embeds T tokens into x (T, C), the last makes logits (T, V) of x, those between are
// blocks, which change x. The parameters of a unit are there from gather(u) to release(u).
struct Model {
    int units, T, C, V;
    std::function<void(int unit)> gather, release;
    std::function<void(double* x, const int* tokens)> embed;
    std::function<void(int unit, double* x)> block;
    std::function<void(double* logits, const double* x)> head;
};

// Lesson 8's, of one row
static double loss_of(const double* logits, int V, int target) {
    double largest = logits[0], sum = 0;
    for (int v = 1; v < V; ++v) largest = std::fmax(largest, logits[v]);
    for (int v = 0; v < V; ++v) sum += std::exp(logits[v] - largest);
    return largest + std::log(sum) - logits[target];
}

// The mean loss of saying each next token. While a unit is used the next one is already being gathered, and no other.
double forward(const Model& m, const int* tokens) {
    std::vector<double> x(size_t(m.T * m.C)), logits(size_t(m.T * m.V));
    // >>> hole 3: every unit is gathered, used and released, in order, one ahead
#ifdef HOLE
    for (int u = 0; u < m.units; ++u) m.gather(u);
    m.embed(x.data(), tokens);
    for (int u = 1; u + 1 < m.units; ++u) m.block(u, x.data());
    m.head(logits.data(), x.data());
#else
    m.gather(0);
    for (int u = 0; u < m.units; ++u) {
        if (u + 1 < m.units) m.gather(u + 1);
        if (u == 0)
            m.embed(x.data(), tokens);
        else if (u + 1 < m.units)
            m.block(u, x.data());
        else
            m.head(logits.data(), x.data());
        m.release(u);
    }
#endif
    // <<<
    double loss = 0;
    // >>> hole 4: what position t has read ends with token t; what it is asked for comes after
#ifdef HOLE
    const int targets = m.T;
    for (int t = 0; t < targets; ++t) loss += loss_of(&logits[size_t(t * m.V)], m.V, tokens[t]);
#else
    const int targets = m.T - 1;
    for (int t = 0; t < targets; ++t) loss += loss_of(&logits[size_t(t * m.V)], m.V, tokens[t + 1]);
#endif
    // <<<
    return loss / targets;
}
