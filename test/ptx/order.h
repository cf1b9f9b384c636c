// Memory order, checked on the instruction stream: execution is in order here, so no missing fence shows in values.
//
// Every access is stamped with its warp, lane and the warp's epoch, which advances where the warp synchronises.
// A warp's clock says which epochs of every other warp it has been ordered after, and which of these a proxy fence has
// covered.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "test/ptx/machine.h"

namespace ptx {

enum class Access : uint8_t { read, write, atomic };

class OrderCheck {
   public:
    explicit OrderCheck(Machine& m);
    ~OrderCheck();
    void start(uint32_t blocks);  // a group of resident blocks begins
    void end();

    // ---- accesses. p: host memory of shared, local or global space
    void access(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, Access kind);
    void warp_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane);  // ldmatrix
    // cp.async: under way from its issue until the thread has waited for it.
    void copy_begins(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane);
    void copy_ends(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane);
    // The async proxy (bulk copies, wgmma): reads shared memory until `done`, or writes it for a phase of an mbarrier.
    void async_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, bool done);
    void async_write(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, const void* mbar);

    // ---- synchronisation
    void warp_sync(Warp& w, uint32_t lanes);
    void release(const void* object, Warp& w, uint32_t lanes);
    void acquire(const void* object, Warp& w, uint32_t lanes);
    void phase(const void* mbar);  // complete
    void mbar_init(const void* mbar, Warp& w, uint32_t lane);
    void mbar_use(const void* mbar, Warp& w, uint32_t lane, const char* what);
    void fence_proxy(Warp& w, uint32_t lanes);
    void fence_mbar_init(Warp& w, uint32_t lanes);

   private:
    struct State;
    std::unique_ptr<State> s_;
};

}  // namespace ptx
