#pragma once
// Learning rates over a run: a linear warm-up, then one of four shapes.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/runtime/names.h"

namespace rz {

enum class Decay {
    cosine,    // half a cosine from the peak to the floor (Loshchilov and Hutter 2017)
    linear,    // a straight line from the peak to the floor
    constant,  // the peak to the end
    wsd,  // warm-up, stable, decay: the peak, and in the last `cooldown` steps 1 - sqrt down to the floor (Hägele et
          // al. 2024)
};

template <>
inline constexpr auto kNames<Decay> = std::to_array<Named<Decay>>(
    {{Decay::cosine, "cosine"}, {Decay::linear, "linear"}, {Decay::constant, "constant"}, {Decay::wsd, "wsd"}});

struct Schedule {
    Decay decay = Decay::cosine;
    double peak = 0, floor = 0;  // learning rates; the last step has the floor exactly, except with `constant`
    int64_t warmup = 0;          // steps; the first step has peak / warmup, step `warmup` has the peak
    int64_t cooldown = 0;        // steps; wsd alone
    int64_t steps = 0;           // in the whole run

    // step counts from 1 to steps; later steps stay as the last
    double at(int64_t step) const {
        if (step <= warmup) return peak * double(step) / double(warmup);
        if (decay == Decay::constant) return peak;
        if (step >= steps) return floor;
        const int64_t begin = decay == Decay::wsd ? std::max(warmup, steps - cooldown) : warmup;
        if (step <= begin) return peak;
        const double done = double(step - begin) / double(steps - begin);
        const double left = decay == Decay::cosine ? 0.5 * (1 + std::cos(M_PI * done))
                            : decay == Decay::wsd  ? 1 - std::sqrt(done)
                                                   : 1 - done;
        return floor + (peak - floor) * left;
    }
};

}  // namespace rz
