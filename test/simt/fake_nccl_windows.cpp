// ncclMemAlloc and windows. Memory is a file without a name, which other processes map as well. What misuse does in
// NCCL:
//
//   a member does not come to ncclCommWindowRegister      the others wait forever, here as there
//   memory that is not ncclMemAlloc's                     an error, here as there
//   a pair of GPUs without P2P (SIMT_P2P=0), and anything else that leaves a communicator without symmetric memory
//                                                         success, and a handle that is no window; so here.
//                                                         ncclDevCommCreate says ncclInvalidUsage
//   members register windows of different sizes           each maps the other's wrongly; here it aborts
//   a kernel asks where a peer has what is no window, or lies beyond its end, or of a peer that is not there
//                                                         some address; here it aborts
//   a collective's buffer lies at another place of a window than on another rank, or there in none
//                                                         wrong values, or a hang; here it aborts
//   a window is used when it was deregistered             a CUDA fault (cudaErrorIllegalAddress) by a copy; here too
//   a communicator goes that has windows, memory goes that is registered
//                                                         addresses that are mapped to nothing or are never given back;
//                                                         here it aborts
#include "test/simt/fake_nccl.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/simt/fake_device.h"
#include "test/simt/streams.h"

namespace simt {

namespace {

constexpr size_t kGranularity = size_t(64) << 10;
constexpr size_t kStride = size_t(4) << 30;  // from one rank's addresses to the next

struct Memory {
    int fd;
    size_t bytes;
    int device;
    int windows = 0;
};
// A kernel, which runs under the device's lock, takes it: nobody asks for the device while holding it.
std::mutex mutex;
auto& memories = *new std::map<char*, Memory>;  // never destroyed: threads may end later

struct Reach {
    size_t bytes;
    int ranks;
};
auto& reaches = *new std::map<ncclWindow_vidmem*, Reach>;

bool symmetric_memory() { return number_from("SIMT_P2P", 1) != 0; }

}  // namespace

struct NcclWindows::Meeting {
    std::atomic<uint64_t> come, left;
    int pid, fd;
    Call call;
    size_t bytes;
};

struct NcclWindows::Window {
    ncclWindow_vidmem* record;  // in device memory
    char* memory;
    size_t at, bytes;
};

size_t NcclWindows::rendezvous_bytes(int ranks) { return sizeof(Meeting) * size_t(ranks) + alignof(Meeting); }

NcclWindows::NcclWindows(void* rendezvous, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    const auto a = alignof(Meeting), at = reinterpret_cast<uintptr_t>(rendezvous);
    meetings_ = reinterpret_cast<Meeting*>((at + a - 1) / a * a);
}

NcclWindows::~NcclWindows() {
    if (base_) forget_addresses(base_), munmap(base_, kStride * size_t(ranks_));
}

void NcclWindows::meet(Call call, int fd, size_t bytes) {
    Meeting& own = meetings_[rank_];
    own.pid = getpid(), own.fd = fd, own.call = call, own.bytes = bytes;
    own.come.store(++met_, std::memory_order_release);
    for (int r = 0; r < ranks_; r++) {
        while (meetings_[r].come.load(std::memory_order_acquire) < met_) sched_yield();
        if (meetings_[r].call != call) nccl_misuse("one rank registers a window while another makes a ncclDevComm");
        if (meetings_[r].bytes != bytes) nccl_misuse("ranks register windows of different sizes");
    }
}

void NcclWindows::leave() {
    meetings_[rank_].left.store(met_, std::memory_order_release);
    for (int r = 0; r < ranks_; r++)
        while (meetings_[r].left.load(std::memory_order_acquire) < met_) sched_yield();
}

ncclTeam_t NcclWindows::team() const {
    const bool hosts_of_one = getenv("NCCL_HOSTID");  // ranks that say they are on hosts of their own
    return {.nRanks = hosts_of_one ? 1 : ranks_, .rank = hosts_of_one ? 0 : rank_, .stride = 1};
}

ncclResult_t NcclWindows::create(ncclDevComm_t* made) {
    if (!symmetric_memory()) return ncclInvalidUsage;
    meet(Call::dev_comm, -1, 0);
    leave();
    memset(static_cast<void*>(made), 0, sizeof *made);
    made->rank = made->lsaRank = rank_, made->nRanks = ranks_, made->lsaSize = team().nRanks;
    return ncclSuccess;
}

ncclResult_t NcclWindows::add(void* p, size_t bytes, ncclWindow_t* out) {
    if (!symmetric_memory())
        return *out = static_cast<ncclWindow_t>(p), ncclSuccess;  // as ncclCommRegister: a handle, but no window
    *out = nullptr;
    int fd = -1;
    size_t all = 0;
    {
        std::lock_guard lock(mutex);
        const auto found = memories.find(static_cast<char*>(p));
        if (found == memories.end()) return ncclUnhandledCudaError;  // cuMemRetainAllocationHandle
        if (bytes > found->second.bytes) return ncclInvalidArgument;
        found->second.windows++;
        fd = found->second.fd, all = found->second.bytes;
    }
    meet(Call::window, fd, all);
    if (!base_) {
        base_ = static_cast<char*>(
            mmap(nullptr, kStride * size_t(ranks_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        note_addresses(base_, kStride * size_t(ranks_));
    }
    auto w = std::make_unique<Window>(Window{nullptr, static_cast<char*>(p), used_, all});
    if (used_ + all > kStride) return ncclSystemError;
    for (int r = 0; r < ranks_; r++) {
        const std::string file = "/proc/" + std::to_string(meetings_[r].pid) + "/fd/" + std::to_string(meetings_[r].fd);
        const int peer = open(file.c_str(), O_RDWR | O_CLOEXEC);
        char* at = base_ + size_t(r) * kStride + used_;
        if (peer < 0 || mmap(at, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, peer, 0) == MAP_FAILED)
            return ncclSystemError;
        close(peer);
        note_memory(at, all, current_device(), /*counted=*/false);
    }
    w->record = static_cast<ncclWindow_vidmem*>(calloc(1, sizeof *w->record));
    w->record->lsaFlatBase = base_ + used_;
    w->record->lsaRank = w->record->worldRank = rank_;
    w->record->stride4G = uint32_t(kStride >> 32);
    note_memory(w->record, sizeof *w->record, current_device(), false);
    {
        std::lock_guard lock(mutex);
        reaches[w->record] = {all, ranks_};
    }
    used_ += all;
    leave();
    *out = w->record;
    windows_.push_back(std::move(w));
    return ncclSuccess;
}

void NcclWindows::unmap(const Window& w) {
    for (int r = 0; r < ranks_; r++) {
        char* at = base_ + size_t(r) * kStride + w.at;
        forget_memory(at);
        mmap(at, w.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    forget_memory(w.record);
    {
        std::lock_guard lock(mutex);
        reaches.erase(w.record);
        memories.at(w.memory).windows--;
    }
    free(w.record);
}

uint64_t NcclWindows::place_of(const void* p, size_t bytes) const {
    const char* first = static_cast<const char*>(p);
    for (const auto& w : windows_)
        if (first >= w->memory && first + bytes <= w->memory + w->bytes) return 1 + w->at + size_t(first - w->memory);
    return 0;
}

ncclResult_t NcclWindows::remove(ncclWindow_t win) {
    if (!symmetric_memory() || !win) return ncclSuccess;
    for (auto w = windows_.begin(); w != windows_.end(); ++w) {
        if ((*w)->record != win) continue;
        unmap(**w);
        windows_.erase(w);
        return ncclSuccess;
    }
    nccl_misuse("ncclCommWindowDeregister of what is no window of this communicator");
}

void NcclWindows::abandon() {
    for (const auto& w : windows_) unmap(*w);
    windows_.clear();
}

}  // namespace simt

using namespace simt;

// For kernels (comm/nccl_window.cu).
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer) {
    std::lock_guard lock(mutex);
    const auto reach = reaches.find(window);
    if (reach == reaches.end()) nccl_misuse("ncclGetLsaPointer of what is no window");
    if (offset >= reach->second.bytes) nccl_misuse("ncclGetLsaPointer beyond the end of a window");
    if (peer < 0 || peer >= reach->second.ranks) nccl_misuse("ncclGetLsaPointer of a peer that is not there");
    return window->lsaFlatBase + size_t(peer) * (size_t(window->stride4G) << 32) + offset;
}

extern "C" {

ncclResult_t ncclMemAlloc(void** p, size_t size) {
    const size_t bytes = (size + kGranularity - 1) / kGranularity * kGranularity;
    if (!size || !room_on_device(bytes)) return *p = nullptr, ncclUnhandledCudaError;
    const int fd = memfd_create("ncclMemAlloc", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(bytes))) return ncclUnhandledCudaError;
    *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*p == MAP_FAILED) return *p = nullptr, ncclUnhandledCudaError;
    memset(*p, 0xff, bytes);
    note_memory(*p, bytes, current_device(), /*counted=*/true);
    std::lock_guard lock(mutex);
    memories[static_cast<char*>(*p)] = {fd, bytes, current_device()};
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void* p) {
    if (!p) return ncclSuccess;
    const Memory memory = [&] {
        std::lock_guard lock(mutex);
        const auto found = memories.find(static_cast<char*>(p));
        if (found == memories.end()) return Memory{-1, 0, 0};
        if (found->second.windows) nccl_misuse("ncclMemFree of memory that is registered: deregister the window first");
        const Memory taken = found->second;
        memories.erase(found);
        return taken;
    }();
    if (!memory.bytes) return ncclUnhandledCudaError;
    forget_memory(p);
    munmap(p, memory.bytes);
    close(memory.fd);
    return ncclSuccess;
}
}
