#pragma once
// Checks that every op makes before it enqueues anything.

#include <initializer_list>
#include <tuple>
#include <type_traits>

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

// An argument that must be set, and aligned: one to typed elements as they are, unless more is said.
struct PointerArgument {
    const char* name;
    const void* p;
    int64_t alignment;
    PointerArgument(const char* name, const void* p, int64_t alignment) : name(name), p(p), alignment(alignment) {}
    template <class T>
    requires(!std::is_void_v<T>) PointerArgument(const char* name, T* p) : PointerArgument(name, p, sizeof(T)) {}
};
inline void check_pointers(const char* op, std::initializer_list<PointerArgument> all) {
    for (const PointerArgument& a : all) check_pointer(op, a.name, a.p, a.alignment);
}

inline void check_size(const char* op, const char* name, int64_t value, int64_t least) {
    require(value >= least, "%s: %s is %ld; it must be at least %ld", op, name, value, least);
}
inline void check_sizes(const char* op, std::initializer_list<std::tuple<const char*, int64_t, int64_t>> all) {
    for (const auto& [name, value, least] : all) check_size(op, name, value, least);
}

inline void check_grad_dtype(const char* op, DType grad, DType dtype) {
    require(grad == DType::f32 || grad == dtype, "%s: grad_dtype is %s with dtype %s; it must be fp32 or the same", op,
            name_of(grad), name_of(dtype));
}

// with_grad_dtype(dtype, grad, []<class T, class G>() { ... });
template <class F>
void with_grad_dtype(DType dtype, DType grad, F&& f) {
    with_dtype(dtype, [&]<class T>() {
        if (grad == DType::f32)
            f.template operator()<T, float>();
        else
            f.template operator()<T, T>();
    });
}

// A loop over fewer elements than this runs on the calling thread: waking the others costs more.
constexpr int64_t kSerialBelow = 8192;

}  // namespace rz
