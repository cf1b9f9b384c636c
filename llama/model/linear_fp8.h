#pragma once
// The three products of a linear layer in fp8 (linear.h has them in the types of the tensors). Operands are quantised
// where they are used, each with one scale of its own (current scaling): what two products read may be quantised twice,
// to the same codes, so recomputation, accumulation and a backward pass in two halves change no bit. Where an operand's
// producer has found its magnitude, or it was quantised before, the scale and the codes are those: weights' are kept
// (fp8_weights.h), and those of dy serve both products where these follow each other.
//
//   y  = x w^T      x, w     e4m3            fast accumulation
//   dx = dy w       dy       e5m2, w e4m3
//   dw += dy^T x    dy       e5m2, x e4m3
//
// Gradients need e5m2's range more than e4m3's precision (Micikevicius et al. 2022). Rows N, in and out are multiples
// of 16.
//
// With tiles (block) all operands are e4m3, no sum is a fast one, and the operands of dw are tiled along N: they are
// made from the numbers, since codes that are tiled along in or out can't be transposed. Multiples of 128. The same
// holds for mx, whose tiles are 32 along K on both sides of every product. Weights alone have codes that are kept.

#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/runtime/memory.h"
#include "llama/model/config.h"

namespace rz {

// tensor: one scale for each operand; block: one for each 128 elements along K of activations and gradients, and for
// each 128 x 128 of weights; mx: a power of two for each 32 along K
enum class Fp8Recipe { none, tensor, block, mx };
template <>
inline constexpr auto kNames<Fp8Recipe> = std::to_array<Named<Fp8Recipe>>(
    {{Fp8Recipe::none, "none"}, {Fp8Recipe::tensor, "tensor"}, {Fp8Recipe::block, "block"}, {Fp8Recipe::mx, "mx"}});

struct Fp8Options {
    Fp8Recipe recipe = Fp8Recipe::none;
    int64_t skip_first = 0, skip_last = 0;  // blocks at either end whose layers stay in the tensors' type
    bool keep_weights = false;              // codes of weights, from one update to the next (fp8_weights.h)

    bool on() const { return recipe != Fp8Recipe::none; }
    bool covers(int64_t block, int64_t blocks) const {
        return on() && block >= skip_first && block < blocks - skip_last;
    }
};

// What the tokens of a micro-batch, and the sides of every weight, are a multiple of.
int64_t fp8_multiple(Fp8Recipe);
// Throws, naming the flag and the nearest valid value, unless micro-batches of `tokens` of this model can be trained so
// on this device. `parts`: of how many ranks' parts of each tensor the config is one; `runs`: in how many parts of its
// rows a product is computed.
void check_fp8(const Fp8Options&, const ModelConfig&, DType dtype, int64_t tokens, Device, int64_t parts = 1,
               int64_t runs = 1);
// Codes of the largest operands of a block's layers: of each product's first and second, and of a gradient that is kept
// transposed (Fp8Linear::both_ways; 0: none is).
struct Fp8Room {
    int64_t first, second, gradient = 0;
};
// `whole_backward`: a weight's gradient may come right after the input's.
Fp8Room fp8_room(const Fp8Options&, const ModelConfig&, int64_t tokens, bool whole_backward);

// What a product reads, as it lies in memory: in the tensors' type, or as codes (a weight that was gathered so, an
// activation that is kept so, a gradient that came so).
struct Operand {
    const void* data = nullptr;
    Fp8Scale* measured = nullptr;  // with data: has its magnitude, if anybody found it; its inverse is written
    const uint8_t* codes = nullptr;
    const uint8_t* codes_t = nullptr;                   // with codes: they are there transposed, too
    const void *scales = nullptr, *scales_t = nullptr;  // of codes and of codes_t: both the Fp8Scale, or those of tiles
    Fp8 type = Fp8::e4m3;                               // of the codes
    // The product before had it too, as its second operand, for other rows: what was made of it is still there.
    bool again = false;

    Operand(const void* data, Fp8Scale* measured = nullptr) : data(data), measured(measured) {}
    static Operand coded(const uint8_t* codes, const Fp8Scale* scale, Fp8 type = Fp8::e4m3) {
        Operand x(nullptr);
        x.codes = codes, x.scales = x.scales_t = scale, x.type = type;
        return x;
    }
};

// Bytes of the scales of a matrix (outer, inner) that is kept as codes.
int64_t fp8_weight_scale_bytes(Fp8Recipe, int64_t outer, int64_t inner);

// Memory for codes and scales, used by one layer after the other on one stream.
class Fp8Linear {
   public:
    Fp8Linear(Device device, Fp8Recipe recipe, const Fp8Room& room);
    // For layers of up to so many codes in an operand.
    Fp8Linear(Device device, Fp8Recipe recipe, int64_t largest_operand)
        : Fp8Linear(device, recipe, Fp8Room{largest_operand, largest_operand}) {}

    // As linear(), linear_backward_input() and linear_backward_weight().
    void forward(Stream&, void* y, const Operand& x, const Operand& w, int64_t N, int64_t in, int64_t out, DType,
                 DType y_dtype) const;
    void backward_input(Stream&, void* dx, const Operand& dy, const Operand& w, int64_t N, int64_t in, int64_t out,
                        DType, DType dx_dtype) const;
    void backward_weight(Stream&, void* dw, const Operand& dy, const Operand& x, int64_t N, int64_t in, int64_t out,
                         DType, DType grad_dtype) const;

    // Codes of dy (N, out), which has been measured, as both backward products read them, made in one pass. They are
    // there until the first operand of another product is made, and transposed until the next call of this.
    Operand both_ways(Stream&, const Operand& dy, int64_t N, int64_t out, DType) const;
    bool has_both_ways() const { return gradient_.bytes() > 0; }

    // Whether an operand has one scale: then its magnitude is worth finding where it is produced, and codes of x serve
    // both products that read it.
    bool one_scale() const { return recipe_ == Fp8Recipe::tensor; }
    Fp8Recipe recipe() const { return recipe_; }

   private:
    // An operand as the product reads it: x (rows, columns), or its transpose, as codes and scales.
    struct Side {
        Operand x;
        int64_t rows, columns;
        bool transposed;
        Fp8 type;        // with one scale; tiles are e4m3
        Fp8Tiles tiles;  // of block
    };
    struct Coded {
        const uint8_t* codes;
        const void* scales;
    };
    struct Product {
        const char* what;
        void* c;
        Side a, b;
        int64_t M, N, K;
        float beta;
        DType dtype, c_dtype;
        bool fast;
    };
    Coded coded(Stream&, int memory, const Side&, DType) const;
    void multiply(Stream&, const Product&) const;

    Fp8Recipe recipe_;
    Buffer codes_[2], scales_[2], gradient_;
};

}  // namespace rz
