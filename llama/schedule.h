#pragma once
// Learning rate: linear warm-up, then half a cosine down to the floor, which the last step reaches exactly.

#include <cmath>
#include <cstdint>

namespace rz {

struct Schedule {
    double peak, floor;  // learning rates
    int64_t warmup;      // steps; the first step has peak / warmup, step `warmup` has the peak
    int64_t steps;       // in the whole run

    // step counts from 1 to steps; later steps stay at the floor
    double at(int64_t step) const {
        if (step <= warmup) return peak * double(step) / double(warmup);
        if (step >= steps) return floor;
        const double done = double(step - warmup) / double(steps - warmup);
        return floor + 0.5 * (peak - floor) * (1 + std::cos(M_PI * done));
    }
};

}  // namespace rz
