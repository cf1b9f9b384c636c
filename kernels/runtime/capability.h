#pragma once
// Abilities of a GPU, by its compute capability.

#include "kernels/runtime/device.h"

namespace rz {

// 10 x major + minor of a CUDA device, such as 75, or of what a planned device stands for; 0 of another device
int compute_capability(Device);

// True: a GPU of this capability (0: the CPU) multiplies in that type.
constexpr bool has_products(int capability, DType dtype) {
    return dtype != DType::bf16 || capability == 0 || capability >= 80;
}
// Refuses the request of `flag` for products where there are none.
void require_products(const char* flag, DType dtype, int capability, const char* nearest);

}  // namespace rz
