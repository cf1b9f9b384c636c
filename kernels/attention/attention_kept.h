#pragma once
// The score gradients ds that Hopper's backward pass at D = 128 keeps between its two kernels: the kernel of dk and dv
// writes them, the kernel of dq only multiplies them with k. That makes five products instead of seven.
//
// A tile has 64 queries and 64 keys; ds is zero where one does not exist. The tile is stored as A operands of wgmma,
// each of 16 queries and 16 keys: lane l's 16 bytes of queries 16i.. and keys 16j.. are chunk (4i + j) * 32 + l. A
// query head has a place for each tile with a query at or after one of its keys, ordered by keys, then queries. Tiles
// that documents hide are neither written nor read.

#include <algorithm>

#include "kernels/attention/attention.h"

namespace rz {

constexpr int kKeptRows = 64, kKeptTileChunks = kKeptRows * kKeptRows * 2 / 16;
constexpr int64_t kKeptTileBytes = 16 * kKeptTileChunks;

struct KeptPlaces {
    int queries, keys;  // tiles
    int ahead;          // tile q of queries sees the tiles of keys up to q + ahead

    constexpr explicit KeptPlaces(const AttentionShape& s)
        : queries(int((s.Tq + kKeptRows - 1) / kKeptRows)),
          keys(int((s.Tk + kKeptRows - 1) / kKeptRows)),
          ahead(int((s.offset() + kKeptRows - 1) / kKeptRows)) {
        keys = std::min(keys, queries + ahead);
    }
    constexpr int hidden(int k) const { return k > ahead ? k - ahead : 0; }  // tiles of queries before tile k of keys
    constexpr int64_t count() const { return int64_t(keys) * queries - int64_t(hidden(keys)) * (hidden(keys) - 1) / 2; }
    // The place of a tile, k <= q + ahead
    constexpr int at(int q, int k) const { return k * queries + q - hidden(k) * (hidden(k) + 1) / 2; }
    constexpr int to_next_keys(int k) const { return queries - hidden(k + 1); }  // at(q, k + 1) - at(q, k)
};

// The number of key heads, of all batches, that are worked on at a time: the tiles of their query heads fit in `bytes`.
// 0: not even one fits, and there are seven products.
int64_t kept_key_heads(const AttentionShape&, int64_t bytes);

// Bytes for AttentionBackward::kept on a GPU of this capability, at most 260 MiB: 256, and the diagonal tiles. 0 where
// seven products are faster: on other GPUs, for other D, and where a section has fewer than 200 items of 128 keys and
// is not all there is, since multiprocessors (132) then wait for the longest.
int64_t attention_kept_bytes(const AttentionShape&, int capability);
// The same on this device, if the build has the kernels for it: code for sm_90a.
int64_t attention_kept_bytes(const AttentionShape&, Device);
// Says in words which products there are with `kept` bytes; empty for other GPUs and other D.
std::string attention_products(const AttentionShape&, int capability, int64_t kept);

}  // namespace rz
