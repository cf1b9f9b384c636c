// Planted bugs: kernels that are wrong in one place unless `fixed`. They test the tester (test/simt/planted.sh).
#pragma once

#include <cuda_runtime_api.h>

namespace rz::planted {

struct Bug {
    const char* name;
    // Which builds must catch it: any of "p", "a", "r". One of them at least for every bug.
    const char* must;
    // Reads `in` and writes `out`, kValues floats each.
    void (*run)(float* out, const float* in, bool fixed, cudaStream_t s);
};
constexpr int kValues = 2048;
extern const Bug bugs[];
extern const int n_bugs;

}  // namespace rz::planted
