#pragma once
// Buffers and the memory ledger that counts every byte of them by kind. A buffer knows its kind and name, so that
// running out of memory names what was wanted and prints the ledger.

#include <array>
#include <string>

#include "kernels/runtime/device.h"

namespace rz {

enum class MemKind : int { parameters, gradients, optimizer, gathered, activations, comm, workspace, data, count_ };
const char* name_of(MemKind kind);

// Bytes now and at the peak, by kind, of one rank (context.h). Host staging memory is counted under its kind on the
// host side.
class MemoryLedger {
   public:
    MemoryLedger();
    ~MemoryLedger();
    MemoryLedger(const MemoryLedger&) = delete;
    MemoryLedger& operator=(const MemoryLedger&) = delete;

    void add(DeviceKind where, MemKind kind, int64_t bytes);
    void remove(DeviceKind where, MemKind kind, int64_t bytes);

    int64_t now(DeviceKind where, MemKind kind) const;
    int64_t peak(DeviceKind where, MemKind kind) const;  // of this kind alone
    int64_t now(DeviceKind where) const;
    int64_t peak(DeviceKind where) const;  // of the sum
    void reset_peaks();
    std::string table(DeviceKind where) const;  // a few lines for people

   private:
    struct Row;
    std::unique_ptr<Row[]> rows_;  // by DeviceKind
};

// Device memory, counted by the ledger of the rank whose device it is. 256-byte aligned, uninitialised (NaN-filled in
// builds with RZ_POISON). Movable. Empty if bytes == 0. The memory outlives the work that was enqueued before the
// Buffer went (free_after_queued_work).
class Buffer {
   public:
    Buffer() = default;
    Buffer(Device device, int64_t bytes, MemKind kind, std::string name);
    // Memory of the host that device copies can reach asynchronously: pinned where `device` is CUDA.
    static Buffer host_for(Device device, int64_t bytes, MemKind kind, std::string name);
    ~Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;

    void* data() const { return data_; }
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    char* bytes_at(int64_t offset) const { return static_cast<char*>(data_) + offset; }
    int64_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

   private:
    Buffer(Device device, bool pinned, int64_t bytes, MemKind kind, std::string name);
    void release();

    void* data_ = nullptr;
    int64_t bytes_ = 0;
    Device device_{};
    bool pinned_ = false;
    MemKind kind_ = MemKind::workspace;
    std::string name_;
};

// The address of an element of an array.
inline char* at(const void* base, int64_t elements, DType t) {
    return static_cast<char*>(const_cast<void*>(base)) + elements * size_of(t);
}

}  // namespace rz
