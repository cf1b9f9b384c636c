#pragma once
// Memory for tiles and packed panels of the CPU ops: one block per thread, kept and grown. It belongs to the threads of
// OpenMP, not to a rank, so it stands beside the ranks' ledgers: cpu_scratch() counts it for the process.

#include <atomic>

#include "kernels/runtime/memory.h"

namespace rz {

struct CpuScratch {
    std::atomic<int64_t> now{0}, peak{0};
    void add(int64_t bytes) {
        const int64_t total = now += bytes;
        for (int64_t most = peak; most < total && !peak.compare_exchange_weak(most, total);) {
        }
    }
};
inline CpuScratch& cpu_scratch() {
    static CpuScratch count;
    return count;
}

struct ScratchBlock {
    Buffer memory;
    ~ScratchBlock() { cpu_scratch().add(-memory.bytes()); }
    void* at_least(int64_t bytes) {
        if (memory.bytes() < bytes) {
            cpu_scratch().add(-memory.bytes());
            memory = Buffer();  // the old one goes before the new one comes
            memory = Buffer(Device{}, round_up(bytes, 4096), MemKind::workspace, "scratch of a CPU op");
            cpu_scratch().add(memory.bytes());
        }
        return memory.data();
    }
};

// At least `bytes`, 64-byte aligned, valid until this thread's next call with the same `slot`. Contents are undefined.
template <int slot>
inline void* thread_scratch(int64_t bytes) {
    thread_local ScratchBlock block;
    return block.at_least(bytes);
}

}  // namespace rz
