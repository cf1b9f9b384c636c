#include "kernels/fp8/fold_scales.h"

#include "kernels/checks.h"

namespace rz {

void fold_scales_cpu(const FoldScales& a) {
    for (int64_t i = 0; i < a.n; ++i) a.scales[i] = folded_scale(a, i);
}

void fold_scales(Stream& stream, const FoldScales& a) {
    const char* op = "fold_scales";
    check_sizes(op, {{"ranks", a.ranks, 1}, {"n", a.n, 0}});
    if (a.n == 0) return;
    check_pointers(op, {{"scales", a.scales, 16}, {"parts", a.parts, 16}});
    stream.run(a, fold_scales_cpu, RZ_CUDA_OP(fold_scales_cuda));
}

}  // namespace rz
