#include <cublasLt.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/cuda/gpu.cuh"
#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/gemm/gemm_lt.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"

namespace rz {
namespace {

cudaDataType_t fp8_cuda_type(Fp8 t) { return t == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }
cudaDataType_t c_cuda_type(DType t) { return t == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

// How the library scales an operand: by one number, which is its default; mx from 12.8 on, tiles of rows and squares
// from 12.9 on. Older headers have no names for these.
constexpr int32_t kScalar = 0, kMx = 2, kRowTiles = 4, kSquares = 5;
#if CUBLAS_VERSION >= 120900
static_assert(kScalar == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && kMx == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
              kRowTiles == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
              kSquares == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif

// What both kinds of product are to the library.
struct Product {
    void* c;
    const uint8_t *a, *b;
    const void *a_scales, *b_scales;
    int32_t a_mode, b_mode;
    int64_t M, N, K;
    float beta;
    Fp8 a_type, b_type;
    DType c_dtype;
    int8_t fast;
};

// Everything that may change the choice of an algorithm.
using Key = std::tuple<int, int64_t, int64_t, int64_t, bool, Fp8, Fp8, DType, int8_t, int32_t, int32_t, uint32_t>;

Key key_of(const Product& g, int device) {
    return {device,   g.M,       g.N,    g.K,      g.beta != 0, g.a_type,
            g.b_type, g.c_dtype, g.fast, g.a_mode, g.b_mode,    common_alignment(g.a, g.b, g.c)};
}
std::string text_of(const Product& g) {
    return format("fp8 %s x %s (%lld x %lld x %lld), C %s%s, scale modes %d %d%s, aligned to %u", name_of(g.a_type),
                  name_of(g.b_type), (long long)g.M, (long long)g.N, (long long)g.K, name_of(g.c_dtype),
                  g.beta != 0 ? " accumulated" : "", g.a_mode, g.b_mode, g.fast ? ", fast sums" : "",
                  common_alignment(g.a, g.b, g.c));
}

// The library finds B^T and A^T at b and a, so its first operand is b, transposed, and its second a.
struct Call {
    cublasLtMatmulDescOpaque_t operation;  // this call's own: another thread's scales are never in it
    cublasLtMatrixLayoutOpaque_t first, second, result;

    explicit Call(const Product& g) {
        check_lt(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
        const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
        set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
        set(CUBLASLT_MATMUL_DESC_TRANSB, plain);
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.b_scales);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.a_scales);
        if (g.a_mode != kScalar || g.b_mode != kScalar) {  // an older library does not know these attributes
#if CUBLAS_VERSION >= 120800
            set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, g.b_mode);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, g.a_mode);
#else
            fail("fp8: this build has cuBLASLt's headers of %d.%d, which know one scale only", CUBLAS_VER_MAJOR,
                 CUBLAS_VER_MINOR);
#endif
        }
        set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, g.fast);
        check_lt(cublasLtMatrixLayoutInit(&first, fp8_cuda_type(g.b_type), uint64_t(g.K), uint64_t(g.N), g.K),
                 "cublasLtMatrixLayoutInit");
        check_lt(cublasLtMatrixLayoutInit(&second, fp8_cuda_type(g.a_type), uint64_t(g.K), uint64_t(g.M), g.K),
                 "cublasLtMatrixLayoutInit");
        check_lt(cublasLtMatrixLayoutInit(&result, c_cuda_type(g.c_dtype), uint64_t(g.N), uint64_t(g.M), g.N),
                 "cublasLtMatrixLayoutInit");
    }

   private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t what, const T& value) {
        check_lt(cublasLtMatmulDescSetAttribute(&operation, what, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
    }
};

}  // namespace

// The algorithms that were chosen, of one rank.
class Fp8GemmPlans {
   public:
    static Fp8GemmPlans& of(RankContext& rank) {
        const std::scoped_lock lock(rank.gemm_mutex);
        if (!rank.fp8_gemm_plans) rank.fp8_gemm_plans = std::make_shared<Fp8GemmPlans>();
        return *rank.fp8_gemm_plans;
    }

    cublasLtMatmulAlgo_t choose(const Product& g, const LtProduct& product, const LtSession& session, Stream& stream) {
        const GemmTuning& tuning = gemm_tuning(stream.context());
        const std::scoped_lock lock(mutex_);
        const auto index = std::make_tuple(key_of(g, stream.device().index), tuning.tune, tuning.cache_file);
        const auto found = algorithms_.find(index);
        if (found != algorithms_.end()) return found->second;
        return algorithms_.emplace(index, choose_algorithm(product, text_of(g), session, stream)).first->second;
    }

   private:
    std::mutex mutex_;
    std::map<std::tuple<Key, GemmTune, std::string>, cublasLtMatmulAlgo_t> algorithms_;
};

static void multiply(const Product& g, Stream& stream) {
    const LtSession session = lt_session(stream);
    Call call(g);
    const LtProduct product{&call.operation,
                            &call.first,
                            &call.second,
                            &call.result,
                            g.b,
                            g.a,
                            g.c,
                            1,
                            g.beta,
                            g.M * g.N * size_of(g.c_dtype),
                            g.c_dtype,
                            common_alignment(g.a, g.b, g.c)};
    const cublasLtMatmulAlgo_t algorithm = Fp8GemmPlans::of(stream.context()).choose(g, product, session, stream);
    multiply(product, session, algorithm, stream);
}

void fp8_gemm_cuda(const Fp8Gemm& g, Stream& stream) {
    multiply({g.c, g.a, g.b, &g.a_scale->inverse, &g.b_scale->inverse, kScalar, kScalar, g.M, g.N, g.K, g.beta,
              g.a_type, g.b_type, g.c_dtype, int8_t(g.fast_accumulation)},
             stream);
}

void fp8_block_gemm_cuda(const Fp8BlockGemm& g, Stream& stream) {
    const int32_t b_mode = g.b_tiles == Fp8Tiles::rows ? kRowTiles : kSquares;
    multiply({g.c, g.a, g.b, g.a_scales, g.b_scales, kRowTiles, b_mode, g.M, g.N, g.K, g.beta, Fp8::e4m3, Fp8::e4m3,
              g.c_dtype, 0},
             stream);
}

void fp8_mx_gemm_cuda(const Fp8MxGemm& g, Stream& stream) {
    multiply(
        {g.c, g.a, g.b, g.a_scales, g.b_scales, kMx, kMx, g.M, g.N, g.K, g.beta, Fp8::e4m3, Fp8::e4m3, g.c_dtype, 0},
        stream);
}

std::string fp8_missing_cuda(Device device) {
    const int capability = compute_capability(device);
    if (capability >= 89) return "";
    return format("%s (%d.%d) has no fp8 products", device.name().c_str(), capability / 10, capability % 10);
}

// Whether the cuBLASLt of this build's headers or the one that was loaded is older than 12.`minor`; if so, in words.
static std::string older_than_12(int minor) {
    const struct {
        const char* which;
        size_t version;
    } both[] = {{"this build has cuBLASLt's headers of", CUBLAS_VERSION},
                {"the cuBLASLt found is", cublasLtGetVersion()}};
    for (const auto& [which, version] : both)
        if (version < size_t(120000 + 100 * minor))
            return format("needs cuBLASLt 12.%d or newer; %s %zu.%zu", minor, which, version / 10000,
                          version / 100 % 100);
    return "";
}

std::string fp8_mx_missing_cuda(Device device) {
    const int capability = compute_capability(device);
    if (capability >= 100) return older_than_12(8);
    return format("needs compute capability 10.0, this is %d.%d", capability / 10, capability % 10);
}

std::string fp8_blocks_missing_cuda(Device device) {
    const int capability = compute_capability(device);
    if (capability / 10 == 9) return older_than_12(9);
    return format("needs compute capability 9.0, this is %d.%d", capability / 10, capability % 10);
}

}  // namespace rz
