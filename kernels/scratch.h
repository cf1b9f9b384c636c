#pragma once
// Memory for tiles and packed panels of the CPU ops: one block per thread, kept and grown. It belongs to the threads of
// OpenMP, not to a rank, so no ledger counts it.

#include "kernels/runtime/memory.h"

namespace rz {

// At least `bytes`, 64-byte aligned, valid until this thread's next call with the same `slot`. Contents are undefined.
template <int slot>
inline void* thread_scratch(int64_t bytes) {
    thread_local Buffer block;
    if (block.bytes() < bytes) {
        block = Buffer();  // the old one goes before the new one comes
        block = Buffer(Device{}, round_up(bytes, 4096), MemKind::workspace, "scratch of a CPU op");
    }
    return block.data();
}

}  // namespace rz
