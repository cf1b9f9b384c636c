#include "llama/train/slow_signs.h"

#include <dlfcn.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "comm/nccl_transport.h"
#include "kernels/runtime/check.h"

namespace rz {

namespace {

constexpr int kEvery = 10;  // steps

// NVML's functions, in the library that comes with the driver. Its header need not be here. 0 is success.
class Nvml {
   public:
    static const Nvml& here() {
        static const Nvml nvml;
        return nvml;
    }
    void* gpu(const std::string& bus_id) const {
        void* handle = nullptr;
        return by_bus_id_ && by_bus_id_(bus_id.c_str(), &handle) == 0 ? handle : nullptr;
    }
    float clock_mhz(void* gpu) const {
        constexpr int kSm = 1;
        unsigned mhz = 0;
        return clock_ && clock_(gpu, kSm, &mhz) == 0 ? float(mhz) : 0;
    }
    int64_t ecc_errors(void* gpu) const {
        constexpr int kSinceDriverStart = 0;
        int64_t all = 0;
        for (const int uncorrected : {0, 1}) {
            unsigned long long errors = 0;
            if (ecc_ && ecc_(gpu, uncorrected, kSinceDriverStart, &errors) == 0) all += int64_t(errors);
        }
        return all;
    }

   private:
    Nvml() {
        void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        const auto init = library ? reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2")) : nullptr;
        if (!init || init() != 0) return;
        by_bus_id_ = reinterpret_cast<decltype(by_bus_id_)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
        clock_ = reinterpret_cast<decltype(clock_)>(dlsym(library, "nvmlDeviceGetClockInfo"));
        ecc_ = reinterpret_cast<decltype(ecc_)>(dlsym(library, "nvmlDeviceGetTotalEccErrors"));
    }
    int (*by_bus_id_)(const char*, void**) = nullptr;
    int (*clock_)(void*, int, unsigned*) = nullptr;
    int (*ecc_)(void*, int, int, unsigned long long*) = nullptr;
};

int64_t major_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_majflt;
}

float others(const std::vector<SlowSigns>& ranks, int slow, float SlowSigns::*sign) {
    std::vector<float> values;
    for (size_t r = 0; r < ranks.size(); ++r)
        if (int(r) != slow) values.push_back(ranks[r].*sign);
    if (values.empty()) return 0;
    std::nth_element(values.begin(), values.begin() + long(values.size() / 2), values.end());
    return values[values.size() / 2];
}

}  // namespace

SlowSignReader::SlowSignReader(Device device) : faults_(major_faults()) {
    if (!device.is_cuda()) return;
    gpu_ = Nvml::here().gpu(gpu_bus_id(device));
    ecc_before_ = ecc_errors();
}

int64_t SlowSignReader::ecc_errors() const { return gpu_ ? Nvml::here().ecc_errors(gpu_) : 0; }

const SlowSigns& SlowSignReader::look() {
    if (++steps_ % kEvery != 0) return signs_;
    double load = 0;
    if (getloadavg(&load, 1) == 1) signs_.load = float(load / std::max(1u, std::thread::hardware_concurrency()));
    const int64_t faults = major_faults();
    signs_.faults = int32_t(std::min<int64_t>((faults - faults_) / kEvery, INT32_MAX));
    faults_ = faults;
    if (!gpu_) return signs_;
    signs_.clock_mhz = Nvml::here().clock_mhz(gpu_);
    signs_.ecc = int32_t(std::clamp<int64_t>(ecc_errors() - ecc_before_, 0, INT32_MAX));
    return signs_;
}

std::string slow_reason(const std::vector<SlowSigns>& ranks, int slow) {
    const SlowSigns& s = ranks[size_t(slow)];
    std::string text;
    const auto add = [&](const std::string& reason) { text += (text.empty() ? "" : "; ") + reason; };
    const float clock = others(ranks, slow, &SlowSigns::clock_mhz);
    if (s.clock_mhz > 0 && s.clock_mhz < 0.97f * clock)
        add(format("its GPU runs at %.0f MHz, the others' at %.0f", double(s.clock_mhz), double(clock)));
    if (s.ecc > 0) add(format("its GPU's memory had %d ECC errors in this run", s.ecc));
    if (s.faults > 0) add(format("%d page faults a step are served from disk", s.faults));
    if (s.load > 1.1f) add(format("its host has %.1f processes for each core that want to run", double(s.load)));
    return text;
}

}  // namespace rz
