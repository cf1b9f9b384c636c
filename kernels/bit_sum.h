#pragma once
// A sum of the bits of a range of memory, to be compared with that of another copy of it (--check-wire).
//
//   *sum += bytes + sum over i of word[i] * bit_sum_factor(i)   modulo 2^64
//
// over the range's 64-bit words (little-endian), the last one filled up with zeros. Every factor is odd: one changed
// bit always changes the sum. Exact and in any order, so both backends give the same number.

#include "kernels/runtime/device.h"

namespace rz {

struct BitSum {
    uint64_t* sum;     // (1)      +=
    const void* data;  // (bytes)  aligned to nothing
    int64_t bytes;
};

constexpr uint64_t bit_sum_factor(int64_t i) { return uint64_t(i) * 0x9e3779b97f4a7c16ull + 1; }

void bit_sum(Stream&, const BitSum&);
void bit_sum_cpu(const BitSum&);
void bit_sum_cuda(const BitSum&, CudaStream);

}  // namespace rz
