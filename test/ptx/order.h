// Memory order, checked on the instruction stream: execution is in order here, so no missing fence shows in values.
//
// Every access is stamped with block, warp, lane, and with two counts of its warp: the epoch, which advances where the
// whole warp synchronises, and the tick, which advances at each release. A warp's clock says up to which epoch and tick
// it has been ordered after every other warp, and which of that a proxy fence has covered. What a warp's lane acquires,
// the warp has acquired: a missing __syncwarp after a wait by one lane is not seen.
#pragma once

#include <memory>
#include <vector>

#include "test/ptx/machine.h"

namespace ptx {

// strong_: relaxed, volatile, acquire, release. Those and atomics are no race with each other.
enum class Access : uint8_t { read, write, atomic, strong_read, strong_write };
// In place of a lane: the whole warp does it, as one instruction
constexpr uint32_t kAllLanes = 0xfe;

class OrderCheck {
   public:
    explicit OrderCheck(Machine& m);
    ~OrderCheck();
    void start(uint64_t first_block, uint32_t blocks);  // a group of resident blocks begins
    void end();

    // ---- accesses. p: host memory of shared or global space
    void access(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, Access kind);
    void warp_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane);  // ldmatrix: done for all lanes
    // cp.async: under way from its issue until the thread has waited for it.
    void copy_begins(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane);
    void copy_ends(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane);
    // The async proxy (bulk copies, wgmma): reads shared memory until `done`, or writes it for a phase of an mbarrier.
    void async_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, bool done);
    void async_write(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, const void* mbar);

    // ---- synchronisation
    void warp_sync(Warp& w, uint32_t lanes);
    void release(const void* object, Warp& w, uint32_t lanes);
    void release_inits(const void* object, Warp& w);  // only what fence.mbarrier_init covers
    void acquire(const void* object, Warp& w);
    void phase(const void* mbar);  // is complete
    void mbar_init(const void* mbar, Warp& w, uint32_t lane);
    void mbar_use(const void* mbar, Warp& w, bool by_async_proxy, const char* what);
    void fence_proxy(Warp& w, uint32_t lanes);
    // Flags in memory. A release passes on what the warp has seen to those who acquire from the same address; a fence
    // makes releases of the strong writes after it, and acquires of the strong reads before it.
    void fence(Warp& w, uint32_t lanes);
    void strong_write(const void* flag, Warp& w);
    void strong_read(const void* flag, Warp& w);
    void fence_mbar_init(Warp& w);

    // ---- registers of wgmma
    void registers_touched(Warp& w, const std::vector<uint32_t>& rows);  // by another instruction
    void wgmma_fence(Warp& w);
    void wgmma_begins(Warp& w, const std::vector<uint32_t>& d, const std::vector<uint32_t>& a);
    void wgmma_has_read(Warp& w, const unsigned char* p, uint32_t bytes, uint64_t group);
    void wgmma_waited(Warp& w, uint64_t group);
    void wgmma_ends(Warp& w, const std::vector<uint32_t>& d, const std::vector<uint32_t>& a);
    void set_registers(Warp& w, uint32_t count);  // setmaxnreg

   private:
    struct State;
    std::unique_ptr<State> s_;
};

// The step, with its touching of wgmma's registers reported. Rows: those of the kernel's wgmma instructions.
Step watch_registers(const Inst& i, const std::vector<bool>& wgmma_rows);

}  // namespace ptx
