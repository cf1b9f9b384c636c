// cp.async: copies and groups belong to one thread until it waits for them.
#include "test/simt/runtime.h"

namespace simt {

void cp_async(void* dst, const void* src, int bytes, int src_bytes, Site at) {
    if ((uintptr_t(dst) | uintptr_t(src)) & uintptr_t(bytes - 1))
        fail("cp.async at %s: %p <- %p is not %d-byte aligned", where(at).c_str(), dst, src, bytes);
    if (src_bytes < 0 || src_bytes > bytes) fail("cp.async at %s: src_bytes %d", where(at).c_str(), src_bytes);
    if (!owner_of_shared(dst))
        fail("cp.async at %s: destination %p is not in shared memory (a static variable must have internal linkage)",
             where(at).c_str(), dst);
    // Touched here, with the kernel's frame on the stack, so that ASan names the kernel's line.
    if (src_bytes)
        (void)*static_cast<const volatile char*>(src), (void)*(static_cast<const volatile char*>(src) + src_bytes - 1);
    (void)*static_cast<volatile char*>(dst);
    if (race) {
        if (src_bytes) race->access(src, size_t(src_bytes), Access::read, at);
        race->in_flight(dst, size_t(bytes), Access::write, false, at);
    }
    const bool late = land_late();
    const auto land = [=] {
        memcpy(dst, src, size_t(src_bytes));
        memset(static_cast<char*>(dst) + src_bytes, 0, size_t(bytes - src_bytes));
    };
    if (!late) land();
    current->copies.ops.push_back([=] {
        if (late) land();
        if (race) race->in_flight(dst, size_t(bytes), Access::write, true, at);
    });
}

void cp_async_commit() { current->copies.commit(); }
void cp_async_wait(int groups) { current->copies.wait(size_t(groups)); }

}  // namespace simt
