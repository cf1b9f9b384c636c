// cp.async: copies and groups belong to one thread until it waits for them.
#include "test/simt/runtime.h"

namespace simt {

struct CopyQueue {
    struct Copy {
        char* dst;
        const char* src;
        int bytes, src_bytes;
        bool landed;
        Site at;
    };
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // end of each committed group in `copies`
};

namespace {

CopyQueue& queue() {
    if (!current->copies) current->copies = new CopyQueue;
    return *current->copies;
}

void land(const CopyQueue::Copy& c) {
    memcpy(c.dst, c.src, size_t(c.src_bytes));
    memset(c.dst + c.src_bytes, 0, size_t(c.bytes - c.src_bytes));
}

}  // namespace

const char* copies_in_flight(const Fiber* f) {
    return f->copies && !f->copies->copies.empty() ? "cp.async copies" : nullptr;
}
void clear_copies(Fiber* f) { f->copies->copies.clear(), f->copies->groups.clear(); }

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
    CopyQueue::Copy c{static_cast<char*>(dst), static_cast<const char*>(src), bytes, src_bytes, !land_late(), at};
    if (c.landed) land(c);
    queue().copies.push_back(c);
}

void cp_async_commit() {
    CopyQueue& q = queue();
    q.groups.push_back(q.copies.size());
}

void cp_async_wait(int groups) {
    CopyQueue& q = queue();
    if (q.groups.size() <= size_t(groups)) return;
    const size_t n_groups = q.groups.size() - size_t(groups), n = q.groups[n_groups - 1];
    for (size_t i = 0; i < n; i++) {
        const CopyQueue::Copy& c = q.copies[i];
        if (!c.landed) land(c);
        if (race) race->in_flight(c.dst, size_t(c.bytes), Access::write, true, c.at);
    }
    q.copies.erase(q.copies.begin(), q.copies.begin() + long(n));
    q.groups.erase(q.groups.begin(), q.groups.begin() + long(n_groups));
    for (size_t& end : q.groups) end -= n;
}

}  // namespace simt
