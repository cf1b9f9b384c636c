#pragma once
// Rotary position embedding (Su et al. 2021) in Hugging Face's half-rotated layout: element j of a head is paired with
// element j + D/2, and (a, b) becomes (a cos - b sin, b cos + a sin) with the angle position * inverse_frequency[j].
//
// In place, on the first `heads` heads of each row: q and k heads lie side by side in a packed qkv row, so one call
// rotates both. fp32 arithmetic, one rounding. `inverse` rotates by the negative angle, which is the backward pass.

#include <vector>

#include "kernels/runtime/device.h"
#include "kernels/runtime/names.h"

namespace rz {

struct Rope {
    void* x;                 // (N, row_stride) dtype, in place; row n holds `heads` heads of D elements first
    const float* cos_table;  // (positions, D/2) f32
    const float* sin_table;  // (positions, D/2) f32
    int64_t N;               // rows; row n is at position first_position + n % T
    int64_t T;
    int64_t first_position = 0;
    const int32_t* positions =
        nullptr;  // (N) int32, on the device: row n's own position instead; all below the tables'
    int64_t heads, D;
    int64_t row_stride;  // in elements, >= heads * D
    bool inverse = false;
    DType dtype;
    // (1) max= magnitudes of whole rows (magnitude.h), of v heads too, which are read for that: row_stride is then a
    // multiple of D. Optional.
    uint32_t* amax = nullptr;
};

void rope(Stream&, const Rope&);
void rope_cpu(const Rope&);
void rope_cuda(const Rope&, CudaStream);

enum class RopeKind {
    llama3,   // Llama 3.1 and later: low frequencies are divided by the factor, high ones stay
    linear,   // all are divided by the factor (Chen et al. 2023)
    dynamic,  // NTK: theta grows with the length, beyond original_max_position
    yarn,     // as llama3, by rotations within original_max_position; q and k grow too (Peng et al. 2023)
};
template <>
inline constexpr auto kNames<RopeKind> = std::to_array<Named<RopeKind>>({{RopeKind::llama3, "llama3"},
                                                                         {RopeKind::linear, "linear"},
                                                                         {RopeKind::dynamic, "dynamic"},
                                                                         {RopeKind::yarn, "yarn"}});

// Frequency scaling, under the names of config.json's rope_scaling. Factor 1 changes no frequency;
// yarn's attention factor holds all the same.
struct RopeScaling {
    double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
    int64_t original_max_position = 8192;
    RopeKind kind = RopeKind::llama3;
    // yarn
    double attention_factor = 0;  // of cos and sin; 0: 0.1 ln(factor) + 1, or from the two below
    double mscale = 0, mscale_all_dim = 0;
    double beta_fast = 32, beta_slow = 1;
    bool truncate = true;  // the ramp begins and ends at whole dimensions

    bool operator==(const RopeScaling&) const = default;
};

// The D/2 inverse frequencies theta^(-2i/D), scaled, for sequences of `positions`. In double.
std::vector<double> rope_inverse_frequencies(int64_t D, double theta, const RopeScaling&, int64_t positions = 0);
// Factor of cos and sin under yarn; else 1.
double rope_attention_factor(const RopeScaling&);
// Fills cos_table and sin_table, (positions, D/2) each, on the host.
void rope_tables(float* cos_table, float* sin_table, int64_t positions, int64_t D, double theta, const RopeScaling&);

}  // namespace rz
