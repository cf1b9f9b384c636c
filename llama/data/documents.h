#pragma once
// Documents in rows of tokens begin after the token that stands between them: attention's mask and RoPE need the places
// when documents are packed into one row and must not see each other; and what attention costs.

#include <array>
#include <cstdint>
#include <string>

#include "kernels/runtime/names.h"

namespace rz {

enum class DocBoundary {
    none,  // rows are one text
    bos,   // the token is a document's first
    eos,   // the token is a document's last
};
template <>
inline constexpr auto kNames<DocBoundary> = std::to_array<Named<DocBoundary>>({{DocBoundary::none, "none"},
                                                                               {DocBoundary::bos, "bos"},
                                                                               {DocBoundary::eos, "eos"}});

struct DocumentMask {
    DocBoundary boundary = DocBoundary::none;
    int32_t token = -1;
    int64_t window = 0;  // ModelConfig's

    explicit operator bool() const { return boundary != DocBoundary::none; }
};

// To which what attention of n tokens costs is proportional: n^2 without a window, the triangles under a causal mask
// and before the window being left out in the same way.
constexpr int64_t attention_squares(int64_t n, int64_t window) {
    return window > 0 && window < n ? n * n - (n - window) * (n - window) : n * n;
}

// Fills positions[b, t], counted from where the document of t begins in row b of tokens (B, T) (0 where it began before
// the row), starts[b, t] is the place of the first token that t sees: t - positions[b, t], or the window's first where
// that is later. Returns the sum of the documents' attention_squares. starts may be positions: then it is not kept.
int64_t find_documents(const DocumentMask&, const int32_t* tokens, int64_t B, int64_t T, int32_t* starts,
                       int32_t* positions);

// Tiles of kAttentionTile queries x as many keys. A kernel begins at the tile of keys with the first that a tile's
// first query sees (kernels/attention): what lies before it is skipped. Kernels have tiles of their own sizes; these
// are for telling.
constexpr int64_t kAttentionTile = 64;
struct AttentionTiles {
    int64_t causal = 0, skipped = 0;  // that a causal mask leaves; and of those, before what a query sees
};
AttentionTiles attention_tiles(const int32_t* starts, int64_t B, int64_t T);

}  // namespace rz
