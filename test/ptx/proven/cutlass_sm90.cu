// CUTLASS's GEMMs for Hopper: TMA, warp specialisation, wgmma. Each takes a form of operands for wgmma.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

#include "test/ptx/proven/proven.h"

namespace {

using namespace cute;
namespace gemm = cutlass::gemm;
namespace epilogue = cutlass::epilogue;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using bf16 = cutlass::bfloat16_t;
using e4m3 = cutlass::float_e4m3_t;
using proven::Types;
using One = Shape<_1, _1, _1>;

template <class A, class LayoutA, class LayoutB, class Tile, class Cluster, class Schedule, class Epilogue,
          class B = bf16>
struct Kernel {
    using End =
        typename epilogue::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile,
                                                         Cluster, epilogue::collective::EpilogueTileAuto, float, float,
                                                         float, Row, 4, float, Row, 4, Epilogue>::CollectiveOp;
    using Main = typename gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, LayoutA, 16 / sizeof(A), B, LayoutB, 16 / sizeof(B),
        float, Tile, Cluster, gemm::collective::StageCountAutoCarveout<int(sizeof(typename End::SharedStorage))>,
        Schedule>::CollectiveOp;
    using Gemm = gemm::device::GemmUniversalAdapter<gemm::kernel::GemmUniversal<Shape<int, int, int>, Main, End>>;

    static std::string run(const proven::Gemm& g, const void* a, const void* b, const float* c, float* d) {
        using K = typename Gemm::GemmKernel;
        const auto sa = cutlass::make_cute_packed_stride(typename K::StrideA{}, make_shape(g.m, g.k, 1));
        const auto sb = cutlass::make_cute_packed_stride(typename K::StrideB{}, make_shape(g.n, g.k, 1));
        const auto sc = cutlass::make_cute_packed_stride(typename K::StrideC{}, make_shape(g.m, g.n, 1));
        typename Gemm::Arguments args{gemm::GemmUniversalMode::kGemm,
                                      {g.m, g.n, g.k},
                                      {static_cast<const A*>(a), sa, static_cast<const B*>(b), sb},
                                      {{2.0f, 3.0f}, c, sc, d, sc}};
        args.hw_info.sm_count = 4;
        Gemm device;
        void* workspace = nullptr;
        if (cudaMalloc(&workspace, Gemm::get_workspace_size(args) + 16) != cudaSuccess) return "no memory";
        cutlass::Status s = device.can_implement(args);
        if (s == cutlass::Status::kSuccess) s = device.initialize(args, workspace);
        if (s == cutlass::Status::kSuccess) s = device.run();
        const cudaError_t e = cudaDeviceSynchronize();
        cudaFree(workspace);
        if (s != cutlass::Status::kSuccess) return cutlassGetStatusString(s);
        return e == cudaSuccess ? "" : cudaGetErrorString(e);
    }
};

using PingPong = gemm::KernelTmaWarpSpecializedPingpong;
using Cooperative = gemm::KernelTmaWarpSpecializedCooperative;
using Plain = gemm::KernelTmaWarpSpecialized;
using FastSums = gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum;
using TmaStore = epilogue::TmaWarpSpecialized;
using TmaStoreCooperative = epilogue::TmaWarpSpecializedCooperative;
using PlainStore = epilogue::NoSmemWarpSpecialized;

const proven::Add add(std::vector<proven::Gemm> {
#if PART == 1
    {"sm90 ping-pong, A and B K-major",
     200,
     264,
     136,
     true,
     false,
     Types::bf16,
     Kernel<bf16, Row, Column, Shape<_128, _128, _64>, One, PingPong, TmaStore>::run},
        {"sm90 cooperative, cluster of 2, multicast",
         256,
         256,
         128,
         true,
         false,
         Types::bf16,
         Kernel<bf16, Row, Column, Shape<_128, _128, _64>, Shape<_2, _1, _1>, Cooperative, TmaStoreCooperative>::run},
        {"sm90 ping-pong, A and B MN-major",
         200,
         264,
         136,
         false,
         true,
         Types::bf16,
         Kernel<bf16, Column, Row, Shape<_128, _128, _64>, One, PingPong, TmaStore>::run},
#elif PART == 2
    {"sm90 B MN-major, N = 96", 192, 192, 128, true, true, Types::bf16,
     Kernel<bf16, Row, Row, Shape<_64, _96, _64>, One, Plain, TmaStore>::run},
    {"sm90 B MN-major, N = 80", 128, 160, 128, true, true, Types::bf16,
     Kernel<bf16, Row, Row, Shape<_64, _80, _64>, One, Plain, PlainStore>::run},
    {"sm90 B MN-major, N = 72, no swizzle", 128, 144, 128, true, true, Types::bf16,
     Kernel<bf16, Row, Row, Shape<_64, _72, _64>, One, Plain, TmaStore>::run},
#elif PART == 3
    {"sm90 K-major, K tile of 32", 128, 128, 96, true, false, Types::bf16,
     Kernel<bf16, Row, Column, Shape<_64, _64, _32>, One, Plain, PlainStore>::run},
    {"sm90 K-major, K tile of 16", 128, 128, 80, true, false, Types::bf16,
     Kernel<bf16, Row, Column, Shape<_64, _64, _16>, One, Plain, PlainStore>::run},
    {"sm90 A int8 by way of registers", 128, 128, 128, true, false, Types::int8_by_bf16,
     Kernel<int8_t, Row, Column, Shape<_128, _64, _64>, One, Plain, PlainStore>::run},
    {"sm90 A MN-major, B K-major", 128, 128, 136, false, false, Types::bf16,
     Kernel<bf16, Column, Column, Shape<_64, _64, _64>, One, Plain, PlainStore>::run},
#elif PART == 4
    {"sm90 fp8 ping-pong", 128, 136, 272, true, false, Types::e4m3,
     Kernel<e4m3, Row, Column, Shape<_64, _128, _128>, One, PingPong, TmaStore, e4m3>::run},
    {"sm90 fp8 with fast sums, cluster of 2, multicast", 256, 128, 256, true, false, Types::e4m3,
     Kernel<e4m3, Row, Column, Shape<_128, _64, _128>, Shape<_2, _1, _1>, FastSums, TmaStoreCooperative, e4m3>::run},
#endif
});

}  // namespace
