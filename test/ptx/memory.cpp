#include "test/ptx/memory.h"

#include <map>
#include <mutex>

#include "test/ptx/module.h"

namespace ptx {
namespace {

struct Area {
    const char* end;
    std::string name;
};
// Never destroyed: buffers may be freed after any static.
auto& areas = *new std::map<const char*, Area>;
auto& mutex = *new std::mutex;
const char *last_begin = nullptr, *last_end = nullptr;  // the area of the last access

}  // namespace

void add_memory(const void* p, size_t bytes, const std::string& name) {
    std::lock_guard lock(mutex);
    const char* c = static_cast<const char*>(p);
    areas[c] = {c + bytes, name};
}

void remove_memory(const void* p) {
    std::lock_guard lock(mutex);
    areas.erase(static_cast<const char*>(p));
    last_begin = last_end = nullptr;
}

void check_global(uint64_t address, uint64_t bytes, uint32_t lane) {
    const auto* p = reinterpret_cast<const char*>(address);
    if (p >= last_begin && p + bytes <= last_end) return;
    std::unique_lock lock(mutex);
    auto it = areas.upper_bound(p);
    if (it == areas.begin())
        fail("lane %u: global address %#llx (%llu bytes) is in no array", lane, (unsigned long long)address,
             (unsigned long long)bytes);
    --it;
    if (p + bytes > it->second.end) {
        const Area a = it->second;
        const long long offset = p - it->first, size = a.end - it->first;
        lock.unlock();
        fail("lane %u: %llu bytes at offset %lld of %s, which has %lld bytes", lane, (unsigned long long)bytes, offset,
             a.name.c_str(), size);
    }
    last_begin = it->first, last_end = it->second.end;
}

}  // namespace ptx
