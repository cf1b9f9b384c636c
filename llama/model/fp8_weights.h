#pragma once
// What products in fp8 with one scale for each operand read of weights, kept from one change of the parameters to the
// next: their scales. They are made when a unit is first read after a change, whichever pass reads it; all
// micro-batches, passes and recomputation then read the same. Units that are gathered as codes come with scales
// (zero/fp8_gather.h).

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
    struct Sides {
        int64_t rows, columns;
    };

    DType dtype_;
    std::array<Sides, kMatrices> sides_;
    std::vector<Unit> units_;  // of the model
    Buffer scales_;            // (kept units, kMatrices) Fp8Scale
};

}  // namespace rz
