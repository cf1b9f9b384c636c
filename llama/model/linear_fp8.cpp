#include "llama/model/linear_fp8.h"

#include <algorithm>

namespace rz {

static std::string nearest_multiples(int64_t value, int64_t multiple) {
    const int64_t below = value / multiple * multiple;
    return below > 0 ? format("%lld or %lld", (long long)below, (long long)(below + multiple))
                     : std::to_string(multiple);
}

void check_fp8(const Fp8Options& o, const ModelConfig& c, DType dtype, int64_t tokens, Device device) {
    if (!o.on()) return;
    const char* recipe = name_of(o.recipe);
    require(dtype == DType::bf16, "--fp8 %s needs --dtype bf16, and it is %s\n  nearest: --dtype bf16", recipe,
            name_of(dtype));
    std::string missing = fp8_missing(device);
    require(missing.empty(), "--fp8 %s: %s\n  nearest: --fp8 none", recipe, missing.c_str());
    const int64_t multiple = o.recipe == Fp8Recipe::tensor ? 16 : o.recipe == Fp8Recipe::block ? kFp8Tile : kMxMultiple;
    const std::string no_mx = fp8_mx_missing(device);
    if (o.recipe == Fp8Recipe::block) missing = fp8_blocks_missing(device);
    if (o.recipe == Fp8Recipe::mx) missing = no_mx;
    require(missing.empty(), "--fp8 %s: %s\n  nearest: --fp8 %s", recipe, missing.c_str(),
            o.recipe == Fp8Recipe::block && no_mx.empty() ? "mx" : "tensor");
    const struct {
        const char* name;
        int64_t value;
    } sides[] = {{"dim", c.dim},
                 {"ffn", c.ffn},
                 {"heads x head-dim", c.heads * c.head_dim},
                 {"(heads + 2 kv-heads) x head-dim", c.qkv_rows()},
                 {"tokens per micro-batch (--batch x --seq-len)", tokens}};
    for (const auto& side : sides)
        require(side.value % multiple == 0,
                "--fp8 %s: %s %lld is not a multiple of %lld, which fp8 products need\n  nearest: %s", recipe,
                side.name, (long long)side.value, (long long)multiple, nearest_multiples(side.value, multiple).c_str());
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

static int64_t scale_bytes(Fp8Recipe recipe, int64_t codes) {
    switch (recipe) {
        case Fp8Recipe::block:
            return 4 * round_up(codes / kFp8Tile, 64);
        case Fp8Recipe::mx:
            return codes / kMxTile;
        case Fp8Recipe::none:
        case Fp8Recipe::tensor:
            break;
    }
    return int64_t(sizeof(Fp8Scale));
}

Fp8Linear::Fp8Linear(Device device, Fp8Recipe recipe, int64_t largest_operand)
    : recipe_(recipe),
      codes_{Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the first operand"),
             Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the second operand")},
      scales_{
          Buffer(device, scale_bytes(recipe, largest_operand), MemKind::workspace, "fp8 scales of the first operand"),
          Buffer(device, scale_bytes(recipe, largest_operand), MemKind::workspace,
                 "fp8 scales of the second operand")} {}

Fp8Linear::Operand Fp8Linear::quantised(Stream& s, Side side, const void* x, int64_t rows, int64_t columns, Fp8 type,
                                        bool transposed, DType dtype) const {
    const Buffer& memory = codes_[int(side)];
    require(rows * columns <= memory.bytes(), "fp8 linear layer: %lld x %lld codes, room for %lld", (long long)rows,
            (long long)columns, (long long)memory.bytes());
    uint8_t* codes = memory.as<uint8_t>();
    Fp8Scale* scale = scales_[int(side)].as<Fp8Scale>();
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

// x (rows, columns), or its transpose, as codes and scales of tiles
Fp8Linear::Tiled Fp8Linear::tiled(Stream& s, Side side, const void* x, int64_t rows, int64_t columns, Fp8Tiles tiles,
                                  bool transposed, DType dtype) const {
    uint8_t* codes = codes_[int(side)].as<uint8_t>();
    require(rows * columns <= codes_[int(side)].bytes(), "fp8 linear layer: %lld x %lld codes, room for %lld",
            (long long)rows, (long long)columns, (long long)codes_[int(side)].bytes());
    if (recipe_ == Fp8Recipe::mx) {
        uint8_t* scales = scales_[int(side)].as<uint8_t>();
        quantise_mx(s, {.y = transposed ? nullptr : codes,
                        .scales = transposed ? nullptr : scales,
                        .y_t = transposed ? codes : nullptr,
                        .scales_t = transposed ? scales : nullptr,
                        .x = x,
                        .rows = rows,
                        .columns = columns,
                        .dtype = dtype});
        return {codes, scales};
    }
    float* scales = scales_[int(side)].as<float>();
    quantise_blocks(s, {.y = transposed ? nullptr : codes,
                        .scales = transposed ? nullptr : scales,
                        .y_t = transposed ? codes : nullptr,
                        .scales_t = transposed ? scales : nullptr,
                        .x = x,
                        .rows = rows,
                        .columns = columns,
                        .tiles = tiles,
                        .dtype = dtype});
    return {codes, scales};
}

void Fp8Linear::product(Stream& s, void* c, const Tiled& a, const Tiled& b, Fp8Tiles b_tiles, int64_t M, int64_t N,
                        int64_t K, float beta, DType c_dtype, const char* what) const {
    if (recipe_ == Fp8Recipe::mx)
        return fp8_mx_gemm(s, {.c = c,
                               .a = a.codes,
                               .b = b.codes,
                               .a_scales = static_cast<const uint8_t*>(a.scales),
                               .b_scales = static_cast<const uint8_t*>(b.scales),
                               .M = M,
                               .N = N,
                               .K = K,
                               .beta = beta,
                               .c_dtype = c_dtype,
                               .what = what});
    fp8_block_gemm(s, {.c = c,
                       .a = a.codes,
                       .b = b.codes,
                       .a_scales = static_cast<const float*>(a.scales),
                       .b_scales = static_cast<const float*>(b.scales),
                       .M = M,
                       .N = N,
                       .K = K,
                       .beta = beta,
                       .b_tiles = b_tiles,
                       .c_dtype = c_dtype,
                       .what = what});
}

void Fp8Linear::forward(Stream& s, void* y, const void* x, const Weight& w, int64_t N, int64_t in, int64_t out, DType t,
                        DType y_dtype) const {
    if (tiles())
        return product(s, y, tiled(s, Side::first, x, N, in, Fp8Tiles::rows, false, t),
                       tiled(s, Side::second, w.data, out, in, Fp8Tiles::squares, false, t), Fp8Tiles::squares, N, out,
                       in, 0, y_dtype, "Fp8 tiles y = x W^T");
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
    if (tiles())
        return product(s, dx, tiled(s, Side::first, dy, N, out, Fp8Tiles::rows, false, t),
                       tiled(s, Side::second, w.data, out, in, Fp8Tiles::squares, true, t), Fp8Tiles::squares, N, in,
                       out, 0, dx_dtype, "Fp8 tiles dx = dy W");
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
    if (tiles())
        return product(s, dw, tiled(s, Side::first, dy, N, out, Fp8Tiles::rows, true, t),
                       tiled(s, Side::second, x, N, in, Fp8Tiles::rows, true, t), Fp8Tiles::rows, out, in, N, 1,
                       grad_dtype, "Fp8 tiles dW = dy^T x");
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
