// Functions that nvcc's host code calls to register and launch kernels. A launch runs their PTX; all else of the CUDA
// runtime (memory, streams, events, graphs) is the emulator's.
#include "test/ptx/cudart.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "test/ptx/coverage.h"
#include "test/ptx/flips.h"
#include "test/ptx/machine.h"
#include "test/ptx/unpack.h"
#include "test/simt/control.h"
#include "test/simt/fake_device.h"
#include "test/simt/streams.h"

namespace ptx {
namespace {

// Registered with one fat binary: which PTX is taken depends on the device and is decided at the first use.
struct FatBinary {
    const void* data;
    std::map<int, Module*> by_arch;
};
struct Stub {
    FatBinary* binary;
    std::string name;
    int max_dynamic_shared = 48 << 10;
    bool loaded = false;
};
struct Config {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

// Never destroyed: registration runs before main, and reports after it.
auto& stubs() {
    static auto& s = *new std::map<const void*, Stub>;  // a function: it is used before statics are made
    return s;
}
auto& loaded = *new std::vector<std::unique_ptr<Module>>;
auto& launched = *new std::vector<std::string>;
thread_local std::vector<Config> configs;
uint64_t launches = 0;

int read_arch() {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    return major * 10 + minor;
}

// PTX_EDIT=kernel<tab>line<tab>new text: a mutant. The line is of the PTX text, the kernel a mangled name in it.
// Several edits: one on a line.
std::string edited(std::string text) {
    std::istringstream edits(getenv("PTX_EDIT") ? getenv("PTX_EDIT") : "");
    for (std::string e; std::getline(edits, e);) {
        const size_t tab = e.find('\t'), second = e.find('\t', tab + 1);
        if (second == std::string::npos) throw std::runtime_error("PTX_EDIT is not kernel<tab>line<tab>text");
        if (text.find(e.substr(0, tab) + "(") == std::string::npos) continue;
        size_t begin = 0;
        for (int line = atoi(e.c_str() + tab); line > 1 && begin < text.size(); line--)
            begin = text.find('\n', begin) + 1;
        const size_t end = text.find('\n', begin);
        fprintf(stderr, "ptx: edited: %s -> %s\n", text.substr(begin, end - begin).c_str(), e.c_str() + second + 1);
        text = text.substr(0, begin) + e.substr(second + 1) + text.substr(end);
    }
    return text;
}

// As the driver chooses: PTX of exactly this architecture with its own features (sm_90a), or the newest not newer.
// PTX_BUILT_FOR=80 plays a build that has no newer.
Module& module_for(FatBinary& binary) {
    const int arch = std::min(read_arch(), getenv("PTX_BUILT_FOR") ? atoi(getenv("PTX_BUILT_FOR")) : 1000);
    Module*& m = binary.by_arch[arch];
    if (m) return *m;
    std::string best;
    int best_rank = -1;
    for (std::string& text : unpack_ptx(binary.data)) {
        const size_t at = text.find(".target sm_");
        if (at == std::string::npos) continue;
        const int target = atoi(text.c_str() + at + 11);
        const size_t end = text.find_first_not_of("0123456789", at + 11);
        const bool special = end != std::string::npos && text[end] == 'a';
        const int rank = special ? target == arch ? 1000 : -1 : target <= arch ? target : -1;
        if (rank > best_rank) best_rank = rank, best = std::move(text);
    }
    if (best_rank < 0)
        throw std::runtime_error("the program has no PTX for sm_" + std::to_string(arch) +
                                 "; build it with SM=\"80 90a\"");
    loaded.push_back(std::make_unique<Module>(edited(best)));
    return *(m = loaded.back().get());
}

Kernel& kernel_of(const void* stub) {
    const auto it = stubs().find(stub);
    if (it == stubs().end()) throw std::runtime_error("a launch of what is not a registered kernel");
    return module_for(*it->second.binary).kernel(it->second.name);
}

cudaError_t reported(const std::string& kernel, const char* what) {
    fprintf(stderr, "ptx: %s: %s\n", kernel.c_str(), what);
    return cudaErrorLaunchFailure;
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** args, size_t shared, unsigned cluster,
                   cudaStream_t stream) {
    Kernel* k = nullptr;
    try {
        k = &kernel_of(stub);
    } catch (const std::exception& e) {
        return reported(stubs().count(stub) ? stubs()[stub].name : "?", e.what());
    }
    simt::first_use(stub);
    if (int(shared) > stubs()[stub].max_dynamic_shared) {
        fprintf(stderr, "ptx: %s: %zu bytes of dynamic shared memory, where cudaFuncSetAttribute has allowed %d\n",
                k->demangled().c_str(), shared, stubs()[stub].max_dynamic_shared);
        return cudaErrorInvalidValue;
    }
    std::vector<unsigned char> params(k->param_bytes);
    for (size_t i = 0; i < k->param_size.size(); i++)
        memcpy(params.data() + k->param_offset[i], args[i], k->param_size[i]);
    Launch l;
    l.grid = {grid.x, grid.y, grid.z}, l.block = {block.x, block.y, block.z};
    l.dynamic_shared = uint32_t(shared), l.cluster = cluster;
    l.resident = std::max(options().resident, simt::options().resident);
    l.check_order = options().check_order;
    simt::stats().blocks += uint64_t(grid.x) * grid.y * grid.z;
    return simt::enqueue(stream, [=, params = std::move(params)]() mutable -> cudaError_t {
        l.seed = options().in_order ? 0 : simt::options().seed * 1009 + ++launches;
        launched.push_back(k->demangled());
        try {
            Machine machine(*k, l, params);
            machine.counts = counts();
            machine.run();
        } catch (const std::exception& e) {
            return reported(k->demangled() + ", seed " + std::to_string(l.seed), e.what());
        }
        return cudaSuccess;
    });
}

}  // namespace

Options& options() {
    static Options o = [] {
        Options x;
        x.check_order = getenv("PTX_ORDER") && atoi(getenv("PTX_ORDER"));
        x.in_order = getenv("PTX_SEED") && !strcmp(getenv("PTX_SEED"), "0");
        if (getenv("PTX_FLIP")) set_flip(getenv("PTX_FLIP"));
        return x;
    }();
    return o;
}
Counts* counts() {
    static Counts* const c = getenv("PTX_COUNTS") ? new Counts : nullptr;
    return c;
}
int device_arch() { return read_arch(); }
std::vector<std::string> take_launched() { return std::exchange(launched, {}); }
const std::vector<std::unique_ptr<Module>>& modules() { return loaded; }

}  // namespace ptx

using namespace ptx;

extern "C" int kernels_are_ptx() { return 1; }  // test/kernels/kernel_test.h asks

extern "C" int kernels_not_loaded() {  // test/kernels/kernel_load.cpp asks
    int count = 0;
    for (const auto& [stub, s] : stubs())
        if (!s.loaded) fprintf(stderr, "ptx: not loaded: %s\n", s.name.c_str()), count++;
    return count;
}

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
    static const bool once = [] {
        watch_memory();
        atexit(write_reports);
        return true;
    }();
    (void)once;
    return reinterpret_cast<void**>(
        new FatBinary{*reinterpret_cast<const void* const*>(static_cast<char*>(wrapper) + 8), {}});
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    stubs()[stub] = {reinterpret_cast<FatBinary*>(binary), name};
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, void* stream) {
    return configs.push_back({g, b, shared, static_cast<cudaStream_t>(stream)}), 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* shared, void* stream) {
    const Config c = configs.back();
    configs.pop_back();
    *g = c.grid, *b = c.block, *shared = c.shared, *static_cast<cudaStream_t*>(stream) = c.stream;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void** args, size_t shared, cudaStream_t s) {
    return launch(f, g, b, args, shared, 1, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
    unsigned cluster = 1;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x * c->attrs[i].val.clusterDim.y * c->attrs[i].val.clusterDim.z;
    return launch(f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, cluster, c->stream);
}
// CUDA 13's host code goes through a kernel handle.
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
    return *k = cudaKernel_t(const_cast<void*>(f)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void** args, size_t shared, cudaStream_t s) {
    return launch(k, g, b, args, shared, 1, s);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 g, dim3 b, void** args, size_t shared, cudaStream_t s) {
    return launch(k, g, b, args, shared, 1, s);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* f) {
    *a = cudaFuncAttributes{};
    if (getenv("SIMT_NO_CODE")) return simt::report(cudaErrorNoKernelImageForDevice);
    try {
        const Kernel& k = kernel_of(f);
        // ptxas says how many registers; what matters here is whether there is a body. CUDA does not say whether the
        // KiB that the system takes from Hopper on is counted: here it is, so that nothing can rest on it.
        const bool empty = k.code.size() <= 1;
        a->sharedSizeBytes = k.static_shared + (read_arch() >= 90 ? 1024 : 0), a->localSizeBytes = k.local_bytes;
        a->maxThreadsPerBlock = int(k.max_threads), a->numRegs = empty ? 4 : 168;
        a->maxDynamicSharedSizeBytes = stubs()[f].max_dynamic_shared;
        a->ptxVersion = a->binaryVersion = read_arch();
        simt::code_is_loaded(f);
        stubs()[f].loaded = true;
    } catch (const std::exception& e) {
        return reported(stubs().count(f) ? stubs()[f].name : "?", e.what());
    }
    return cudaSuccess;
}
// Linked with --wrap: the emulator's does nothing.
cudaError_t __wrap_cudaFuncSetAttribute(const void* f, cudaFuncAttribute attribute, int value) {
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (!stubs().count(f) || value < 0 || value > most) return cudaErrorInvalidValue;
    stubs()[f].max_dynamic_shared = value;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
    return *n = 1, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void*, const cudaLaunchConfig_t*) {
    return *n = 2, cudaSuccess;
}

}  // extern "C"
