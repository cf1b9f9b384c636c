#include "kernels/runtime/device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/runtime/context.h"
#include "kernels/runtime/cuda_build.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/op_timer.h"
#include "kernels/runtime/queues.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

using Clock = std::chrono::steady_clock;

// ---- events ---------------------------------------------------------------------------------------------------------

#ifdef RZ_CUDA
// Events of each GPU, without and with timing, that nobody holds: the next record() takes one. Making and destroying
// one takes the host some microseconds, and every message needs two. Waits that are queued keep what they wait for when
// an event is recorded anew.
struct IdleEvents {
    std::mutex mutex;
    std::map<std::pair<int, bool>, std::vector<cudaEvent_t>> events;
};
static IdleEvents& idle_events() {
    static IdleEvents* const idle = new IdleEvents;  // outlives every event
    return *idle;
}

static void check_ranks(const RankContext& context) { require(!context.given_up, "another rank has gone"); }
#endif

struct Event::Impl {
    // CPU
    std::mutex mutex;
    std::condition_variable changed;
    bool signalled = false;
    std::exception_ptr failure;  // of the work before it
    Clock::time_point when;
    // planned: a time on the clocks of the context, which must be there as long as someone waits
    RankContext* planned = nullptr;
    std::shared_ptr<RankContext> kept;  // of a stream that has a context of its own
    Ticks time = 0;
    // CUDA
    bool is_cuda = false;
    const RankContext* context = nullptr;
#ifdef RZ_CUDA
    cudaEvent_t cuda = nullptr;
    std::pair<int, bool> kind;  // its GPU, whether it has a time
    void take(std::pair<int, bool> kind_) {
        kind = kind_;
        std::lock_guard lock(idle_events().mutex);
        std::vector<cudaEvent_t>& idle = idle_events().events[kind];
        if (idle.empty()) {
            CUDA_CHECK(cudaEventCreateWithFlags(&cuda, kind.second ? cudaEventDefault : cudaEventDisableTiming));
        } else {
            cuda = idle.back();
            idle.pop_back();
        }
    }
    ~Impl() {
        if (!cuda) return;
        std::lock_guard lock(idle_events().mutex);
        try {
            idle_events().events[kind].push_back(cuda);
        } catch (const std::bad_alloc&) {
            cudaEventDestroy(cuda);
        }
    }
#endif

    void signal(std::exception_ptr failed_with) {
        // Notify under the lock: the waiter may drop the last reference as soon as it can see the flag.
        std::lock_guard lock(mutex);
        failure = std::move(failed_with);
        when = Clock::now();
        signalled = true;
        changed.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return signalled; });
        if (failure) std::rethrow_exception(failure);
    }
};

bool Event::done() const {
    if (!impl_ || impl_->planned) return true;
#ifdef RZ_CUDA
    if (impl_->is_cuda) {
        const cudaError_t status = cudaEventQuery(impl_->cuda);
        if (status == cudaErrorNotReady) return false;
        CUDA_CHECK(status);
        return true;
    }
#endif
    std::lock_guard lock(impl_->mutex);
    if (impl_->failure) std::rethrow_exception(impl_->failure);
    return impl_->signalled;
}

void Event::synchronize() const {
    if (!impl_) return;
    if (impl_->planned) {
        Ticks& host = impl_->planned->planned.host;
        host = std::max(host, impl_->time);
        return;
    }
#ifdef RZ_CUDA
    if (impl_->is_cuda) {
        CUDA_CHECK(cudaEventSynchronize(impl_->cuda));
        check_ranks(*impl_->context);
        return;
    }
#endif
    impl_->wait();
}

double Event::seconds_since(const Event& start) const {
    require(impl_ && start.impl_ && impl_->is_cuda == start.impl_->is_cuda && !impl_->planned == !start.impl_->planned,
            "Event::seconds_since: both events must have been recorded, on devices of one kind");
    if (impl_ == start.impl_) return 0;  // one lock
    if (impl_->planned) return kSecondsPerTick * double(impl_->time - start.impl_->time);
#ifdef RZ_CUDA
    if (impl_->is_cuda) {
        float ms = 0;
        CUDA_CHECK(cudaEventElapsedTime(&ms, start.impl_->cuda, impl_->cuda));
        return 1e-3 * ms;
    }
#endif
    std::scoped_lock lock(impl_->mutex, start.impl_->mutex);
    return std::chrono::duration<double>(impl_->when - start.impl_->when).count();
}

// ---- CPU streams ----------------------------------------------------------------------------------------------------

// Runs work in order on one thread. After work has thrown, later work is skipped until synchronize() has reported the
// error, waits for other streams too: they may need what was not made. Events are still signalled, or waiters would
// hang, and carry the error to whoever waits for them.
struct Stream::Worker {
    struct Item {
        std::function<void()> work;
        bool always = false;  // event signals run after a failure too
    };

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> queue;
    bool busy = false, stop = false;
    std::exception_ptr error;
    std::thread thread;

    Worker() : thread([this] { loop(); }) {}
    ~Worker() {
        {
            std::lock_guard lock(mutex);
            stop = true;
        }
        changed.notify_all();
        thread.join();
    }

    void push(std::function<void()> work, bool always = false) {
        {
            std::lock_guard lock(mutex);
            queue.push_back({std::move(work), always});
        }
        changed.notify_all();
    }

    std::exception_ptr failure() {
        std::lock_guard lock(mutex);
        return error;
    }

    // Keeps it until what is queued now is done. Nothing to do for an idle worker.
    void hold(const std::shared_ptr<void>& memory) {
        std::lock_guard lock(mutex);
        if (queue.empty() && !busy) return;
        queue.push_back({[memory] {}, /*always=*/true});
    }

    void loop() {
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [&] { return stop || !queue.empty(); });
            if (queue.empty()) return;
            Item item = std::move(queue.front());
            queue.pop_front();
            busy = true;
            const bool skip = error && !item.always;
            lock.unlock();
            std::exception_ptr thrown;
            if (!skip) {
                try {
                    item.work();
                } catch (...) {
                    thrown = std::current_exception();
                }
            }
            item.work = nullptr;  // captured state goes before anyone is told that the work is done
            lock.lock();
            if (thrown && !error) error = thrown;
            busy = false;
            if (queue.empty()) changed.notify_all();
        }
    }

    void drain() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return queue.empty() && !busy; });
        if (error) std::rethrow_exception(std::exchange(error, nullptr));
    }
};

// The CPU streams of this process, not of a rank: ranks that are threads read each other's buffers. Never destroyed:
// buffers may outlive any static.
struct LiveStreams {
    std::mutex mutex;
    std::vector<Stream*> streams;
};
static LiveStreams& live_streams() {
    static LiveStreams& live = *new LiveStreams;
    return live;
}

void free_after_queued_work(Device device, bool pinned, void* data) noexcept {
#ifdef RZ_CUDA
    if (device.is_cuda()) {
        cudaSetDevice(device.index);  // the thread may be another than the rank's
        cudaDeviceSynchronize();      // cudaFreeHost() does not promise to
        pinned ? cudaFreeHost(data) : cudaFree(data);
        return;
    }
#endif
    (void)device, (void)pinned;
    struct Memory {
        void* data = nullptr;
        ~Memory() { std::free(data); }
    };
    std::shared_ptr<Memory> memory;
    try {
        memory = std::make_shared<Memory>();
        memory->data = data;
        std::lock_guard lock(live_streams().mutex);
        for (Stream* stream : live_streams().streams) stream->worker_->hold(memory);
    } catch (const std::exception&) {  // no memory for the note: better never freed than too early
        if (memory) memory->data = nullptr;
    }
}

Stream::Stream(Device device, std::string name, bool high_priority)
    : device_(device),
      own_context_(device.context ? nullptr : std::make_shared<RankContext>()),
      context_(device.context ? device.context : own_context_.get()),
      name_(std::move(name)),
      executes_(context_->planned.executes) {
    if (device.is_planned()) return;
    if (!device.is_cuda()) {
        try {
            worker_ = std::make_shared<Worker>();
        } catch (const std::system_error& error) {
            fail(
                "stream '%s': no thread can be started: %s\n"
                "  raise the limits on processes and memory (ulimit -u, ulimit -v)",
                name_.c_str(), error.what());
        }
        std::lock_guard lock(live_streams().mutex);
        live_streams().streams.push_back(this);
        return;
    }
#ifdef RZ_CUDA
    device_.make_current();
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&cuda_, cudaStreamNonBlocking, high_priority ? greatest : least));
    count_cuda_streams(+1);
#else
    (void)high_priority;
    fail("stream '%s' on a CUDA device: this program was built without CUDA", name_.c_str());
#endif
}

Stream::~Stream() {
    if (worker_) {
        std::lock_guard lock(live_streams().mutex);
        std::erase(live_streams().streams, this);
    }
#ifdef RZ_CUDA
    if (cuda_) {
        cudaStreamSynchronize(cuda_);
        cudaStreamDestroy(cuda_);
        count_cuda_streams(-1);
    }
#endif
}

void Stream::enqueue_cpu(std::function<void()> work) { worker_->push(std::move(work)); }

Event Stream::record(bool timing) {
    Event event;
    event.impl_ = std::make_shared<Event::Impl>();
    if (device_.is_planned()) {
        plan({});
        event.impl_->planned = context_;
        event.impl_->kept = own_context_;
        event.impl_->time = clock_;
        return event;
    }
#ifdef RZ_CUDA
    if (cuda_) {
        event.impl_->is_cuda = true;
        event.impl_->context = context_;
        event.impl_->kept = own_context_;
        event.impl_->take({device_.index, timing});
        CUDA_CHECK(cudaEventRecord(event.impl_->cuda, cuda_));
        return event;
    }
#endif
    (void)timing;
    worker_->push([impl = event.impl_, worker = worker_.get()] { impl->signal(worker->failure()); }, /*always=*/true);
    return event;
}

#ifdef RZ_CUDA
static void CUDART_CB run_host_function(void* data) {
    std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(data));
    try {
        (*work)();
    } catch (const std::exception& error) {  // nothing may leave a CUDA callback
        std::fprintf(stderr, "train_llama: in a CUDA host function: %s\n", error.what());
        _exit(70);  // kExitError of comm/process.h
    }
}
#endif

void Stream::wait(const Event& event) {
    if (!event.impl_) return;
    if (event.impl_->planned) return wait_until(event.impl_->time);
    if (device_.is_planned()) return event.synchronize();
#ifdef RZ_CUDA
    if (cuda_ && event.impl_->is_cuda) {
        CUDA_CHECK(cudaStreamWaitEvent(cuda_, event.impl_->cuda, 0));
        return;
    }
    if (cuda_) {
        enqueue_host([impl = event.impl_] { impl->wait(); });
        return;
    }
    if (event.impl_->is_cuda) {
        worker_->push([event, device = device_] { event.synchronize(); });
        return;
    }
#endif
    worker_->push([impl = event.impl_] { impl->wait(); });
}

void Stream::synchronize() {
    if (device_.is_planned()) return record().synchronize();
#ifdef RZ_CUDA
    if (cuda_) {
        CUDA_CHECK(cudaStreamSynchronize(cuda_));
        check_ranks(*context_);
        return;
    }
#endif
    worker_->drain();
}

void Stream::enqueue_host(std::function<void()> work) {
    if (device_.is_planned()) {
        if (executes_) work();
        return;
    }
#ifdef RZ_CUDA
    if (cuda_) {
        auto held = std::make_unique<std::function<void()>>(std::move(work));
        CUDA_CHECK(cudaLaunchHostFunc(cuda_, run_host_function, held.get()));
        held.release();  // now the callback's
        return;
    }
#endif
    enqueue_cpu(std::move(work));
}

// Work enqueued now starts when the host has come here and the work before is done.
void Stream::plan(const OpCall& op) {
    const PlannedMachine& machine = context_->planned;
    wait_until(machine.host);
    if (!machine.cost || !(op.type || op.label)) return;
    const Ticks time = machine.cost(op, *this);
    require(time >= 0 && !__builtin_add_overflow(clock_, time, &clock_),
            "stream '%s': %s costs %ld ticks, from %ld on: a cost is not negative, and clocks end at 2^63",
            name_.c_str(), op.name().c_str(), time, clock_);
}

void Stream::end_op(const Event& start, const OpCall& op) { op_timer_->add(op.name(), start, record(true)); }

void Stream::copy(void* dst, const void* src, int64_t bytes) {
    if (bytes == 0) return;
    const OpCall call{.label = "copy", .bytes = bytes};
    const Event start = op_timer_ ? record(true) : Event{};
    if (device_.is_planned()) {
        if (executes_) std::memcpy(dst, src, size_t(bytes));
        plan(call);
    } else if (!cuda_) {
        enqueue_cpu([=] { std::memcpy(dst, src, size_t(bytes)); });
    }
#ifdef RZ_CUDA
    if (cuda_) CUDA_CHECK(cudaMemcpyAsync(dst, src, size_t(bytes), cudaMemcpyDefault, cuda_));
#endif
    if (op_timer_) end_op(start, call);
}

// One core does not fill memory as fast as it can be filled. Large pieces, since memset passes by the caches for those.
static void zero_host(void* dst, int64_t bytes) {
#ifdef _OPENMP
    constexpr int64_t kLeast = int64_t(2) << 20;
    const int64_t pieces = std::clamp<int64_t>(bytes / kLeast, 1, omp_get_max_threads());
#else
    const int64_t pieces = 1;
#endif
    const int64_t piece = round_up(ceil_div(bytes, pieces), 4096);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t begin = 0; begin < bytes; begin += piece)
        std::memset(static_cast<char*>(dst) + begin, 0, size_t(std::min(piece, bytes - begin)));
}

void Stream::zero(void* dst, int64_t bytes) {
    if (bytes == 0) return;
    const OpCall call{.label = "zero", .bytes = bytes};
    const Event start = op_timer_ ? record(true) : Event{};
    if (device_.is_planned()) {
        if (executes_) std::memset(dst, 0, size_t(bytes));
        plan(call);
    } else if (!cuda_) {
        enqueue_cpu([=] { zero_host(dst, bytes); });
    }
#ifdef RZ_CUDA
    if (cuda_) CUDA_CHECK(cudaMemsetAsync(dst, 0, size_t(bytes), cuda_));
#endif
    if (op_timer_) end_op(start, call);
}

// ---- devices --------------------------------------------------------------------------------------------------------

bool built_with_cuda() {
#ifdef RZ_CUDA
    return true;
#else
    return false;
#endif
}

std::string cuda_build() {
#ifdef RZ_CUDA
    // NVIDIA's minor version compatibility: the first driver of the toolkit's major version will do.
    static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 14000, "which driver is the first of this CUDA?");
    return format("CUDA %d.%d, driver %s or newer", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                  CUDART_VERSION >= 13000 ? "580" : "525");
#else
    return "no CUDA";
#endif
}

int cuda_device_count(std::string* why) {
    std::string reason;
    int count = 0;
#ifdef RZ_CUDA
    const cudaError_t status = cudaGetDeviceCount(&count);  // leaves count as it is on failure
    if (status == cudaErrorInsufficientDriver)
        reason = "no NVIDIA driver, or one older than this program's: " + cuda_build();
    else if (status != cudaSuccess)
        reason = cudaGetErrorString(status);
    else if (count == 0)
        reason = "the driver sees no GPU";
    if (status != cudaSuccess) {
        cudaGetLastError();
        count = 0;
    }
#else
    reason = "built without CUDA";
#endif
    if (why) *why = reason;
    return count;
}

Device pick_device(DeviceChoice choice, int local_rank, std::string* note) {
    const Device cpu{DeviceKind::cpu, 0};
    if (choice == DeviceChoice::cpu) return cpu;
    std::string why;
    const int count = cuda_device_count(&why);
    if (count > 0) return {DeviceKind::cuda, local_rank % count};
    require(choice == DeviceChoice::automatic,
            "device cuda: no usable CUDA device (%s)\n  use device cpu or auto, or %s", why.c_str(),
            built_with_cuda() ? "install a driver for the GPU (nvidia-smi shows whether it works)"
                              : "run make where nvcc is installed");
    if (note) *note = "no GPU is used: " + why;
    return cpu;
}

static std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    std::string line;
    while (std::getline(info, line))
        if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    return "CPU";
}

std::string Device::name() const {
    if (is_planned()) return "planned device";
#ifdef RZ_CUDA
    if (is_cuda()) {
        cudaDeviceProp prop;
        CUDA_CHECK(cudaGetDeviceProperties(&prop, index));
        return prop.name;
    }
#endif
    return cpu_name() + format(" (%ld cores)", sysconf(_SC_NPROCESSORS_ONLN));
}

void Device::make_current() const {
#ifdef RZ_CUDA
    if (is_cuda()) CUDA_CHECK(cudaSetDevice(index));
#endif
}

int64_t Device::free_bytes() const {
    if (is_planned()) return total_bytes() - (context ? context->memory.now(kind) : 0);
#ifdef RZ_CUDA
    if (is_cuda()) {
        size_t free = 0, total = 0;
        make_current();
        CUDA_CHECK(cudaMemGetInfo(&free, &total));
        return int64_t(free);
    }
#endif
    return std::min(available_host_memory(), total_bytes());
}

int64_t Device::total_bytes() const {
    if (is_planned()) return context ? context->planned.memory_bytes : PlannedMachine{}.memory_bytes;
#ifdef RZ_CUDA
    if (is_cuda()) {
        size_t free = 0, total = 0;
        make_current();
        CUDA_CHECK(cudaMemGetInfo(&free, &total));
        return int64_t(total);
    }
#endif
    return int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace rz
