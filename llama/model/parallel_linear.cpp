#include "llama/model/parallel_linear.h"

#include <tuple>
#include <utility>

#include "kernels/bias.h"
#include "llama/model/linear.h"

namespace rz {

// ---- what products in fp8 read --------------------------------------------------------------------------------------

static void measure(BlockPass& p, Fp8Scale* scale, const void* x, int64_t n, DType dtype) {
    if (scale) abs_max(p.stream, {.scale = scale, .x = x, .n = n, .dtype = dtype});
}

uint32_t* ParallelLinear::magnitude_of_x(const BlockPass& p) const {
    return layer_.x_is_measured ? magnitude_of(scale_of_x(p)) : nullptr;
}
void ParallelLinear::measure_dy(BlockPass& p, const void* dy, int64_t n) const {
    measure(p, scale_of_dy(p), dy, n, dtype_);
}

void ParallelLinear::keep_x(BlockPass& p, void* kept, const void* x) const {
    if (!p.scales) return;
    if (!layer_.x_is_measured) measure(p, scale_of_x(p), x, p.R * layer_.in, dtype_);
    if (tp_) tp_->share_magnitude(p.stream, scale_of_x(p), p.scratch.parts, Fp8::e4m3);
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

Operand ParallelLinear::operand_dy(const BlockPass& p, const void* dy) const {
    if (coded_dy(p)) return Operand::coded(static_cast<const uint8_t*>(dy), scale_of_dy(p), Fp8::e5m2);
    return {dy, scale_of_dy(p)};
}

// All rows, for input_grad and for the weight_grad that follows.
Operand ParallelLinear::dy_both_ways(BlockPass& p, const void* dy) const {
    if (!p.scales || !fp8_->has_both_ways()) return operand_dy(p, dy);
    p.transposed_of = dy;
    return p.transposed = fp8_->both_ways(p.stream, operand_dy(p, dy), p.N, layer_.out, dtype_);
}

Operand ParallelLinear::dy_of_weight_grad(BlockPass& p, const void* dy) const {
    if (p.transposed_of != dy) return operand_dy(p, dy);
    p.transposed_of = nullptr;
    return p.transposed;
}

static Operand from_element(Operand x, int64_t element, DType dtype) {
    if (x.codes)
        x.codes += element;
    else
        x.data = at(x.data, element, dtype);
    return x;
}

// ---- rows of all ranks, and of this one -----------------------------------------------------------------------------

// Codes travel in pairs: no collective knows a type of one byte.
ParallelLinear::Rows ParallelLinear::rows_of_x(const BlockPass& p, const void* x) const {
    return p.scales ? Rows{x, layer_.in / 2, DType::bf16} : Rows{x, layer_.in, dtype_};
}

// The scale is known.
ParallelLinear::Rows ParallelLinear::rows_of_dy(BlockPass& p, const void* dy) const {
    if (!coded_dy(p)) return {dy, layer_.out, dtype_};
    quantise(p.stream, {.y = static_cast<uint8_t*>(p.scratch.dnorm),
                        .scale = scale_of_dy(p),
                        .x = dy,
                        .rows = p.R,
                        .columns = layer_.out,
                        .type = Fp8::e5m2,
                        .dtype = dtype_});
    return {p.scratch.dnorm, layer_.out / 2, DType::bf16};
}

const void* ParallelLinear::gather(BlockPass& p, const Rows& rows) const {
    if (!tp_) return rows.own;
    tp_->gather(p.stream, p.scratch.whole, rows.own, p.N, rows.columns, rows.dtype);
    return p.scratch.whole;
}

// `product` reads the rows as they come: (rows, number of the first, count).
template <class Product>
const void* ParallelLinear::by_rows(BlockPass& p, const Rows& rows, const Product& product) const {
    if (!tp_) return product(rows.own, 0, p.N), rows.own;
    tp_->gather(p.stream, p.scratch.whole, rows.own, p.N, rows.columns, rows.dtype, [&](int64_t first, int64_t count) {
        product(at(p.scratch.whole, first * rows.columns, rows.dtype), first, count);
    });
    return p.scratch.whole;
}

const void* ParallelLinear::all_rows(BlockPass& p, const void* dy) const {
    if (!p.whole.valid()) return gather(p, rows_of_dy(p, dy));
    tp_->wait(p.stream, std::exchange(p.whole, {}));
    return p.scratch.whole;
}

void ParallelLinear::x_sets_off(BlockPass& p, const void* x) const {
    if (!p.scratch.ahead) return;
    const Rows rows = rows_of_x(p, x);
    p.ahead = tp_->start_gather(p.stream, p.scratch.ahead, rows.own, p.N, rows.columns, rows.dtype);
}
void ParallelLinear::dy_sets_off(BlockPass& p, const void* dy) const {
    if (!p.scratch.ahead) return;
    const Rows rows = rows_of_dy(p, dy);
    p.whole = tp_->start_gather(p.stream, p.scratch.whole, rows.own, p.N, rows.columns, rows.dtype);
}
void ParallelLinear::wait_for_dx(BlockPass& p) const {
    if (p.dnorm.valid()) tp_->wait(p.stream, std::exchange(p.dnorm, {}));
}

// ---- products -------------------------------------------------------------------------------------------------------

void ParallelLinear::forward(BlockPass& p, void* y, const void* x, const Operand& w, const void* bias) const {
    const auto [parallel, in, out] = std::tuple(layer_.parallel, layer_.in, layer_.out);
    Stream& s = p.stream;
    Operand weight = w;
    if (parallel == Parallel::column) {
        by_rows(p, rows_of_x(p, x), [&](const void* rows, int64_t first, int64_t count) {
            linear(s, at(y, first * out, dtype_), operand_x(p, rows), weight, count, in, out, dtype_, dtype_, fp8_,
                   bias);
            weight.again = true;
        });
        return;
    }
    if (!layer_.x_is_measured) measure(p, scale_of_x(p), x, p.N * in, dtype_);
    if (!tp_) return linear(s, y, operand_x(p, x), w, p.N, in, out, dtype_, dtype_, fp8_);
    tp_->scatter(s, y, p.scratch.whole, p.N, out, dtype_, [&](int64_t first, int64_t rows) {
        linear(s, at(p.scratch.whole, first * out, tp_->wire()), operand_x(p, at(x, first * in, dtype_)), weight, rows,
               in, out, dtype_, tp_->wire(), fp8_);
        weight.again = true;
    });
}

const void* ParallelLinear::input_grad(BlockPass& p, void* dx, const void* dy, const Operand& w, bool both) const {
    const auto [parallel, in, out] = std::tuple(layer_.parallel, layer_.in, layer_.out);
    Stream& s = p.stream;
    Operand weight = w;
    if (tp_ && parallel == Parallel::row) {
        if (coded_dy(p)) tp_->share_magnitude(s, scale_of_dy(p), p.scratch.parts, Fp8::e5m2);
        return by_rows(p, rows_of_dy(p, dy), [&](const void* rows, int64_t first, int64_t count) {
            linear_backward_input(s, at(dx, first * in, dtype_), operand_dy(p, rows), weight, count, in, out, dtype_,
                                  dtype_, fp8_);
            weight.again = true;
        });
    }
    const Operand whole = both ? dy_both_ways(p, dy) : operand_dy(p, dy);
    if (!tp_) return linear_backward_input(s, dx, whole, w, p.N, in, out, dtype_, dtype_, fp8_), dy;
    const auto product = [&](int64_t first, int64_t rows) {
        linear_backward_input(s, at(p.scratch.dh, first * in, tp_->wire()), from_element(whole, first * out, dtype_),
                              weight, rows, in, out, dtype_, tp_->wire(), fp8_);
        weight.again = true;
    };
    tp_->scatter(s, dx, p.scratch.dh, p.N, in, dtype_, product, both && tp_->overlaps() ? &p.dnorm : nullptr);
    return dy;
}

void ParallelLinear::weight_grad(BlockPass& p, char* dw, const void* dy, const void* x) const {
    if (p.ahead.valid() && layer_.parallel == Parallel::column) {
        tp_->wait(p.stream, std::exchange(p.ahead, {}));
        x = p.scratch.ahead;
    } else if (layer_.parallel == Parallel::column) {
        x = gather(p, rows_of_x(p, x));
    }
    linear_backward_weight(p.stream, dw + layer_.begin * size_of(grad_dtype_), dy_of_weight_grad(p, dy),
                           operand_x(p, x), p.N, layer_.in, layer_.out, dtype_, grad_dtype_, fp8_);
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
