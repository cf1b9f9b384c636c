#include "llama/model/parallel_linear.h"

#include <tuple>
#include <utility>

#include "kernels/bias.h"
#include "llama/model/linear.h"

namespace rz {

bool keeps_codes(Fp8Recipe recipe, const TensorParallel* tp) {
    return recipe == Fp8Recipe::tensor && !(tp && tp->overlaps());
}

// ---- what products in fp8 read --------------------------------------------------------------------------------------

static uint32_t* fresh(BlockPass& p, Fp8Scale* scale) {
    if (!scale) return nullptr;
    p.stream.zero(scale, sizeof *scale);
    return &scale->amax;
}

static void measure(BlockPass& p, Fp8Scale* scale, const void* x, int64_t n, DType dtype) {
    if (fresh(p, scale)) abs_max(p.stream, {.scale = scale, .x = x, .n = n, .dtype = dtype});
}

uint32_t* ParallelLinear::magnitude_of_x(BlockPass& p) const {
    return layer_.x_is_measured ? fresh(p, scale_of_x(p)) : nullptr;
}
uint32_t* ParallelLinear::magnitude_of_dy(BlockPass& p) const {
    return layer_.dy_is_measured ? fresh(p, scale_of_dy(p)) : nullptr;
}

void ParallelLinear::keep_x(BlockPass& p, void* kept, const void* x) const {
    if (!p.scales) return;
    if (!layer_.x_is_measured) measure(p, scale_of_x(p), x, p.R * layer_.in, dtype_);
    if (tp_) tp_->share_magnitude(p.stream, scale_of_x(p), p.scratch.parts);
    quantise(p.stream, {.y = static_cast<uint8_t*>(kept),
                        .scale = scale_of_x(p),
                        .x = x,
                        .rows = p.R,
                        .columns = layer_.in,
                        .type = Fp8::e4m3,
                        .dtype = dtype_});
}

Operand ParallelLinear::operand_x(const BlockPass& p, const void* x) const {
    if (p.scales && layer_.parallel == Parallel::column)
        return Operand::coded(static_cast<const uint8_t*>(x), scale_of_x(p));
    return {x, scale_of_x(p)};
}

// ---- rows of all ranks, and of this one -----------------------------------------------------------------------------

const void* ParallelLinear::gather(BlockPass& p, const void* own, int64_t columns, DType dtype) const {
    if (!tp_) return own;
    tp_->gather(p.stream, p.scratch.whole, own, p.N, columns, dtype);
    return p.scratch.whole;
}

// Codes travel in pairs: no collective knows a type of one byte.
const void* ParallelLinear::gather_x(BlockPass& p, const void* x) const {
    return p.scales ? gather(p, x, layer_.in / 2, DType::bf16) : gather(p, x, layer_.in, dtype_);
}

// `product` reads the rows as they come: (rows, number of the first, count).
template <class Product>
const void* ParallelLinear::by_rows(BlockPass& p, const void* own, int64_t columns, const Product& product) const {
    if (!tp_) return product(own, 0, p.N), own;
    tp_->gather(p.stream, p.scratch.whole, own, p.N, columns, dtype_, [&](int64_t first, int64_t rows) {
        product(at(p.scratch.whole, first * columns, dtype_), first, rows);
    });
    return p.scratch.whole;
}

const void* ParallelLinear::all_rows(BlockPass& p, const void* dy) const {
    if (!p.whole.valid()) return gather(p, dy, layer_.out, dtype_);
    tp_->wait(p.stream, std::exchange(p.whole, {}));
    return p.scratch.whole;
}

void ParallelLinear::x_sets_off(BlockPass& p, const void* x) const {
    if (p.scratch.ahead) p.ahead = tp_->start_gather(p.stream, p.scratch.ahead, x, p.N, layer_.in, dtype_);
}
void ParallelLinear::dy_sets_off(BlockPass& p, const void* dy) const {
    if (p.scratch.ahead) p.whole = tp_->start_gather(p.stream, p.scratch.whole, dy, p.N, layer_.out, dtype_);
}
void ParallelLinear::wait_for_dx(BlockPass& p) const {
    if (p.dnorm.valid()) tp_->wait(p.stream, std::exchange(p.dnorm, {}));
}

// ---- products -------------------------------------------------------------------------------------------------------

void ParallelLinear::forward(BlockPass& p, void* y, const void* x, const Operand& w, const void* bias) const {
    const auto [parallel, in, out] = std::tuple(layer_.parallel, layer_.in, layer_.out);
    Stream& s = p.stream;
    if (parallel == Parallel::column) {
        const auto product = [&](const void* rows, int64_t first, int64_t count) {
            linear(s, at(y, first * out, dtype_), operand_x(p, rows), w, count, in, out, dtype_, fp8_);
        };
        p.scales ? product(gather_x(p, x), 0, p.N) : void(by_rows(p, x, in, product));
        if (bias) add_bias(s, {.x = y, .bias = bias, .N = p.N, .C = out, .dtype = dtype_});
        return;
    }
    if (!layer_.x_is_measured) measure(p, scale_of_x(p), x, p.N * in, dtype_);
    if (!tp_) return linear(s, y, operand_x(p, x), w, p.N, in, out, dtype_, fp8_);
    tp_->scatter(s, y, p.scratch.whole, p.N, out, dtype_, [&](int64_t first, int64_t rows) {
        linear(s, at(p.scratch.whole, first * out, tp_->wire()), operand_x(p, at(x, first * in, dtype_)), w, rows, in,
               out, dtype_, tp_->wire(), fp8_);
    });
}

const void* ParallelLinear::input_grad(BlockPass& p, void* dx, const void* dy, const Operand& w, bool aside) const {
    const auto [parallel, in, out] = std::tuple(layer_.parallel, layer_.in, layer_.out);
    Stream& s = p.stream;
    if (parallel == Parallel::row)
        return by_rows(p, dy, out, [&](const void* rows, int64_t first, int64_t count) {
            if (!layer_.dy_is_measured) measure(p, scale_of_dy(p), rows, count * out, dtype_);
            linear_backward_input(s, at(dx, first * in, dtype_), {rows, scale_of_dy(p)}, w, count, in, out, dtype_,
                                  fp8_);
        });
    if (!layer_.dy_is_measured) measure(p, scale_of_dy(p), dy, p.N * out, dtype_);
    if (!tp_) return linear_backward_input(s, dx, {dy, scale_of_dy(p)}, w, p.N, in, out, dtype_, fp8_), dy;
    const auto product = [&](int64_t first, int64_t rows) {
        linear_backward_input(s, at(p.scratch.dh, first * in, tp_->wire()),
                              {at(dy, first * out, dtype_), scale_of_dy(p)}, w, rows, in, out, dtype_, tp_->wire(),
                              fp8_);
    };
    tp_->scatter(s, dx, p.scratch.dh, p.N, in, dtype_, product, aside && tp_->overlaps() ? &p.dnorm : nullptr);
    return dy;
}

void ParallelLinear::weight_grad(BlockPass& p, char* dw, const void* dy, const void* x) const {
    if (p.ahead.valid() && layer_.parallel == Parallel::column) {
        tp_->wait(p.stream, std::exchange(p.ahead, {}));
        x = p.scratch.ahead;
    } else if (layer_.parallel == Parallel::column) {
        x = gather_x(p, x);
    }
    linear_backward_weight(p.stream, dw + layer_.begin * size_of(grad_dtype_), {dy, scale_of_dy(p)}, operand_x(p, x),
                           p.N, layer_.in, layer_.out, dtype_, grad_dtype_, fp8_);
    if (layer_.bias >= 0)
        bias_backward(p.stream, {.dbias = dw + layer_.bias * size_of(grad_dtype_),
                                 .dy = dy,
                                 .scratch = p.scratch.norm,
                                 .N = p.N,
                                 .C = layer_.out,
                                 .dtype = dtype_,
                                 .grad_dtype = grad_dtype_});
}

}  // namespace rz
