#pragma once
// What a rank sends on the tp axis: the one place where a block's, the embedding's and the head's collectives are
// counted. In passes over this rank's rows of the residual stream, G a gather and S a scatter:
//
//                    forward   backward in one   input_grad   weight_grad   recomputed: mlp, block
//   block            2G 2S     4G 2S             2G 2S        4G            1G; 2G 2S
//   embedding        1S        1G                -            1G
//   head, its loss   1G + 12 bytes a token; training adds 1S
//
// A gather sends this rank's rows to each other rank, in --dtype; a scatter the others' rows, in the wire's type.

#include "llama/model/stage.h"

namespace rz {

struct TensorTraffic {
    int64_t evaluation;  // a micro-batch, forward with its loss
    int64_t training;    // a micro-batch, forward and backward in one
    int64_t parted;      // a micro-batch, forward and both halves of the backward pass
    int64_t gradients;   // each time that gradients are reduced: what several ranks hold
    // Of a step.
    int64_t step(int64_t micro_batches, bool parts_backward, bool reduces_each_micro_batch) const {
        return micro_batches * (parts_backward ? parted : training) +
               (reduces_each_micro_batch ? micro_batches : 1) * gradients;
    }
};

// Of the units that the table's holder has; `options` with tp.
TensorTraffic tensor_traffic(const ModelConfig&, const ParamTable&, const StageOptions& options);

}  // namespace rz
