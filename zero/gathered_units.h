#pragma once
// Units in their own type for who reads them one after the other, whatever training gathers: samples of a run whose
// layers are in fp8. A unit is valid until the next but one is read.

#include <algorithm>
#include <array>

#include "zero/parameter_cache.h"

namespace rz {

class GatheredUnits : public ParameterSource {
   public:
    // Both outlive this.
    GatheredUnits(ParameterCache& params, const Ownership& ownership, Device device, DType dtype) : params_(params) {
        int64_t most = 0;
        for (const UnitLayout& u : ownership.units()) most = std::max(most, u.padded);
        for (Buffer& b : slots_) b = Buffer(device, most * size_of(dtype), MemKind::gathered, "a unit for a sample");
    }
    void gather(int) override {}
    const void* parameters(int unit) override {
        Buffer& slot = slots_[size_t(turn_++ % 2)];
        params_.gather_whole(unit, slot.data());
        return slot.data();
    }
    void release(int) override {}
    int gathered_at_once() const override { return 1; }
    int64_t version() const override { return params_.version(); }

   private:
    ParameterCache& params_;
    std::array<Buffer, 2> slots_;
    int64_t turn_ = 0;
};

}  // namespace rz
