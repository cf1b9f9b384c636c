#include "kernels/attention/attention_merge.h"
#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// One warp per query and head.
template <class T>
__global__ void __launch_bounds__(kThreads) attention_merge_kernel(AttentionMerge a, int64_t rows) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= rows) return;
    const int lane = int(threadIdx.x) % 32;
    const int64_t h = item % a.H, t = item / a.H % a.T, b = item / a.H / a.T;
    const int64_t at = (t * a.H + h) * a.D, row = (b * a.H + h) * a.T + t;
    const float part_lse = a.part_lse[row], lse = a.first ? 0.0f : a.lse[row];
    __syncwarp();  // all lanes have read what one of them writes
    float* o = a.o + b * a.o_batch + at;
    const T* part = static_cast<const T*>(a.part_o) + b * a.part_batch + at;
    if (a.first) {
        for (int64_t d = lane; d < a.D; d += 32) o[d] = to_float(part[d]);
        if (lane == 0) a.lse[row] = part_lse;
        return;
    }
    if (part_lse == -INFINITY) return;
    const float most = fmaxf(lse, part_lse), old = expf(lse - most), fresh = expf(part_lse - most);
    const float inverse = 1.0f / (old + fresh), keep = old * inverse, add = fresh * inverse;
    for (int64_t d = lane; d < a.D; d += 32) o[d] = o[d] * keep + to_float(part[d]) * add;
    if (lane == 0) a.lse[row] = most + logf(old + fresh);
}

}  // namespace

void attention_merge_cuda(const AttentionMerge& a, CudaStream stream) {
    const int64_t rows = a.B * a.T * a.H;
    if (rows == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<attention_merge_kernel<T>>,
               LaunchConfig(dim3(blocks_for(rows, kWarps)), dim3(kThreads), 0, stream), a, rows);
    });
}

}  // namespace rz
