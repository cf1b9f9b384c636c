// Cross-entropy of one row of logits and its gradient, in one go.
#include <cmath>

// Returns log(sum_v exp(logits[v])) - logits[target]; dlogits = its gradient times `scale`. A negative target is no
// target: loss 0, gradient 0.
double cross_entropy(double* dlogits, const double* logits, int V, int target, double scale) {
    for (int v = 0; v < V; ++v) dlogits[v] = 0;
    if (target < 0) return 0;
    double largest = logits[0];
    for (int v = 1; v < V; ++v) largest = std::fmax(largest, logits[v]);
    double sum = 0;
    // >>> hole 1: exp of a large logit overflows; the largest exponent must be 0
#ifdef HOLE
    for (int v = 0; v < V; ++v) sum += std::exp(logits[v]);
    const double log_sum = std::log(sum);
#else
    for (int v = 0; v < V; ++v) sum += std::exp(logits[v] - largest);
    const double log_sum = largest + std::log(sum);
#endif
    // <<<
    for (int v = 0; v < V; ++v) {
        const double p = std::exp(logits[v] - log_sum);
        // >>> hole 2: the softmax, minus one where the target is
#ifdef HOLE
        dlogits[v] = p * scale;
#else
        dlogits[v] = (p - (v == target ? 1 : 0)) * scale;
#endif
        // <<<
    }
    return log_sum - logits[target];
}
