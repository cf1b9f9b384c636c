// ZeRO: the bytes a rank keeps, and the bytes it sends.

// Bytes per parameter on each of N ranks, without activations: bf16 parameters and gradients (2 + 2), fp32 master, m
// and v (12). Stage 1 shares the 12, stage 2 also the gradients, stage 3 also the parameters.
double bytes_per_parameter(int stage, int N) {
    // >>> hole 1: what is shared is divided by N
#ifdef HOLE
    const double parameters = 2;
    const double gradients = 2;
    const double optimizer = stage >= 1 ? 12.0 / N : 12;
#else
    const double parameters = stage >= 3 ? 2.0 / N : 2;
    const double gradients = stage >= 2 ? 2.0 / N : 2;
    const double optimizer = stage >= 1 ? 12.0 / N : 12;
#endif
    // <<<
    return parameters + gradients + optimizer;
}

// How often a rank sends (N - 1) / N of the parameters in one step of one micro-batch. A reduce-scatter is one pass, an
// all-gather is one, an all-reduce is both.
int passes(int stage) {
    // >>> hole 2: 0 all-reduces gradients; 1 and 2 reduce-scatter gradients and gather parameters once, after the
    // update; 3 gathers parameters for the forward pass and again for the backward pass
#ifdef HOLE
    return stage + 1;
#else
    return stage == 3 ? 3 : 2;
#endif
    // <<<
}
