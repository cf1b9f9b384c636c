#pragma once
// The scales of matrices that lie in slices on several ranks: the largest of the ranks' magnitudes is that of the whole
// matrix, exactly, so codes are those of a rank that has all of it.
//
//   scales[i].amax    = max over ranks of parts[r][i].amax      as integers: what is not finite wins
//   scales[i].inverse = 1 / fp8_scale(largest of `type`, scales[i].amax)

#include "kernels/fp8/quantise.h"

namespace rz {

struct FoldScales {
    Fp8Scale* scales;       // (n) =
    const Fp8Scale* parts;  // (ranks, n)
    int64_t ranks, n;
    Fp8 type;
};

void fold_scales(Stream&, const FoldScales&);
void fold_scales_cpu(const FoldScales&);
void fold_scales_cuda(const FoldScales&, CudaStream);

RZ_HD Fp8Scale folded_scale(const FoldScales& a, int64_t i) {
    Fp8Scale s = a.parts[i];
    for (int64_t r = 1; r < a.ranks; ++r) {
        const uint32_t amax = a.parts[r * a.n + i].amax;
        if (amax > s.amax) s.amax = amax;
    }
    s.inverse = fp8_inverse(fp8_scale(a.type == Fp8::e4m3 ? 448.0f : 57344.0f, s.amax));
    return s;
}

}  // namespace rz
