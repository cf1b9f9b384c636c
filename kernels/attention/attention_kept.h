#pragma once
// Where Hopper's backward pass at D = 128 keeps the score gradients ds between its two kernels: the one of dk and dv
// writes them, the one of dq only multiplies them with k. That makes five products instead of seven.
//
// A tile has 64 queries and 64 keys, of which the last may not exist: ds is zero there. It lies as A operands of wgmma,
// 16 queries by 16 keys after the other: 16 bytes of lane l of queries 16i and keys 16j at chunk (4i + j) * 32 + l.
// A query head keeps the tiles in which some query comes at or after some key, those of the first keys first. Documents
// leave places that are neither written nor read.

#include <algorithm>

#include "kernels/attention/attention.h"

namespace rz {

constexpr int kKeptRows = 64, kKeptTileChunks = kKeptRows * kKeptRows * 2 / 16;
constexpr int64_t kKeptTileBytes = 16 * kKeptTileChunks;

struct KeptPlaces {
    int queries, keys;  // tiles
    int ahead;          // a tile of queries sees so many tiles of keys beyond its own number

    constexpr explicit KeptPlaces(const AttentionShape& s)
        : queries(int((s.Tq + kKeptRows - 1) / kKeptRows)),
          keys(int((s.Tk + kKeptRows - 1) / kKeptRows)),
          ahead(int((s.offset() + kKeptRows - 1) / kKeptRows)) {
        keys = std::min(keys, queries + ahead);
    }
    constexpr int hidden(int k) const { return k > ahead ? k - ahead : 0; }  // tiles of queries before tile k of keys
    constexpr int64_t count() const { return int64_t(keys) * queries - int64_t(hidden(keys)) * (hidden(keys) - 1) / 2; }
    // Of a tile that is kept, k <= q + ahead
    constexpr int at(int q, int k) const { return k * queries + q - hidden(k) * (hidden(k) + 1) / 2; }
    constexpr int to_next_keys(int k) const { return queries - hidden(k + 1); }  // at(q, k + 1) - at(q, k)
};

// Key heads of all batches that are worked on at a time with so many bytes for the tiles of their query heads; 0: seven
// products.
int64_t kept_key_heads(const AttentionShape&, int64_t bytes);

// The bytes for AttentionBackward::kept on a GPU of such a capability, at most 260 MiB: 256, and the tiles on the
// diagonals. 0 where seven products are as fast: not on Hopper, not D = 128, or so few heads at a time fit that the
// longest of their tiles keep the others waiting (below 200 of 128 keys; a Hopper has 132 multiprocessors).
int64_t attention_kept_bytes(const AttentionShape&, int capability);
// In words, for Hopper and D = 128; else empty. `kept`: what was taken for it.
std::string attention_products(const AttentionShape&, int capability, int64_t kept);

}  // namespace rz
