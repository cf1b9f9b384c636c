#include "llama/base/finite.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rz {

int64_t first_not_finite(const void* data, int64_t count, DType dtype) {
    const auto find = [&]<class Word>(Word exponent) -> int64_t {
        constexpr int64_t kEach = 4096;
        const char* p = static_cast<const char*>(data);
        const auto at = [&](int64_t i) {
            Word w;
            std::memcpy(&w, p + i * int64_t(sizeof w), sizeof w);
            return w;
        };
        for (int64_t begin = 0; begin < count; begin += kEach) {
            const int64_t end = std::min(count, begin + kEach);
            Word any = 0;
            for (int64_t i = begin; i < end; ++i) any = Word(any | Word((at(i) & exponent) == exponent));
            if (!any) continue;
            for (int64_t i = begin; i < end; ++i)
                if ((at(i) & exponent) == exponent) return i;
        }
        return -1;
    };
    switch (dtype) {
        case DType::f32:
            return find(uint32_t(0x7f800000));
        case DType::bf16:
            return find(uint16_t(0x7f80));
        case DType::f16:
            return find(uint16_t(0x7c00));
    }
    __builtin_unreachable();
}

void require_finite(const void* data, int64_t first, int64_t count, DType dtype, const std::string& where,
                    const std::string& name) {
    const int64_t at = first_not_finite(data, count, dtype);
    if (at < 0) return;
    const float x = with_dtype(dtype, [&]<class T>() {
        T value;
        std::memcpy(&value, static_cast<const char*>(data) + at * int64_t(sizeof value), sizeof value);
        return float(value);
    });
    throw NotFinite(format("%s: tensor %s, element %ld is %s", where.c_str(), name.c_str(), first + at,
                           std::isnan(x) ? "nan"
                           : x > 0       ? "inf"
                                         : "-inf"));
}

}  // namespace rz
