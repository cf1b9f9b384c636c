// FlashAttention-2 (sm_80): cp.async, ldmatrix with and without .trans, mma.sync.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "flash_bwd_launch_template.h"
#include "flash_fwd_launch_template.h"
#include "kernel_traits.h"
#include "test/ptx/proven/proven.h"

namespace {

using namespace FLASH_NAMESPACE;
using bf16 = cutlass::bfloat16_t;
using proven::Attention;

template <class P>
P parameters(const Attention& a, const Attention::Arrays& x) {
    P p{};
    p.q_ptr = const_cast<uint16_t*>(x.q), p.k_ptr = const_cast<uint16_t*>(x.k), p.v_ptr = const_cast<uint16_t*>(x.v);
    p.o_ptr = x.o, p.softmax_lse_ptr = x.lse;
    p.q_row_stride = p.o_row_stride = a.heads * a.d, p.q_batch_stride = p.o_batch_stride = a.t * p.q_row_stride;
    p.k_row_stride = p.v_row_stride = a.kv_heads * a.d, p.k_batch_stride = p.v_batch_stride = a.t * p.k_row_stride;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = a.d;
    p.h = a.heads, p.h_k = a.kv_heads, p.h_h_k_ratio = a.heads / a.kv_heads;
    p.b = a.batch, p.seqlen_q = p.seqlen_k = a.t, p.d = p.d_rounded = a.d, p.total_q = a.batch * a.t;
    p.seqlen_q_rounded = p.seqlen_k_rounded = (a.t + 127) / 128 * 128;
    p.scale_softmax = float(1 / std::sqrt(double(a.d))), p.scale_softmax_log2 = p.scale_softmax * float(M_LOG2E);
    p.p_dropout = p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255, p.scale_softmax_rp_dropout = p.scale_softmax;
    p.window_size_left = -1, p.window_size_right = a.causal ? 0 : -1, p.is_bf16 = true, p.is_causal = a.causal;
    return p;
}

template <class Kernel, class... P>
std::string launch(Kernel kernel, dim3 grid, int threads, size_t shared, P... p) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    void* args[] = {&p...};
    cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, threads, args, shared, nullptr);
    const cudaError_t e = cudaDeviceSynchronize();
    return e == cudaSuccess ? "" : cudaGetErrorString(e);
}

template <int D, bool causal>
std::string forward(const Attention& a, const Attention::Arrays& x) {
    using Traits = Flash_fwd_kernel_traits<D, 128, 64, 4, false, false, bf16>;
    return launch(flash_fwd_kernel<Traits, false, causal, false, false, false, true, false, false>,
                  dim3((a.t + 127) / 128, a.batch, a.heads), Traits::kNThreads, Traits::kSmemSize,
                  parameters<Flash_fwd_params>(a, x));
}

// dq is summed by atomics in fp32; dk and dv are of each query head, as its caller sums them.
template <int D, bool causal>
std::string backward(const Attention& a, const Attention::Arrays& x) {
    using Traits = Flash_bwd_kernel_traits<D, 64, 64, 8, 4, 2, 2, false, false, bf16>;
    auto p = parameters<Flash_bwd_params>(a, x);
    const size_t rows = size_t(a.batch * a.heads * p.seqlen_q_rounded);
    float *sum = nullptr, *dq = nullptr;
    if (cudaMalloc(&sum, rows * 4) != cudaSuccess || cudaMalloc(&dq, rows * D * 4) != cudaSuccess) return "no memory";
    cudaMemset(dq, 0, rows * D * 4);
    p.do_ptr = const_cast<uint16_t*>(x.d_o), p.dq_ptr = x.dq, p.dk_ptr = x.dk, p.dv_ptr = x.dv;
    p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = p.q_row_stride;
    p.do_batch_stride = p.dq_batch_stride = p.dk_batch_stride = p.dv_batch_stride = p.q_batch_stride;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = D;
    p.dsoftmax_sum = sum, p.dq_accum_ptr = dq;
    const dim3 blocks((a.t + 63) / 64, a.batch, a.heads);
    std::string failed = launch(flash_bwd_dot_do_o_kernel<true, Traits>, blocks, Traits::kNThreads, 0, p);
    if (failed.empty())
        failed = launch(
            flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Traits, false, causal, false, false, false, true, false>,
            blocks, Traits::kNThreads, Traits::kSmemSize1colblock, p);
    if (failed.empty())
        failed = launch(flash_bwd_convert_dq_kernel<Traits>, blocks, Traits::kNThreads, Traits::kSmemdQSize, p, 1);
    cudaFree(sum), cudaFree(dq);
    return failed;
}

const proven::Add add(std::vector<Attention>{
    {"sm80 FlashAttention-2, D = 64, causal, grouped heads", 1, 130, 2, 1, 64, true, false, false, false,
     forward<64, true>},
    {"sm80 FlashAttention-2, D = 128", 1, 96, 1, 1, 128, false, false, false, false, forward<128, false>},
    {"sm80 FlashAttention-2 backward, D = 64, causal, grouped heads", 1, 130, 2, 1, 64, true, true, false, false,
     backward<64, true>},
    {"sm80 FlashAttention-2 backward, D = 128", 1, 96, 1, 1, 128, false, true, false, false, backward<128, false>},
});

}  // namespace
