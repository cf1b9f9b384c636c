// Causal attention of one head, one query at a time, without ever holding a row of scores: online softmax.
#include <cmath>

// Query t (a row of q) attends to keys 0 .. t. q, k, v and o are (T, D); o[t] = softmax(scale * q[t] k^T) v.
// Returns the natural logarithm of the row's sum of exp(scale * q k).
double attend(double* o, const double* q, const double* k, const double* v, int t, int D, double scale) {
    double largest = -INFINITY, sum = 0;
    for (int d = 0; d < D; ++d) {
        o[t * D + d] = 0;
    }
    // >>> hole 1: causal: which keys does query t see?
#ifdef HOLE
    const int seen = t;
#else
    const int seen = t + 1;
#endif
    // <<<
    for (int s = 0; s < seen; ++s) {
        double score = 0;
        for (int d = 0; d < D; ++d) score += q[t * D + d] * k[s * D + d];
        score *= scale;
        const double new_largest = std::fmax(largest, score);
        // >>> hole 2: sum and o were made with exp(. - largest); bring them to exp(. - new_largest)
#ifdef HOLE
        const double keep = 1;
#else
        const double keep = std::exp(largest - new_largest);
#endif
        // <<<
        const double p = std::exp(score - new_largest);
        sum = sum * keep + p;
        for (int d = 0; d < D; ++d) o[t * D + d] = o[t * D + d] * keep + p * v[s * D + d];
        largest = new_largest;
    }
    for (int d = 0; d < D; ++d) o[t * D + d] /= sum;
    return largest + std::log(sum);
}
