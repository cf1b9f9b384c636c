#pragma once
// What products in fp8 read of weights, kept from one change of the parameters to the next: with one scale for each
// operand those, and with Fp8Options::keep_weights codes with their scales, as they lie and transposed. They are made
// when a unit is first read after a change, whichever pass reads it; all micro-batches, passes and recomputation then
// read the same. Units that are gathered as codes come with scales (zero/fp8_gather.h).

#include <array>
#include <vector>

#include "llama/model/block.h"

namespace rz {

class Fp8Weights {
   public:
    // Of the blocks in fp8 that `table` holds.
    Fp8Weights(const ModelConfig&, const ParamTable& table, const Fp8Options&, DType, Device);

    // Of a unit that lies whole at `parameters`, which are what they were as long as `version` is
    // (ParameterSource::version). Enqueues what is missing.
    BlockWeights weights(Stream&, const Block&, int unit, const void* parameters, int64_t version);

   private:
    struct Unit {
        int64_t number = -1;   // among those that are kept; -1: not kept
        int64_t version = -1;  // of what is kept
    };
    static constexpr int kMatrices = 4;
    struct Matrix {
        int64_t rows, columns;
        int64_t scale_bytes, scale_bytes_t;
        int64_t size() const { return rows * columns; }
    };
    // Where it is kept; with one scale for it that serves both.
    struct Kept {
        uint8_t *codes = nullptr, *codes_t = nullptr;
        void *scales = nullptr, *scales_t = nullptr;
    };
    bool one_scale() const { return keeps_codes(recipe_); }
    void quantise(Stream&, const Kept&, const Matrix&, const void* x) const;

    Fp8Recipe recipe_;
    DType dtype_;
    std::array<Matrix, kMatrices> matrices_;
    int64_t elements_ = 0, scale_bytes_ = 0, scale_bytes_t_ = 0;  // of the matrices of a unit
    std::vector<Unit> units_;                                     // of the model
    Buffer scales_, scales_t_;                                    // (kept units) of their matrices; the latter of tiles
    Buffer codes_, codes_t_;  // (kept units, elements of their matrices); none: made by each product
};

}  // namespace rz
