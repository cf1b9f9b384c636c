#include "llama/model/linear_fp8.h"

#include <algorithm>

namespace rz {

static constexpr int64_t kMultiple = 16;

static std::string nearest_multiples(int64_t value) {
    const int64_t below = value / kMultiple * kMultiple;
    return below > 0 ? format("%lld or %lld", (long long)below, (long long)(below + kMultiple))
                     : std::to_string(kMultiple);
}

void check_fp8(const Fp8Options& o, const ModelConfig& c, DType dtype, int64_t tokens, Device device) {
    if (!o.on()) return;
    const char* recipe = name_of(o.recipe);
    require(dtype == DType::bf16, "--fp8 %s needs --dtype bf16, and it is %s\n  nearest: --dtype bf16", recipe,
            name_of(dtype));
    const std::string missing = fp8_missing(device);
    require(missing.empty(), "--fp8 %s: %s\n  nearest: --fp8 none", recipe, missing.c_str());
    const struct {
        const char* name;
        int64_t value;
    } sides[] = {{"dim", c.dim},
                 {"ffn", c.ffn},
                 {"heads x head-dim", c.heads * c.head_dim},
                 {"(heads + 2 kv-heads) x head-dim", c.qkv_rows()},
                 {"tokens per micro-batch (--batch x --seq-len)", tokens}};
    for (const auto& side : sides)
        require(side.value % kMultiple == 0,
                "--fp8 %s: %s %lld is not a multiple of %lld, which fp8 products need\n  nearest: %s", recipe,
                side.name, (long long)side.value, (long long)kMultiple, nearest_multiples(side.value).c_str());
    require(o.skip_first + o.skip_last < c.layers,
            "--fp8-skip-blocks %lld,%lld: the model has %lld blocks, so none would be in fp8\n  nearest: %lld,%lld",
            (long long)o.skip_first, (long long)o.skip_last, (long long)c.layers,
            (long long)std::min(o.skip_first, c.layers - 1),
            (long long)std::min(o.skip_last, c.layers - 1 - std::min(o.skip_first, c.layers - 1)));
}

int64_t fp8_largest_operand(const ModelConfig& c, int64_t tokens) {
    const int64_t heads_dim = c.heads * c.head_dim, widest = std::max({c.dim, c.qkv_rows(), heads_dim, 2 * c.ffn});
    const int64_t weights = c.dim * std::max({c.qkv_rows(), heads_dim, 2 * c.ffn});
    return std::max(checked_mul(tokens, widest, "fp8 codes"), weights);
}

Fp8Linear::Fp8Linear(Device device, int64_t largest_operand)
    : codes_{Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the first operand"),
             Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the second operand")},
      scales_(device, 2 * sizeof(Fp8Scale), MemKind::workspace, "fp8 scales") {}

Fp8Linear::Operand Fp8Linear::quantised(Stream& s, Side side, const void* x, int64_t rows, int64_t columns, Fp8 type,
                                        bool transposed, DType dtype) const {
    const Buffer& memory = codes_[int(side)];
    require(rows * columns <= memory.bytes(), "fp8 linear layer: %lld x %lld codes, room for %lld", (long long)rows,
            (long long)columns, (long long)memory.bytes());
    uint8_t* codes = memory.as<uint8_t>();
    Fp8Scale* scale = scales_.as<Fp8Scale>() + int(side);
    s.zero(scale, sizeof *scale);
    abs_max(s, {.scale = scale, .x = x, .n = rows * columns, .dtype = dtype});
    quantise(s, {.y = transposed ? nullptr : codes,
                 .y_t = transposed ? codes : nullptr,
                 .scale = scale,
                 .x = x,
                 .rows = rows,
                 .columns = columns,
                 .type = type,
                 .dtype = dtype});
    return {codes, scale};
}

Fp8Linear::Operand Fp8Linear::transposed(Stream& s, const Weight& w, int64_t out, int64_t in) const {
    uint8_t* codes = codes_[int(Side::second)].as<uint8_t>();
    transpose8(s, {.y = codes, .x = w.codes, .rows = out, .columns = in});
    return {codes, w.scale};
}

void Fp8Linear::forward(Stream& s, void* y, const void* x, const Weight& w, int64_t N, int64_t in, int64_t out, DType t,
                        DType y_dtype) const {
    const Operand a = quantised(s, Side::first, x, N, in, Fp8::e4m3, false, t);
    const Operand b =
        w.codes ? Operand{w.codes, w.scale} : quantised(s, Side::second, w.data, out, in, Fp8::e4m3, false, t);
    fp8_gemm(s, {.c = y,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = N,
                 .N = out,
                 .K = in,
                 .c_dtype = y_dtype,
                 .fast_accumulation = true,
                 .what = "Fp8Gemm y = x W^T"});
}

void Fp8Linear::backward_input(Stream& s, void* dx, const void* dy, const Weight& w, int64_t N, int64_t in, int64_t out,
                               DType t, DType dx_dtype) const {
    const Operand a = quantised(s, Side::first, dy, N, out, Fp8::e5m2, false, t);
    const Operand b =
        w.codes ? transposed(s, w, out, in) : quantised(s, Side::second, w.data, out, in, Fp8::e4m3, true, t);
    fp8_gemm(s, {.c = dx,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = N,
                 .N = in,
                 .K = out,
                 .a_type = Fp8::e5m2,
                 .c_dtype = dx_dtype,
                 .what = "Fp8Gemm dx = dy W"});
}

void Fp8Linear::backward_weight(Stream& s, void* dw, const void* dy, const void* x, int64_t N, int64_t in, int64_t out,
                                DType t, DType grad_dtype) const {
    const Operand a = quantised(s, Side::first, dy, N, out, Fp8::e5m2, true, t);
    const Operand b = quantised(s, Side::second, x, N, in, Fp8::e4m3, true, t);
    fp8_gemm(s, {.c = dw,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = out,
                 .N = in,
                 .K = N,
                 .beta = 1,
                 .a_type = Fp8::e5m2,
                 .c_dtype = grad_dtype,
                 .what = "Fp8Gemm dW = dy^T x"});
}

}  // namespace rz
