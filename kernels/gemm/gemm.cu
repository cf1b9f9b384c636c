#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_lt.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/runtime/context.h"
#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

constexpr int kSuggestions = 24;  // that are timed, where measuring is asked for
constexpr int kTimings = 3;       // of each; the middle one counts

cudaDataType_t cuda_type(DType t) {
    switch (t) {
#define RZ_ROW(type, cpp, name, safetensors, config_json, nccl, mpi, dnnl, cublas) \
    case DType::type:                                                              \
        return cublas;
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
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

// cuBLASLt is column-major: it computes C^T (N x M) = op(B)^T op(A)^T, and a row-major matrix is its own transpose
// there.
struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;  // B, A, C
    cublasLtMatmulAlgo_t algorithm;
};

struct Workspace {
    void* data;
    size_t bytes;
};

cublasLtMatrixLayout_t make_layout(DType t, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    check_lt(cublasLtMatrixLayoutCreate(&layout, cuda_type(t), uint64_t(columns), uint64_t(rows), stride),
             "cublasLtMatrixLayoutCreate");
    return layout;
}

struct Suggestions {
    int count = 0;
    cublasLtMatmulHeuristicResult_t found[kSuggestions];  // (in a std::vector, its unnamed struct crashes nvcc 13.0)
};

// At most `wanted` of the library's suggestions, the most promising first.
Suggestions suggestions(cublasLtHandle_t handle, const Key& key, const Plan& plan, size_t workspace, int wanted) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        check_lt(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    const uint32_t alignment = uint32_t(key.alignment);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    // Partial sums of split-K stay in fp32: "in place" adds them up in C, in C's type.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                 (key.c_dtype == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : CUBLASLT_REDUCTION_SCHEME_NONE)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    Suggestions result;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.first, plan.second, plan.result, plan.result,
                                       preference, wanted, result.found, &result.count);
    cublasLtMatmulPreferenceDestroy(preference);
    require(status == CUBLAS_STATUS_SUCCESS && result.count > 0 && result.found[0].state == CUBLAS_STATUS_SUCCESS,
            "gemm: cuBLASLt has no algorithm for %s: %s; use other strides or dtypes", key.text().c_str(),
            cublasLtGetStatusString(status));
    return result;
}

Plan make_plan(const Key& key) {
    Plan plan;
    check_lt(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t first = key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_lt(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)),
             "cublasLtMatmulDescSetAttribute");
    check_lt(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)),
             "cublasLtMatmulDescSetAttribute");
    plan.first =
        key.trans_b ? make_layout(key.dtype, key.N, key.K, key.ldb) : make_layout(key.dtype, key.K, key.N, key.ldb);
    plan.second =
        key.trans_a ? make_layout(key.dtype, key.K, key.M, key.lda) : make_layout(key.dtype, key.M, key.K, key.lda);
    plan.result = make_layout(key.c_dtype, key.M, key.N, key.ldc);
    return plan;
}

cublasStatus_t multiply(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Gemm& a,
                        void* c, Workspace workspace, CudaStream stream) {
    return cublasLtMatmul(handle, plan.operation, &a.alpha, a.b, plan.first, a.a, plan.second, &a.beta, c, plan.result,
                          c, plan.result, &algorithm, workspace.data, workspace.bytes, stream);
}

// ---- choosing

// Times every suggestion on the caller's A and B, with another C and with the L2 cache refilled before each run, as
// it is in a training step. Returns false where there is no memory for that, the stream is being captured, or none ran.
bool measure_fastest(cublasLtHandle_t handle, Plan& plan, const Key& key, const Gemm& a, Workspace workspace,
                     Stream& on, float* microseconds) {
    const CudaStream stream = on.cuda();
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    const Device device = on.device();
    int l2 = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, key.device));
    const int64_t c_bytes = key.M * key.ldc * size_of(key.c_dtype), flush_bytes = 2 * int64_t(l2) + 256;
    if (capture != cudaStreamCaptureStatusNone || device.free_bytes() < c_bytes + flush_bytes + (int64_t(256) << 20))
        return false;
    const Buffer c(device, c_bytes, MemKind::workspace, "C of a timed product");
    const Buffer flush(device, flush_bytes, MemKind::workspace, "what fills the L2 cache before a timed product");
    CUDA_CHECK(cudaMemsetAsync(c.data(), 0, size_t(c_bytes), stream));
    cudaEvent_t start, stop;
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&stop));
    float best = INFINITY;
    const Suggestions candidates = suggestions(handle, key, plan, workspace.bytes, kSuggestions);
    for (int i = 0; i < candidates.count; ++i) {
        if (candidates.found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const cublasLtMatmulAlgo_t& algorithm = candidates.found[i].algo;
        float times[kTimings];
        if (multiply(handle, plan, algorithm, a, c.data(), workspace, stream) != CUBLAS_STATUS_SUCCESS) {
            cudaGetLastError();  // a suggestion may turn out to be refused
            continue;
        }
        for (float& ms : times) {
            CUDA_CHECK(cudaMemsetAsync(flush.data(), 1, size_t(flush_bytes), stream));
            CUDA_CHECK(cudaEventRecord(start, stream));
            check_lt(multiply(handle, plan, algorithm, a, c.data(), workspace, stream), "a timed product");
            CUDA_CHECK(cudaEventRecord(stop, stream));
            CUDA_CHECK(cudaEventSynchronize(stop));
            CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
        }
        std::sort(times, times + kTimings);
        if (times[kTimings / 2] >= best) continue;
        best = times[kTimings / 2];
        plan.algorithm = algorithm;
    }
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(stop));
    *microseconds = best * 1000;
    return best < INFINITY;
}

// What the cache file knows the choice by.
std::string cache_key(const Key& key) {
    return Device{DeviceKind::cuda, key.device}.name() + ", " + gemm_library_cuda() + "\t" + key.text();
}

// The first choice for this key that the library still accepts.
bool read_choice(const GemmTuning& tuning, cublasLtHandle_t handle, const Key& key, Plan& plan, size_t workspace) {
    if (tuning.cache_file.empty()) return false;
    for (const GemmChoice& choice : read_gemm_cache(tuning.cache_file, cache_key(key), sizeof plan.algorithm)) {
        cublasLtMatmulAlgo_t algorithm;
        cublasLtMatmulHeuristicResult_t result{};
        std::memcpy(&algorithm, choice.data(), sizeof algorithm);
        if (cublasLtMatmulAlgoCheck(handle, plan.operation, plan.first, plan.second, plan.result, plan.result,
                                    &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
            result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace)
            continue;
        plan.algorithm = algorithm;
        return true;
    }
    return false;
}

void write_choice(const GemmTuning& tuning, const Key& key, const Plan& plan, float microseconds) {
    GemmChoice choice(sizeof plan.algorithm);
    std::memcpy(choice.data(), &plan.algorithm, sizeof plan.algorithm);
    write_gemm_cache(tuning.cache_file, cache_key(key), choice, double(microseconds));
}

void choose_algorithm(GemmTuning& tuning, cublasLtHandle_t handle, Plan& plan, const Key& key, const Gemm& a,
                      Workspace workspace, Stream& stream) {
    float microseconds = 0;
    if (read_choice(tuning, handle, key, plan, workspace.bytes)) {
        ++tuning.read;
        return;
    }
    if (tuning.measure) {
        const GemmTuningTurn turn(tuning.cache_file);  // who waited finds the choice in the file
        if (read_choice(tuning, handle, key, plan, workspace.bytes)) {
            ++tuning.read;
            return;
        }
        if (measure_fastest(handle, plan, key, a, workspace, stream, &microseconds)) {
            ++tuning.measured;
            if (!tuning.cache_file.empty()) write_choice(tuning, key, plan, microseconds);
            return;
        }
    }
    plan.algorithm = suggestions(handle, key, plan, workspace.bytes, 1).found[0].algo;
}

// Largest power of two up to 256 that divides every address
int common_alignment(const Gemm& a) {
    const uintptr_t bits =
        reinterpret_cast<uintptr_t>(a.a) | reinterpret_cast<uintptr_t>(a.b) | reinterpret_cast<uintptr_t>(a.c) | 256;
    return int(bits & ~(bits - 1));
}

}  // namespace

// Handles, workspaces and plans of one rank.
class GemmPlans {
   public:
    static GemmPlans& of(RankContext& rank) {
        const std::scoped_lock lock(rank.gemm_mutex);
        if (!rank.gemm_plans) rank.gemm_plans = std::make_shared<GemmPlans>();
        return *rank.gemm_plans;
    }

    ~GemmPlans() {
        for (auto& [index, plan] : plans_) {
            cublasLtMatmulDescDestroy(plan.operation);
            for (cublasLtMatrixLayout_t layout : {plan.first, plan.second, plan.result})
                cublasLtMatrixLayoutDestroy(layout);
        }
        for (const auto& [device, handle] : handles_) cublasLtDestroy(handle);
    }

    void run(const Key& key, const Gemm& a, Stream& stream) {
        GemmTuning& tuning = gemm_tuning(stream.context());
        cublasLtHandle_t handle;
        Workspace workspace;
        const Plan* plan;
        {
            const std::scoped_lock lock(mutex_);
            handle = handle_of(key.device);
            workspace = workspace_of(stream);
            plan = &plan_of(tuning, key, a, handle, workspace, stream);
        }
        check_lt(multiply(handle, *plan, plan->algorithm, a, a.c, workspace, stream.cuda()), "cublasLtMatmul");
    }

    LtSession session(Stream& stream) {
        const std::scoped_lock lock(mutex_);
        const Workspace workspace = workspace_of(stream);
        return {handle_of(stream.device().index), workspace.data, workspace.bytes};
    }

   private:
    cublasLtHandle_t handle_of(int device) {
        cublasLtHandle_t& handle = handles_[device];
        if (handle == nullptr) check_lt(cublasLtCreate(&handle), "cublasLtCreate");
        return handle;
    }

    // One per stream, since products on two streams may run at once.
    Workspace workspace_of(Stream& stream) {
        const int device = stream.device().index;
        Buffer& buffer = workspaces_[{device, stream.cuda()}];
        if (!buffer) {
            int major = 0;
            CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
            buffer = Buffer(Device{DeviceKind::cuda, device, &stream.context()}, gemm_workspace_bytes(major),
                            MemKind::workspace, "cuBLASLt workspace");
        }
        return {buffer.data(), size_t(buffer.bytes())};
    }

    const Plan& plan_of(GemmTuning& tuning, const Key& key, const Gemm& a, cublasLtHandle_t handle, Workspace workspace,
                        Stream& stream) {
        const auto index = std::make_tuple(key, tuning.measure, tuning.cache_file);
        const auto found = plans_.find(index);
        if (found != plans_.end()) return found->second;
        Plan plan = make_plan(key);
        choose_algorithm(tuning, handle, plan, key, a, workspace, stream);
        return plans_.emplace(index, plan).first->second;
    }

    std::mutex mutex_;
    std::map<int, cublasLtHandle_t> handles_;
    std::map<std::pair<int, CudaStream>, Buffer> workspaces_;
    std::map<std::tuple<Key, bool, std::string>, Plan> plans_;
};

LtSession lt_session(Stream& stream) { return GemmPlans::of(stream.context()).session(stream); }

void gemm_cuda(const Gemm& a, Stream& stream) {
    if (a.M == 0 || a.N == 0) return;
    const Key key{stream.device().index,
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
    GemmPlans::of(stream.context()).run(key, a, stream);
}

const char* gemm_library_cuda() {
    static const std::string& name = *new std::string([] {
        const size_t version = cublasLtGetVersion();
        return format("cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    }());
    return name.c_str();
}

}  // namespace rz
