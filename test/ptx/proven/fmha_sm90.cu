// CUTLASS's attention for Hopper (its example 88): wgmma with A in registers.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>

#include "collective/fmha_fusion.hpp"
#include "device/device_universal.hpp"
#include "device/fmha_device_bwd.hpp"
#include "kernel/fmha_kernel_builder.hpp"
#include "test/ptx/proven/proven.h"

namespace {

using namespace cute;
using namespace cutlass::fmha;
using half = cutlass::half_t;
using Cooperative = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using Causal = collective::CausalFusion;
using Full = collective::DefaultFusion;
using proven::Attention;

template <class Operation>
std::string finish(Operation& op, const typename Operation::Arguments& args) {
    void* workspace = nullptr;
    if (cudaMalloc(&workspace, Operation::get_workspace_size(args) + 16) != cudaSuccess) return "no memory";
    cutlass::Status s = op.can_implement(args);
    if (s == cutlass::Status::kSuccess) s = op.initialize(args, workspace);
    if (s == cutlass::Status::kSuccess) s = op.run();
    const cudaError_t e = cudaDeviceSynchronize();
    cudaFree(workspace);
    if (s != cutlass::Status::kSuccess) return cutlassGetStatusString(s);
    return e == cudaSuccess ? "" : cudaGetErrorString(e);
}

cutlass::KernelHardwareInfo hardware() {
    cutlass::KernelHardwareInfo info;
    info.device_id = 0, info.sm_count = 4;
    return info;
}

const half* in(const uint16_t* p) { return reinterpret_cast<const half*>(p); }
half* out(uint16_t* p) { return reinterpret_cast<half*>(p); }

template <class Tile, class Fusion>
std::string forward(const Attention& a, const Attention::Arrays& x) {
    using Layout = tuple<int, _1, tuple<int, int>>;
    using Operation = cutlass::device::Universal<
        typename kernel::FmhaBuilder<half, float, float, Tile, Layout, Layout, Layout, Fusion, Cooperative>::Kernel>;
    const Layout rows = make_stride(a.d, _1{}, make_stride(a.heads * a.t * a.d, a.t * a.d));
    const auto lse = make_stride(_1{}, make_stride(a.heads * a.t, a.t));
    typename Operation::Arguments args{
        make_tuple(a.batch, a.heads, a.t, a.t, a.d),
        {const_cast<half*>(in(x.q)), rows, const_cast<half*>(in(x.k)), rows, const_cast<half*>(in(x.v)), rows},
        {out(x.o), rows, x.lse, lse},
        hardware()};
    Operation op;
    return finish(op, args);
}

const proven::Add add(std::vector<Attention>{
    {"sm90 attention, D = 64, causal", 1, 192, 2, 2, 64, true, false, true, true,
     forward<Shape<_128, _64, _64>, Causal>},
    {"sm90 attention, D = 128", 1, 128, 1, 1, 128, false, false, true, true, forward<Shape<_128, _128, _128>, Full>},
});

}  // namespace
