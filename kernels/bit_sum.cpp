#include "kernels/bit_sum.h"

#include <cstring>

#include "kernels/checks.h"

namespace rz {

void bit_sum_cpu(const BitSum& a) {
    const char* p = static_cast<const char*>(a.data);
    const int64_t words = a.bytes / 8;
    const auto word = [&](int64_t i, int64_t bytes) {
        uint64_t w = 0;
        std::memcpy(&w, p + 8 * i, size_t(bytes));
        return w;
    };
    uint64_t sum = uint64_t(a.bytes);
#pragma omp parallel for schedule(static) reduction(+ : sum) if (words >= kSerialBelow)
    for (int64_t i = 0; i < words; ++i) sum += word(i, 8) * bit_sum_factor(i);
    if (a.bytes % 8 != 0) sum += word(words, a.bytes % 8) * bit_sum_factor(words);
    *a.sum += sum;
}

void bit_sum(Stream& stream, const BitSum& a) {
    const char* op = "bit_sum";
    check_size(op, "bytes", a.bytes, 0);
    check_pointer(op, "sum", a.sum, 8);
    if (a.bytes > 0) check_pointer(op, "data", a.data);
    stream.run(a, bit_sum_cpu, RZ_CUDA_OP(bit_sum_cuda));
}

}  // namespace rz
