#include <cublasLt.h>

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
    uint32_t alignment;
    auto tied() const {
        return std::tie(device, M, N, K, lda, ldb, ldc, trans_a, trans_b, accumulate, dtype, c_dtype, alignment);
    }
    bool operator<(const Key& other) const { return tied() < other.tied(); }
    std::string text() const {
        return format("%s (%lld x %lld x %lld)%s%s, C %s%s, strides %lld %lld %lld, aligned to %u", name_of(dtype),
                      (long long)M, (long long)N, (long long)K, trans_a ? ", A^T" : "", trans_b ? ", B^T" : "",
                      name_of(c_dtype), accumulate ? " accumulated" : "", (long long)lda, (long long)ldb,
                      (long long)ldc, alignment);
    }
};

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

LtProduct product_of(const Key& key, const Plan& plan, const Gemm& a) {
    return {plan.operation,
            plan.first,
            plan.second,
            plan.result,
            a.b,
            a.a,
            a.c,
            a.alpha,
            a.beta,
            key.M * key.ldc * size_of(key.c_dtype),
            key.c_dtype,
            key.alignment};
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
        LtSession session;
        const Plan* plan;
        {
            const std::scoped_lock lock(mutex_);
            session = session_of(stream);
            plan = &plan_of(key, a, session, stream);
        }
        multiply(product_of(key, *plan, a), session, plan->algorithm, stream);
    }

    LtSession session(Stream& stream) {
        const std::scoped_lock lock(mutex_);
        return session_of(stream);
    }

    void release(Stream& stream) {
        const std::scoped_lock lock(mutex_);
        workspaces_.erase({stream.device().index, stream.cuda()});
    }

   private:
    cublasLtHandle_t handle_of(int device) {
        cublasLtHandle_t& handle = handles_[device];
        if (handle == nullptr) check_lt(cublasLtCreate(&handle), "cublasLtCreate");
        return handle;
    }

    // A workspace for each stream, since products on two may run at once.
    LtSession session_of(Stream& stream) {
        const int device = stream.device().index;
        Buffer& buffer = workspaces_[{device, stream.cuda()}];
        if (!buffer) {
            int major = 0;
            CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
            buffer = Buffer(Device{DeviceKind::cuda, device, &stream.context()}, gemm_workspace_bytes(major),
                            MemKind::workspace, "cuBLASLt workspace");
        }
        return {handle_of(device), buffer.data(), size_t(buffer.bytes())};
    }

    const Plan& plan_of(const Key& key, const Gemm& a, const LtSession& session, Stream& stream) {
        const GemmTuning& tuning = gemm_tuning(stream.context());
        const auto index = std::make_tuple(key, tuning.tune, tuning.cache_file);
        const auto found = plans_.find(index);
        if (found != plans_.end()) return found->second;
        Plan plan = make_plan(key);
        plan.algorithm = choose_algorithm(product_of(key, plan, a), key.text(), session, stream);
        return plans_.emplace(index, plan).first->second;
    }

    std::mutex mutex_;
    std::map<int, cublasLtHandle_t> handles_;
    std::map<std::pair<int, CudaStream>, Buffer> workspaces_;
    std::map<std::tuple<Key, GemmTune, std::string>, Plan> plans_;
};

LtSession lt_session(Stream& stream) { return GemmPlans::of(stream.context()).session(stream); }
void reserve_gemm_workspace_cuda(Stream& stream) { lt_session(stream); }
void release_gemm_workspace_cuda(Stream& stream) { GemmPlans::of(stream.context()).release(stream); }

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
                  common_alignment(a.a, a.b, a.c)};
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
