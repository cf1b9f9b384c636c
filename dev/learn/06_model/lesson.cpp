// SwiGLU, the size of a model, and the loss before it has learned anything.
#include <cmath>
#include <cstdint>

// One element of the hidden layer: silu(gate) * up with silu(x) = x / (1 + exp(-x)).
double swiglu(double gate, double up) {
    // >>> hole 1
#ifdef HOLE
    return gate * up;
#else
    return gate / (1 + std::exp(-gate)) * up;
#endif
    // <<<
}

// Its derivatives by gate and by up.
void swiglu_backward(double* dgate, double* dup, double gate, double up) {
    const double s = 1 / (1 + std::exp(-gate));
    *dup = gate * s;
    // >>> hole 2: the product rule on gate * s(gate), with s' = s (1 - s)
#ifdef HOLE
    *dgate = up * s;
#else
    *dgate = up * (s + gate * s * (1 - s));
#endif
    // <<<
}

struct Shape {
    int64_t dim, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;  // the head is the embedding
};

int64_t parameters(const Shape& s) {
    const int64_t attention = s.dim * s.head_dim * (2 * s.heads + 2 * s.kv_heads);  // q, o; k, v
    // >>> hole 3: gate, up and down; then two norms per block, one at the end, embedding and head
#ifdef HOLE
    const int64_t block = attention;
    return s.layers * block;
#else
    const int64_t block = attention + 3 * s.dim * s.ffn + 2 * s.dim;
    return s.layers * block + s.dim + s.vocab * s.dim * (s.tied ? 1 : 2);
#endif
    // <<<
}

// The expected loss with random weights: the final norm makes rows of length sqrt(dim), the head's weights have
// deviation std, so logits are normal with variance dim * std^2, and log E[exp(logit)] is half that variance.
double first_loss(int64_t vocab, int64_t dim, double std) {
    // >>> hole 4: no token is likelier than another, up to that small term
#ifdef HOLE
    return 0;
#else
    return std::log(double(vocab)) + 0.5 * double(dim) * std * std;
#endif
    // <<<
}
