#pragma once
// One NCCL communicator. The only place of the program that calls NCCL, and so the place where NCCL's rules are kept
// (NCCL 2.28.9; init.cc, group.cc):
//
//   Communicators are blocking. On a non-blocking one ncclGroupEnd starts a thread per group, and ncclCommGetAsyncError
//   is no query: it joins that thread and frees its job, so two threads that call it race.
//   One thread at a time is in a communicator: every call is made under its mutex, the watchdog's only where it
//   is free.
//   A group is closed however its block is left: calls made in a group that stays open are never launched.
//   Calls may block (the first exchange between two ranks connects them), so each is registered before it is made:
//   where one does not return in time, the watchdog ends the job and says what to try.
//   Making a communicator blocks until all members are there, and so does a window: under an alarm.
//
// Windows: where a peer's memory is mapped a kernel asks once (nccl_window.h, NCCL 2.28 on). They are addresses like
// any other of this GPU, so copy engines and our kernels take them. What the kernel asks was compiled in: with another
// NCCL than this was built with there are no windows, and why_no_windows() says so. NCCL's own collectives take windows
// too (2.27 on), by its symmetric kernels and NVLS; they sum in an order of their own, so only `library` calls them.
//
// Compiled where NCCL is (RZ_CUDA and RZ_HAVE_NCCL).

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "comm/deadline.h"
#include "comm/nccl_memory.h"
#include "comm/shared_memory.h"
#include "kernels/runtime/device.h"

struct ncclComm;

namespace rz {

class Watch;

class NcclComm {
   public:
    struct Options {
        std::string group;  // in reports
        std::shared_ptr<Watch> watch;
        NcclChannels channels = {};
    };
    // Collective over the members. `id` as unique_id() made it for one of them.
    NcclComm(const std::string& id, int rank, int size, Device device, Options options);
    // Waits for the work that was launched: abort() first where it may not end.
    ~NcclComm();
    NcclComm(const NcclComm&) = delete;
    NcclComm& operator=(const NcclComm&) = delete;

    static std::string unique_id();
    static int version();
    static std::string launch_order();  // nccl_transport.h; settled before the first group is made

    // The calls of one block, which NCCL launches together; nobody else is in the communicator meanwhile.
    //
    //   NcclComm::Group group(comm, stream);
    //   group.send(...), group.recv(...);
    //   group.end();                       // launched; throws what NCCL says
    class Group {
       public:
        Group(NcclComm& comm, Stream& stream);
        ~Group();
        Group(const Group&) = delete;
        Group& operator=(const Group&) = delete;
        void end();

        void send(const void* data, int64_t bytes, int to);
        void recv(void* data, int64_t bytes, int from);
        void all_reduce(const void* in, void* out, int64_t n, DType dtype);
        void reduce(const void* in, void* out, int64_t n, DType dtype, int root);
        void broadcast(void* data, int64_t n, DType dtype, int root);
        void broadcast_bytes(void* data, int64_t bytes, int root);
        void reduce_scatter(const void* in, void* out, int64_t n_of_each, DType dtype);
        void all_gather(const void* in, void* out, int64_t n_of_each, DType dtype);

       private:
        void call(int status, const char* name);

        NcclComm& comm_;
        CudaStream stream_;
        std::unique_lock<std::mutex> lock_;
        bool open_ = false;
    };

    // "" if the members map memory of each other's GPUs, else why they can't. All members ask together.
    std::string why_no_windows();
    // Zeroed memory of every member's GPU (ncclMemAlloc, ncclCommWindowRegister), which all map. All members ask
    // together; each gives its part back by itself, before the communicator goes, and waits for its GPU's work first.
    std::unique_ptr<SharedMemory> window(int64_t bytes);
    // The same memory for NCCL's own collectives and messages, which then copy nothing on the way: of this member alone
    // for us. nullptr before NCCL 2.27.
    std::unique_ptr<SharedMemory> registered(int64_t bytes);

    // The watchdog looks here. Throws DeadlineError where a call has not returned in time, Error where NCCL has
    // failed. Never waits.
    void poll();
    // The communicator is not to be used any more: its work is aborted on the device, and streams go on with what it
    // left. Nothing while a thread is in a call, which may free what NCCL stands on.
    void abort() noexcept;

   private:
    void check_open() const;
    // The call that a thread is in: written before it, read by the watchdog without a lock.
    struct InCall {
        explicit InCall(NcclComm& comm, const char* name) : comm(comm) { comm.calling_ = name; }
        ~InCall() { comm.calling_ = nullptr; }
        NcclComm& comm;
    };

    class Window;

    Options options_;
    int rank_, size_;
    Device device_;
    ncclComm* comm_ = nullptr;
    std::mutex mutex_;
    std::atomic<const char*> calling_ = nullptr;
    std::atomic<uint64_t> calls_ = 0;
    // of poll() alone
    uint64_t seen_ = 0;
    WaitClock in_call_;
};

}  // namespace rz
