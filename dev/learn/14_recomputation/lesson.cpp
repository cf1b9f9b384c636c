// Recomputation: keep the input of every k-th layer only, and make the others again when the backward pass needs them.
#include <vector>

// The layers: y = forward(l, x); backward(l, x, dy) returns the gradient of x. `keep` and `drop` report every value
// that is held for the backward pass.
struct Chain {
    int layers;
    double (*forward)(int l, double x);
    double (*backward)(int l, double x, double dy);
    void (*keep)(int values);
    void (*drop)(int values);
};

// Gradient of the chain's input, with segments of k layers.
double gradient(const Chain& c, double x, double dy, int k) {
    const int segments = (c.layers + k - 1) / k;
    std::vector<double> segment_inputs(segments, 0.0);
    for (int l = 0; l < c.layers; ++l) {
        // >>> hole 1: which layers' inputs are kept in the forward pass?
#ifdef HOLE
        segment_inputs[0] = x;
        c.keep(1);
#else
        if (l % k == 0) {
            segment_inputs[l / k] = x;
            c.keep(1);
        }
#endif
        // <<<
        x = c.forward(l, x);
    }
    for (int s = segments - 1; s >= 0; --s) {
        const int first = s * k, end = first + k < c.layers ? first + k : c.layers;
        std::vector<double> inputs = {segment_inputs[s]};
        // >>> hole 2: make the inputs of layers first + 1 .. end - 1 again
#ifdef HOLE
        inputs.resize(end - first, segment_inputs[s]);
#else
        for (int l = first; l < end - 1; ++l) inputs.push_back(c.forward(l, inputs.back()));
        c.keep(end - 1 - first);
#endif
        // <<<
        for (int l = end - 1; l >= first; --l) dy = c.backward(l, inputs[l - first], dy);
        c.drop(end - first);  // those made again, and the segment's input
    }
    return dy;
}

// The segment length that keeps the fewest values, about layers / k + k of them.
int best_segment(int layers) {
    // >>> hole 3: where the derivative of layers / k + k vanishes, rounded up
#ifdef HOLE
    return layers;
#else
    int k = 1;
    while (k * k < layers) ++k;
    return k;
#endif
    // <<<
}
