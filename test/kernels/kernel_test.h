#pragma once
// The same op on the CPU and on the CUDA device (a real one, or the emulator's), from the same input bits.
//
// A test calls its op as a function of a KernelRun, which hands out device memory and the stream. Most arguments are
// made by a case of dev/bench/ops.h, others from the test's own numbers:
//
//   compare_on_devices([&](KernelRun& run) { rmsnorm_forward(run.stream(), c.forward(run)); });
//
//   argmax(run.stream(), {.best = run.out("best", N, DType::f32), .logits = run.input(logits), ...});
//
// Outputs start as NaN and are followed by guard bytes. The CUDA run is done twice, in the emulator under another
// schedule, and must give the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "dev/bench/ops.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/memory.h"
#include "test/kernels/cpu_device.h"
#ifdef SIMT_EMU
#include "test/simt/control.h"
#endif

namespace rz::test {

// A tensor's bytes on the host
struct Data {
    DType dtype = DType::f32;
    std::vector<unsigned char> bytes;

    int64_t size() const { return int64_t(bytes.size()) / size_of(dtype); }
    double at(int64_t i) const {
        return with_dtype(dtype, [&]<class T>() {
            T v;
            memcpy(&v, bytes.data() + size_t(i) * sizeof(T), sizeof(T));
            return double(float(v));
        });
    }
    void set(int64_t i, float value) {
        with_dtype(dtype, [&]<class T>() {
            const T v(value);
            memcpy(bytes.data() + size_t(i) * sizeof(T), &v, sizeof(T));
        });
    }
};

inline Data zeros(int64_t n, DType dtype) { return {dtype, std::vector<unsigned char>(size_t(n * size_of(dtype)), 0)}; }

// Normal, rounded to dtype: both devices start from the same bits
inline Data normal(int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) {
    std::mt19937_64 generator(seed * 0x9e3779b97f4a7c15u + 1);
    std::normal_distribution<float> draw(mean, std);
    Data d = zeros(n, dtype);
    for (int64_t i = 0; i < n; ++i) d.set(i, draw(generator));
    return d;
}

template <class T>
Data raw(const std::vector<T>& values) {
    Data d{DType::f32, std::vector<unsigned char>(values.size() * sizeof(T))};
    memcpy(d.bytes.data(), values.data(), d.bytes.size());
    return d;
}

using ops::kExact;
using ops::Tolerance;
using ops::ulp;

constexpr size_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xa5;

class KernelRun : public ops::Tensors {
   public:
    explicit KernelRun(Device device) : device_(device), stream_(device, "test") {}

    Stream& stream() override { return stream_; }
    ops::Placed in(int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        return {place(normal(n, dtype, seed, std, mean).bytes, {}, 0, dtype)};
    }
    ops::Placed inout(ops::Output x, int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        return {place(normal(n, dtype, seed, std, mean).bytes, x.name, kGuardBytes, dtype, x.close.value_or(kExact))};
    }
    ops::Placed out(ops::Output x, int64_t n, DType dtype) override {
        return {place(nothing(n * size_of(dtype)), x.name, kGuardBytes, dtype, x.close.value_or(kExact))};
    }
    ops::Placed scratch(int64_t bytes) override {
        return {place(nothing(bytes), "(scratch)", kGuardBytes, DType::f32)};
    }

    // The test's own numbers
    ops::Placed input(const Data& data) { return {place(data.bytes, {}, 0, DType::f32)}; }
    ops::Placed inout(const std::string& name, const Data& data, Tolerance close = kExact) {
        return {place(data.bytes, name, kGuardBytes, data.dtype, close)};
    }
    ops::Placed out_f64(const std::string& name, int64_t n) {
        return {place(nothing(n * 8), name, kGuardBytes, DType::f32, kExact, true)};
    }
    ops::Placed inout_f64(const std::string& name, const std::vector<double>& values) {
        return {place(raw(values).bytes, name, kGuardBytes, DType::f32, kExact, true)};
    }

    struct Result {
        std::vector<unsigned char> bytes;
        std::vector<double> values;
        Tolerance close;

        template <class T>
        std::vector<T> as() const {
            std::vector<T> all(bytes.size() / sizeof(T));
            memcpy(all.data(), bytes.data(), bytes.size());
            return all;
        }
    };
    using Results = std::map<std::string, Result>;

    // Waits for the stream and reads the outputs back; a touched guard is a failure.
    Results finish() {
        stream_.synchronize();
        Results results;
        for (Slot& slot : slots_) {
            if (slot.name.empty()) continue;
            std::vector<unsigned char> bytes(slot.size + slot.guard);
            if (!bytes.empty()) stream_.copy(bytes.data(), slot.buffer.data(), int64_t(bytes.size()));
            stream_.synchronize();
            for (size_t i = slot.size; i < bytes.size(); ++i)
                if (bytes[i] != kGuard) {
                    ADD_FAILURE() << slot.name << ": byte " << i - slot.size << " after its end was overwritten on "
                                  << device_.name();
                    break;
                }
            bytes.resize(slot.size);
            if (slot.name != "(scratch)") results[slot.name] = {bytes, values_of(slot, bytes), slot.close};
        }
        return results;
    }

   private:
    static std::vector<unsigned char> nothing(int64_t bytes) { return std::vector<unsigned char>(size_t(bytes), 0xff); }

    ops::Placed copy_of(const void* host, int64_t bytes) override {
        const auto* from = static_cast<const unsigned char*>(host);
        return {place({from, from + bytes}, {}, 0, DType::f32)};
    }

    struct Slot {
        std::string name;
        Buffer buffer;
        size_t size, guard;
        DType dtype;
        Tolerance close;
        bool f64;
    };

    void* place(std::vector<unsigned char> bytes, const std::string& name, size_t guard, DType dtype,
                Tolerance close = kExact, bool f64 = false) {
        const size_t size = bytes.size();
        bytes.resize(size + guard, kGuard);
        Slot& slot = slots_.emplace_back(Slot{name, Buffer(device_, int64_t(bytes.size()), MemKind::workspace, "test"),
                                              size, guard, dtype, close, f64});
        if (!bytes.empty()) stream_.copy(slot.buffer.data(), bytes.data(), int64_t(bytes.size()));
        stream_.synchronize();  // `bytes` dies here
        return slot.buffer.data();
    }

    static std::vector<double> values_of(const Slot& slot, const std::vector<unsigned char>& bytes) {
        if (slot.f64) return Result{bytes, {}, {}}.as<double>();
        std::vector<double> values;
        const Data data{slot.dtype, bytes};
        for (int64_t i = 0; i < data.size(); ++i) values.push_back(data.at(i));
        return values;
    }

    Device device_;
    Stream stream_;
    std::list<Slot> slots_;
};

inline const Device kGpu{DeviceKind::cuda, 0};

// The CPU, and the CUDA device where there is one
inline std::vector<Device> both_devices() {
    return cuda_device_count() > 0 ? std::vector<Device>{kCpu, kGpu} : std::vector<Device>{kCpu};
}

using Op = std::function<void(KernelRun&)>;

inline KernelRun::Results run_on(Device device, const Op& op) {
    device.make_current();
    KernelRun run(device);
    op(run);
    return run.finish();
}

// Another thread, block and stream order for the emulator; nothing on a device
inline void next_schedule() {
#ifdef SIMT_EMU
    simt::options().seed += 1000003;
#endif
}

inline void expect_close(const std::string& name, const std::vector<double>& got, const std::vector<double>& want,
                         Tolerance tolerance) {
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i]) && std::isnan(got[i])) continue;  // left out by both
        const double error = std::fabs(got[i] - want[i]);
        if (got[i] == want[i] || error <= tolerance.allowed(want[i])) continue;
        ADD_FAILURE() << name << "[" << i << "] is " << got[i] << " on the device, " << want[i]
                      << " on the CPU: they differ by " << error << ", allowed is " << tolerance.allowed(want[i]);
        return;
    }
}

// Skips the test where there is neither a device nor the emulator. Compares every output of `op` with its tolerance,
// given here or else where it was made (exactly, where it has none). Both runs on the CUDA device are `context`'s;
// without one each has its own. `also`, if there is one, is called with the outputs of either device.
inline void compare_on_devices(
    const Op& op, const std::map<std::string, Tolerance>& tolerances = {}, RankContext* context = nullptr,
    const std::function<void(const char* device, const KernelRun::Results&)>& also = nullptr) {
    std::string why;
    if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
    const auto want = run_on(kCpu, op);
    const auto first = run_on(Device{DeviceKind::cuda, 0, context}, op);
    next_schedule();
    const auto second = run_on(Device{DeviceKind::cuda, 0, context}, op);
    ASSERT_EQ(first.size(), want.size());
    for (const auto& [name, tolerance] : tolerances) ASSERT_TRUE(want.count(name)) << "no output " << name;
    for (const auto& [name, result] : want) {
        const auto tolerance = tolerances.find(name);
        EXPECT_TRUE(first.at(name).bytes == second.at(name).bytes) << name << ": two runs on the device differ";
        expect_close(name, first.at(name).values, result.values,
                     tolerance == tolerances.end() ? result.close : tolerance->second);
    }
    if (also) also("CPU", want), also("GPU", first);
}

// Codes and scales are compared as bytes, not as the numbers that they would be.
inline void compare_bytes_on_devices(const Op& op) {
    compare_on_devices(op);
    if (cuda_device_count() == 0) return;
    const auto want = run_on(kCpu, op), got = run_on(kGpu, op);
    for (const auto& [name, result] : want) EXPECT_TRUE(got.at(name).bytes == result.bytes) << name;
}

// Cases that take the emulator seconds run on a device, and in the emulator where KERNEL_TESTS_LARGE is set.
inline bool skip_large() {
#ifdef SIMT_EMU
    return std::getenv("KERNEL_TESTS_LARGE") == nullptr;
#else
    return false;
#endif
}

}  // namespace rz::test
