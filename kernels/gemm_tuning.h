#pragma once
// How cuBLASLt's algorithm is chosen at the first product of each shape. By default the library's own first suggestion,
// which is the same on every run. Measuring gives a few percent more speed, but two measurements may choose differently
// and so give other last bits: a cache file makes the choice permanent.

#include <cstdint>
#include <string>

namespace rz {

struct GemmTuning {
    bool measure =
        false;  // time the library's suggestions and take the fastest; synchronises the stream at each new shape
    std::string cache_file;  // choices are read from here, and added where they were measured; may not exist yet
    int64_t measured = 0, read = 0;  // shapes decided in either way so far; counted by gemm
};

// For the process. To be set before products are enqueued; without CUDA it has no effect.
inline GemmTuning& gemm_tuning() {
    static GemmTuning tuning;
    return tuning;
}

}  // namespace rz
