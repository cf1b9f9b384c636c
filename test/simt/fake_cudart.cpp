// The CUDA runtime that the project calls, on host memory; linked in place of libcudart. Memory, streams, events and
// graphs are here, devices in fake_device.cpp.
//
// Device memory is allocated at its exact size and filled with 0xff (NaN). Streams are lazy: work is queued, and done
// only when something synchronises or polls, streams interleaved at random within the order that events give. So a
// missing cudaStreamWaitEvent, or a host buffer reused before its copy is done, gives a wrong result for some seeds. Of
// several processes, one whose host waits for another without a CUDA call has its streams moved on after a while, as a
// device would do it.
// A thread has a current device (cudaSetDevice), and what waits for a device waits for that one's streams. A kernel, or
// an event, on a stream of another device is refused, as on GPUs.
// Every call at which the host waits for the device, or at which a driver may make it wait, is a line in the file
// SIMT_WAITS. SIMT_STREAMS=now in the environment turns queueing off.
//
// SIMT_FAULT=N (in the process of rank SIMT_FAULT_RANK, by PMI_RANK or RINGZERO_RANK, if given) makes the N-th piece of
// work of the device an illegal address. As on a device the error stays: nothing runs any more and every call returns
// it.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

#include "test/simt/fake_device.h"
#include "test/simt/runtime.h"
#include "test/simt/streams.h"

using namespace simt;

namespace {

using Clock = std::chrono::steady_clock;

struct Graph;
std::atomic<uint64_t> events = 0;
struct Recording {
    bool done = false;
    Clock::time_point when;
};
struct Event {
    Event() { ++events; }
    std::shared_ptr<Recording> last;  // waits that are queued keep theirs
    int device = current_device();
    Graph* graph = nullptr;  // recorded while capturing: the nodes that it stands for
    std::vector<int> nodes;
};
struct Node {
    std::function<cudaError_t()> work;
    std::vector<int> after;
};
struct Graph {
    std::vector<Node> nodes;
};
struct Operation {
    std::function<cudaError_t()> work;
    std::function<bool()> poll;       // or this
    std::shared_ptr<Recording> wait;  // or this
    bool host = false;                // may block and is run without the lock
};
struct Stream {
    std::deque<Operation> queue;
    bool busy = false;  // its first operation is being run
    int device = current_device();
    Graph* capture = nullptr;
    std::vector<int> tail;  // while capturing: what the next node comes after
    bool capture_origin = false;
};
struct Allocation {
    size_t bytes;
    int device;
    bool counted = true;
};

// Recursive, and can be let go entirely however often it is held.
class DeviceLock {
   public:
    void lock() {
        if (owner_ != std::this_thread::get_id()) mutex_.lock(), owner_ = std::this_thread::get_id();
        depth_++;
    }
    void unlock() {
        if (--depth_ == 0) owner_ = std::thread::id(), mutex_.unlock();
    }
    template <class F>
    void without(F f) {
        const int depth = std::exchange(depth_, 0);
        owner_ = std::thread::id(), mutex_.unlock();
        f();
        mutex_.lock(), owner_ = std::this_thread::get_id();
        depth_ = depth;
    }

   private:
    std::mutex mutex_;
    std::atomic<std::thread::id> owner_{};
    int depth_ = 0;
};

// Never destroyed: static destructors elsewhere may still free memory.
auto& device_lock = *new DeviceLock;
auto& streams = *new std::vector<Stream*>;
auto& allocations = *new std::map<const char*, Allocation>;
auto& pinned = *new std::map<const char*, size_t>;
auto& reserved = *new std::map<const char*, size_t>;  // addresses
auto& device_used = *new std::vector<size_t>(16);
cudaError_t pending_error = cudaSuccess;
uint64_t stream_rng = 0;
thread_local bool in_host_function = false;

// Not allowed in a host function. A real driver may return cudaErrorNotPermitted, or deadlock.
void refuse_in_host_function(const char* call) {
    if (!in_host_function) return;
    fprintf(stderr, "fake CUDA runtime: %s in a host function (cudaLaunchHostFunc)\n", call);
    abort();
}

std::atomic<uint64_t> calls{0};

#define LOCKED                         \
    refuse_in_host_function(__func__); \
    calls++;                           \
    std::lock_guard<DeviceLock> locked(device_lock)

bool lazy() {
    static const bool now = getenv("SIMT_STREAMS") && !strcmp(getenv("SIMT_STREAMS"), "now");
    return !now;
}

uint32_t draw(uint32_t n) {
    if (!stream_rng) seed_streams(options().seed);
    stream_rng ^= stream_rng << 13, stream_rng ^= stream_rng >> 7, stream_rng ^= stream_rng << 17;
    return uint32_t(stream_rng >> 33) % n;
}

cudaError_t fault = cudaSuccess;  // stays

// Counts a piece of work; true from the one on that faults.
bool faulted() {
    static const size_t at = [] {
        const char* rank = getenv("SIMT_FAULT_RANK");
        const char* own = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("RINGZERO_RANK");
        return rank && (!own || strcmp(rank, own) != 0) ? 0 : number_from("SIMT_FAULT", 0);
    }();
    static size_t work = 0;
    if (at && fault == cudaSuccess && ++work >= at) fault = cudaErrorIllegalAddress;
    return fault != cudaSuccess;
}

// Result of a synchronising call: the error of the work it waited for, once; a fault always.
cudaError_t take_error() {
    if (fault != cudaSuccess) return fault;
    const cudaError_t e = pending_error;
    pending_error = cudaSuccess;
    return e;
}

bool runnable(const Stream& s) {
    if (s.queue.empty() || s.busy) return false;
    const Operation& op = s.queue.front();
    return !op.wait || op.wait->done;
}

// Does one operation of some stream; false if none can make progress.
bool step() {
    if (fault != cudaSuccess) return false;
    std::vector<Stream*> candidates;
    for (Stream* s : streams)
        if (runnable(*s)) candidates.push_back(s);
    while (!candidates.empty()) {
        const uint32_t i = draw(uint32_t(candidates.size()));
        Stream* s = candidates[i];
        candidates.erase(candidates.begin() + i);
        Operation& op = s->queue.front();
        s->busy = true;
        bool done = true;
        if (op.poll)
            done = op.poll();
        else if (op.host)
            device_lock.without([&] { op.work(); });
        else if (op.work && !faulted())
            report(op.work());
        s->busy = false;
        if (!done) continue;
        s->queue.pop_front();
        return true;
    }
    return false;
}

template <class Done>
void run_until(Done done) {
    while (!done() && fault == cudaSuccess) {
        if (step() || fault != cudaSuccess) continue;
        bool waiting = false;  // for another process, or for another thread that runs a host function
        for (const Stream* s : streams)
            waiting |= !s->queue.empty() && (s->busy || (runnable(*s) && s->queue.front().poll));
        if (!waiting) fprintf(stderr, "fake CUDA runtime: the streams wait for each other's events forever\n"), abort();
        device_lock.without([] { sched_yield(); });
    }
}
// Drains one device, the calling thread's if none is named.
void drain(int device = current_device()) {
    run_until([device] {
        for (const Stream* s : streams)
            if (s->device == device && !s->queue.empty()) return false;
        return true;
    });
}

void host_waits(const char* call) {
    static FILE* const log = getenv("SIMT_WAITS") ? fopen(getenv("SIMT_WAITS"), "a") : nullptr;
    if (log) fprintf(log, "%s\n", call), fflush(log);
}

void move_on_when_quiet() {
    static const bool started = [] {
        if (number_from("MPI_LOCALNRANKS", number_from("RINGZERO_RANKS", 1)) < 2) return false;
        std::thread([] {
            for (uint64_t seen = 0;; seen = calls) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                while (calls == seen) {
                    device_lock.lock();
                    const bool moved = step();
                    device_lock.unlock();
                    if (!moved) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                }
            }
        }).detach();
        return true;
    }();
    (void)started;
}

Stream* as_stream(cudaStream_t s) {
    return s == cudaStreamLegacy || s == cudaStreamPerThread ? nullptr : reinterpret_cast<Stream*>(s);
}
Event* as_event(cudaEvent_t e) { return reinterpret_cast<Event*>(e); }

cudaError_t push(cudaStream_t stream, Operation op) {
    LOCKED;
    if (fault != cudaSuccess) return fault;
    Stream* s = as_stream(stream);
    if (s && s->capture) {
        if (op.poll) return report(cudaErrorStreamCaptureUnsupported);
        s->capture->nodes.push_back({std::move(op.work), s->tail});
        s->tail = {int(s->capture->nodes.size()) - 1};
        return cudaSuccess;
    }
    if (s && lazy()) {
        s->queue.push_back(std::move(op));
        move_on_when_quiet();
        return cudaSuccess;
    }
    drain();  // the legacy default stream: in order with everything
    if (op.poll)
        while (!op.poll()) sched_yield();
    return op.work ? report(op.work()) : cudaSuccess;
}

// Bytes after p in the device allocation that holds p; SIZE_MAX for host memory.
size_t room_at(const void* p) {
    const char* c = static_cast<const char*>(p);
    auto it = allocations.upper_bound(c);
    if (it == allocations.begin()) return SIZE_MAX;
    --it;
    const size_t offset = size_t(c - it->first);
    return offset > it->second.bytes || (offset == it->second.bytes && offset) ? SIZE_MAX : it->second.bytes - offset;
}
// Among addresses where there is no memory any more, or none yet.
bool unmapped(const void* p) {
    const char* c = static_cast<const char*>(p);
    const auto it = reserved.upper_bound(c);
    return it != reserved.begin() && c < std::prev(it)->first + std::prev(it)->second && room_at(p) == SIZE_MAX;
}
bool in_bounds(const char* what, const void* p, size_t bytes) {
    const size_t room = room_at(p);
    if (room == SIZE_MAX || bytes <= room) return true;
    fprintf(stderr, "fake CUDA runtime: %s of %zu bytes at %p, where the allocation has %zu left\n", what, bytes, p,
            room);
    return false;
}

// Neither device memory nor pinned: such a copy is done, or at least its source read, before the call returns.
bool pageable(const void* p) {
    if (room_at(p) != SIZE_MAX) return false;
    const char* c = static_cast<const char*>(p);
    auto it = pinned.upper_bound(c);
    return it == pinned.begin() || c >= (--it)->first + it->second;
}
}  // namespace

namespace simt {

uint64_t events_made() { return events; }
cudaError_t report(cudaError_t e) {
    if (e != cudaSuccess) pending_error = e;
    return e;
}
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
    Operation op;
    op.work = std::move(work);
    return push(stream, std::move(op));
}
cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> poll) {
    Operation op;
    op.poll = std::move(poll);
    return push(stream, std::move(op));
}
void note_memory(void* p, size_t bytes, int device, bool counted) {
    std::lock_guard<DeviceLock> locked(device_lock);
    allocations[static_cast<char*>(p)] = {bytes, device, counted};
    if (counted) device_used[size_t(device)] += bytes;
    if (race) race->allocated(p, bytes);
}
void forget_memory(void* p) {
    std::lock_guard<DeviceLock> locked(device_lock);
    const auto it = allocations.find(static_cast<char*>(p));
    if (it == allocations.end()) return;
    if (it->second.counted) device_used[size_t(it->second.device)] -= it->second.bytes;
    allocations.erase(it);
    if (race) race->freed(p);
}
bool room_on_device(size_t bytes) {
    std::lock_guard<DeviceLock> locked(device_lock);
    return device_used[size_t(current_device())] + bytes <= device_memory();
}
void note_addresses(void* p, size_t bytes) {
    std::lock_guard<DeviceLock> locked(device_lock);
    reserved[static_cast<char*>(p)] = bytes;
}
void forget_addresses(void* p) {
    std::lock_guard<DeviceLock> locked(device_lock);
    reserved.erase(static_cast<char*>(p));
}
bool is_of_current_device(cudaStream_t s) { return !as_stream(s) || as_stream(s)->device == current_device(); }
void seed_streams(uint64_t seed) { stream_rng = seed * 2654435761u + 88172645463325252ull; }
void mark_written(const void* p, size_t bytes) {
    if (race) race->written(p, bytes);
}
}  // namespace simt

extern "C" {

// ---- memory

cudaError_t CUDARTAPI cudaMalloc(void** p, size_t bytes) {
    LOCKED;
    host_waits(__func__);
    if (!room_on_device(bytes) || posix_memalign(p, 256, bytes ? bytes : 1))
        return *p = nullptr, report(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes);
    note_memory(*p, bytes, current_device(), /*counted=*/true);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFree(void* p) {
    LOCKED;
    if (!p) return cudaSuccess;
    host_waits(__func__);
    const auto it = allocations.find(static_cast<char*>(p));
    drain(it == allocations.end() ? current_device() : it->second.device);
    if (it == allocations.end()) return report(cudaErrorInvalidValue);
    forget_memory(p);
    free(p);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMallocHost(void** p, size_t bytes) {
    LOCKED;
    host_waits(__func__);
    if (posix_memalign(p, 4096, bytes ? bytes : 1)) return report(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes);
    pinned[static_cast<char*>(*p)] = bytes;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFreeHost(void* p) {
    LOCKED;
    if (!p) return cudaSuccess;
    host_waits(__func__);
    drain();
    if (!pinned.erase(static_cast<char*>(p))) return report(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaHostRegister(void* p, size_t bytes, unsigned) {
    LOCKED;
    return pinned[static_cast<char*>(p)] = bytes, cudaSuccess;
}
cudaError_t CUDARTAPI cudaHostUnregister(void* p) {
    LOCKED;
    return pinned.erase(static_cast<char*>(p)) ? cudaSuccess : report(cudaErrorInvalidValue);
}
cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    LOCKED;
    *total = device_memory();
    *free_bytes = *total - device_used[size_t(current_device())];
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    LOCKED;
    *a = cudaPointerAttributes{};
    a->type = room_at(p) != SIZE_MAX ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    a->device = current_device();
    a->devicePointer = a->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    LOCKED;
    if (!in_bounds("copy to", dst, bytes) || !in_bounds("copy from", src, bytes)) return report(cudaErrorInvalidValue);
    if (pageable(dst) || pageable(src)) host_waits("cudaMemcpyAsync of pageable memory");
    return enqueue(s, [=] {
        if (bytes && (unmapped(dst) || unmapped(src))) return fault = cudaErrorIllegalAddress;
        memmove(dst, src, bytes);
        mark_written(dst, bytes);
        return cudaSuccess;
    });
}
cudaError_t CUDARTAPI cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    return e != cudaSuccess ? e : take_error();
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t s) {
    LOCKED;
    if (!in_bounds("memset", dst, bytes)) return report(cudaErrorInvalidValue);
    return enqueue(s, [=] {
        memset(dst, value, bytes);
        mark_written(dst, bytes);
        return cudaSuccess;
    });
}
cudaError_t CUDARTAPI cudaMemset(void* dst, int value, size_t bytes) {
    return cudaMemsetAsync(dst, value, bytes, nullptr);
}

// ---- streams and events

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
    LOCKED;
    auto* x = new Stream;
    streams.push_back(x);
    *s = reinterpret_cast<cudaStream_t>(x);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t s) {
    LOCKED;
    host_waits(__func__);
    Stream* x = as_stream(s);
    if (!x)
        drain();
    else if (x->capture)
        return report(cudaErrorStreamCaptureUnsupported);
    else
        run_until([x] { return x->queue.empty(); });
    return take_error();
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t s) {
    LOCKED;
    Stream* x = as_stream(s);
    if (!x) return report(cudaErrorInvalidResourceHandle);
    run_until([x] { return x->queue.empty(); });
    std::erase(streams, x);
    delete x;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceSynchronize() {
    LOCKED;
    host_waits(__func__);
    drain();
    return take_error();
}
cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    return *e = reinterpret_cast<cudaEvent_t>(new Event), cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    LOCKED;
    Event* x = as_event(e);
    Stream* from = as_stream(s);
    if (from && from->device != x->device) return report(cudaErrorInvalidResourceHandle);
    if (from && from->capture) {
        x->graph = from->capture;
        x->nodes = from->tail;
        return cudaSuccess;
    }
    x->graph = nullptr;
    x->last = std::make_shared<Recording>();
    return enqueue(s, [r = x->last] {
        r->done = true;
        r->when = Clock::now();
        return cudaSuccess;
    });
}
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    LOCKED;
    Stream* to = as_stream(s);
    Event* x = as_event(e);
    if (x->graph) {  // joins the capture
        if (!to) return report(cudaErrorStreamCaptureImplicit);
        to->capture = x->graph;
        to->tail.insert(to->tail.end(), x->nodes.begin(), x->nodes.end());
        return cudaSuccess;
    }
    if (to && to->capture) return report(cudaErrorStreamCaptureIsolation);
    Operation op;
    op.wait = x->last;
    if (to && lazy())
        to->queue.push_back(std::move(op));
    else
        drain();
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t e) {
    LOCKED;
    const std::shared_ptr<Recording> r = as_event(e)->last;
    if (r && !r->done) host_waits(__func__);
    run_until([&] { return !r || r->done; });
    return take_error();
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t e) {
    LOCKED;
    const std::shared_ptr<Recording> r = as_event(e)->last;
    if (r && !r->done) step();  // or a loop around this call would never end
    if (fault != cudaSuccess) return fault;
    if (r && !r->done) return cudaErrorNotReady;
    return take_error();
}
cudaError_t CUDARTAPI cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    LOCKED;
    const std::shared_ptr<Recording> a = as_event(start)->last, b = as_event(end)->last;
    if (!a || !b) return report(cudaErrorInvalidResourceHandle);
    if (!a->done || !b->done) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(b->when - a->when).count();
    return cudaSuccess;
}
// CUDA lets an event be destroyed while it is in a queue.
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t e) {
    LOCKED;
    delete as_event(e);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void* data) {
    Operation op;
    op.work = [=] {
        in_host_function = true;
        fn(data);
        in_host_function = false;
        return cudaSuccess;
    };
    op.host = true;
    return push(s, std::move(op));
}

// ---- graphs: the same closures, recorded; a launch replays them in any order that their dependencies allow

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    LOCKED;
    Stream* x = as_stream(s);
    if (!x || x->capture) return report(cudaErrorStreamCaptureUnsupported);
    x->capture = new Graph;
    x->capture_origin = true;
    x->tail.clear();
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
    Stream* x = as_stream(s);
    return *status = x && x->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
    LOCKED;
    Stream* x = as_stream(s);
    if (!x || !x->capture || !x->capture_origin) return report(cudaErrorStreamCaptureUnmatched);
    Graph* g = x->capture;
    // Every other stream's last node must have been joined, or CUDA refuses.
    std::vector<bool> reached(g->nodes.size());
    for (int i : x->tail) reached[size_t(i)] = true;
    for (size_t i = g->nodes.size(); i-- > 0;)
        if (reached[i])
            for (int j : g->nodes[i].after) reached[size_t(j)] = true;
    bool joined = true;
    for (Stream* o : streams)
        if (o->capture == g) {
            for (int i : o->tail) joined = joined && reached[size_t(i)];
            o->capture = nullptr, o->capture_origin = false, o->tail.clear();
        }
    *graph = joined ? reinterpret_cast<cudaGraph_t>(g) : nullptr;
    return joined ? cudaSuccess : report(cudaErrorStreamCaptureUnjoined);
}
cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    return *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph))), cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* n) {
    return *n = reinterpret_cast<Graph*>(graph)->nodes.size(), cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
    return delete reinterpret_cast<Graph*>(graph), cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) {
    LOCKED;
    drain();
    return delete reinterpret_cast<Graph*>(exec), cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    const Graph* g = reinterpret_cast<Graph*>(exec);
    return enqueue(s, [g] {
        std::vector<bool> done(g->nodes.size());
        for (size_t left = g->nodes.size(); left; left--) {
            std::vector<size_t> can;
            for (size_t i = 0; i < g->nodes.size(); i++) {
                bool free = !done[i];
                for (int j : g->nodes[i].after) free = free && done[size_t(j)];
                if (free) can.push_back(i);
            }
            const size_t i = can[draw(uint32_t(can.size()))];
            done[i] = true;
            if (const cudaError_t e = g->nodes[i].work(); e != cudaSuccess) return e;
        }
        return cudaSuccess;
    });
}

// ---- errors

cudaError_t CUDARTAPI cudaGetLastError() {
    LOCKED;
    return take_error();
}
cudaError_t CUDARTAPI cudaPeekAtLastError() { return fault != cudaSuccess ? fault : pending_error; }
}  // extern "C"
