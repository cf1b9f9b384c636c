#include <cublasLt.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_lt.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"
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
    bool trans_a, trans_b, accumulate, biased;
    DType dtype, c_dtype;
    uint32_t alignment;
    auto tied() const {
        return std::tie(device, M, N, K, lda, ldb, ldc, trans_a, trans_b, accumulate, biased, dtype, c_dtype,
                        alignment);
    }
    bool operator<(const Key& other) const { return tied() < other.tied(); }
    std::string text() const {
        return format("%s (%lld x %lld x %lld)%s%s, C %s%s, strides %lld %lld %lld, aligned to %u", name_of(dtype),
                      (long long)M, (long long)N, (long long)K, trans_a ? ", A^T" : "", trans_b ? ", B^T" : "",
                      name_of(c_dtype),
                      accumulate ? " accumulated"
                      : biased   ? " with a bias"
                                 : "",
                      (long long)lda, (long long)ldb, (long long)ldc, alignment);
    }
};

// This call's own: another thread's bias is never in it.
struct Call {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;  // B, A, C

    Call(const Key& key, const void* bias) {
        check_lt(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
        set(CUBLASLT_MATMUL_DESC_TRANSA, key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);  // one for each of C's columns
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        }
        init(first, key.dtype, key.trans_b ? key.N : key.K, key.trans_b ? key.K : key.N, key.ldb);
        init(second, key.dtype, key.trans_a ? key.K : key.M, key.trans_a ? key.M : key.K, key.lda);
        init(result, key.c_dtype, key.M, key.N, key.ldc);
    }

   private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t what, const T& value) {
        check_lt(cublasLtMatmulDescSetAttribute(&operation, what, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
    }
    static void init(cublasLtMatrixLayoutOpaque_t& layout, DType t, int64_t rows, int64_t columns, int64_t stride) {
        check_lt(cublasLtMatrixLayoutInit(&layout, cuda_type(t), uint64_t(columns), uint64_t(rows), stride),
                 "cublasLtMatrixLayoutInit");
    }
};

}  // namespace

// Handles, workspaces and the algorithms that were chosen, of one rank.
class GemmPlans {
   public:
    static GemmPlans& of(RankContext& rank) {
        const std::scoped_lock lock(rank.gemm_mutex);
        if (!rank.gemm_plans) rank.gemm_plans = std::make_shared<GemmPlans>();
        return *rank.gemm_plans;
    }

    ~GemmPlans() {
        for (const auto& [device, handle] : handles_) cublasLtDestroy(handle);
    }

    void run(const Key& key, const Gemm& a, Stream& stream) {
        Call call(key, a.bias);
        const LtProduct product{&call.operation,
                                &call.first,
                                &call.second,
                                &call.result,
                                a.b,
                                a.a,
                                a.c,
                                a.alpha,
                                a.beta,
                                key.M * key.ldc * size_of(key.c_dtype),
                                key.c_dtype,
                                key.alignment,
                                a.add};
        LtSession session;
        cublasLtMatmulAlgo_t algorithm;
        {
            const std::scoped_lock lock(mutex_);
            session = session_of(stream);
            algorithm = choose(key, product, session, stream);
        }
        multiply(product, session, algorithm, stream);
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
            buffer = Buffer(Device{DeviceKind::cuda, device, &stream.context()},
                            gemm_workspace_bytes(compute_capability(stream.device()) / 10), MemKind::workspace,
                            "cuBLASLt workspace");
        }
        return {handle_of(device), buffer.data(), size_t(buffer.bytes())};
    }

    cublasLtMatmulAlgo_t choose(const Key& key, const LtProduct& product, const LtSession& session, Stream& stream) {
        const GemmTuning& tuning = gemm_tuning(stream.context());
        const auto index = std::make_tuple(key, tuning.tune, tuning.cache_file);
        const auto found = algorithms_.find(index);
        if (found != algorithms_.end()) return found->second;
        return algorithms_.emplace(index, choose_algorithm(product, key.text(), session, stream)).first->second;
    }

    std::mutex mutex_;
    std::map<int, cublasLtHandle_t> handles_;
    std::map<std::pair<int, CudaStream>, Buffer> workspaces_;
    std::map<std::tuple<Key, GemmTune, std::string>, cublasLtMatmulAlgo_t> algorithms_;
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
                  a.bias != nullptr,
                  a.dtype,
                  a.c_dtype,
                  common_alignment(a.a, a.b, a.c, a.add)};
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
