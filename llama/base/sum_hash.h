#pragma once
// A 64-bit hash of an array that any number of readers compute together: the sum, modulo 2^64, of one mixed word per
// element, which depends on its bits and its index. Parts are hashed anywhere, in any order, and added. One changed
// element always changes the sum; other damage escapes with probability 2^-64. Not for cryptography.

#include <cstdint>
#include <cstring>
#include <string_view>

#include "kernels/runtime/check.h"

namespace rz {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits.
inline uint64_t splitmix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Elements [first, first + count) of the array, which lie at `data` (aligned to nothing), of 1, 2, 4 or 8 bytes.
inline uint64_t sum_hash(const void* data, int64_t first, int64_t count, int64_t element_bytes) {
    const auto sum = [&]<class Word>(Word) {
        const char* p = static_cast<const char*>(data);
        uint64_t total = 0;
        for (int64_t i = 0; i < count; ++i) {
            Word w;
            std::memcpy(&w, p + i * int64_t(sizeof w), sizeof w);
            total += splitmix64(uint64_t(w) + uint64_t(first + i + 1) * 0x9e3779b97f4a7c15ull);
        }
        return total;
    };
    switch (element_bytes) {
        case 1:
            return sum(uint8_t{});
        case 2:
            return sum(uint16_t{});
        case 4:
            return sum(uint32_t{});
        case 8:
            return sum(uint64_t{});
    }
    fail("sum_hash: elements of %ld bytes; 1, 2, 4 and 8 are known", element_bytes);
}

// Hash of bytes, with their number.
inline uint64_t text_hash(std::string_view text) {
    return sum_hash(text.data(), 0, int64_t(text.size()), 1) + 0x9e3779b97f4a7c15ull * text.size();
}

// FNV-1a: byte after byte, so not to be shared out. before: the hash of the bytes that come before these.
inline uint64_t fnv1a(std::string_view bytes, uint64_t before = 0xcbf29ce484222325) {
    for (const char c : bytes) before = (before ^ uint8_t(c)) * 0x100000001b3;
    return before;
}

}  // namespace rz
