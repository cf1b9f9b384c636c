#pragma once
// Checks that every op makes before it enqueues anything.

#include "kernels/runtime/check.h"
#include "kernels/runtime/dtype.h"

namespace rz {

// `op`'s argument `name` must be set, and aligned to `alignment` bytes.
inline void check_pointer(const char* op, const char* name, const void* p, int64_t alignment = 1) {
    require(p != nullptr, "%s: %s is a null pointer; set every argument that the header does not call optional", op,
            name);
    require(reinterpret_cast<uintptr_t>(p) % uintptr_t(alignment) == 0,
            "%s: %s is at %p, which is not a multiple of %ld bytes; start the tensor at an aligned offset", op, name, p,
            alignment);
}

inline void check_size(const char* op, const char* name, int64_t value, int64_t least) {
    require(value >= least, "%s: %s is %ld; it must be at least %ld", op, name, value, least);
}

inline void check_grad_dtype(const char* op, DType grad, DType dtype) {
    require(grad == DType::f32 || grad == dtype, "%s: grad_dtype is %s with dtype %s; it must be fp32 or the same", op,
            name_of(grad), name_of(dtype));
}

// A loop over fewer elements than this runs on the calling thread: waking the others costs more.
constexpr int64_t kSerialBelow = 8192;

}  // namespace rz
