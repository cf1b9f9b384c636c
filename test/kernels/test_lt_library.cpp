// cuBLASLt behind kernels/gemm/lt_library.cpp, as far as it answers with no GPU: every function that is forwarded there
// is called, and what has arrived is asked of the library itself.
#ifdef RZ_CUDA
#include <cublasLt.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

template <class Function>
static Function library(const char* name) {
    static void* const opened = dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(), RTLD_NOW);
    return reinterpret_cast<Function>(opened ? dlsym(opened, name) : nullptr);
}
#define LIBRARY(name) library<decltype(&name)>(#name)

TEST(LtLibrary, IsThatOfTheHeaders) {
    EXPECT_EQ(cublasLtGetVersion() / 10000, size_t(CUBLAS_VER_MAJOR));
    EXPECT_EQ(cublasLtGetVersion(), LIBRARY(cublasLtGetVersion)());
    EXPECT_EQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), std::string("CUBLAS_STATUS_NOT_SUPPORTED"));
    EXPECT_EQ(cublasLtGetStatusString(CUBLAS_STATUS_ARCH_MISMATCH),
              LIBRARY(cublasLtGetStatusString)(CUBLAS_STATUS_ARCH_MISMATCH));
}

template <class T, class Object, class What>
static T attribute(cublasStatus_t (*get)(Object, What, void*, size_t, size_t*), Object object, What what) {
    T value{};
    size_t n = 0;
    EXPECT_EQ(get(object, what, &value, sizeof value, &n), CUBLAS_STATUS_SUCCESS);
    return value;
}

TEST(LtLibrary, LayoutsAreAsAskedFor) {
    const auto get = LIBRARY(cublasLtMatrixLayoutGetAttribute);
    cublasLtMatrixLayoutOpaque_t own;
    cublasLtMatrixLayout_t layout = &own;
    ASSERT_EQ(cublasLtMatrixLayoutInit(layout, CUDA_R_16BF, 3, 5, 7), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(attribute<uint64_t>(get, layout, CUBLASLT_MATRIX_LAYOUT_ROWS), 3u);
    EXPECT_EQ(attribute<uint64_t>(get, layout, CUBLASLT_MATRIX_LAYOUT_COLS), 5u);
    EXPECT_EQ(attribute<int64_t>(get, layout, CUBLASLT_MATRIX_LAYOUT_LD), 7);
    EXPECT_EQ(attribute<cudaDataType_t>(get, layout, CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_16BF);
}

TEST(LtLibrary, OperationsAndPreferencesAreAsAskedFor) {
    const auto get = LIBRARY(cublasLtMatmulDescGetAttribute);
    cublasLtMatmulDescOpaque_t own;
    cublasLtMatmulDesc_t operation = &own;
    ASSERT_EQ(cublasLtMatmulDescInit(operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    const cublasOperation_t asked = CUBLAS_OP_T;
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &asked, sizeof asked),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(attribute<cublasOperation_t>(get, operation, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_N);
    EXPECT_EQ(attribute<cublasOperation_t>(get, operation, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_T);
    EXPECT_EQ(attribute<cudaDataType_t>(get, operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE), CUDA_R_32F);
    EXPECT_EQ(attribute<cublasComputeType_t>(get, operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), CUBLAS_COMPUTE_32F);

    cublasLtMatmulPreferenceOpaque_t preference;
    const auto most = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    ASSERT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
    uint64_t bytes = 12345, written = 0;
    ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(&preference, most, &bytes, sizeof bytes), CUBLAS_STATUS_SUCCESS);
    size_t n = 0;
    LIBRARY(cublasLtMatmulPreferenceGetAttribute)(&preference, most, &written, sizeof written, &n);
    EXPECT_EQ(written, bytes);
}

// No handle, no product: the library says so by its own word.
TEST(LtLibrary, RefusesToMultiplyWithoutAHandle) {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t own;
    cublasLtMatmulPreferenceOpaque_t preference;
    ASSERT_EQ(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatrixLayoutInit(&own, CUDA_R_32F, 1, 1, 1), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
    cublasLtMatrixLayout_t l = &own;
    cublasLtMatmulHeuristicResult_t found{};
    cublasLtMatmulAlgo_t algorithm{};
    float one = 1;
    int n = 0;
    cublasLtHandle_t none = nullptr;
    cublasLtHandle_t made = nullptr, direct = nullptr;
    EXPECT_EQ(cublasLtCreate(&made), LIBRARY(cublasLtCreate)(&direct));  // what it says depends on the machine's GPUs
    EXPECT_EQ(made == nullptr, direct == nullptr);
    EXPECT_EQ(cublasLtDestroy(none), LIBRARY(cublasLtDestroy)(none));
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(none, &operation, l, l, l, l, &preference, 1, &found, &n),
              CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(cublasLtMatmulAlgoCheck(none, &operation, l, l, l, l, &algorithm, &found), CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(cublasLtMatmul(none, &operation, &one, &one, l, &one, l, &one, &one, l, &one, l, &algorithm, nullptr, 0,
                             nullptr),
              CUBLAS_STATUS_NOT_INITIALIZED);
}
#endif
