#include "test/ptx/order.h"
namespace ptx {
struct OrderCheck::State {};
OrderCheck::OrderCheck(Machine&) {}
OrderCheck::~OrderCheck() = default;
void OrderCheck::start(uint32_t) {}
void OrderCheck::end() {}
void OrderCheck::access(Warp&, const unsigned char*, uint32_t, uint32_t, Access) {}
void OrderCheck::warp_read(Warp&, const unsigned char*, uint32_t, uint32_t) {}
void OrderCheck::copy_begins(Warp&, const unsigned char*, uint32_t, uint32_t) {}
void OrderCheck::copy_ends(Warp&, const unsigned char*, uint32_t, uint32_t) {}
void OrderCheck::async_read(Warp&, const unsigned char*, uint32_t, uint32_t, bool) {}
void OrderCheck::async_write(Warp&, const unsigned char*, uint32_t, uint32_t, const void*) {}
void OrderCheck::warp_sync(Warp&, uint32_t) {}
void OrderCheck::release(const void*, Warp&, uint32_t) {}
void OrderCheck::acquire(const void*, Warp&, uint32_t) {}
void OrderCheck::phase(const void*) {}
void OrderCheck::mbar_init(const void*, Warp&, uint32_t) {}
void OrderCheck::mbar_use(const void*, Warp&, uint32_t, const char*) {}
void OrderCheck::fence_proxy(Warp&, uint32_t) {}
void OrderCheck::fence_mbar_init(Warp&, uint32_t) {}
}  // namespace ptx
