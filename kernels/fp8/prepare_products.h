#pragma once
// Matrix products of a run, prepared before it communicates (kernels/runtime/load.h): cuBLASLt chooses an algorithm for
// each shape, and its code is loaded, which else happens at the first product of that shape.

#include <map>
#include <string>
#include <variant>

#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/runtime/device.h"

namespace rz {

// Each shape once, by what may change the choice of its algorithm. Addresses are only what they are within 256 bytes.
struct ProductShapes {
    using Any = std::variant<Gemm, Fp8Gemm, Fp8BlockGemm, Fp8MxGemm>;
    std::map<std::string, Any> all;

    void add(const OpCall&);  // if it is a product
};

struct PreparedProducts {
    int count = 0;
    int64_t bytes = 0;  // of the device's memory that went, workspaces apart
    double seconds = 0;
    std::string text() const;
};

// Runs every product once on operands of its own, which are gone afterwards, in the order of the shapes; with
// gemm_tuning.h algorithms are measured so. `device` is a GPU's; its context keeps what was chosen.
PreparedProducts prepare_products(Device, const ProductShapes&);

// Allocates what cuBLASLt works in on this stream, which else happens at its first product. Nothing where it is not
// used.
void reserve_product_workspace(Stream&);

}  // namespace rz
