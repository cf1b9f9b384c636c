#include "llama/data/documents.h"

#include <algorithm>

namespace rz {

int64_t find_documents(const DocumentMask& mask, const int32_t* tokens, int64_t B, int64_t T, int32_t* starts,
                       int32_t* positions) {
    const int64_t distance = mask.boundary == DocBoundary::eos ? 1 : 0;  // from the token to the next document
    int64_t squares = 0;
    for (int64_t row = 0; row < B * T; row += T) {
        int64_t start = 0;
        for (int64_t t = 0; t < T; ++t) {
            if (mask && t > 0 && tokens[row + t - distance] == mask.token) {
                squares += attention_squares(t - start, mask.window);
                start = t;
            }
            starts[row + t] = int32_t(mask.window > 0 ? std::max(start, t - mask.window + 1) : start);
            positions[row + t] = int32_t(t - start);
        }
        squares += attention_squares(T - start, mask.window);
    }
    return squares;
}

AttentionTiles attention_tiles(const int32_t* starts, int64_t B, int64_t T) {
    AttentionTiles n;
    for (int64_t row = 0; row < B * T; row += T)
        for (int64_t t = 0; t < T; t += kAttentionTile) {
            n.causal += t / kAttentionTile + 1;
            n.skipped += starts[row + t] / kAttentionTile;
        }
    return n;
}

}  // namespace rz
