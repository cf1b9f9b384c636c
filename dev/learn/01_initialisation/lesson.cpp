// Initial weights: how large, and where each random number comes from.
#include <cmath>
#include <cstdint>

#include "kernels/philox.h"

// Standard deviation of a matrix's initial weights in a model of `layers` blocks. Every block adds two branches to the
// residual stream; `adds_to_stream` is true for the matrix that a branch ends with (o_proj, down_proj).
double initial_std(double std, bool adds_to_stream, int layers) {
    // >>> hole 1: the sum of 2 * layers independent branches must not grow with depth
#ifdef HOLE
    return std;
#else
    return adds_to_stream ? std / std::sqrt(2.0 * layers) : std;
#endif
    // <<<
}

// Element i of a tensor. philox_normal4(seed, group, tensor, z) makes the four normals of elements 4 * group to
// 4 * group + 3.
float initial_weight(uint64_t seed, uint64_t tensor, int64_t i, float std) {
    float z[4];
    // >>> hole 2: a pure function of (seed, tensor, i): no state, so any rank can make any element
#ifdef HOLE
    rz::philox_normal4(seed, 0, tensor, z);
    return std * z[0];
#else
    rz::philox_normal4(seed, uint64_t(i / 4), tensor, z);
    return std * z[i % 4];
#endif
    // <<<
}
