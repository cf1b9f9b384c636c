#include "zero/parameter_source.h"

namespace rz {

ResidentParameters::ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype)
    : units_(units), dtype_(dtype) {
    const int64_t elements = checked_add(units.back().offset, units.back().padded, "parameters");
    params_ = Buffer(device, checked_mul(elements, size_of(dtype), "parameters"), MemKind::parameters, "parameters");
    stream.zero(params_.data(), params_.bytes());
}

}  // namespace rz
