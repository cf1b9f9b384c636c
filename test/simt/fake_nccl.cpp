// NCCL between processes of one machine, behind the real header; linked in place of libnccl. Operations are queued on
// the fake device's streams. Bytes travel through a shared-memory file named by the unique id, with one small ring per
// ordered pair of ranks; a group makes progress whenever its stream is drained, and yields the core when it can't.
// As in NCCL, operations of one communicator take effect in the order in which they were issued.
//
// An operation holds thread blocks of the device, as many as its communicator may take (maxCTAs, or NCCL's own 32),
// from when it starts until it is complete. SIMT_NCCL_BLOCKS in the environment says how many there are for NCCL;
// unset: enough.
//
// A broken contract: NCCL itself mostly continues, with broken memory or in a hang. This one says what was
// broken and aborts: two threads in one communicator, which a thread is in from its first call in a group to the
// group's
// end; a group that is open when its thread ends or its communicator goes; a non-blocking communicator that is used
// while a job is pending. On such a communicator ncclGroupEnd leaves a job, and ncclCommGetAsyncError is what completes
// it, as in NCCL 2.28.
//
// The first send to a peer, and the first receive from one, connect the two: 2 and 10 MiB of the device for each
// channel, of which there are 32, or maxCTAs rounded up to a power of two (NVLink on one node, comm/nccl_memory.h).
// They stay until the communicator goes or is aborted. The file that SIMT_NCCL_CALLS names has their number and bytes.
//
// Windows (fake_nccl_windows.cpp): misuse is told there. Collectives of values in windows are counted in that file too,
// as ncclAllGather-registered.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/simt/control.h"
#include "test/simt/fake_device.h"
#include "test/simt/fake_nccl.h"
#include "test/simt/runtime.h"
#include "test/simt/streams.h"

using namespace simt;

namespace {

constexpr size_t kRingBytes = 64 << 10;

struct Ring {  // written by one rank, read by one
    std::atomic<uint64_t> written, read;
    char data[kRingBytes];
};
struct Shared {
    std::atomic<int> attached;
    Ring rings[1];  // [from * ranks + to]; after them the rendezvous of windows
};

struct Transfer {
    bool send;
    char* data;
    size_t bytes;
    int peer;
    size_t moved = 0;
};

}  // namespace

struct Operation;
using Job = std::vector<std::pair<std::shared_ptr<Operation>, cudaStream_t>>;

struct ncclComm {
    int rank, ranks;
    Shared* shared;
    size_t mapped;
    bool blocking = true;
    size_t blocks = 32;
    uint64_t issued = 0, completed = 0;
    std::atomic<bool> aborted = false;    // by any thread, while another drains streams
    std::atomic<std::thread::id> user{};  // the thread that is in it
    int calls = 0;                        // of that thread, one in another
    Job job = {};                         // of a non-blocking one: waits for ncclCommGetAsyncError
    bool job_seen = false;
    std::unique_ptr<simt::NcclWindows> windows = {};
    std::map<std::pair<int, bool>, std::pair<char*, size_t>> buffers = {};  // by peer and whether it sends to it
};

// One enqueued operation: messages, then what is computed from them.
struct Operation {
    ncclComm* comm;
    std::vector<Transfer> transfers;
    std::vector<std::vector<char>> scratch;
    std::function<void()> finish;
    uint64_t order = 0;
    size_t blocks = 0;  // that it holds
    int device = current_device();
};

namespace simt {
void nccl_misuse(const std::string& what) {
    fprintf(stderr, "fake NCCL: %s\n", what.c_str());
    abort();
}
}  // namespace simt

namespace {

[[noreturn]] void misuse(const std::string& what) { nccl_misuse(what); }

void enter(ncclComm* c, const char* call) {
    std::thread::id none{};
    if (!c->user.compare_exchange_strong(none, std::this_thread::get_id()) && none != std::this_thread::get_id())
        misuse(std::string("two threads in one communicator: one calls ") + call);
    c->calls++;
}
void leave(ncclComm* c) {
    if (--c->calls == 0) c->user = std::thread::id{};
}
// A thread's stay in a communicator during one call.
struct Inside {
    Inside(ncclComm* c, const char* call) : c(c) { enter(c, call); }
    ~Inside() { leave(c); }
    Inside(const Inside&) = delete;
    ncclComm* c;
};

struct Group {
    int depth = 0;
    Job operations;
    std::vector<ncclComm*> entered;  // once for each operation
    ~Group() {
        if (depth) misuse("a thread ends with an open group: what was called in it is never launched");
    }
};
thread_local Group group;  // as in NCCL
std::string last_problem = "no error";

// The windows of a communicator, for one call.
struct InWindows : Inside {
    InWindows(ncclComm* c, const char* call) : Inside(c, call) {
        if (c->aborted) misuse(std::string(call) + " on a communicator that was aborted");
    }
    NcclWindows* operator->() const { return c->windows.get(); }
};

ncclResult_t problem(ncclResult_t r, const std::string& what) { return last_problem = what, r; }

// Moves what fits; true when all of it has gone.
bool advance(ncclComm& c, Transfer& t) {
    Ring& ring = c.shared->rings[t.send ? c.rank * c.ranks + t.peer : t.peer * c.ranks + c.rank];
    while (t.moved < t.bytes) {
        const uint64_t w = ring.written.load(std::memory_order_acquire), r = ring.read.load(std::memory_order_acquire);
        const uint64_t at = (t.send ? w : r) % kRingBytes;
        const size_t n = std::min({t.send ? kRingBytes - (w - r) : w - r, kRingBytes - at, t.bytes - t.moved});
        if (!n) return false;
        if (t.send) {
            memcpy(ring.data + at, t.data + t.moved, n);
            ring.written.store(w + n, std::memory_order_release);
        } else {
            memcpy(t.data + t.moved, ring.data + at, n);
            mark_written(t.data + t.moved, n);
            ring.read.store(r + n, std::memory_order_release);
        }
        t.moved += n;
    }
    return true;
}

// Thread blocks of the device; streams are drained by one thread at a time.
struct Blocks {
    size_t free = SIZE_MAX, held = 0;
    bool take(Operation& op) {
        if (op.blocks) return true;
        if (op.comm->blocks > free)
            misuse("an operation of " + std::to_string(op.comm->blocks) + " thread blocks, there are " +
                   std::to_string(free) + " for NCCL");
        if (op.comm->blocks > free - held) return false;
        held += op.blocks = op.comm->blocks;
        return true;
    }
    void give_back(Operation& op) { held -= std::exchange(op.blocks, 0); }
} blocks;

bool poll(Operation& op) {
    ncclComm& c = *op.comm;
    const auto ends = [&] {
        blocks.give_back(op);
        collectives_open(op.device, -1);
        return true;
    };
    if (c.aborted) return ends();
    if (op.order != c.completed + 1 || !blocks.take(op)) return false;
    // Messages to one peer keep their order; those to different peers do not wait for each other.
    std::vector<bool> send_blocked(size_t(c.ranks)), recv_blocked(size_t(c.ranks));
    bool all = true;
    for (Transfer& t : op.transfers) {
        auto&& blocked = (t.send ? send_blocked : recv_blocked)[size_t(t.peer)];
        if (blocked || !advance(c, t)) blocked = true, all = false;
    }
    if (!all) return false;
    if (op.finish) op.finish();
    c.completed++;
    return ends();
}

ncclResult_t launch(const Job& job) {
    for (auto& [op, stream] : job) {
        op->order = ++op->comm->issued;
        collectives_open(op->device, 1);
        if (enqueue_polled(stream, [op = op] { return poll(*op); }) != cudaSuccess) return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

// Joins all operations of one communicator and stream in the group, as NCCL does with sends and receives.
ncclResult_t launch_group() {
    Job joined;
    for (auto& [op, stream] : group.operations) {
        auto same = std::find_if(joined.begin(), joined.end(),
                                 [&](auto& j) { return j.first->comm == op->comm && j.second == stream; });
        if (same == joined.end()) {
            joined.emplace_back(op, stream);
            continue;
        }
        Operation& to = *same->first;
        to.transfers.insert(to.transfers.end(), op->transfers.begin(), op->transfers.end());
        for (auto& s : op->scratch) to.scratch.push_back(std::move(s));  // moved vectors keep their memory
        if (op->finish) to.finish = [a = to.finish, b = op->finish] { a ? a() : void(), b(); };
    }
    group.operations.clear();
    const bool later = !joined.empty() && !joined.front().first->comm->blocking;
    if (later) joined.front().first->comm->job = joined;
    const ncclResult_t result = later ? ncclInProgress : launch(joined);
    for (ncclComm* c : std::exchange(group.entered, {})) leave(c);
    return result;
}
struct Calls {
    std::mutex mutex;
    std::map<std::string, long> by_name;
    ~Calls() {
        const char* path = getenv("SIMT_NCCL_CALLS");
        FILE* file = path ? fopen(path, "a") : nullptr;
        if (!file) return;
        for (const auto& [name, n] : by_name) fprintf(file, "%s %ld\n", name.c_str(), n);
        fclose(file);
    }
} calls;

// Addresses that nobody may touch, counted as memory.
bool connect(ncclComm* c, int peer, bool sends) {
    if (peer == c->rank || c->buffers.count({peer, sends})) return true;
    size_t channels = 1;
    while (channels < std::min<size_t>(c->blocks, 32)) channels *= 2;
    const size_t bytes = channels * (sends ? 2 : 10) << 20;
    if (!room_on_device(bytes)) return false;
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    note_memory(p, bytes, current_device(), true);
    c->buffers[{peer, sends}] = {static_cast<char*>(p), bytes};
    const std::lock_guard lock(calls.mutex);
    ++calls.by_name["connections"];
    calls.by_name["connected-mib"] += long(bytes >> 20);
    return true;
}
void disconnect(ncclComm* c) {
    for (const auto& [key, memory] : std::exchange(c->buffers, {})) {
        forget_memory(memory.first);
        munmap(memory.first, memory.second);
    }
}

ncclResult_t submit(std::shared_ptr<Operation> op, cudaStream_t stream, const char* call) {
    enter(op->comm, call);
    {
        const std::lock_guard lock(calls.mutex);
        ++calls.by_name[call];
    }
    if (op->comm->aborted) misuse(std::string(call) + " on a communicator that was aborted");
    if (!op->comm->job.empty()) misuse(std::string(call) + " while the job of the last group is pending");
    group.entered.push_back(op->comm);
    group.operations.emplace_back(std::move(op), stream);
    return group.depth ? ncclSuccess : launch_group();
}

size_t size_of(ncclDataType_t t) {
    switch (t) {
        case ncclFloat32:
        case ncclInt32:
        case ncclUint32:
            return 4;
        case ncclFloat64:
        case ncclInt64:
        case ncclUint64:
            return 8;
        case ncclBfloat16:
        case ncclFloat16:
            return 2;
        default:
            return 1;
    }
}
bool summable(ncclDataType_t t) { return t == ncclFloat32 || t == ncclBfloat16 || t == ncclFloat16; }
float load(const char* p, ncclDataType_t t, size_t i) {
    if (t == ncclFloat32) return reinterpret_cast<const float*>(p)[i];
    if (t == ncclBfloat16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p)[i]);
    return float(reinterpret_cast<const _Float16*>(p)[i]);
}
void store(char* p, ncclDataType_t t, size_t i, float v) {
    if (t == ncclFloat32)
        reinterpret_cast<float*>(p)[i] = v;
    else if (t == ncclBfloat16)
        reinterpret_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(v);
    else
        reinterpret_cast<_Float16*>(p)[i] = _Float16(v);
}

// Adds to op: this rank receives `count` values from everyone (its own from `own`) and puts their sum in ascending rank
// order into `out`.
void receive_and_sum(Operation& op, const void* own, void* out, size_t count, ncclDataType_t type, bool average) {
    ncclComm* c = op.comm;
    std::vector<const char*> parts;
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) {
            parts.push_back(static_cast<const char*>(own));
            continue;
        }
        op.scratch.emplace_back(count * size_of(type));
        parts.push_back(op.scratch.back().data());
        op.transfers.push_back({false, op.scratch.back().data(), count * size_of(type), r});
    }
    op.finish = [=, before = op.finish] {
        if (before) before();
        for (size_t i = 0; i < count; i++) {
            float sum = 0;
            for (const char* p : parts) sum += load(p, type, i);
            store(static_cast<char*>(out), type, i, average ? sum / float(parts.size()) : sum);
        }
        mark_written(out, count * size_of(type));
    };
}
void send(Operation& op, const void* data, size_t bytes, int peer) {
    op.transfers.push_back({true, static_cast<char*>(const_cast<void*>(data)), bytes, peer});
}
std::shared_ptr<Operation> operation(ncclComm_t c) {
    auto op = std::make_shared<Operation>();
    op->comm = c;
    return op;
}

// Buffers of a collective that NCCL looks for in windows: in one on all ranks, at the same place of it, or on none.
// Each rank tells the others its place, before its values. Those that are found are counted.
std::shared_ptr<Operation> collective(ncclComm_t c, const char* call,
                                      std::initializer_list<std::pair<const void*, size_t>> buffers) {
    auto op = operation(c);
    uint64_t place = 1;
    for (const auto& [p, bytes] : buffers) {
        const uint64_t found = c->windows->place_of(p, bytes);
        place = place && found ? place * 31 + found : 0;
    }
    if (place) {
        const std::lock_guard lock(calls.mutex);
        ++calls.by_name[std::string(call) + "-registered"];
    }
    const auto words = [&](uint64_t value) {
        op->scratch.emplace_back(sizeof value);
        memcpy(op->scratch.back().data(), &value, sizeof value);
        return op->scratch.back().data();
    };
    char* own = words(place);
    std::vector<const char*> heard;
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        send(*op, own, sizeof place, r);
        char* theirs = words(0);
        heard.push_back(theirs);
        op->transfers.push_back({false, theirs, sizeof place, r});
    }
    op->finish = [=] {
        for (const char* theirs : heard)
            if (memcmp(theirs, own, sizeof place) != 0)
                misuse(std::string(call) + " of buffers that do not lie at one place of a window on all ranks");
    };
    return op;
}

}  // namespace

int simt::nccl_calls(const std::string& name) {
    const std::lock_guard lock(calls.mutex);
    const auto at = calls.by_name.find(name);
    return at == calls.by_name.end() ? 0 : int(at->second);
}

extern "C" {

ncclResult_t ncclGetVersion(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t r) {
    return r == ncclSuccess           ? "no error"
           : r == ncclInvalidArgument ? "invalid argument"
           : r == ncclSystemError     ? "unhandled system error"
                                      : "NCCL error";
}
const char* ncclGetLastError(ncclComm_t) { return last_problem.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    memset(id, 0, sizeof *id);
    std::random_device random;
    snprintf(id->internal, sizeof id->internal, "/simt-nccl-%d-%08x%08x", int(getpid()), random(), random());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (ranks < 1 || rank < 0 || rank >= ranks) return problem(ncclInvalidArgument, "rank outside the communicator");
    const std::string name(id.internal, strnlen(id.internal, sizeof id.internal));
    const size_t rings = sizeof(Shared) + sizeof(Ring) * size_t(ranks * ranks);
    const size_t bytes = rings + NcclWindows::rendezvous_bytes(ranks);
    const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, off_t(bytes)))
        return problem(ncclSystemError, "shm_open " + name + ": " + strerror(errno));
    void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED) return problem(ncclSystemError, "mmap");
    auto* c = new ncclComm{rank, ranks, static_cast<Shared*>(m), bytes};
    c->windows = std::make_unique<NcclWindows>(static_cast<char*>(m) + rings, rank, ranks);
    c->blocking = !config || config->blocking != 0;
    if (config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT) c->blocks = size_t(config->maxCTAs);
#if NCCL_VERSION_CODE >= 22800
    if (config && config->nChannelsPerNetPeer != NCCL_CONFIG_UNDEF_INT) {
        const std::lock_guard lock(calls.mutex);
        ++calls.by_name["nChannelsPerNetPeer-" + std::to_string(config->nChannelsPerNetPeer)];
    }
#endif
    blocks.free = number_from("SIMT_NCCL_BLOCKS", SIZE_MAX);
    // The file has no name left once everyone is in, so nothing is left over.
    if (c->shared->attached.fetch_add(1) + 1 == ranks) shm_unlink(name.c_str());
    *out = c;
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(out, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* r) {
    const Inside inside(c, __func__);
    if (!c->job.empty() && !std::exchange(c->job_seen, true)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // another thread that calls this now is seen
        return *r = ncclInProgress, ncclSuccess;
    }
    c->job_seen = false;
    const Job job = std::exchange(c->job, {});
    return *r = launch(job), ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int* n) { return *n = c->ranks, ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t c, int* r) { return *r = c->rank, ncclSuccess; }
ncclResult_t ncclCommFinalize(ncclComm_t c) {
    const Inside inside(c, __func__);
    if (group.depth) misuse("ncclCommFinalize with an open group");
    return cudaDeviceSynchronize() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (group.depth) misuse("ncclCommDestroy with an open group");
    enter(c, __func__);
    if (c->windows->any()) misuse("ncclCommDestroy of a communicator that has windows: deregister them first");
    if (!c->aborted) cudaDeviceSynchronize();
    disconnect(c);
    munmap(c->shared, c->mapped);
    delete c;
    return ncclSuccess;
}
// Work that is under way ends where it is and is no error of its stream, which goes on; then memory goes.
ncclResult_t ncclCommAbort(ncclComm_t c) {
    c->aborted = true;  // queued operations still name it
    c->windows->abandon();
    disconnect(c);
    return ncclSuccess;
}

// ---- windows

ncclResult_t ncclCommWindowRegister(ncclComm_t c, void* p, size_t bytes, ncclWindow_t* win, int) {
    return InWindows(c, __func__)->add(p, bytes, win);
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t win) { return InWindows(c, __func__)->remove(win); }
ncclTeam_t ncclTeamLsa(ncclComm_t c) { return InWindows(c, __func__)->team(); }
ncclResult_t ncclDevCommCreate(ncclComm_t c, ncclDevCommRequirements_t const*, ncclDevComm_t* made) {
    return InWindows(c, __func__)->create(made);
}
ncclResult_t ncclDevCommDestroy(ncclComm_t, ncclDevComm_t const*) { return ncclSuccess; }

ncclResult_t ncclGroupStart() { return group.depth++, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
    // As where two ranks can't be connected: SIMT_NCCL_HANG=1 in the environment.
    while (getenv("SIMT_NCCL_HANG")) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (!group.depth) return problem(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group.depth ? ncclSuccess : launch_group();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
    if (peer < 0 || peer >= c->ranks) return problem(ncclInvalidArgument, "ncclSend: no such peer");
    if (!connect(c, peer, true)) return problem(ncclUnhandledCudaError, "ncclSend: out of memory");
    auto op = operation(c);
    send(*op, data, count * size_of(type), peer);
    return submit(op, s, __func__);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
    if (peer < 0 || peer >= c->ranks) return problem(ncclInvalidArgument, "ncclRecv: no such peer");
    if (!connect(c, peer, false)) return problem(ncclUnhandledCudaError, "ncclRecv: out of memory");
    auto op = operation(c);
    op->transfers.push_back({false, static_cast<char*>(data), count * size_of(type), peer});
    return submit(op, s, __func__);
}

static bool valid_sum(ncclDataType_t type, ncclRedOp_t red) {
    return summable(type) && (red == ncclSum || red == ncclAvg);
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t red, ncclComm_t c,
                           cudaStream_t s) {
    if (!valid_sum(type, red)) return problem(ncclInvalidArgument, "sums and averages of floats only");
    auto op = collective(c, __func__, {{in, count * size_of(type)}, {out, count * size_of(type)}});
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank) send(*op, in, count * size_of(type), r);
    receive_and_sum(*op, in, out, count, type, red == ncclAvg);
    return submit(op, s, __func__);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t red, int root,
                        ncclComm_t c, cudaStream_t s) {
    if (!valid_sum(type, red)) return problem(ncclInvalidArgument, "sums and averages of floats only");
    auto op = operation(c);
    if (c->rank == root)
        receive_and_sum(*op, in, out, count, type, red == ncclAvg);
    else
        send(*op, in, count * size_of(type), root);
    return submit(op, s, __func__);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t red,
                               ncclComm_t c, cudaStream_t s) {
    if (!valid_sum(type, red)) return problem(ncclInvalidArgument, "sums and averages of floats only");
    const auto* p = static_cast<const char*>(in);
    const size_t bytes = count * size_of(type);
    auto op = collective(c, __func__, {{in, size_t(c->ranks) * bytes}});
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank) send(*op, p + size_t(r) * bytes, bytes, r);
    receive_and_sum(*op, p + size_t(c->rank) * bytes, out, count, type, red == ncclAvg);
    return submit(op, s, __func__);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t c, cudaStream_t s) {
    const size_t bytes = count * size_of(type);
    auto op = collective(c, __func__, {{out, size_t(c->ranks) * bytes}});
    char* own = static_cast<char*>(out) + size_t(c->rank) * bytes;
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        send(*op, in, bytes, r);
        op->transfers.push_back({false, static_cast<char*>(out) + size_t(r) * bytes, bytes, r});
    }
    op->finish = [=, before = op->finish] {
        before();
        memmove(own, in, bytes);
        mark_written(own, bytes);
    };
    return submit(op, s, __func__);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t s) {
    auto op = operation(c);
    const size_t bytes = count * size_of(type);
    if (c->rank != root) {
        op->transfers.push_back({false, static_cast<char*>(out), bytes, root});
        return submit(op, s, __func__);
    }
    for (int r = 0; r < c->ranks; r++)
        if (r != root) send(*op, in, bytes, r);
    op->finish = [=] {
        memmove(out, in, bytes);
        mark_written(out, bytes);
    };
    return submit(op, s, __func__);
}
}
