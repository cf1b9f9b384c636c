#include "kernels/copy_rows.h"
#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 256;

// One thread per kVec columns of a row, the columns fastest.
template <class To, class From, int kVec>
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(CopyRows a, int64_t items) {
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (item >= items) return;
    const int64_t vectors = a.columns / kVec, row = item / vectors, column = (item - row * vectors) * kVec;
    const From* from = static_cast<const From*>(a.x) + row * a.stride + column;
    To* to = static_cast<To*>(a.out) + row * a.out_stride + column;
    Pack<To, kVec> pack;
    if constexpr (std::is_same_v<To, From>) {
        pack.load(from);
    } else {
        float x[kVec];
        load(x, from);
        pack.from(x);
    }
    if constexpr (sizeof pack == 16)
        ptx::store16(to, pack.words[0]);
    else
        pack.store(to);
}

template <class To, class From, int kVec>
void launch_copy(const CopyRows& a, CudaStream stream) {
    const int64_t items = a.rows * (a.columns / kVec);
    launch(kernel<copy_rows_kernel<To, From, kVec>>,
           LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream), a, items);
}

}  // namespace

void copy_rows_cuda(const CopyRows& a, CudaStream stream) {
    if (a.rows == 0 || a.columns == 0) return;
    with_device_type(a.dtype, [&]<class From>() {
        with_device_type(a.out_dtype, [&]<class To>() {
            constexpr int kVec = std::is_same_v<To, From> ? kVecOf<To> : 4;  // 16 bytes of the wider type at most
            if (aligned_to(16, a.x, a.out) && (a.columns | a.stride | a.out_stride) % kVec == 0)
                launch_copy<To, From, kVec>(a, stream);
            else
                launch_copy<To, From, 1>(a, stream);
        });
    });
}

}  // namespace rz
