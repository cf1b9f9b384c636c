// CUTLASS's GEMMs for Ampere: cp.async, ldmatrix, mma.sync m16n8k16.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm.h>

#include "test/ptx/proven/proven.h"

namespace {

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using bf16 = cutlass::bfloat16_t;
template <int M, int N, int K>
using Shape = cutlass::gemm::GemmShape<M, N, K>;

template <class LayoutA, class LayoutB>
std::string run(const proven::Gemm& g, const void* a, const void* b, const float* c, float* d) {
    using Gemm =
        cutlass::gemm::device::Gemm<bf16, LayoutA, bf16, LayoutB, float, Row, float, cutlass::arch::OpClassTensorOp,
                                    cutlass::arch::Sm80, Shape<64, 64, 32>, Shape<32, 32, 32>, Shape<16, 8, 16>,
                                    cutlass::epilogue::thread::LinearCombination<float, 4, float, float>,
                                    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3, 8, 8>;
    const int lda = std::is_same_v<LayoutA, Row> ? g.k : g.m, ldb = std::is_same_v<LayoutB, Row> ? g.n : g.k;
    Gemm device;
    const cutlass::Status s = device({{g.m, g.n, g.k},
                                      {static_cast<const bf16*>(a), lda},
                                      {static_cast<const bf16*>(b), ldb},
                                      {c, g.n},
                                      {d, g.n},
                                      {2.0f, 3.0f}});
    const cudaError_t e = cudaDeviceSynchronize();
    if (s != cutlass::Status::kSuccess) return cutlassGetStatusString(s);
    return e == cudaSuccess ? "" : cudaGetErrorString(e);
}

const proven::Add add(std::vector<proven::Gemm>{
    {"sm80 A row-major, B column-major", 136, 72, 104, true, false, proven::Types::bf16, run<Row, Column>},
    {"sm80 A column-major, B row-major", 136, 72, 104, false, true, proven::Types::bf16, run<Column, Row>},
});

}  // namespace
