#pragma once
// Recomputed by the backward pass of a block instead of kept. Bits do not change.
//
//   norms      h1 and h2, of the residual stream           (R, C) each; with norms after the branches their codes
//   attention  qkv, o, lse (and q and k before their norm), of h1
//   mlp        gate_up, of h2                               (N, 2F)
//   block      everything, of the residual stream at the block's entrance
//
// The recomputed tensors share one memory for all blocks.

#include "kernels/runtime/names.h"

namespace rz {

enum class Recompute { none = 0, norms = 1, attention = 2, mlp = 4, block = 8 };  // or several of the middle three

constexpr Recompute operator|(Recompute a, Recompute b) { return Recompute(int(a) | int(b)); }
constexpr bool has(Recompute all, Recompute one) { return (int(all) & int(one)) != 0; }

template <>
inline constexpr auto kNames<Recompute> =
    std::to_array<Named<Recompute>>({{Recompute::none, "none"},
                                     {Recompute::norms, "norms"},
                                     {Recompute::attention, "attention"},
                                     {Recompute::mlp, "mlp"},
                                     {Recompute::norms | Recompute::attention, "norms,attention"},
                                     {Recompute::norms | Recompute::mlp, "norms,mlp"},
                                     {Recompute::attention | Recompute::mlp, "attention,mlp"},
                                     {Recompute::norms | Recompute::attention | Recompute::mlp, "norms,attention,mlp"},
                                     {Recompute::block, "block"}});

}  // namespace rz
