#pragma once
// Options of a sharded run, and what its stage means for each part.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/runtime/dtype.h"
#include "kernels/runtime/names.h"
#include "zero/unit_layout.h"

namespace rz {

// Scaling of gradients, between loss and clip (kernels/loss_scale.h). fp16 needs it: its smallest number is 2^-24.
struct LossScaling {
    float initial = 0;     // a power of two; 0: none
    bool dynamic = false;  // or fixed
    int window = 1000, hysteresis = 2;
    float least = 1, most = 4294967296.0f;  // where a dynamic scale stops

    bool on() const { return initial > 0; }
};

// Place of AdamW's masters and moments, and who updates them (offload.h).
enum class OffloadOptimizer {
    none,
    stream,     // on the host; come to the device tile by tile
    zero_copy,  // on the host; the device's kernel works on them there
    cpu,        // on the host, and updated by it
};
template <>
inline constexpr auto kNames<OffloadOptimizer> =
    std::to_array<Named<OffloadOptimizer>>({{OffloadOptimizer::none, "none"},
                                            {OffloadOptimizer::stream, "stream"},
                                            {OffloadOptimizer::zero_copy, "zero-copy"},
                                            {OffloadOptimizer::cpu, "cpu"}});

// How far a step of Muon goes, with A rows and B columns (torch's names): 0.2 sqrt(max(A, B)), so that AdamW's learning
// rate suits; sqrt(max(1, A / B)); sqrt(A / B).
enum class MuonScale { match_rms_adamw, original, spectral_unclamped };
template <>
inline constexpr auto kNames<MuonScale> =
    std::to_array<Named<MuonScale>>({{MuonScale::match_rms_adamw, "match_rms_adamw"},
                                     {MuonScale::original, "original"},
                                     {MuonScale::spectral_unclamped, "spectral_unclamped"}});

// Part of a matrix on a rank of the tp axis: rows or columns of it. Ranks that have the same name the first of them.
struct MuonPiece {
    int64_t row = 0, col = 0, rows = 0, cols = 0;
    int holder = 0;
    int64_t size() const { return rows * cols; }
};

// A matrix, or the piece of one that this rank has and that counts as one.
struct MuonMatrix {
    ElementRange elements;       // within its unit: what this rank has
    int64_t rows = 0, cols = 0;  // of the matrix
    bool decays = true;
    std::vector<MuonPiece> pieces = {};  // by rank of the tp axis; none: this rank has the matrix
    MuonPiece held = {};                 // this rank's; of a whole matrix all of it

    // The rows of what this rank has that begin in a range of the unit.
    ElementRange rows_in(const ElementRange& range) const {
        const auto row = [&](int64_t at) {
            return ceil_div(std::clamp(at, elements.begin, elements.end) - elements.begin, held.cols);
        };
        return held.col > 0 ? ElementRange{} : ElementRange{row(range.begin), row(range.end)};
    }
};

// Muon (zero/muon.h) instead of AdamW for these matrices, by unit.
struct MuonOptions {
    bool on = false;
    std::vector<std::vector<MuonMatrix>> matrices = {};
    float momentum = 0.95f;
    float rate = 1;  // its learning rate, in AdamW's
    MuonScale scale = MuonScale::match_rms_adamw;
    int steps = 5;
    bool polar_express = false;
    bool whole = true;          // matrices that the tp axis cuts; false: each rank's piece counts as one
    float beta2 = 0;            // NorMuon's, of the second moments of rows; 0: there are none
    DType dtype = DType::bf16;  // of the products and on the wire: bf16 or f32
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
    MuonOptions muon = {};
    double ema = 0;  // what the moving average of the fp32 masters keeps of itself in an update; 0: there is none
    LossScaling loss_scaling = {};
    OffloadOptimizer offload_optimizer = OffloadOptimizer::none;
    bool offload_params = false;              // stage 3: the owned slices are on the host
    bool offload_grads = false;               // stages 2, 3: the owned gradients are on the host
    int64_t offload_tile = int64_t(4) << 20;  // elements of a tile of `stream`, a multiple of 256
    int host_threads = 0;                     // OpenMP's, of OffloadOptimizer::cpu; 0: as it is
    uint64_t rounding_seed = 0;               // of the stochastic rounding of bf16 masters and moments
    int prefetch = 1;                         // stage 3: units gathered ahead of use
    bool in_turn = false;                     // units are used from the first to the last and back (unit_pool.h)
    bool overlap = true;                      // false: compute waits for each collective
    bool accumulate_locally = false;          // stages 2, 3: keep whole gradients until the last micro-batch
    // Stages 2, 3: by unit, whether one operation makes each element of its gradient (gradient_store.h). Empty: none
    std::vector<uint8_t> added_once = {};
    // Gradients of several units that are reduced by one collective, at most (gradient_store.h); 0: each unit by itself
    int64_t bucket_bytes = 0;

    bool slices_state() const { return stage >= 1; }  // masters and moments: of this rank's slices only
    bool whole_gradients() const { return stage <= 1 || accumulate_locally; }
    bool whole_parameters() const { return stage <= 2; }
    float ema_weight() const { return float(1 - ema); }  // of the new masters
};

struct AdamWOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_norm = 1.0f;  // of the global gradient; <= 0 clips nothing
};

// Which logical offsets decay, and by which factor of the learning rate they are updated (empty: 1; the decay stays
// lr x weight_decay): runs in ascending order that cover the units.
struct DecaySegments {
    std::vector<int64_t> end;
    std::vector<uint8_t> decays;
    std::vector<float> rates = {};
};

}  // namespace rz
