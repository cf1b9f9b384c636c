#include "kernels/runtime/queues.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "kernels/runtime/check.h"

namespace rz {

static const char kName[] = "CUDA_DEVICE_MAX_CONNECTIONS";
static constexpr int kDefault = 8, kMost = 32;
static std::atomic<int> streams;

#ifdef RZ_CUDA
// Here no thread reads the environment, and nothing has called CUDA. Where it fails the advice is given.
[[maybe_unused]] static const int kAsked = setenv(kName, "32", /*overwrite=*/0);
#endif

void count_cuda_streams(int change) { streams += change; }

std::string queue_advice() {
    const char* set = std::getenv(kName);
    const int queues = set ? std::atoi(set) : kDefault, used = streams;
    if (queues >= std::min(used, kMost)) return "";
    return format("%s is %d, and %d streams are used: those that share a queue wait for each other; set it to %d",
                  kName, queues, used, kMost);
}

}  // namespace rz
