#pragma once
// Shared by every test under mpirun: the job it is part of, and values whose sums are exact.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/process.h"
#include "kernels/runtime/dtype.h"
#include "test/checks.h"

namespace rz {

Process& test_process();

// A folder that all ranks know. Rank 0 removes it in the end; no rank may still use it then.
struct SharedFolder {
    explicit SharedFolder(Process& process)
        : made(process.is_root() ? std::make_unique<TempFolder>() : nullptr),
          path(process.broadcast_text(made ? made->path : "", 0)) {}
    const std::unique_ptr<TempFolder> made;
    const std::string path;
};

// Small integers stored as floats: every partial sum of a few ranks is exact, in bf16 and fp16 too, so any order of
// summation gives the same bits and results are compared with no tolerance. Depends on rank and index.
inline float exact_value(int rank, int64_t i) { return float((i * 7 + rank * 13 + (i >> 7) * 3) % 17 - 8); }

// Values of all magnitudes: the order of summation shows.
inline float rough_value(int rank, int64_t i) {
    uint64_t x = uint64_t(i) * 0x9e3779b97f4a7c15ull + uint64_t(rank + 1) * 0xd1b54a32d192ed03ull;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebull;
    x ^= x >> 29;
    return (float(x & 0xffffff) / float(0x800000) - 1) * float(1 << ((x >> 24) % 12));
}

inline std::vector<char> to_bytes(const std::vector<float>& values, DType t) {
    std::vector<char> bytes(values.size() * size_t(size_of(t)));
    with_dtype(t, [&]<class T>() {
        T* p = reinterpret_cast<T*>(bytes.data());
        for (size_t i = 0; i < values.size(); ++i) p[i] = T(values[i]);
    });
    return bytes;
}

inline std::vector<float> to_floats(const void* data, int64_t n, DType t) {
    std::vector<float> values(static_cast<size_t>(n));
    with_dtype(t, [&]<class T>() {
        const T* p = static_cast<const T*>(data);
        for (int64_t i = 0; i < n; ++i) values[size_t(i)] = float(p[i]);
    });
    return values;
}

}  // namespace rz
