#pragma once
// Programs, stages and tables name units of the whole model; zero/ numbers those that this rank holds from 0.

#include <utility>
#include <vector>

#include "kernels/runtime/check.h"
#include "zero/zero.h"

namespace rz {

class HeldUnits : public ParameterSource, public GradientSink {
   public:
    // `units`: of the whole model, ascending, as `zero` holds them; none: all. `zero` outlives this.
    HeldUnits(Zero& zero, std::vector<int> units) : zero_(zero), units_(std::move(units)) {}

    void gather(int unit) override { zero_.params.gather(local(unit)); }
    const void* parameters(int unit) override { return zero_.params.parameters(local(unit)); }
    void release(int unit) override { zero_.params.release(local(unit)); }
    int gathered_at_once() const override { return zero_.params.gathered_at_once(); }
    void* gradients(int unit) override { return zero_.grads.gradients(local(unit)); }
    void reduce(int unit, bool last) override { zero_.grads.reduce(local(unit), last); }
    bool reduces_each_micro_batch() const override { return zero_.grads.reduces_each_micro_batch(); }

   private:
    int local(int unit) const {
        if (units_.empty()) return unit;
        for (size_t i = 0; i < units_.size(); ++i)
            if (units_[i] == unit) return int(i);
        fail("unit %d is not held by this rank", unit);
    }
    Zero& zero_;
    std::vector<int> units_;
};

}  // namespace rz
