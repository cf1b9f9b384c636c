#include "kernels/embedding.h"

#include <cstring>

#include "kernels/checks.h"

#define RZ_SIMD_FILE "kernels/embedding.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

template <class T, class G>
void embedding_backward_t(const EmbeddingBackward& a) {
    constexpr int64_t kColumns = 256;  // of a row at a time: the sum stays in the first-level cache
    // Any thread may take any token: each is summed by one owner in ascending position.
#pragma omp parallel for schedule(dynamic, 8) if (a.N * a.C >= kSerialBelow)
    for (int64_t i = 0; i < a.distinct; ++i) {
        const int64_t id = int64_t(a.ids[i]) - a.first;
        if (a.starts[i] == a.starts[i + 1] || id < 0 || id >= a.V) continue;
        G* drow = static_cast<G*>(a.dtable) + id * a.C;
        for (int64_t c0 = 0; c0 < a.C; c0 += kColumns) {
            const int64_t columns = a.C - c0 < kColumns ? a.C - c0 : kColumns;
            alignas(64) float sum[kColumns];
            for_vectors(columns,
                        [&](int64_t c, auto lanes) RZ_LAMBDA { store(sum + c, load(drow + c0 + c, lanes), lanes); });
            for (int32_t r = a.starts[i]; r < a.starts[i + 1]; ++r) {
                const T* dx = static_cast<const T*>(a.dx) + int64_t(a.rows[r]) * a.C + c0;
                for_vectors(columns, [&](int64_t c, auto lanes) RZ_LAMBDA {
                    store(sum + c, load(sum + c, lanes) + load(dx + c, lanes), lanes);
                });
            }
            for_vectors(columns,
                        [&](int64_t c, auto lanes) RZ_LAMBDA { store(drow + c0 + c, load(sum + c, lanes), lanes); });
        }
    }
}

void embedding_backward(const EmbeddingBackward& a) {
    with_grad_dtype(a.dtype, a.grad_dtype, [&]<class T, class G>() { embedding_backward_t<T, G>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

int64_t embedding_plan(const int32_t* tokens, int64_t N, int64_t V, int32_t* rows, int32_t* starts, int32_t* ids) {
    check_sizes("embedding_plan", {{"N", N, 0}, {"V", V, 1}});
    require(N <= INT32_MAX && V <= INT32_MAX, "embedding_plan: N %ld and V %ld must fit 32 bits", N, V);
    // Counting sort: stable, so a token's rows stay in ascending order.
    std::vector<int32_t> next(size_t(V) + 1, 0);
    for (int64_t n = 0; n < N; ++n) {
        require(tokens[n] >= 0 && tokens[n] < V, "embedding: token %d at position %ld is outside the vocabulary of %ld",
                tokens[n], n, V);
        ++next[size_t(tokens[n]) + 1];
    }
    int64_t distinct = 0;
    for (int64_t v = 0; v < V; ++v) {
        const int32_t count = next[size_t(v) + 1];
        next[size_t(v) + 1] = next[size_t(v)] + count;
        if (count == 0) continue;
        ids[distinct] = int32_t(v);
        starts[distinct++] = next[size_t(v)];
    }
    starts[distinct] = int32_t(N);
    for (int64_t n = 0; n < N; ++n) rows[next[size_t(tokens[n])]++] = int32_t(n);
    return distinct;
}

void embedding_forward_cpu(const EmbeddingForward& a) {
    const size_t bytes = size_t(a.C * size_of(a.dtype));
#pragma omp parallel for schedule(static) if (a.N * a.C >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        char* x = static_cast<char*>(a.x) + size_t(n) * bytes;
        const int64_t row = int64_t(a.tokens[n]) - a.first;
        if (row < 0 || row >= a.V)
            std::memset(x, 0, bytes);
        else
            std::memcpy(x, static_cast<const char*>(a.table) + size_t(row) * bytes, bytes);
    }
}

void embedding_backward_cpu(const EmbeddingBackward& a) { RZ_SIMD_CALL(embedding_backward, a); }

void embedding_forward(Stream& stream, const EmbeddingForward& a) {
    const char* op = "embedding_forward";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}, {"V", a.V, 1}, {"first", a.first, 0}});
    if (a.N == 0) return;
    check_pointers(op, {{"x", a.x, 16}, {"table", a.table, 16}, {"tokens", a.tokens}});
    stream.run(a, embedding_forward_cpu, RZ_CUDA_OP(embedding_forward_cuda));
}

void embedding_backward(Stream& stream, const EmbeddingBackward& a) {
    const char* op = "embedding_backward";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}, {"V", a.V, 1}, {"first", a.first, 0}});
    require(a.distinct >= 0 && a.distinct <= a.N,
            "%s: %ld distinct tokens among %ld rows; use what embedding_plan returned", op, a.distinct, a.N);
    check_grad_dtype(op, a.grad_dtype, a.dtype);
    if (a.N == 0 || a.distinct == 0) return;
    check_pointers(
        op, {{"dtable", a.dtable, 16}, {"dx", a.dx, 16}, {"rows", a.rows}, {"starts", a.starts}, {"ids", a.ids}});
    stream.run(a, embedding_backward_cpu, RZ_CUDA_OP(embedding_backward_cuda));
}

}  // namespace rz
#endif
