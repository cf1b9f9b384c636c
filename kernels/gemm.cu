#include "kernels/gemm.h"

#include <cublasLt.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/gpu.cuh"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

constexpr size_t kWorkspaceBytes = size_t(32) << 20;  // what the algorithms for Hopper want; split-K needs it

void check_lt(cublasStatus_t status, const char* what) {
    require(status == CUBLAS_STATUS_SUCCESS, "gemm: %s: %s (%s)", what, cublasLtGetStatusName(status),
            cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType t) {
    return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Everything that may change the choice of an algorithm. beta only as "zero or not"; addresses only by alignment.
struct Key {
    int device;
    int64_t M, N, K, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    DType dtype, c_dtype;
    int alignment;
    auto tied() const {
        return std::tie(device, M, N, K, lda, ldb, ldc, trans_a, trans_b, accumulate, dtype, c_dtype, alignment);
    }
    bool operator<(const Key& other) const { return tied() < other.tied(); }
    std::string text() const {
        return format("%s (%lld x %lld x %lld)%s%s, C %s%s, strides %lld %lld %lld, aligned to %d", name_of(dtype),
                      (long long)M, (long long)N, (long long)K, trans_a ? ", A^T" : "", trans_b ? ", B^T" : "",
                      name_of(c_dtype), accumulate ? " accumulated" : "", (long long)lda, (long long)ldb,
                      (long long)ldc, alignment);
    }
};

// cuBLASLt is column-major: it computes C^T (N x M) = op(B)^T op(A)^T, and a row-major matrix is its own transpose there.
struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;  // B, A, C
    cublasLtMatmulAlgo_t algorithm;
};

cublasLtMatrixLayout_t make_layout(DType t, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    check_lt(cublasLtMatrixLayoutCreate(&layout, cuda_type(t), uint64_t(columns), uint64_t(rows), stride),
             "cublasLtMatrixLayoutCreate");
    return layout;
}

void choose_algorithm(cublasLtHandle_t handle, const Key& key, Plan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const size_t workspace = kWorkspaceBytes;
    const uint32_t alignment = uint32_t(key.alignment);
    // Partial sums of split-K stay in fp32.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        check_lt(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.first, plan.second, plan.result, plan.result,
                                       preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    require(status == CUBLAS_STATUS_SUCCESS && count > 0, "gemm: cuBLASLt has no algorithm for %s: %s; use other strides "
            "or dtypes", key.text().c_str(), cublasLtGetStatusString(status));
    plan.algorithm = found.algo;
}

Plan make_plan(cublasLtHandle_t handle, const Key& key) {
    Plan plan;
    check_lt(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t first = key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_lt(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)),
             "cublasLtMatmulDescSetAttribute");
    check_lt(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)),
             "cublasLtMatmulDescSetAttribute");
    plan.first = key.trans_b ? make_layout(key.dtype, key.N, key.K, key.ldb) : make_layout(key.dtype, key.K, key.N, key.ldb);
    plan.second = key.trans_a ? make_layout(key.dtype, key.K, key.M, key.lda) : make_layout(key.dtype, key.M, key.K, key.lda);
    plan.result = make_layout(key.c_dtype, key.M, key.N, key.ldc);
    choose_algorithm(handle, key, plan);
    return plan;
}

// Handles, workspaces and plans of all devices. Lives as long as the process: at exit the driver may be gone already.
class Library {
   public:
    static Library& get() {
        static Library& library = *new Library;
        return library;
    }

    cublasLtHandle_t handle(int device) {
        const std::scoped_lock lock(mutex_);
        return handle_locked(device);
    }

    // One per stream, since products on two streams may run at once.
    void* workspace(int device, CudaStream stream) {
        const std::scoped_lock lock(mutex_);
        Buffer& buffer = workspaces_[{device, stream}];
        if (!buffer)
            buffer = Buffer(Device{DeviceKind::cuda, device}, int64_t(kWorkspaceBytes), MemKind::workspace,
                            "cuBLASLt workspace");
        return buffer.data();
    }

    const Plan& plan(const Key& key) {
        const std::scoped_lock lock(mutex_);
        const auto found = plans_.find(key);
        if (found != plans_.end()) return found->second;
        return plans_.emplace(key, make_plan(handle_locked(key.device), key)).first->second;
    }

   private:
    cublasLtHandle_t handle_locked(int device) {
        cublasLtHandle_t& handle = handles_[device];
        if (handle == nullptr) check_lt(cublasLtCreate(&handle), "cublasLtCreate");
        return handle;
    }

    std::mutex mutex_;
    std::map<int, cublasLtHandle_t> handles_;
    std::map<std::pair<int, CudaStream>, Buffer> workspaces_;
    std::map<Key, Plan> plans_;
};

// Largest power of two up to 256 that divides every address
int common_alignment(const Gemm& a) {
    const uintptr_t bits = reinterpret_cast<uintptr_t>(a.a) | reinterpret_cast<uintptr_t>(a.b) |
                           reinterpret_cast<uintptr_t>(a.c) | 256;
    return int(bits & ~(bits - 1));
}

}  // namespace

void gemm_cuda(const Gemm& a, CudaStream stream) {
    if (a.M == 0 || a.N == 0) return;
    int device = 0;
    const cudaError_t err = cudaGetDevice(&device);
    require(err == cudaSuccess, "gemm: cudaGetDevice: %s", cudaGetErrorString(err));
    const Key key{device,
                  a.M,
                  a.N,
                  a.K,
                  a.lda ? a.lda : (a.trans_a ? a.M : a.K),
                  a.ldb ? a.ldb : (a.trans_b ? a.K : a.N),
                  a.ldc ? a.ldc : a.N,
                  a.trans_a,
                  a.trans_b,
                  a.beta != 0,
                  a.dtype,
                  a.c_dtype,
                  common_alignment(a)};
    Library& library = Library::get();
    const Plan& plan = library.plan(key);
    check_lt(cublasLtMatmul(library.handle(device), plan.operation, &a.alpha, a.b, plan.first, a.a, plan.second, &a.beta,
                            a.c, plan.result, a.c, plan.result, &plan.algorithm, library.workspace(device, stream),
                            kWorkspaceBytes, stream),
             key.text().c_str());
}

const char* gemm_library_cuda() {
    static const std::string& name = *new std::string([] {
        const size_t version = cublasLtGetVersion();
        return format("cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    }());
    return name.c_str();
}

}  // namespace rz
