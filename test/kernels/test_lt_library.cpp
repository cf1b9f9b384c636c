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

TEST(LtLibrary, LayoutsAreAsAskedFor) {
    const auto get = LIBRARY(cublasLtMatrixLayoutGetAttribute);
    const auto is_3_by_5_in_7 = [&](cublasLtMatrixLayout_t layout) {
        uint64_t rows = 0, columns = 0;
        int64_t ld = 0;
        cudaDataType_t type{};
        size_t n = 0;
        EXPECT_EQ(get(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type, &n), CUBLAS_STATUS_SUCCESS);
        return rows == 3 && columns == 5 && ld == 7 && type == CUDA_R_16BF;
    };
    cublasLtMatrixLayoutOpaque_t own;
    ASSERT_EQ(cublasLtMatrixLayoutInit(&own, CUDA_R_16BF, 3, 5, 7), CUBLAS_STATUS_SUCCESS);
    EXPECT_TRUE(is_3_by_5_in_7(&own));
}

TEST(LtLibrary, OperationsAndPreferencesAreAsAskedFor) {
    const auto get = LIBRARY(cublasLtMatmulDescGetAttribute);
    const auto is_transposed = [&](cublasLtMatmulDesc_t operation) {
        const cublasOperation_t asked = CUBLAS_OP_T;
        EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &asked, sizeof asked),
                  CUBLAS_STATUS_SUCCESS);
        cublasOperation_t first{}, second{};
        cudaDataType_t scale{};
        cublasComputeType_t compute{};
        size_t n = 0;
        EXPECT_EQ(get(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale, sizeof scale, &n), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(get(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute, &n),
                  CUBLAS_STATUS_SUCCESS);
        return first == CUBLAS_OP_N && second == CUBLAS_OP_T && scale == CUDA_R_32F && compute == CUBLAS_COMPUTE_32F;
    };
    cublasLtMatmulDescOpaque_t own;
    ASSERT_EQ(cublasLtMatmulDescInit(&own, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_TRUE(is_transposed(&own));

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
