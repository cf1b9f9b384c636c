// Pipeline schedules: in which order a stage works on its micro-batches.

// Work of stage `stage` of `stages`, in order: +m is the forward pass of micro-batch m (from 1), -m its backward
// pass. Fills out (2 * micro_batches entries). 1F1B: some forward passes to fill the pipeline, then one forward and one
// backward in turn, then the backward passes that are left.
void one_forward_one_backward(int* out, int stage, int stages, int micro_batches) {
    // >>> hole 1: the last stage begins with a backward pass at once; every stage before it needs one more forward
#ifdef HOLE
    int ahead = micro_batches;
#else
    int ahead = stages - 1 - stage;
#endif
    // <<<
    if (ahead > micro_batches) ahead = micro_batches;
    int forward = 0, backward = 0, n = 0;
    while (forward < ahead) out[n++] = ++forward;
    while (backward < micro_batches) {
        if (forward < micro_batches) out[n++] = ++forward;
        out[n++] = -++backward;
    }
}

// The part of all stages' time that is idle, when every forward pass takes as long as any other, and every backward.
double bubble(int stages, int micro_batches) {
    // >>> hole 2: each stage waits for (stages - 1) forward and backward passes of others
#ifdef HOLE
    return double(stages - 1) / stages;
#else
    return double(stages - 1) / (micro_batches + stages - 1);
#endif
    // <<<
}
