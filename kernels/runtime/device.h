#pragma once
// Devices, streams, events and memory, with the same meaning on every backend.
//
// A stream is an in-order queue. On CUDA it is a cudaStream_t; on the CPU it is a worker thread that runs one piece of
// work after the other (the work itself may use OpenMP). An event marks a point in one stream and another stream may
// wait for it. So the overlap of communication with compute is one code, and a missing wait is a data race on both. On
// the planned device (planned.h) a stream is a virtual clock.
//
// Nothing here synchronises unless its name says so.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "kernels/runtime/check.h"
#include "kernels/runtime/dtype.h"
#include "kernels/runtime/names.h"
#include "kernels/runtime/op_call.h"

struct CUstream_st;

namespace rz {

using CudaStream = CUstream_st*;  // cudaStream_t, named without CUDA's headers

enum class DeviceKind { cpu, cuda, planned };

struct RankContext;

struct Device {
    DeviceKind kind = DeviceKind::cpu;
    int index = 0;
    // Whose device this is (context.h): its buffers are counted there. nullptr: nothing is counted, and each stream
    // makes a context for itself.
    RankContext* context = nullptr;

    bool is_cuda() const { return kind == DeviceKind::cuda; }
    bool is_planned() const { return kind == DeviceKind::planned; }
    // The same hardware, whosever it is.
    bool operator==(const Device& other) const { return kind == other.kind && index == other.index; }
    std::string name() const;    // "NVIDIA H200", "AMD EPYC 9654 (2 threads)"
    void make_current() const;   // cudaSetDevice for the calling thread; else nothing
    int64_t free_bytes() const;  // on the CPU: of the machine, or of this process's control group if that is less
    int64_t total_bytes() const;
};

bool built_with_cuda();
// Number of usable CUDA devices; 0 without a GPU, driver or CUDA build. `why` says which, if given.
int cuda_device_count(std::string* why = nullptr);

enum class DeviceChoice { automatic, cuda, cpu };  // automatic: CUDA if usable, else the CPU
template <>
inline constexpr auto kNames<DeviceChoice> = std::to_array<Named<DeviceChoice>>({{DeviceChoice::automatic, "auto"},
                                                                                 {DeviceChoice::cuda, "cuda"},
                                                                                 {DeviceChoice::cpu, "cpu"}});

// Throws if CUDA is asked for and can't be had. `note` receives one line for the user when `automatic` falls back.
Device pick_device(DeviceChoice choice, int local_rank, std::string* note);

class Stream;
class OpTimer;

// A point in a stream. Copies share the same point. A default-made event is already complete.
class Event {
   public:
    bool done() const;         // polls
    void synchronize() const;  // blocks the calling thread
    bool valid() const { return impl_ != nullptr; }
    // Seconds from `start` to this event; both must be complete and made with timing.
    double seconds_since(const Event& start) const;

   private:
    friend class Stream;
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

// Frees memory of Buffer, but not before the work that is queued at this moment, on any stream, is done: a Buffer may
// go while work that uses it is queued, also when a constructor throws. On the CPU nothing waits: the streams hold the
// memory until they have come that far. On CUDA this waits for the device, as cudaFree() does. Host memory only if
// `pinned`.
void free_after_queued_work(Device device, bool pinned, void* data) noexcept;

class Stream {
   public:
    // `high_priority` matters on CUDA only: communication is not to wait for compute in a queue.
    Stream(Device device, std::string name, bool high_priority = false);
    ~Stream();  // drains
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device device() const { return device_; }
    RankContext& context() const { return *context_; }
    const std::string& name() const { return name_; }

    Event record(bool timing = false);
    void wait(const Event& event);  // work enqueued from now on starts after `event`
    void synchronize();             // blocks until everything enqueued is done; rethrows a worker's error

    // Runs `work` on the host, in stream order: on the CPU stream's worker, or as a CUDA host function (which must not
    // call CUDA).
    void enqueue_host(std::function<void()> work);

    void copy(void* dst, const void* src, int64_t bytes);  // any direction; must not overlap
    void zero(void* dst, int64_t bytes);

    CudaStream cuda() const { return cuda_; }

    // False on a planned device whose ops are only counted: nobody reads what memory should have.
    bool computes() const { return !device_.is_planned() || executes_; }
    // On a planned device: when what was enqueued so far ends, and to start what follows no earlier than `time`.
    Ticks clock() const { return clock_; }
    void wait_until(Ticks time) { clock_ = clock_ < time ? time : clock_; }

    // Ops call this: enqueues cpu(args) on the worker, or calls cuda(args, stream) at once; `stream` is a CudaStream,
    // or this where the op needs to know whose it is. Args are copied.
    template <class Args, class Cuda>
    void run(const Args& args, void (*cpu)(const Args&), Cuda cuda) {
        const Event start = op_timer_ ? record(true) : Event{};
        const char* label = nullptr;
        if constexpr (requires { args.label(); }) label = args.label();
        if (device_.is_planned()) {
            if (executes_) cpu(args);
            plan({.label = label, .type = &typeid(Args), .args = &args});
        } else if (!device_.is_cuda())
            enqueue_cpu([args, cpu] { cpu(args); });
        else if constexpr (std::is_invocable_v<Cuda, const Args&, CudaStream>)
            cuda(args, cuda_);
        else if constexpr (std::is_invocable_v<Cuda, const Args&, Stream&>)
            cuda(args, *this);
        if (op_timer_) end_op(start, {.label = label, .type = &typeid(Args), .args = nullptr, .bytes = 0});
    }

    // From now on (nullptr: no longer) adds up the time of each op by name. See op_timer.h.
    void set_op_timer(OpTimer* timer) { op_timer_ = timer; }

   private:
    friend void free_after_queued_work(Device, bool, void*) noexcept;
    void enqueue_cpu(std::function<void()> work);
    void plan(const OpCall& op);
    void end_op(const Event& start, const OpCall& op);

    Device device_;
    std::shared_ptr<RankContext> own_context_;  // where the device has none
    RankContext* context_;
    std::string name_;
    CudaStream cuda_ = nullptr;
    OpTimer* op_timer_ = nullptr;
    bool executes_ = false;  // planned only, as the clock
    Ticks clock_ = 0;
    struct Worker;
    std::shared_ptr<Worker> worker_;
};

// Names a CUDA launcher where it exists; nullptr in a build without CUDA (where no stream is a CUDA stream).
#ifdef RZ_CUDA
#define RZ_CUDA_OP(fn) fn
#else
#define RZ_CUDA_OP(fn) nullptr
#endif

}  // namespace rz
