#include "kernels/runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "kernels/runtime/context.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/memory_changes.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

constexpr int kKinds = int(MemKind::count_), kDeviceKinds = int(DeviceKind::planned) + 1;

const char* name_of(MemKind kind) {
    static const char* const kNames[kKinds] = {"parameters",  "gradients", "optimizer", "gathered",
                                               "activations", "comm",      "workspace", "data"};
    return kNames[int(kind)];
}

// ---- ledger ---------------------------------------------------------------------------------------------------------

struct MemoryLedger::Row {
    std::mutex mutex;
    std::array<int64_t, kKinds> now{}, peak{};
    int64_t total = 0, total_peak = 0;

    // All rows' changes are kept in the first one.
    std::atomic<bool> keeps_changes = false;
    std::vector<MemoryChange> changes;

    static Row& first(MemoryLedger& ledger) { return ledger.rows_[0]; }
    void keep(DeviceKind where, MemKind kind, int64_t bytes, const char* name) noexcept {
        if (!keeps_changes) return;
        std::lock_guard lock(mutex);
        const std::chrono::duration<double> now_is = std::chrono::steady_clock::now().time_since_epoch();
        try {
            changes.push_back({now_is.count(), where, kind, bytes, name ? name : name_of(kind)});
        } catch (const std::bad_alloc&) {  // buffers are given back in destructors: the list ends here
            keeps_changes = false;
        }
    }
    void count(MemKind kind, int64_t bytes) {
        std::lock_guard lock(mutex);
        int64_t& of_kind = now[size_t(kind)];
        of_kind += bytes;
        total += bytes;
        peak[size_t(kind)] = std::max(peak[size_t(kind)], of_kind);
        total_peak = std::max(total_peak, total);
    }
    static void change(MemoryLedger& ledger, DeviceKind where, MemKind kind, int64_t bytes, const char* name) {
        first(ledger).keep(where, kind, bytes, name);
        ledger.rows_[size_t(where)].count(kind, bytes);
    }
    // As add() and remove(), under the buffer's name.
    friend void count_buffer(MemoryLedger& ledger, DeviceKind where, MemKind kind, int64_t bytes, const char* name) {
        change(ledger, where, kind, bytes, name);
    }
    friend std::vector<MemoryChange> set_keeping(MemoryLedger& ledger, bool keep) {
        Row& row = first(ledger);
        std::lock_guard lock(row.mutex);
        row.keeps_changes = keep;
        return keep ? std::vector<MemoryChange>() : std::exchange(row.changes, {});
    }
};
inline void count_buffer(MemoryLedger&, DeviceKind, MemKind, int64_t bytes, const char* name);
inline std::vector<MemoryChange> set_keeping(MemoryLedger&, bool keep);

void keep_changes(MemoryLedger& ledger) { set_keeping(ledger, true); }

std::vector<MemoryChange> take_changes(MemoryLedger& ledger) { return set_keeping(ledger, false); }

MemoryLedger::MemoryLedger() : rows_(new Row[kDeviceKinds]) {}

MemoryLedger::~MemoryLedger() = default;

void MemoryLedger::add(DeviceKind where, MemKind kind, int64_t bytes) {
    Row::change(*this, where, kind, bytes, nullptr);
}

void MemoryLedger::remove(DeviceKind where, MemKind kind, int64_t bytes) {
    Row::change(*this, where, kind, -bytes, nullptr);
}

int64_t MemoryLedger::now(DeviceKind where, MemKind kind) const {
    Row& row = rows_[int(where)];
    std::lock_guard lock(row.mutex);
    return row.now[int(kind)];
}

int64_t MemoryLedger::peak(DeviceKind where, MemKind kind) const {
    Row& row = rows_[int(where)];
    std::lock_guard lock(row.mutex);
    return row.peak[int(kind)];
}

int64_t MemoryLedger::now(DeviceKind where) const {
    Row& row = rows_[int(where)];
    std::lock_guard lock(row.mutex);
    return row.total;
}

int64_t MemoryLedger::peak(DeviceKind where) const {
    Row& row = rows_[int(where)];
    std::lock_guard lock(row.mutex);
    return row.total_peak;
}

void MemoryLedger::reset_peaks() {
    for (int i = 0; i < kDeviceKinds; ++i) {
        std::lock_guard lock(rows_[i].mutex);
        rows_[i].peak = rows_[i].now;
        rows_[i].total_peak = rows_[i].total;
    }
}

std::string MemoryLedger::table(DeviceKind where) const {
    std::string text = format("  %-12s %12s %12s\n", "memory", "now", "peak");
    for (int k = 0; k < kKinds; ++k)
        if (peak(where, MemKind(k)) > 0)
            text += format("  %-12s %12s %12s\n", name_of(MemKind(k)), human_bytes(now(where, MemKind(k))).c_str(),
                           human_bytes(peak(where, MemKind(k))).c_str());
    text += format("  %-12s %12s %12s\n", "total", human_bytes(now(where)).c_str(), human_bytes(peak(where)).c_str());
    return text;
}

// ---- buffers --------------------------------------------------------------------------------------------------------

constexpr int64_t kHugePage = int64_t(2) << 20;

// Linux hands out more memory than there is and kills a process when it touches it. So what is asked for is compared
// with what is left, less what was handed out before and is not in use yet. Other ranks of this host are seen only
// once they use theirs.
static bool fits_host(int64_t bytes, const RankContext* context) {
    if (bytes < int64_t(16) << 20) return true;  // reading /proc takes tens of microseconds
    const int64_t left = available_host_memory();
    if (left == INT64_MAX) return true;
    const int64_t promised = (context ? context->memory.now(DeviceKind::cpu) : 0) - resident_host_memory();
    return bytes <= left - std::max<int64_t>(0, promised);
}

static void* allocate_host(int64_t bytes, const RankContext* context) {
    // Huge pages: a step walks through hundreds of MiB several times.
    const bool huge = bytes >= 2 * kHugePage;
    void* data = nullptr;
    if (!fits_host(bytes, context)) return nullptr;
    if (posix_memalign(&data, size_t(huge ? kHugePage : 256), size_t(bytes)) != 0) return nullptr;
    if (huge) madvise(data, size_t(bytes), MADV_HUGEPAGE);
#ifdef RZ_POISON
    std::memset(data, 0xff, size_t(bytes));
#endif
    return data;
}

// True: the memory is counted and nothing more.
static bool charged_only(Device device) {
    return device.is_planned() && !(device.context && device.context->planned.executes);
}

// On whose side of the ledger memory stands.
static DeviceKind side_of(Device device, bool pinned) {
    const bool one = device.is_planned() && device.context && device.context->one_memory;
    return pinned && !one ? DeviceKind::cpu : device.kind;
}

Buffer::Buffer(Device device, int64_t bytes, MemKind kind, std::string name)
    : Buffer(device, /*pinned=*/false, bytes, kind, std::move(name)) {}

Buffer Buffer::host_for(Device device, int64_t bytes, MemKind kind, std::string name) {
    return Buffer(device, /*pinned=*/true, bytes, kind, std::move(name));
}

Buffer::Buffer(Device device, bool pinned, int64_t bytes, MemKind kind, std::string name)
    : bytes_(bytes), device_(device), pinned_(pinned), kind_(kind), name_(std::move(name)) {
    require(bytes >= 0, "buffer '%s': negative size %ld", name_.c_str(), bytes);
    if (bytes == 0) return;
#ifdef RZ_CUDA
    if (device.is_cuda()) {
        device.make_current();
        const cudaError_t status = pinned ? cudaMallocHost(&data_, size_t(bytes)) : cudaMalloc(&data_, size_t(bytes));
        if (status != cudaSuccess) {
            cudaGetLastError();
            data_ = nullptr;
        }
    } else
#endif
        if (charged_only(device)) {
        if (pinned || bytes <= device.free_bytes()) data_ = detail::reserve_addresses(bytes, /*usable=*/pinned);
    } else {
        data_ = allocate_host(bytes, device.context);
    }
    const DeviceKind where = side_of(device, pinned);
    require(data_ != nullptr,
            "out of memory: %s for '%s' (%s), %s free on %s\n%s  try a smaller batch or sequence, recomputation, or a "
            "higher ZeRO stage on more ranks",
            human_bytes(bytes).c_str(), name_.c_str(), name_of(kind), human_bytes(device.free_bytes()).c_str(),
            device.name().c_str(), device.context ? device.context->memory.table(where).c_str() : "");
    if (device.context) count_buffer(device.context->memory, where, kind, bytes, name_.c_str());
}

Buffer::~Buffer() { release(); }

void Buffer::release() {
    if (!data_) return;
    if (device_.context)
        count_buffer(device_.context->memory, side_of(device_, pinned_), kind_, -bytes_, name_.c_str());
    if (charged_only(device_)) return detail::release_addresses(std::exchange(data_, nullptr), bytes_);
    free_after_queued_work(device_, pinned_, std::exchange(data_, nullptr));
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    pinned_ = other.pinned_;
    kind_ = other.kind_;
    name_ = std::move(other.name_);
    return *this;
}

}  // namespace rz
