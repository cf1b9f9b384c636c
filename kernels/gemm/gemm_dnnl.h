#pragma once
// GEMM through oneDNN. Not part of the public interface: kernels/gemm/gemm.cpp decides.

#include "kernels/gemm/gemm.h"

namespace rz {

// False if oneDNN is not built in, or has only its reference loops for this product: nothing was done then.
bool gemm_dnnl(const Gemm&);
const char* gemm_dnnl_version();  // nullptr without oneDNN

}  // namespace rz
