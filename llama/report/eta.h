#pragma once
// How long a run still takes: its steps, and the validations and saves that it stops for.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rz {

class Eta {
   public:
    // Stops are made at the multiples of each number in `every`, and one at the end for each.
    Eta(int64_t steps, std::vector<int64_t> every) : steps_(steps), every_(std::move(every)) {}

    // `now`: seconds of any clock. The first step pays for first touches and plans; it says nothing about the others.
    void step(int64_t step, double seconds, double now) {
        if (first_ < 0) {
            first_ = step, begin_ = now;
            return;
        }
        recent_ = recent_ <= 0 ? seconds : 0.9 * recent_ + 0.1 * seconds;
        in_steps_ += seconds;
        beside_ = std::max(0.0, now - begin_ - in_steps_);
    }
    // Seconds after this step; below 0: not known yet.
    double left(int64_t step) const {
        if (recent_ <= 0) return -1;
        const int64_t made = stops(first_ - 1, step - 1);  // a step is told before what follows it
        const double each = made > 0 ? beside_ / double(made) : 0;
        return double(steps_ - step) * recent_ + double(stops(step - 1, steps_)) * each;
    }

   private:
    // After `from`, up to `to`.
    int64_t stops(int64_t from, int64_t to) const {
        int64_t n = 0;
        for (const int64_t e : every_)
            if (e > 0) n += to / e - from / e + (to == steps_ && from < to && to % e != 0);
        return n;
    }

    int64_t steps_;
    std::vector<int64_t> every_;
    int64_t first_ = -1;
    double begin_ = 0, recent_ = 0, in_steps_ = 0, beside_ = 0;  // recent_: an exponential mean
};

}  // namespace rz
