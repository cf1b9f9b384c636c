#pragma once
// What a sharded run is asked for, and what its stage means for each part.

#include <cstdint>
#include <vector>

#include "kernels/runtime/dtype.h"
#include "zero/unit_layout.h"

namespace rz {

// Of the gradients, between the loss and the clip (kernels/loss_scale.h). fp16 needs it: its smallest number is 2^-24.
struct LossScaling {
    float initial = 0;     // a power of two; 0: none
    bool dynamic = false;  // or fixed
    int window = 1000, hysteresis = 2;
    float least = 1, most = 4294967296.0f;  // where a dynamic scale stops

    bool on() const { return initial > 0; }
};

struct ZeroOptions {
    int stage = 0;
    DType param_dtype = DType::f32;
    DType grad_dtype = DType::f32;
    DType wire_dtype = DType::f32;    // gradients on the wire
    DType master_dtype = DType::f32;  // == param_dtype: the parameters are their own masters.
    DType adam_dtype = DType::f32;    // of m and v
    // Stage 3: by unit, the ranges of elements that are gathered in fp8 (fp8_gather.h); empty: everything in its type.
    std::vector<std::vector<ElementRange>> fp8_matrices = {};
    LossScaling loss_scaling = {};
    uint64_t rounding_seed = 0;       // of the stochastic rounding of bf16 masters and moments
    int prefetch = 1;                 // stage 3: units gathered ahead of use
    bool overlap = true;              // false: compute waits for each collective
    bool accumulate_locally = false;  // stages 2, 3: keep whole gradients until the last micro-batch

    bool slices_state() const { return stage >= 1; }  // masters and moments: of this rank's slices only
    bool whole_gradients() const { return stage <= 1 || accumulate_locally; }
    bool whole_parameters() const { return stage <= 2; }
};

struct AdamWOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_norm = 1.0f;  // of the global gradient; <= 0 clips nothing
};

// Which logical offsets decay: runs in ascending order that cover the units.
struct DecaySegments {
    std::vector<int64_t> end;
    std::vector<uint8_t> decays;
};

}  // namespace rz
