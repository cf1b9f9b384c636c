#include "kernels/attention/attention_merge.h"

#include <cmath>

#include "kernels/checks.h"

namespace rz {

template <class T>
static void merge_row(float* o, float& lse, const T* part, float part_lse, int64_t D, bool first) {
    if (first) {
        for (int64_t d = 0; d < D; ++d) o[d] = float(part[d]);
        lse = part_lse;
        return;
    }
    if (part_lse == -INFINITY) return;
    const float most = std::max(lse, part_lse), old = std::exp(lse - most), fresh = std::exp(part_lse - most);
    const float inverse = 1.0f / (old + fresh), keep = old * inverse, add = fresh * inverse;
    for (int64_t d = 0; d < D; ++d) o[d] = o[d] * keep + float(part[d]) * add;
    lse = most + std::log(old + fresh);
}

void attention_merge_cpu(const AttentionMerge& a) {
    with_dtype(a.dtype, [&]<class T>() {
#pragma omp parallel for collapse(2) schedule(static) if (a.B * a.T * a.H * a.D >= (int64_t(1) << 16))
        for (int64_t b = 0; b < a.B; ++b)
            for (int64_t t = 0; t < a.T; ++t)
                for (int64_t h = 0; h < a.H; ++h) {
                    const int64_t at = (t * a.H + h) * a.D, row = (b * a.H + h) * a.T + t;
                    merge_row(a.o + b * a.o_batch + at, a.lse[row],
                              static_cast<const T*>(a.part_o) + b * a.part_batch + at, a.part_lse[row], a.D, a.first);
                }
    });
}

void attention_merge(Stream& stream, const AttentionMerge& a) {
    const char* op = "attention_merge";
    for (const auto& [name, n] : {std::pair("B", a.B), {"T", a.T}, {"H", a.H}, {"D", a.D}}) check_size(op, name, n, 0);
    const int64_t row = checked_mul(checked_mul(a.T, a.H, "attention_merge: T x H"), a.D, "attention_merge: row");
    require(a.B <= 1 || (a.o_batch >= row && a.part_batch >= row), "%s: sequences of %ld elements overlap", op, row);
    if (a.B == 0 || row == 0) return;
    check_pointers(op, {{"o", a.o}, {"lse", a.lse}, {"part_o", a.part_o, size_of(a.dtype)}, {"part_lse", a.part_lse}});
    stream.run(a, attention_merge_cpu, RZ_CUDA_OP(attention_merge_cuda));
}

}  // namespace rz
