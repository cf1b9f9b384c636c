// A typed piece of device memory for tests: plain CUDA calls, so it serves the emulator and a real device.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/runtime/check.h"

namespace rz::selftest {

template <class T>
class DeviceArray {
   public:
    explicit DeviceArray(int64_t n) : n_(size_t(n)) {
        check(cudaMalloc(reinterpret_cast<void**>(&p_), n_ * sizeof(T)));
    }
    explicit DeviceArray(const std::vector<T>& values) : DeviceArray(int64_t(values.size())) {
        check(cudaMemcpy(p_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { cudaFree(p_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    T* data() const { return p_; }
    std::vector<T> get() const {
        std::vector<T> v(n_);
        check(cudaMemcpy(v.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }

   private:
    static void check(cudaError_t e) {
        if (e != cudaSuccess) fail("%s", cudaGetErrorString(e));
    }
    T* p_ = nullptr;
    size_t n_;
};

}  // namespace rz::selftest
