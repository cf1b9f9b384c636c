// Windows of the fake NCCL: memory of ncclMemAlloc that all ranks of a communicator map, at one distance from one rank
// to the next, as NCCL 2.28 does it (dev_runtime.cc).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nccl.h>
#include <nccl_device.h>

namespace simt {

// Says what was broken of NCCL's contract, and aborts.
[[noreturn]] void nccl_misuse(const std::string& what);

class NcclWindows {
   public:
    static size_t rendezvous_bytes(int ranks);
    NcclWindows(void* rendezvous, int rank, int ranks);
    ~NcclWindows();

    ncclResult_t add(void* p, size_t bytes, ncclWindow_t* out);  // collective
    ncclResult_t remove(ncclWindow_t win);
    ncclTeam_t team() const;
    ncclResult_t create(ncclDevComm_t* made);  // collective
    bool any() const { return !windows_.empty(); }
    uint64_t place_of(const void* p, size_t bytes) const;  // the same on all ranks where p is; 0: in no window
    void abandon();                                        // its communicator was aborted

   private:
    struct Meeting;
    struct Window;
    enum class Call : int { window = 1, dev_comm };
    void meet(Call call, int fd, size_t bytes);  // all have come; what each says is in meetings_
    void leave();                                // all have read that
    void unmap(const Window& w);

    Meeting* meetings_;  // [rank], in memory that the processes share
    int rank_, ranks_;
    uint64_t met_ = 0;
    char* base_ = nullptr;  // of the addresses
    size_t used_ = 0;       // of each rank's: never used again, so that what was unmapped stays so
    std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace simt
