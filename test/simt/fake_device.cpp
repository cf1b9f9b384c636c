// The devices of the fake CUDA runtime: how many, their properties, the names of errors, and the one entry point of the
// driver that TMA needs (cuTensorMapEncodeTiled, reached as on a real device).
// Environment: SIMT_DEVICES (how many), SIMT_P2P (0: they do not reach each other), SIMT_MEMORY (bytes per device),
// SIMT_ARCH (75, 80, 86, 89, 90, 100 or 120).
#include "test/simt/fake_device.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <cuda.h>

#include "test/simt/runtime.h"
#include "test/simt/tensor_map.h"

using namespace simt;

namespace {

thread_local int device = 0;

// One device per rank that mpirun started on this machine (MPICH's launcher says how many), unless SIMT_DEVICES says
// otherwise.
int device_count() { return int(number_from("SIMT_DEVICES", number_from("MPI_LOCALNRANKS", 1))); }

struct ErrorText {
    cudaError_t code;
    const char* name;
    const char* text = nullptr;  // its name serves
};
#define ERROR(code) code, #code
constexpr ErrorText kErrors[] = {{ERROR(cudaSuccess), "no error"},
                                 {ERROR(cudaErrorInvalidValue)},
                                 {ERROR(cudaErrorMemoryAllocation), "out of memory"},
                                 {ERROR(cudaErrorInvalidConfiguration), "invalid configuration argument"},
                                 {ERROR(cudaErrorInvalidDevice), "invalid device ordinal"},
                                 {ERROR(cudaErrorIllegalAddress)},
                                 {ERROR(cudaErrorNoDevice), "no CUDA-capable device is detected"},
                                 {ERROR(cudaErrorNotReady)},
                                 {ERROR(cudaErrorLaunchFailure), "launch failure"},
                                 {ERROR(cudaErrorNotSupported)},
                                 {ERROR(cudaErrorInvalidResourceHandle)},
                                 {ERROR(cudaErrorStreamCaptureUnsupported)},
                                 {ERROR(cudaErrorStreamCaptureUnjoined)},
                                 {ERROR(cudaErrorStreamCaptureUnmatched)}};
#undef ERROR
const ErrorText* text_of(cudaError_t e) {
    for (const ErrorText& error : kErrors)
        if (error.code == e) return &error;
    return nullptr;
}

}  // namespace

namespace simt {
size_t number_from(const char* variable, size_t otherwise) {
    const char* s = getenv(variable);
    return s ? strtoull(s, nullptr, 0) : otherwise;
}
int current_device() { return device; }
size_t device_memory() { return number_from("SIMT_MEMORY", size_t(16) << 30); }
}  // namespace simt

extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int* n) { return *n = device_count(), *n ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t CUDARTAPI cudaSetDevice(int d) {
    if (d < 0 || d >= device_count()) return report(cudaErrorInvalidDevice);
    return device = d, cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int* d) { return *d = device, cudaSuccess; }
cudaError_t CUDARTAPI cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    memset(p, 0, sizeof *p);
    const int arch = int(number_from("SIMT_ARCH", 90));
    snprintf(p->name, sizeof p->name, "SIMT emulator (sm_%d)", arch);
    p->totalGlobalMem = device_memory();
    p->major = arch / 10, p->minor = arch % 10;
    p->warpSize = 32;
    p->multiProcessorCount = int(number_from("SIMT_MULTIPROCESSORS", 4));
    const bool turing = arch < 80;
    p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = turing ? 1024 : 2048;
    p->maxBlocksPerMultiProcessor = turing ? 16 : 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    const int shared = turing ? 64 : arch == 86 || arch == 89 || arch >= 120 ? 100 : arch >= 90 ? 228 : 164;  // KiB
    p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = size_t(turing ? shared : shared - 1) << 10;
    p->sharedMemPerMultiprocessor = size_t(shared) << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = 1 << 20;
    p->memoryBusWidth = 5120;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, d);
    const std::pair<cudaDeviceAttr, int> values[] = {
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, int(p.sharedMemPerBlockOptin)},
        {cudaDevAttrMaxSharedMemoryPerBlock, int(p.sharedMemPerBlock)},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, int(p.sharedMemPerMultiprocessor)},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrWarpSize, p.warpSize}};
    for (const auto& [attribute, value] : values)
        if (attribute == a) return *v = value, cudaSuccess;
    return report(cudaErrorNotSupported);
}
cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* text, int bytes, int d) {
    return snprintf(text, size_t(bytes), "0000:%02x:00.0", d), cudaSuccess;
}
// All reach all, but for SIMT_P2P=0. A device does not count as its own peer.
cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int d, int peer) {
    if (d < 0 || d >= device_count() || peer < 0 || peer >= device_count()) return report(cudaErrorInvalidDevice);
    return *can = d != peer && number_from("SIMT_P2P", 1) != 0, cudaSuccess;
}
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
    return *n = 2, cudaSuccess;
}
cudaError_t CUDARTAPI cudaProfilerStart() { return cudaSuccess; }
cudaError_t CUDARTAPI cudaProfilerStop() { return cudaSuccess; }

const char* CUDARTAPI cudaGetErrorName(cudaError_t e) {
    const ErrorText* found = text_of(e);
    return found ? found->name : "CUDA error";
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t e) {
    if (e == cudaErrorLaunchFailure && !last_error().empty()) return last_error().c_str();
    const ErrorText* found = text_of(e);
    return found && found->text ? found->text : cudaGetErrorName(e);
}

// ---- the driver's tensor maps

// The checks are the driver's documented ones.
static CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                             const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                             const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    const auto is_one_of = [type](auto... types) { return ((type == types) || ...); };
    const uint8_t element =
        is_one_of(CU_TENSOR_MAP_DATA_TYPE_UINT8) ? 1
        : is_one_of(CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
            ? 2
        : is_one_of(CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_DATA_TYPE_INT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32) ? 4
                                                                                                                    : 0;
    if (!element || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (rank < 1 || rank > 5 || uintptr_t(map) % 64 || uintptr_t(base) % 16) return CUDA_ERROR_INVALID_VALUE;
    const uint32_t span = swizzle ? 16u << swizzle : UINT32_MAX;  // the inner box must fit the swizzle
    if (box[0] * element % 16 || box[0] * element > span) return CUDA_ERROR_INVALID_VALUE;
    simt::TensorMap m{};
    m.magic = simt::TensorMap::kMagic;
    m.rank = uint16_t(rank), m.element = element, m.swizzle = uint8_t(swizzle), m.base = static_cast<char*>(base);
    for (cuuint32_t d = 0; d < rank; d++) {
        if (!dim[d] || dim[d] > UINT32_MAX || !box[d] || box[d] > 256 || element_strides[d] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (d && (strides[d - 1] % 16 || strides[d - 1] >= (cuuint64_t(1) << 40))) return CUDA_ERROR_INVALID_VALUE;
        m.dim[d] = uint32_t(dim[d]), m.box[d] = uint16_t(box[d]), m.stride[d] = d ? strides[d - 1] : element;
    }
    memset(static_cast<void*>(map), 0, sizeof *map);
    memcpy(static_cast<void*>(map), &m, sizeof m);
    return CUDA_SUCCESS;
}

// The runtime's name for it; cudaGetDriverEntryPointByVersion came with 12.5.
#if CUDART_VERSION >= 12050
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** fn, unsigned, unsigned long long,
                                                       cudaDriverEntryPointQueryResult* result) {
#else
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** fn, unsigned long long,
                                              cudaDriverEntryPointQueryResult* result) {
#endif
    const bool known = !strcmp(symbol, "cuTensorMapEncodeTiled");
    *fn = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
    if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return known ? cudaSuccess : report(cudaErrorNotSupported);
}
}  // extern "C"
