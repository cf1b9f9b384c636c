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
    // A resumed run that continues with another schedule than before: after from_step the rate rises from from_rate to
    // the peak in `rewarm` steps or, with none, decays from from_rate. 0: no such thing.
    int64_t from_step = 0;
    double from_rate = 0;
    int64_t rewarm = 0;

    // step counts from 1 to steps; later steps stay as the last
    double at(int64_t step) const {
        if (from_step > 0 && step > from_step) {
            if (step <= from_step + rewarm)
                return from_rate + (peak - from_rate) * double(step - from_step) / double(rewarm);
            return decayed(step, rewarm > 0 ? peak : from_rate, from_step + rewarm);
        }
        if (step <= warmup) return peak * double(step) / double(warmup);
        return decayed(step, peak, warmup);
    }

   private:
    // `top` up to `warm` and while it is stable, then down to the floor.
    double decayed(int64_t step, double top, int64_t warm) const {
        if (decay == Decay::constant) return top;
        const double low = std::min(floor, top);
        if (step >= steps) return low;
        const int64_t begin = decay == Decay::wsd ? std::max(warm, steps - cooldown) : warm;
        if (step <= begin) return top;
        const double done = double(step - begin) / double(steps - begin);
        const double left = decay == Decay::cosine ? 0.5 * (1 + std::cos(M_PI * done))
                            : decay == Decay::wsd  ? 1 - std::sqrt(done)
                                                   : 1 - done;
        return low + (top - low) * left;
    }
};

}  // namespace rz
