#pragma once
// Attention as the lessons ask the program for it: one batch of T positions, fp32.

#include "kernels/attention/attention.h"

namespace learn {

// q and o are (T, H, D), k and v (T, K, D).
inline rz::AttentionShape packed(int T, int H, int K, int D, float scale) {
    return {.B = 1,
            .Tq = T,
            .Tk = T,
            .H = H,
            .K = K,
            .D = D,
            .q_row = H * D,
            .q_batch = T * H * D,
            .kv_row = K * D,
            .kv_batch = T * K * D,
            .o_row = H * D,
            .o_batch = T * H * D,
            .scale = scale,
            .dtype = rz::DType::f32};
}

}  // namespace learn
