#include "kernels/argmax.h"

#include "kernels/checks.h"

namespace rz {

void argmax_cpu(const Argmax& a) {
    with_dtype(a.dtype, [&]<class T>() {
        const T* logits = static_cast<const T*>(a.logits);
#pragma omp parallel for schedule(static) if (a.N * a.V >= kSerialBelow)
        for (int64_t n = 0; n < a.N; ++n) {
            const T* row = logits + n * a.V;
            float largest = -__builtin_inff();
            int64_t best = a.V;
            for (int64_t v = 0; v < a.V; ++v) {
                const float x = float(row[v]);
                if (x > largest || (x == largest && v < best)) largest = x, best = v;
            }
            a.best[n] = int32_t(a.first + (best < a.V ? best : 0));
        }
    });
}

void argmax(Stream& stream, const Argmax& a) {
    const char* op = "argmax";
    check_sizes(op, {{"N", a.N, 0}, {"V", a.V, 1}, {"first", a.first, 0}});
    require(a.V <= INT32_MAX && a.first <= INT32_MAX - a.V, "%s: columns %ld to %ld; tokens are 32-bit", op, a.first,
            a.first + a.V);
    if (a.N == 0) return;
    check_pointers(op, {{"best", a.best}, {"logits", a.logits, 16}});
    stream.run(a, argmax_cpu, RZ_CUDA_OP(argmax_cuda));
}

}  // namespace rz
