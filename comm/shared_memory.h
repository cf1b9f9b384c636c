#pragma once
// Memory that all members of a group have mapped, for collectives that load from it and copy out of it instead of
// sending messages (symmetric.cpp). Threads of one process map it (loopback), ranks of one host over MPI
// (by a name, pinned_memory.h), and GPUs that reach each other over NCCL (windows, nccl_comm.h).

#include <cstdint>

namespace rz {

// per_rank: every member has a part of its own. shared: all have the same bytes, so what its owner writes is there for
// all.
enum class Alloc { per_rank, shared };

// Kind of that memory: none; the members' own, of the CPU or of GPUs; or pinned memory of the host beside the members'
// own, which GPUs that do not reach each other fill and read by their copy engines.
enum class Mapping { none, own, pinned };

class SharedMemory {
   public:
    virtual ~SharedMemory() = default;
    // Member r's bytes: at the same distance from one member to the next, 4096-aligned, zero at first.
    char* part(int r) const { return base_ + int64_t(r) * stride_; }
    int64_t bytes() const { return bytes_; }    // of one part
    int64_t stride() const { return stride_; }  // between parts; 0: Shares::one

   protected:
    char* base_ = nullptr;
    int64_t stride_ = 0, bytes_ = 0;
};

}  // namespace rz
