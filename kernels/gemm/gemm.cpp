#include "kernels/gemm/gemm.h"

#include "kernels/checks.h"
#include "kernels/gemm/gemm_dnnl.h"
#include "kernels/scratch.h"

#include <atomic>
#include <cstdlib>
#include <string>

#define RZ_SIMD_FILE "kernels/gemm/gemm.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"
#include "kernels/cpu/simd_tile.h"

// Our own product: C is cut into tiles, each computed by one thread; a tile's operands are converted to fp32 and packed
// as they are met. Each element is one chain of multiply-adds in ascending k, so its bits depend on nothing else.
constexpr int64_t kTileM = 12 * kTileRows, kTileN = 256, kTileK = 256;
constexpr int64_t kStride = 256 + 32;  // of the operand tiles: a power of two would fall on few cache sets

// A's tile, row-major or, if trans_a, column-major as it lies; the rows that fill up the last strip are zero.
template <class T>
void convert_a(float* out, const Gemm& g, int64_t m0, int64_t rows, int64_t k0, int64_t depth) {
    const T* a = static_cast<const T*>(g.a) + (g.trans_a ? k0 * g.lda + m0 : m0 * g.lda + k0);
    const int64_t lines = g.trans_a ? depth : rows, width = g.trans_a ? rows : depth;
    for (int64_t i = 0; i < lines; ++i) {
        for (int64_t j = 0; j < width; ++j) out[i * kStride + j] = float(a[i * g.lda + j]);
        if (g.trans_a)
            for (int64_t j = width; j % kTileRows; ++j) out[i * kStride + j] = 0;
    }
    if (!g.trans_a)
        for (int64_t i = lines; i % kTileRows; ++i)
            for (int64_t j = 0; j < width; ++j) out[i * kStride + j] = 0;
}

// B's tile, row-major; the columns that fill up the last vector are zero.
template <class T>
void convert_b(float* out, const Gemm& g, int64_t n0, int64_t columns, int64_t k0, int64_t depth) {
    const T* b = static_cast<const T*>(g.b) + (g.trans_b ? n0 * g.ldb + k0 : k0 * g.ldb + n0);
    constexpr int64_t kBlock = 16;  // transposed in blocks, so that the written lines stay in the cache
    if (g.trans_b) {
        for (int64_t j0 = 0; j0 < columns; j0 += kBlock)
            for (int64_t i = 0; i < depth; ++i)
                for (int64_t j = j0; j < j0 + kBlock && j < columns; ++j)
                    out[i * kStride + j] = float(b[j * g.ldb + i]);
    } else {
        for (int64_t i = 0; i < depth; ++i)
            for (int64_t j = 0; j < columns; ++j) out[i * kStride + j] = float(b[i * g.ldb + j]);
    }
    for (int64_t i = 0; i < depth; ++i)
        for (int64_t j = columns; j % kLanes; ++j) out[i * kStride + j] = 0;
}

template <class C>
void write_tile(const Gemm& g, const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {
    for (int64_t m = 0; m < rows; ++m) {
        C* c = static_cast<C*>(g.c) + (m0 + m) * g.ldc + n0;
        const C* old = static_cast<const C*>(g.add ? g.add : g.c) + (m0 + m) * g.ldc + n0;
        const float* t = tile + m * kTileN;
        if (g.bias)
            for_vectors(columns, [&](int64_t n, auto lanes) RZ_LAMBDA {
                store(c + n, load(t + n) + load(static_cast<const C*>(g.bias) + n0 + n, lanes), lanes);
            });
        else if (g.beta == 0)  // C may hold anything, NaN included
            for_vectors(columns, [&](int64_t n, auto lanes) RZ_LAMBDA { store(c + n, g.alpha * load(t + n), lanes); });
        else
            for_vectors(columns, [&](int64_t n, auto lanes) RZ_LAMBDA {
                store(c + n, g.alpha * load(t + n) + g.beta * load(old + n, lanes), lanes);
            });
    }
}

template <class T, class C>
void gemm_tile(const Gemm& g, int64_t m0, int64_t n0) {
    constexpr int64_t kLines = kTileM > kTileK ? kTileM : kTileK;
    float* c_tile = static_cast<float*>(thread_scratch<1>(4 * (kTileM * kTileN + kLines * kStride + kTileK * kStride)));
    float* a_tile = c_tile + kTileM * kTileN;
    float* b_tile = a_tile + kLines * kStride;
    const int64_t rows = g.M - m0 < kTileM ? g.M - m0 : kTileM;
    const int64_t columns = g.N - n0 < kTileN ? g.N - n0 : kTileN;
    const int64_t a_row = g.trans_a ? 1 : kStride, a_k = g.trans_a ? kStride : 1;
    for (int64_t k0 = 0; k0 < g.K || k0 == 0; k0 += kTileK) {
        const int64_t depth = g.K - k0 < kTileK ? g.K - k0 : kTileK;
        convert_a<T>(a_tile, g, m0, rows, k0, depth);
        convert_b<T>(b_tile, g, n0, columns, k0, depth);
        for (int64_t m = 0; m < rows; m += kTileRows)
            tile_strip<Fp32Word>(c_tile + m * kTileN, kTileN, a_tile + m * a_row, a_row, a_k, b_tile, kStride, columns,
                                 depth, k0 > 0);
    }
    write_tile<C>(g, c_tile, m0, rows, n0, columns);
}

template <class T, class C>
void gemm_own_t(const Gemm& g) {
    const int64_t tiles_m = ceil_div(g.M, kTileM), tiles_n = ceil_div(g.N, kTileN);
#pragma omp parallel for schedule(dynamic) if (g.M * g.N * g.K >= 64 * kSerialBelow)
    for (int64_t t = 0; t < tiles_m * tiles_n; ++t) gemm_tile<T, C>(g, t % tiles_m * kTileM, t / tiles_m * kTileN);
}

// C's one row where B's columns lie as rows, as when a model writes token by token: the time is that of reading B, here
// once and as it lies. A column is a dot product over the lanes, whatever its neighbours are.
template <class T, class C>
void gemm_row_t(const Gemm& g) {
    constexpr int64_t kColumns = 8;
    const T *a = static_cast<const T*>(g.a), *b = static_cast<const T*>(g.b);
    C* c = static_cast<C*>(g.c);
    const C* old = static_cast<const C*>(g.add ? g.add : g.c);
#pragma omp parallel for if (g.N * g.K >= 64 * kSerialBelow)
    for (int64_t n0 = 0; n0 < g.N; n0 += kColumns) {
        const int64_t columns = g.N - n0 < kColumns ? g.N - n0 : kColumns;
        Vec dots[kColumns] = {};
        if (columns == kColumns)
            for_vectors(g.K, [&](int64_t k, auto lanes) RZ_LAMBDA {
                const Vec x = load(a + k, lanes);
                for (int64_t i = 0; i < kColumns; ++i) dots[i] += x * load(b + (n0 + i) * g.ldb + k, lanes);
            });
        else
            for (int64_t i = 0; i < columns; ++i)
                for_vectors(g.K, [&](int64_t k, auto lanes) RZ_LAMBDA {
                    dots[i] += load(a + k, lanes) * load(b + (n0 + i) * g.ldb + k, lanes);
                });
        for (int64_t i = 0; i < columns; ++i) {
            const float y = g.alpha * sum_of(dots[i]);
            const float more = g.bias ? float(static_cast<const C*>(g.bias)[n0 + i]) : 0;
            c[n0 + i] = C(g.beta == 0 ? y + more : y + g.beta * float(old[n0 + i]));
        }
    }
}

void gemm_row(const Gemm& g) {
    with_grad_dtype(g.dtype, g.c_dtype, [&]<class T, class C>() { gemm_row_t<T, C>(g); });
}

void gemm_own(const Gemm& g) {
    with_grad_dtype(g.dtype, g.c_dtype, [&]<class T, class C>() { gemm_own_t<T, C>(g); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

static Gemm with_strides(Gemm g) {
    if (g.lda == 0) g.lda = g.trans_a ? g.M : g.K;
    if (g.ldb == 0) g.ldb = g.trans_b ? g.K : g.N;
    if (g.ldc == 0) g.ldc = g.N;
    return g;
}

static std::atomic<bool>& library_allowed() {
    static std::atomic<bool> allowed{[] {
        const char* asked = std::getenv("RZ_GEMM");
        require(!asked || !*asked || std::string(asked) == "own", "RZ_GEMM=%s: it must be own, or unset", asked);
        return !asked || !*asked;
    }()};
    return allowed;
}

bool gemm_cpu_uses_library() { return library_allowed().load(std::memory_order_relaxed) && gemm_dnnl_version(); }
void set_gemm_cpu_uses_library(bool may) { library_allowed().store(may); }

void gemm_reference(const Gemm& a) {
    const Gemm g = with_strides(a);
    if (g.M == 0 || g.N == 0) return;
    RZ_SIMD_CALL(gemm_own, g);
}

void gemm_cpu(const Gemm& a) {
    const Gemm g = with_strides(a);
    if (g.M == 0 || g.N == 0) return;
    if (g.M == 1 && g.trans_b && (!g.trans_a || g.lda == 1)) return RZ_SIMD_CALL(gemm_row, g);
    if (g.K > 0 && gemm_cpu_uses_library() && gemm_dnnl(g)) return;
    RZ_SIMD_CALL(gemm_own, g);
}

void gemm(Stream& stream, const Gemm& a) {
    const char* op = "gemm";
    check_sizes(op, {{"M", a.M, 0}, {"N", a.N, 0}, {"K", a.K, 0}});
    check_grad_dtype("gemm: C", a.c_dtype, a.dtype);
    const Gemm g = with_strides(a);
    const auto check_stride = [&](const char* name, int64_t stride, int64_t width) {
        require(stride >= width,
                "%s: %s is %ld but a row holds %ld elements (M=%ld N=%ld K=%ld, trans_a=%d trans_b=%d)", op, name,
                stride, width, g.M, g.N, g.K, g.trans_a, g.trans_b);
    };
    check_stride("lda", g.lda, g.trans_a ? g.M : g.K);
    check_stride("ldb", g.ldb, g.trans_b ? g.K : g.N);
    check_stride("ldc", g.ldc, g.N);
    require(!g.bias || (g.alpha == 1 && g.beta == 0), "%s: a bias with alpha %g and beta %g; it goes with 1 and 0", op,
            double(g.alpha), double(g.beta));
    require(!g.add || (g.beta != 0 && g.add != g.c), "%s: a matrix to add %s", op,
            g.beta == 0 ? "with beta 0; give another beta" : "that is C; leave it out");
    if (g.M == 0 || g.N == 0) return;
    if (g.add) check_pointer(op, "add", g.add, size_of(g.c_dtype));
    if (g.bias) check_pointer(op, "bias", g.bias, 16);
    check_pointer(op, "c", g.c, size_of(g.c_dtype));
    if (g.K > 0) {
        check_pointers(op, {{"a", g.a, size_of(g.dtype)}, {"b", g.b, size_of(g.dtype)}});
    }
    stream.run(g, gemm_cpu, RZ_CUDA_OP(gemm_cuda));
}

const char* gemm_library(DeviceKind kind) {
    const char* (*cuda)() = RZ_CUDA_OP(gemm_library_cuda);
    if (kind == DeviceKind::cuda) return cuda ? cuda() : "none: built without CUDA";
    return gemm_cpu_uses_library() ? gemm_dnnl_version() : "own loops";
}

}  // namespace rz
#endif
