#pragma once
// Programs, stages and tables name units of the whole model; zero/ numbers those that this rank holds from 0. What
// several ranks of the tp axis hold is summed over them before the data axis sums it.

#include <utility>
#include <vector>

#include "kernels/runtime/check.h"
#include "llama/parallel/tensor_parallel.h"
#include "zero/zero.h"

namespace rz {

class HeldUnits : public ParameterSource, public GradientSink {
   public:
    // `units`: of the whole model, ascending, as `zero` holds them; none: all. `replicated`: by unit of `zero`, with
    // `tp`, which may be nullptr. `zero` and `tp` outlive this.
    HeldUnits(Zero& zero, std::vector<int> units, TensorParallel* tp = nullptr,
              std::vector<std::vector<Replicated>> replicated = {})
        : zero_(zero), units_(std::move(units)), tp_(tp), replicated_(std::move(replicated)) {}

    void gather(int unit) override { zero_.params.gather(local(unit)); }
    const void* parameters(int unit) override { return zero_.params.parameters(local(unit)); }
    std::optional<Fp8Parameters> fp8_parameters(int unit) override { return zero_.params.fp8_parameters(local(unit)); }
    void release(int unit) override { zero_.params.release(local(unit)); }
    int gathered_at_once() const override { return zero_.params.gathered_at_once(); }
    void* gradients(int unit) override { return zero_.grads.gradients(local(unit)); }
    void reduce(int unit, bool last) override {
        const int here = local(unit);
        if (tp_ && (last || reduces_each_micro_batch()))
            for (const Replicated& r : replicated_[size_t(here)])
                tp_->sum(zero_.streams.compute, zero_.grads.gradients(here), r, zero_.options.grad_dtype);
        zero_.grads.reduce(here, last);
    }
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
    TensorParallel* tp_;
    std::vector<std::vector<Replicated>> replicated_;
};

}  // namespace rz
