#pragma once
// Where documents begin in rows of tokens, by the token that stands between them: what attention's mask and RoPE need
// when documents are packed into one row and must not see each other.

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

    explicit operator bool() const { return boundary != DocBoundary::none; }
};

// Of tokens (B, T): starts[b, t] is the place in row b where the document of t begins (0 where it began before the
// row), positions[b, t] = t - starts[b, t]. Returns the sum of the squares of the documents' lengths, to which what
// attention costs is proportional: B * T * T without documents. starts may be positions: then it is not kept.
int64_t find_documents(const DocumentMask&, const int32_t* tokens, int64_t B, int64_t T, int32_t* starts,
                       int32_t* positions);

// Tiles of kAttentionTile queries x as many keys. A kernel begins at the tile of keys in which the document of a tile's
// first query starts (kernels/attention): what lies before it is skipped. Kernels have tiles of their own sizes; these
// are for telling.
constexpr int64_t kAttentionTile = 64;
struct AttentionTiles {
    int64_t causal = 0, skipped = 0;  // that a causal mask leaves; and of those, before the document
};
AttentionTiles attention_tiles(const int32_t* starts, int64_t B, int64_t T);

}  // namespace rz
