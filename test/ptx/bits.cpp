// Linked into the kernel tests, on PTX and in the emulator: which bits do the kernels leave?
//   KERNEL_BITS=file   a line per test: its name, how many copies to the host it made, and a hash of their bytes
// bits.py compares two such files.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "test/simt/streams.h"

namespace {

struct Copied {
    uint64_t hash = 0xcbf29ce484222325u, copies = 0;
    void add(const void* p, size_t bytes) {
        for (size_t i = 0; i < bytes; i++) hash = (hash ^ static_cast<const unsigned char*>(p)[i]) * 0x100000001b3u;
        copies++;
    }
};
Copied copied;

class Listener : public testing::EmptyTestEventListener {
    void OnTestStart(const testing::TestInfo&) override { copied = {}; }
    void OnTestEnd(const testing::TestInfo& info) override {
        if (!copied.copies || info.result()->Skipped()) return;
        static FILE* const out = fopen(getenv("KERNEL_BITS"), "w");
        if (!out) return perror(getenv("KERNEL_BITS"));
        fprintf(out, "%s.%s\t%llu\t%016llx\n", info.test_suite_name(), info.name(), (unsigned long long)copied.copies,
                (unsigned long long)copied.hash);
        fflush(out);
    }
};

const bool installed = [] {
    if (!getenv("KERNEL_BITS")) return false;
    testing::UnitTest::GetInstance()->listeners().Append(new Listener);
    return true;
}();

}  // namespace

// Linked with --wrap: the emulator's runtime makes the copy.
extern "C" cudaError_t __real_cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                                              cudaStream_t stream);
extern "C" cudaError_t __wrap_cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                                              cudaStream_t stream) {
    const cudaError_t e = __real_cudaMemcpyAsync(dst, src, bytes, kind, stream);
    cudaPointerAttributes to{};
    if (e != cudaSuccess || !installed || cudaPointerGetAttributes(&to, dst) != cudaSuccess ||
        to.type == cudaMemoryTypeDevice)
        return e;
    return simt::enqueue(stream, [=] { return copied.add(dst, bytes), cudaSuccess; });
}
