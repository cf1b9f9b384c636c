// cublasLtMatmul on the CPU, behind the real header; linked in place of libcublasLt. fp32, bf16, fp16 and fp8 in and
// out, fp32 accumulation, transposes, row and column order, strided batches, alpha and beta from the host or the
// device, scalar scales, scales of tiles, bias. Anything else is CUBLAS_STATUS_NOT_SUPPORTED. The heuristic offers
// several algorithms, which sum over K in different slices and so differ in the last bits; all but the first need
// workspace, and overwrite it. SIMT_CUBLASLT_SLOW in the environment: microseconds that the first one takes longer.
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include <cublasLt.h>

#include "kernels/runtime/check.h"
#include "test/simt/fake_device.h"
#include "test/simt/models.h"
#include "test/simt/runtime.h"
#include "test/simt/streams.h"

using simt::enqueue;
using simt::mark_written;

namespace {

struct Layout {
    cudaDataType type;
    int32_t order, batch;
    uint64_t rows, cols;
    int64_t ld, stride;
};
struct Desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t trans_a, trans_b, pointer_mode;
    uint32_t epilogue;
    const void* bias;
    int32_t bias_type;
    const float *scale_a, *scale_b, *scale_c, *scale_d;
    int8_t fast_accumulation;
    int32_t mode_a, mode_b;  // cublasLtMatmulMatrixScale_t
};
struct Preference {
    uint64_t workspace;
};
struct Algo {
    uint32_t magic, slices;
    uint64_t workspace;
};
constexpr uint32_t kMagic = 0x4c54616c;
constexpr int kAlgorithms = 4;

// The version that is played: SIMT_CUBLASLT in the environment, 120400 for 12.4. Modes of scales came with 12.8, those
// of tiles with 12.9; older headers have no names for them.
size_t version() { return simt::number_from("SIMT_CUBLASLT", 130100); }
constexpr int32_t kScalar = 0, kMx = 2, kRows = 4, kSquares = 5;
#if CUBLAS_VERSION >= 120900
static_assert(kScalar == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && kMx == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
              kRows == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
              kSquares == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t));

template <class T, class H>
T& view(H* handle) {
    return *reinterpret_cast<T*>(handle);
}

int size_of(cudaDataType t) {
    switch (t) {
        case CUDA_R_32F:
            return 4;
        case CUDA_R_16BF:
        case CUDA_R_16F:
            return 2;
        case CUDA_R_8F_E4M3:
        case CUDA_R_8F_E5M2:
            return 1;
        default:
            return 0;
    }
}
template <class T>
T get(const void* p, int64_t i) {
    T v;
    memcpy(&v, static_cast<const char*>(p) + i * int64_t(sizeof(T)), sizeof(T));
    return v;
}
float load(const void* p, cudaDataType t, int64_t i) {
    switch (t) {
        case CUDA_R_32F:
            return get<float>(p, i);
        case CUDA_R_16BF:
            return __bfloat162float(get<__nv_bfloat16>(p, i));
        case CUDA_R_16F:
            return float(get<_Float16>(p, i));
        case CUDA_R_8F_E4M3:
            return float(get<__nv_fp8_e4m3>(p, i));
        default:
            return float(get<__nv_fp8_e5m2>(p, i));
    }
}
template <class T>
void put(void* p, int64_t i, T v) {
    memcpy(static_cast<char*>(p) + i * int64_t(sizeof(T)), &v, sizeof(T));
}
void store(void* p, cudaDataType t, int64_t i, float v) {
    switch (t) {
        case CUDA_R_32F:
            return put(p, i, v);
        case CUDA_R_16BF:
            return put(p, i, __float2bfloat16_rn(v));
        case CUDA_R_16F:
            return put(p, i, _Float16(v));
        case CUDA_R_8F_E4M3:
            return put(p, i, __nv_fp8_e4m3(v));
        default:
            return put(p, i, __nv_fp8_e5m2(v));
    }
}
int64_t at(const Layout& l, int64_t r, int64_t c) {
    return l.order == CUBLASLT_ORDER_ROW ? r * l.ld + c : c * l.ld + r;
}

// Hopper's fast accumulation: within a run of products sums have 14 bits of fraction, cut off after each instruction.
void keep_14_bits(std::vector<float>& sums) {
    for (float& s : sums) s = __uint_as_float(__float_as_uint(s) & ~0x1ffu);
}

struct Call {
    Desc desc;
    Layout a, b, c, d;
    const void *A, *B, *C;
    void* D;
    const void *alpha_device, *beta_device;  // null: the values below
    float alpha, beta;
    uint32_t slices;
    void* workspace;
    uint64_t workspace_bytes;
};

// Scale of element (i, 128 k) of an operand of so many rows, each K long: one for each row, rows side by side, or for
// each 128 rows, k side by side in fours.
float tile_scale(const float* scales, int32_t mode, int64_t rows, int64_t K, int64_t i, int64_t k) {
    if (mode == kMx) {  // tiles of 128 x 4, in each 4 bytes of row i + 32 j beside
        const int64_t tile = i / 128 * ((K + 127) / 128) + k / 4;
        const uint8_t code =
            reinterpret_cast<const uint8_t*>(scales)[tile * 512 + i % 32 * 16 + i % 128 / 32 * 4 + k % 4];
        return code == 255 ? __uint_as_float(0x7fc00000u) : std::ldexp(1.0f, code - 127);
    }
    if (mode == kRows) return scales[k * rows + i];
    return scales[i / 128 * ((K / 128 + 3) / 4 * 4) + k];
}

void run(const Call& x) {
    const int64_t M = int64_t(x.d.rows), N = int64_t(x.d.cols), K = int64_t(x.desc.trans_a ? x.a.rows : x.a.cols);
    const bool tiles = x.desc.mode_a != kScalar;
    const float scale = tiles ? 1 : (x.desc.scale_a ? *x.desc.scale_a : 1) * (x.desc.scale_b ? *x.desc.scale_b : 1);
    const float alpha = (x.alpha_device ? *static_cast<const float*>(x.alpha_device) : x.alpha) * scale;
    const float beta = x.beta_device ? *static_cast<const float*>(x.beta_device) : x.beta;
    const bool mx = x.desc.mode_a == kMx;
    const int64_t slice = mx ? 32 : tiles ? 128 : (K + x.slices - 1) / x.slices;
    std::vector<float> a, b, sum, part;
    a.resize(size_t(K)), b.resize(size_t(K * N)), sum.resize(size_t(N)), part.resize(size_t(N));
    if (x.workspace_bytes) memset(x.workspace, 0xff, x.workspace_bytes);
    for (int64_t q = 0; q < x.d.batch; q++) {
        for (int64_t k = 0; k < K; k++)
            for (int64_t n = 0; n < N; n++)
                b[size_t(k * N + n)] =
                    load(x.B, x.b.type, q * x.b.stride + (x.desc.trans_b ? at(x.b, n, k) : at(x.b, k, n)));
        for (int64_t m = 0; m < M; m++) {
            for (int64_t k = 0; k < K; k++)
                a[size_t(k)] = load(x.A, x.a.type, q * x.a.stride + (x.desc.trans_a ? at(x.a, k, m) : at(x.a, m, k)));
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (int64_t k0 = 0; k0 < K; k0 += slice) {
                std::fill(part.begin(), part.end(), 0.0f);
                for (int64_t k = k0; k < std::min(K, k0 + slice); k++) {
                    models::multiply(part.data(), &a[size_t(k)], &b[size_t(k * N)], int(N), 1, 1);
                    if (x.desc.fast_accumulation && k % 32 == 31) keep_14_bits(part);
                }
                if (tiles)
                    for (int64_t n = 0; n < N; n++)
                        part[size_t(n)] *= tile_scale(x.desc.scale_a, x.desc.mode_a, M, K, m, k0 / slice) *
                                           tile_scale(x.desc.scale_b, x.desc.mode_b, N, K, n, k0 / slice);
                for (size_t n = 0; n < size_t(N); n++) sum[n] += part[n];
            }
            for (int64_t n = 0; n < N; n++) {
                float v = alpha * sum[size_t(n)];
                if (beta != 0)
                    v += beta * load(x.C, x.c.type, q * x.c.stride + at(x.c, m, n)) *
                         (x.desc.scale_c ? *x.desc.scale_c : 1);
                if (x.desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
                    v += load(x.desc.bias, x.desc.bias_type < 0 ? x.d.type : cudaDataType(x.desc.bias_type), m);
                if (x.desc.scale_d) v *= *x.desc.scale_d;
                const int64_t i = q * x.d.stride + at(x.d, m, n);
                store(x.D, x.d.type, i, v);
                mark_written(static_cast<char*>(x.D) + i * size_of(x.d.type), size_t(size_of(x.d.type)));
            }
        }
    }
}

bool dense_enough(const Layout& l) { return l.ld >= int64_t(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows); }

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// fp8 as the library refuses it: GPUs before compute capability 8.9; two E5M2 operands; other layouts than A
// transposed and B not; K, M or a stride that is no multiple of 16; scales at addresses that are no multiple of 16; a C
// of another type than D. What it reads out of place is caught too: an operand or a scale that is not aligned.
cublasStatus_t check_fp8(const Call& x, uint64_t M, uint64_t K) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (10 * major + minor < 89) return CUBLAS_STATUS_NOT_SUPPORTED;
    const int32_t a = x.desc.mode_a, b = x.desc.mode_b;
    if (a == kMx || b == kMx) {  // from Blackwell on, both sides
        if (major < 10 || a != b || K % 32 || M % 16 || x.desc.fast_accumulation) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (!x.desc.scale_a || !x.desc.scale_b) return CUBLAS_STATUS_INVALID_VALUE;
    } else if (a != kScalar ||
               b != kScalar) {  // tiles: Hopper's, never squares on both sides, whole tiles, no fast sums
        if (version() < 120900 || major != 9 || (a != kRows && a != kSquares) || (b != kRows && b != kSquares))
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (a == kSquares && b == kSquares) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (K % 128 || M % 8 || x.d.cols % 8 || x.desc.fast_accumulation) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (!x.desc.scale_a || !x.desc.scale_b) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (x.a.type == CUDA_R_8F_E5M2 && x.b.type == CUDA_R_8F_E5M2) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!x.desc.trans_a || x.desc.trans_b || M % 16 || K % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (x.a.ld % 16 || x.b.ld % 16 || x.d.ld * size_of(x.d.type) % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!aligned16(x.desc.scale_a) || !aligned16(x.desc.scale_b) || !aligned16(x.desc.scale_d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!aligned16(x.A) || !aligned16(x.B) || !aligned16(x.C) || !aligned16(x.D)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (size_of(x.d.type) > 1 && x.c.type != x.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const Call& x) {
    const bool ta = x.desc.trans_a, tb = x.desc.trans_b;
    const uint64_t M = x.d.rows, N = x.d.cols, K = ta ? x.a.rows : x.a.cols;
    if ((ta ? x.a.cols : x.a.rows) != M || (tb ? x.b.rows : x.b.cols) != N || (tb ? x.b.cols : x.b.rows) != K ||
        x.c.rows != M || x.c.cols != N || x.a.batch != x.d.batch || x.b.batch != x.d.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!dense_enough(x.a) || !dense_enough(x.b) || !dense_enough(x.c) || !dense_enough(x.d))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const Layout* l : {&x.a, &x.b, &x.c, &x.d})
        if (!size_of(l->type) || (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto narrow = [](cudaDataType t) { return size_of(t) == 1; };
    if (narrow(x.a.type) != narrow(x.b.type) || (!narrow(x.a.type) && x.a.type != x.b.type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (narrow(x.a.type))
        if (const cublasStatus_t s = check_fp8(x, M, K); s != CUBLAS_STATUS_SUCCESS) return s;
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (x.a.type == CUDA_R_16BF && major < 8) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!narrow(x.a.type) && (x.desc.scale_a || x.desc.scale_b)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (x.desc.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (x.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && x.desc.epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

// A field that an attribute sets.
struct Field {
    void* place;
    size_t bytes;
    template <class T>
    Field(T& field) : place(&field), bytes(sizeof field) {}
};
template <class Attribute, size_t N>
cublasStatus_t set_field(const std::pair<Attribute, Field> (&fields)[N], Attribute a, const void* value, size_t n) {
    for (const auto& [attribute, field] : fields)
        if (attribute == a)
            return n == field.bytes ? (memcpy(field.place, value, n), CUBLAS_STATUS_SUCCESS)
                                    : CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

Algo algorithm(uint32_t i, const Layout& d) { return {kMagic, i + 1, i ? d.rows * d.cols * 4 : 0}; }

}  // namespace

extern "C" {

size_t CUBLASWINAPI cublasLtGetVersion() { return version(); }
const char* CUBLASWINAPI cublasLtGetStatusName(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : s == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                              : "CUBLAS_STATUS_INTERNAL_ERROR";
}
const char* CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t s) { return cublasLtGetStatusName(s); }
cublasStatus_t CUBLASWINAPI cublasLtCreate(cublasLtHandle_t* h) {
    return *h = reinterpret_cast<cublasLtHandle_t>(new int), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtDestroy(cublasLtHandle_t h) {
    return delete reinterpret_cast<int*>(h), CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t, cudaDataType t,
                                                              uint64_t rows, uint64_t cols, int64_t ld) {
    view<Layout>(l) = {t, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                             cublasLtMatrixLayoutAttribute_t a, const void* v,
                                                             size_t n) {
    Layout& x = view<Layout>(l);
    const std::pair<cublasLtMatrixLayoutAttribute_t, Field> fields[] = {
        {CUBLASLT_MATRIX_LAYOUT_TYPE, x.type},
        {CUBLASLT_MATRIX_LAYOUT_ORDER, x.order},
        {CUBLASLT_MATRIX_LAYOUT_ROWS, x.rows},
        {CUBLASLT_MATRIX_LAYOUT_COLS, x.cols},
        {CUBLASLT_MATRIX_LAYOUT_LD, x.ld},
        {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, x.batch},
        {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.stride}};
    return set_field(fields, a, v, n);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t, cublasComputeType_t compute,
                                                            cudaDataType_t scale) {
    Desc x{};
    x.compute = compute, x.scale = scale, x.epilogue = CUBLASLT_EPILOGUE_DEFAULT, x.bias_type = -1;
    view<Desc>(d) = x;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                                           const void* v, size_t n) {
    Desc& x = view<Desc>(d);
    const std::pair<cublasLtMatmulDescAttributes_t, Field> fields[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, x.trans_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, x.trans_b},
        {CUBLASLT_MATMUL_DESC_POINTER_MODE, x.pointer_mode},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, x.epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, x.bias_type},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.scale_a},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.scale_b},
        {CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, x.scale_c},
        {CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, x.scale_d},
#if CUBLAS_VERSION >= 120800
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, x.mode_a},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x.mode_b},
#endif
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, x.fast_accumulation}
    };
#if CUBLAS_VERSION >= 120800
    if (version() < 120800 && (a == CUBLASLT_MATMUL_DESC_A_SCALE_MODE || a == CUBLASLT_MATMUL_DESC_B_SCALE_MODE))
        return CUBLAS_STATUS_INVALID_VALUE;
#endif
    return set_field(fields, a, v, n);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t) {
    return view<Preference>(p) = {0}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                                 cublasLtMatmulPreferenceAttributes_t a, const void* v,
                                                                 size_t n) {
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        if (n != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&view<Preference>(p).workspace, v, n);
    }
    return CUBLAS_STATUS_SUCCESS;  // the rest narrows a choice that here is always valid
}

static Call describe(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    Call x{};
    x.desc = view<Desc>(desc);
    x.a = view<Layout>(a), x.b = view<Layout>(b), x.c = view<Layout>(c), x.d = view<Layout>(d);
    return x;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                                           cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                           cublasLtMatmulPreference_t preference, int wanted,
                                                           cublasLtMatmulHeuristicResult_t* results, int* found) {
    *found = 0;
    const Call x = describe(desc, a, b, c, d);
    if (const cublasStatus_t s = check(x); s != CUBLAS_STATUS_SUCCESS) return s;
    for (uint32_t i = 0; i < kAlgorithms && *found < wanted; i++) {
        const Algo algo = algorithm(i, x.d);
        if (algo.workspace > view<Preference>(preference).workspace) continue;
        cublasLtMatmulHeuristicResult_t r{};
        memcpy(&r.algo, &algo, sizeof algo);
        r.workspaceSize = algo.workspace;
        r.state = CUBLAS_STATUS_SUCCESS;
        r.wavesCount = 1;
        results[(*found)++] = r;
    }
    if (*found == kAlgorithms &&
        wanted > 2 * kAlgorithms) {  // for who tries many: one that is refused when it is to run
        cublasLtMatmulHeuristicResult_t r = results[0];
        const Algo refused{kMagic, 0, 0};
        memcpy(&r.algo, &refused, sizeof refused);
        results[(*found)++] = r;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                                    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                    const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulHeuristicResult_t* result) {
    const Call x = describe(desc, a, b, c, d);
    Algo y;
    memcpy(&y, algo, sizeof y);
    if (y.magic != kMagic) return CUBLAS_STATUS_INVALID_VALUE;
    *result = {};
    result->algo = *algo, result->workspaceSize = y.workspace, result->state = check(x), result->wavesCount = 1;
    return result->state;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                                           const void* A, cublasLtMatrixLayout_t a, const void* B,
                                           cublasLtMatrixLayout_t b, const void* beta, const void* C,
                                           cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                                           const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                                           cudaStream_t stream) {
    Call x = describe(desc, a, b, c, d);  // copied: the caller may destroy or change them at once
    x.A = A, x.B = B, x.C = C, x.D = D;
    if (const cublasStatus_t s = check(x); s != CUBLAS_STATUS_SUCCESS) return s;
    Algo y = algorithm(0, x.d);
    if (algo) memcpy(&y, algo, sizeof y);
    if (y.magic != kMagic || y.workspace > workspace_bytes || (y.workspace && !workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!y.slices) return CUBLAS_STATUS_NOT_SUPPORTED;
    simt::first_use_of_product(rz::format("a product of %llu x %llu x %llu, types %d %d %d, algorithm %u",
                                          (unsigned long long)x.d.rows, (unsigned long long)x.d.cols,
                                          (unsigned long long)(x.desc.trans_a ? x.a.rows : x.a.cols), int(x.a.type),
                                          int(x.b.type), int(x.d.type), y.slices));
    x.slices = y.slices, x.workspace = workspace, x.workspace_bytes = y.workspace;
    if (x.desc.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE)
        x.alpha_device = alpha, x.beta_device = beta;
    else if (x.desc.pointer_mode == CUBLASLT_POINTER_MODE_HOST)
        memcpy(&x.alpha, alpha, 4), memcpy(&x.beta, beta, 4);
    else
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const cudaError_t e = enqueue(stream, [x] {
        if (x.slices == 1)
            if (const size_t us = simt::number_from("SIMT_CUBLASLT_SLOW", 0))
                std::this_thread::sleep_for(std::chrono::microseconds(us));
        return run(x), cudaSuccess;
    });
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
