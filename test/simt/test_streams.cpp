// The fake CUDA runtime and cuBLASLt: what lazy streams show, events, graphs, memory, matrix products.
#include <cmath>
#include <functional>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "test/simt/control.h"
#include "test/simt/device_array.h"
#include "test/simt/selftest.h"

namespace rz::selftest {
namespace {

struct Streams {
    cudaStream_t a, b;
    cudaEvent_t event;
    Streams() {
        int least, greatest;
        cudaDeviceGetStreamPriorityRange(&least, &greatest);
        cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, least);
        cudaStreamCreateWithPriority(&b, cudaStreamNonBlocking, greatest);
        cudaEventCreateWithFlags(&event, 0);
    }
    ~Streams() {
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
        cudaEventDestroy(event);
    }
};

// In how many of 60 interleavings the result differs from `want`.
int wrong(float want, const std::function<void(Streams&, float*)>& program) {
    int n = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        simt::seed_streams(seed);
        Streams s;
        DeviceArray<float> x(std::vector<float>(64, 1));
        program(s, x.data());
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        n += x.get()[5] != want;
    }
    return n;
}

TEST(SimtStreams, EventsOrderStreams) {
    const auto program = [](bool wait) {
        return [wait](Streams& s, float* x) {
            add_one(x, 64, s.a);
            cudaEventRecord(s.event, s.a);
            if (wait) cudaStreamWaitEvent(s.b, s.event, 0);
            scale(x, 10, 64, s.b);
        };
    };
    EXPECT_EQ(wrong(20, program(true)), 0);
    EXPECT_GT(wrong(20, program(false)), 10);
}

TEST(SimtStreams, WaitMeansTheRecordingBeforeIt) {
    // A later recording does not move what an earlier wait waits for, and a wait for a new event waits for nothing.
    EXPECT_EQ(wrong(21,
                    [](Streams& s, float* x) {
                        cudaStreamWaitEvent(s.b, s.event, 0);
                        add_one(x, 64, s.a);
                        cudaEventRecord(s.event, s.a);
                        cudaStreamWaitEvent(s.b, s.event, 0);
                        cudaEventRecord(s.event, s.b);
                        scale(x, 10, 64, s.b);
                        cudaEventRecord(s.event, s.b);
                        cudaStreamWaitEvent(s.a, s.event, 0);
                        add_one(x, 64, s.a);
                    }),
              0);
}

TEST(SimtStreams, AnEventThatIsRecordedElsewhereKeepsItsWaits) {
    EXPECT_EQ(wrong(20,
                    [](Streams& s, float* x) {
                        Streams other;
                        add_one(x, 64, s.a);
                        cudaEventRecord(s.event, s.a);
                        cudaStreamWaitEvent(s.b, s.event, 0);
                        cudaEventRecord(s.event, other.a);  // done at once
                        scale(x, 10, 64, s.b);
                        cudaDeviceSynchronize();
                    }),
              0);
}

TEST(SimtStreams, HostFunctionsRunInOrderAndEventsCanBePolled) {
    Streams s;
    DeviceArray<float> x(std::vector<float>(64, 1));
    int called = 0;
    add_one(x.data(), 64, s.a);
    cudaLaunchHostFunc(
        s.a, [](void* p) { ++*static_cast<int*>(p); }, &called);
    cudaEventRecord(s.event, s.a);
    EXPECT_EQ(called, 0);  // lazy
    int polls = 0;
    while (cudaEventQuery(s.event) == cudaErrorNotReady && polls < 100) polls++;
    EXPECT_EQ(called, 1);
    EXPECT_LT(polls, 100);
}

TEST(SimtStreams, HostFunctionsMustNotCallCuda) {
    const auto program = [] {
        Streams s;
        cudaLaunchHostFunc(
            s.a, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); }, s.event);
        cudaStreamSynchronize(s.a);
    };
    EXPECT_DEATH(program(), "cudaEventDestroy in a host function");
}

TEST(SimtStreams, GraphsReplayWhatWasRecorded) {
    Streams s;
    DeviceArray<float> x(std::vector<float>(64, 1)), y(std::vector<float>(64, 1));
    cudaEvent_t joined;
    cudaEventCreateWithFlags(&joined, 0);
    ASSERT_EQ(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    add_one(x.data(), 64, s.a);
    cudaEventRecord(s.event, s.a);
    cudaStreamWaitEvent(s.b, s.event, 0);
    scale(x.data(), 2, 64, s.b);
    cudaEventRecord(joined, s.b);
    add_one(y.data(), 64, s.a);
    cudaStreamWaitEvent(s.a, joined, 0);
    scale(y.data(), 3, 64, s.a);
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamEndCapture(s.a, &graph), cudaSuccess);
    EXPECT_EQ(x.get()[0], 1);  // recorded, not run
    cudaGraphExec_t exec;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 2; i++) ASSERT_EQ(cudaGraphLaunch(exec, s.a), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(s.a), cudaSuccess);
    EXPECT_EQ(x.get()[0], 10);  // ((1 + 1) * 2 + 1) * 2
    EXPECT_EQ(y.get()[0], 21);  // ((1 + 1) * 3 + 1) * 3
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(joined);
}

TEST(SimtStreams, UnjoinedCaptureIsRefused) {
    Streams s;
    DeviceArray<float> x(std::vector<float>(64, 1));
    cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(s.event, s.a);
    cudaStreamWaitEvent(s.b, s.event, 0);
    add_one(x.data(), 64, s.b);
    cudaGraph_t graph;
    EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureUnjoined);
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
}

TEST(SimtStreams, MemoryIsPoisonedCountedAndBounded) {
    size_t before, total, after;
    cudaMemGetInfo(&before, &total);
    void* p;
    ASSERT_EQ(cudaMalloc(&p, 1000), cudaSuccess);
    cudaMemGetInfo(&after, &total);
    EXPECT_EQ(before - after, 1000u);
    float value;
    EXPECT_EQ(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(cudaMemset(p, 0, 1001), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFree(p), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&p, total + 1), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(SimtStreams, CublasLtsMatmulGivesTheMatrixProduct) {
    const int M = 5, N = 7, K = 33;
    cublasLtHandle_t lt;
    cublasLtCreate(&lt);
    for (int flags = 0; flags < 8; flags++) {
        const bool ta = flags & 1, tb = flags & 2, row_major = flags & 4;
        std::vector<float> a(static_cast<size_t>(M * K)), b(static_cast<size_t>(K * N)), c(static_cast<size_t>(M * N));
        for (size_t i = 0; i < a.size(); i++) a[i] = float(i * 7 % 11) - 5;
        for (size_t i = 0; i < b.size(); i++) b[i] = float(i * 5 % 13) - 6;
        for (size_t i = 0; i < c.size(); i++) c[i] = float(i);
        const auto element = [&](const std::vector<float>& m, int rows, int cols, int r, int j) {
            return m[size_t(row_major ? r * cols + j : j * rows + r)];
        };
        DeviceArray<float> da(a), db(b), dc(c), workspace(4096);
        cublasLtMatmulDescOpaque_t desc;
        cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        const cublasOperation_t oa = ta ? CUBLAS_OP_T : CUBLAS_OP_N, ob = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &oa, sizeof oa);
        cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSB, &ob, sizeof ob);
        const auto layout = [&](int rows, int cols) {
            cublasLtMatrixLayoutOpaque_t l;
            cublasLtMatrixLayoutInit(&l, CUDA_R_32F, uint64_t(rows), uint64_t(cols), row_major ? cols : rows);
            const cublasLtOrder_t order = row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
            cublasLtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
            return l;
        };
        const int ar = ta ? K : M, ac = ta ? M : K, br = tb ? N : K, bc = tb ? K : N;
        cublasLtMatrixLayoutOpaque_t la = layout(ar, ac), lb = layout(br, bc), lc = layout(M, N);
        cublasLtMatmulPreferenceOpaque_t preference;
        cublasLtMatmulPreferenceInit(&preference);
        const uint64_t bytes = 4096 * 4;
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                             sizeof bytes);
        cublasLtMatmulHeuristicResult_t found[8];
        int n = 0;
        ASSERT_EQ(cublasLtMatmulAlgoGetHeuristic(lt, &desc, &la, &lb, &lc, &lc, &preference, 8, found, &n),
                  CUBLAS_STATUS_SUCCESS);
        ASSERT_GE(n, 2);
        for (int i = 0; i < n; i++) {
            cudaMemcpy(dc.data(), c.data(), c.size() * 4, cudaMemcpyHostToDevice);
            const float alpha = 2, beta = 3;
            ASSERT_EQ(cublasLtMatmul(lt, &desc, &alpha, da.data(), &la, db.data(), &lb, &beta, dc.data(), &lc,
                                     dc.data(), &lc, &found[i].algo, workspace.data(), bytes, nullptr),
                      CUBLAS_STATUS_SUCCESS);
            const auto d = dc.get();
            for (int r = 0; r < M; r++)
                for (int j = 0; j < N; j++) {
                    float want = 3 * element(c, M, N, r, j);
                    for (int k = 0; k < K; k++)
                        want += 2 * (ta ? element(a, K, M, k, r) : element(a, M, K, r, k)) *
                                (tb ? element(b, N, K, j, k) : element(b, K, N, k, j));
                    ASSERT_EQ(element(d, M, N, r, j), want) << "flags " << flags << ", algorithm " << i;
                }
        }
    }
    cublasLtDestroy(lt);
}

}  // namespace
}  // namespace rz::selftest
