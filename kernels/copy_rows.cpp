#include "kernels/copy_rows.h"

#include <cstring>

#include "kernels/checks.h"

namespace rz {

void copy_rows_cpu(const CopyRows& a) {
    with_dtype(a.dtype, [&]<class From>() {
        with_dtype(a.out_dtype, [&]<class To>() {
            const From* x = static_cast<const From*>(a.x);
            To* out = static_cast<To*>(a.out);
#pragma omp parallel for schedule(static) if (a.rows * a.columns >= (int64_t(1) << 16))
            for (int64_t i = 0; i < a.rows; ++i) {
                const From* from = x + i * a.stride;
                To* to = out + i * a.out_stride;
                if constexpr (std::is_same_v<From, To>)
                    std::memcpy(to, from, size_t(a.columns) * sizeof(To));
                else
                    for (int64_t c = 0; c < a.columns; ++c) to[c] = To(float(from[c]));
            }
        });
    });
}

void copy_rows(Stream& stream, const CopyRows& a) {
    const char* op = "copy_rows";
    check_sizes(op, {{"rows", a.rows, 0}, {"columns", a.columns, 0}});
    require(a.rows <= 1 || (a.stride >= a.columns && a.out_stride >= a.columns),
            "%s: rows of %ld columns lie %ld and %ld elements apart: they overlap", op, a.columns, a.stride,
            a.out_stride);
    if (a.rows == 0 || a.columns == 0) return;
    check_pointers(op, {{"out", a.out, size_of(a.out_dtype)}, {"x", a.x, size_of(a.dtype)}});
    stream.run(a, copy_rows_cpu, RZ_CUDA_OP(copy_rows_cuda));
}

}  // namespace rz
