#include "llama/checkpoint/finite.h"

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
    throw NotFinite(format("%s: tensor %s, element %lld is %s", where.c_str(), name.c_str(), (long long)(first + at),
                           std::isnan(x) ? "nan"
                           : x > 0       ? "inf"
                                         : "-inf"));
}

std::string find_not_finite(Process& process, Device device, Stream& compute, const Zero& zero,
                            const ParamTable& table) {
    constexpr int64_t kPiece = int64_t(1) << 20;
    const DType dtype = zero.options().param_dtype;
    const int64_t e = size_of(dtype);
    std::string problem;
    try {
        Buffer staging = Buffer::host_for(device, kPiece * e, MemKind::workspace, "weights being checked");
        for (const OwnedRange& r : zero.owned())
            table.for_each_run(r.local, r.local + r.elements.size(), kPiece, [&](const TensorRun& run) {
                compute.copy(staging.data(), static_cast<const char*>(r.param) + (run.local - r.local) * e,
                             run.count * e);
                compute.synchronize();
                require_finite(staging.data(), run.first, run.count, dtype, "the weights",
                               table.tensors()[size_t(run.tensor)].name);
            });
    } catch (const NotFinite& error) {
        problem = error.what();
    }
    for (const std::string& text : process.all_gather_text(problem))
        if (!text.empty()) return text;
    return "";
}

}  // namespace rz
