#pragma once
// NaN and infinity in tensors: found, and named.

#include <cstdint>
#include <string>

#include "kernels/runtime/check.h"
#include "kernels/runtime/dtype.h"

namespace rz {

// Says which tensor and element.
struct NotFinite : Error {
    using Error::Error;
};

// The first element that is NaN or infinite; -1 if there is none. `data` is on the host.
int64_t first_not_finite(const void* data, int64_t count, DType dtype);

// Throws NotFinite if there is one among elements [first, first + count) of a tensor: "WHERE: tensor NAME, element 7 is
// nan".
void require_finite(const void* data, int64_t first, int64_t count, DType dtype, const std::string& where,
                    const std::string& name);

}  // namespace rz
