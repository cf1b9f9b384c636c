#include "kernels/runtime/planned.h"

#include <sys/mman.h>

#include "kernels/runtime/op_timer.h"

namespace rz {

std::string OpCall::name() const { return label ? label : type ? OpTimer::name_of(*type) : ""; }

namespace detail {

void* reserve_addresses(int64_t bytes, bool usable) {
    void* data = mmap(nullptr, size_t(bytes), usable ? PROT_READ | PROT_WRITE : PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
}

void release_addresses(void* data, int64_t bytes) { munmap(data, size_t(bytes)); }

}  // namespace detail

}  // namespace rz
