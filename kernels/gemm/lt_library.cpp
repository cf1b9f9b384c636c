// cuBLASLt, opened at its first call. Linked, it would be opened by every start of the program: its relocations and
// constructors take 200 MB and ten times the CPU of the rest of a start, also of a run on CPUs, a plan and --help. The
// functions have the library's own names, so its callers know nothing of this; the linker says if one is missing here.
#ifdef RZ_CUDA
#include <cublasLt.h>

#include "kernels/runtime/check.h"
#include "kernels/runtime/shared_library.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define MAJOR TEXT(CUBLAS_VER_MAJOR)
#define MINOR TEXT(CUBLAS_VER_MINOR)

namespace rz {

static void* opened() {
    constexpr char kAdvice[] = "cuBLASLt " MAJOR "." MINOR " or newer is in the CUDA Toolkit " MAJOR
                               ": add its lib64 to LD_LIBRARY_PATH; PyPI has it too: nvidia-cublas"
#if CUBLAS_VER_MAJOR < 13
                               "-cu" MAJOR
#endif
        ;
    void* const library = open_library("libcublasLt.so." MAJOR, kAdvice);
    const size_t version = reinterpret_cast<size_t (*)()>(function_of(library, "cublasLtGetVersion"))();
    require(version / 100 >= CUBLAS_VERSION / 100, "cuBLASLt here is %zu, and this program was built with %d\n  %s",
            version, CUBLAS_VERSION, kAdvice);
    return library;
}

static void* lt_function(const char* name) {
    static void* const library = opened();
    return function_of(library, name);
}

}  // namespace rz

#define FORWARD(Result, name, parameters, arguments)                                        \
    Result name parameters {                                                                \
        static const auto real = reinterpret_cast<decltype(&name)>(rz::lt_function(#name)); \
        return real arguments;                                                              \
    }

using Status = cublasStatus_t;
using Handle = cublasLtHandle_t;
using Desc = cublasLtMatmulDesc_t;
using Layout = cublasLtMatrixLayout_t;
using Preference = cublasLtMatmulPreference_t;
using Algo = cublasLtMatmulAlgo_t;
using Found = cublasLtMatmulHeuristicResult_t;

FORWARD(size_t, cublasLtGetVersion, (), ())
FORWARD(const char*, cublasLtGetStatusName, (Status s), (s))
FORWARD(const char*, cublasLtGetStatusString, (Status s), (s))
FORWARD(Status, cublasLtCreate, (Handle * h), (h))
FORWARD(Status, cublasLtDestroy, (Handle h), (h))
FORWARD(Status, cublasLtMatrixLayoutInit_internal,
        (Layout l, size_t size, cudaDataType t, uint64_t rows, uint64_t columns, int64_t ld),
        (l, size, t, rows, columns, ld))
FORWARD(Status, cublasLtMatmulDescInit_internal, (Desc d, size_t size, cublasComputeType_t c, cudaDataType_t s),
        (d, size, c, s))
FORWARD(Status, cublasLtMatmulDescSetAttribute,
        (Desc d, cublasLtMatmulDescAttributes_t what, const void* value, size_t size), (d, what, value, size))
FORWARD(Status, cublasLtMatmulPreferenceInit_internal, (Preference p, size_t size), (p, size))
FORWARD(Status, cublasLtMatmulPreferenceSetAttribute,
        (Preference p, cublasLtMatmulPreferenceAttributes_t what, const void* value, size_t size),
        (p, what, value, size))
FORWARD(Status, cublasLtMatmulAlgoGetHeuristic,
        (Handle h, Desc d, Layout la, Layout lb, Layout lc, Layout ld, Preference p, int most, Found* found, int* n),
        (h, d, la, lb, lc, ld, p, most, found, n))
FORWARD(Status, cublasLtMatmulAlgoCheck,
        (Handle h, Desc d, Layout la, Layout lb, Layout lc, Layout ld, const Algo* algo, Found* result),
        (h, d, la, lb, lc, ld, algo, result))
FORWARD(Status, cublasLtMatmul,
        (Handle h, Desc d, const void* alpha, const void* a, Layout la, const void* b, Layout lb, const void* beta,
         const void* c, Layout lc, void* out, Layout ld, const Algo* algo, void* workspace, size_t bytes,
         cudaStream_t stream),
        (h, d, alpha, a, la, b, lb, beta, c, lc, out, ld, algo, workspace, bytes, stream))
#endif
