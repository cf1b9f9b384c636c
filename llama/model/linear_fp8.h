#pragma once
// The three products of a linear layer in fp8 (linear.h has them in the types of the tensors). Operands are quantised
// where they are used, each with one scale of its own (current scaling): what two products read is quantised twice, to
// the same codes, so recomputation, accumulation and a backward pass in two halves change no bit.
//
//   y  = x w^T      x, w     e4m3            fast accumulation
//   dx = dy w       dy       e5m2, w e4m3
//   dw += dy^T x    dy       e5m2, x e4m3
//
// Gradients need e5m2's range more than e4m3's precision (Micikevicius et al. 2022). Rows N, in and out are multiples of
// 16.

#include <vector>

#include "kernels/fp8/fp8_gemm.h"
#include "kernels/runtime/memory.h"

namespace rz {

struct Fp8Options {
    bool on = false;
    int64_t skip_first = 0, skip_last = 0;  // blocks at either end whose layers stay in the tensors' type

    bool covers(int64_t block, int64_t blocks) const { return on && block >= skip_first && block < blocks - skip_last; }
    bool operator==(const Fp8Options&) const = default;
};

// Memory for codes and scales, used by one layer after the other on one stream.
class Fp8Linear {
   public:
    // For layers of up to so many codes in an operand.
    Fp8Linear(Device device, int64_t largest_operand);

    // As linear(), linear_backward_input() and linear_backward_weight(); x, y, dx, dy, w are dtype.
    void forward(Stream&, void* y, const void* x, const void* w, int64_t N, int64_t in, int64_t out, DType) const;
    void backward_input(Stream&, void* dx, const void* dy, const void* w, int64_t N, int64_t in, int64_t out,
                        DType) const;
    void backward_weight(Stream&, void* dw, const void* dy, const void* x, int64_t N, int64_t in, int64_t out, DType,
                         DType grad_dtype) const;

   private:
    struct Operand {
        uint8_t* codes;
        Fp8Scale* scale;
    };
    enum class Side { first, second };
    // x (rows, columns), or its transpose, as codes
    Operand quantised(Stream&, Side, const void* x, int64_t rows, int64_t columns, Fp8 type, bool transposed,
                      DType) const;

    Buffer codes_[2], scales_;
};

}  // namespace rz
