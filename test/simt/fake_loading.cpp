// Code that the fake CUDA runtime loads, and when (streams.h).
// SIMT_NO_CODE=1 in the environment: the program has no code for the device.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <cuda_runtime_api.h>

#include "test/simt/fake_device.h"
#include "test/simt/runtime.h"
#include "test/simt/streams.h"

namespace simt {
namespace {

// Loaded code of a device. Never destroyed: reports are written after main().
struct Loading {
    std::set<std::string> code;
    int open_collectives = 0;
};
std::mutex mutex;
auto& loading = *new std::map<int, Loading>;

std::string code_of(const void* kernel) { return std::to_string(reinterpret_cast<uintptr_t>(kernel)); }

// True: `code` is there, or may be loaded now.
bool use(const std::string& code) {
    const std::lock_guard lock(mutex);
    Loading& here = loading[current_device()];
    return !here.code.insert(code).second || here.open_collectives == 0;
}
[[noreturn]] void refuse(const std::string& what) {
    fprintf(stderr, "fake CUDA runtime: %s is loaded while %d operations of NCCL are under way: neither may ever end\n",
            what.c_str(), loading[current_device()].open_collectives);
    abort();
}

}  // namespace

void code_is_loaded(const void* kernel) {
    const std::lock_guard lock(mutex);
    loading[current_device()].code.insert(code_of(kernel));
}
void first_use(const void* kernel) {
    if (!use(code_of(kernel))) refuse("kernel " + kernel_name(kernel));
}
void first_use_of_product(const std::string& what) {
    if (!use(what)) refuse("the code of " + what);
}
void collectives_open(int device, int more) {
    const std::lock_guard lock(mutex);
    loading[device].open_collectives += more;
}

}  // namespace simt

// The interpreter of PTX has its own.
extern "C" __attribute__((weak)) cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                                                             const void* kernel) {
    *attributes = cudaFuncAttributes{};
    if (simt::number_from("SIMT_NO_CODE", 0)) return simt::report(cudaErrorNoKernelImageForDevice);
    simt::code_is_loaded(kernel);
    return cudaSuccess;
}
