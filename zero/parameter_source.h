#pragma once
// The parameters' place, for whoever runs the model.

#include <optional>
#include <vector>

#include "kernels/fp8/quantise.h"
#include "kernels/runtime/memory.h"
#include "zero/unit_layout.h"

namespace rz {

// A unit that is gathered in fp8: the codes (e4m3) of its matrices, one after the other, a scale for each, and its
// other elements, one after the other, in the parameters' type.
struct Fp8Parameters {
    const uint8_t* codes = nullptr;
    const Fp8Scale* scales = nullptr;
    const char* rest = nullptr;
};

// Everything enqueues and returns.
class ParameterSource {
   public:
    virtual ~ParameterSource() = default;
    // The unit will be read: the all-gather starts.
    virtual void gather(int unit) = 0;
    // Parameters of the unit, `padded` elements; valid on the compute stream from here until release(u). Where units
    // are gathered, only after gather(u).
    virtual const void* parameters(int unit) = 0;
    // Instead of parameters(), where the unit is gathered in fp8; nothing where it is not.
    virtual std::optional<Fp8Parameters> fp8_parameters(int) { return std::nullopt; }
    // The compute work enqueued so far was the last to read the unit until the next gather.
    virtual void release(int unit) = 0;
    // How many units that share slots can be whole at once; 0: parameters are always whole, and gather and release do
    // nothing.
    virtual int gathered_at_once() const = 0;
    // As long as it is the same, so is what parameters() gives of every unit: what was made of them serves again.
    virtual int64_t version() const = 0;
};

// All parameters in memory and nothing else: for generation.
class ResidentParameters : public ParameterSource {
   public:
    ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype);
    void gather(int) override {}
    const void* parameters(int unit) override { return bytes(unit); }
    void release(int) override {}
    int gathered_at_once() const override { return 0; }
    int64_t version() const override { return 0; }  // loaded once
    char* bytes(int unit) const { return params_.bytes_at(units_[size_t(unit)].offset * size_of(dtype_)); }

   private:
    std::vector<UnitLayout> units_;
    DType dtype_;
    Buffer params_;
};

}  // namespace rz
