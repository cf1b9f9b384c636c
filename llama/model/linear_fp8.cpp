#include "llama/model/linear_fp8.h"

#include "kernels/runtime/request.h"

#include <algorithm>

namespace rz {

static std::string nearest_multiples(int64_t value, int64_t multiple) {
    const int64_t below = value / multiple * multiple;
    return below > 0 ? format("%ld or %ld", below, below + multiple) : std::to_string(multiple);
}

int64_t fp8_multiple(Fp8Recipe recipe) {
    switch (recipe) {
        case Fp8Recipe::none:
            return 1;
        case Fp8Recipe::tensor:
            return 16;
        case Fp8Recipe::block:
            return kFp8Tile;
        case Fp8Recipe::mx:
            return kMxMultiple;
    }
    return 1;
}

void check_fp8(const Fp8Options& o, const ModelConfig& c, DType dtype, int64_t tokens, Device device, int64_t parts,
               int64_t runs) {
    if (!o.on()) return;
    const char* recipe = name_of(o.recipe);
    std::string missing = fp8_missing(device);
    require_request(missing.empty(), "--fp8 %s: %s\n  nearest: --fp8 none", recipe, missing.c_str());
    require_request(dtype == DType::bf16, "--fp8 %s needs --dtype bf16, and it is %s\n  nearest: --dtype bf16", recipe,
                    name_of(dtype));
    const int64_t multiple = fp8_multiple(o.recipe);
    const std::string no_mx = fp8_mx_missing(device);
    if (o.recipe == Fp8Recipe::block) missing = fp8_blocks_missing(device);
    if (o.recipe == Fp8Recipe::mx) missing = no_mx;
    require_request(missing.empty(), "--fp8 %s: %s\n  nearest: --fp8 %s", recipe, missing.c_str(),
                    o.recipe == Fp8Recipe::block && no_mx.empty() ? "mx" : "tensor");
    const struct {
        const char* name;
        int64_t value, parts;
    } sides[] = {{"dim", c.dim, 1},
                 {"ffn", c.ffn * parts, parts},
                 {"heads x head-dim", c.heads * c.head_dim * parts, parts},
                 {parts > 1 ? "(heads + 2 kv-heads, held twice too) x head-dim" : "(heads + 2 kv-heads) x head-dim",
                  c.qkv_rows() * parts, parts},
                 {runs > 1 ? "tokens per micro-batch (--batch x --seq-len) with --tp-overlap on"
                           : "tokens per micro-batch (--batch x --seq-len)",
                  tokens, runs}};
    for (const auto& side : sides)
        require_request(side.value % (multiple * side.parts) == 0,
                        "--fp8 %s: %s %ld is not a multiple of %s%ld, which fp8 products need\n  nearest: %s", recipe,
                        side.name, side.value, side.parts > 1 ? format("--tp %ld x ", side.parts).c_str() : "",
                        multiple, nearest_multiples(side.value, multiple * side.parts).c_str());
    require_request(o.skip_first + o.skip_last < c.layers,
                    "--fp8-skip-blocks %ld,%ld: the model has %ld blocks, so none would be in fp8\n  nearest: %ld,%ld",
                    o.skip_first, o.skip_last, c.layers, std::min(o.skip_first, c.layers - 1),
                    std::min(o.skip_last, c.layers - 1 - std::min(o.skip_first, c.layers - 1)));
}

Fp8Room fp8_room(const Fp8Options& o, const ModelConfig& c, int64_t tokens, bool whole_backward) {
    const int64_t heads_dim = c.heads * c.head_dim;
    const int64_t in = std::max({c.dim, heads_dim, c.ffn}), out = std::max({c.dim, c.qkv_rows(), 2 * c.ffn});
    const int64_t weights = o.keep_weights ? 0 : c.dim * std::max({c.qkv_rows(), heads_dim, 2 * c.ffn});
    const auto codes = [&](int64_t columns) { return checked_mul(tokens, columns, "fp8 codes"); };
    return {.first = codes(std::max(in, out)),
            .second = std::max(codes(in), weights),
            .gradient = whole_backward && o.recipe == Fp8Recipe::tensor ? codes(out) : 0};
}

int64_t fp8_weight_scale_bytes(Fp8Recipe recipe, int64_t outer, int64_t inner) {
    switch (recipe) {
        case Fp8Recipe::block:
            return 4 * fp8_scales_of(Fp8Tiles::squares, outer, inner);
        case Fp8Recipe::mx:
            return mx_scales_of(outer, inner);
        case Fp8Recipe::none:
        case Fp8Recipe::tensor:
            break;
    }
    return int64_t(sizeof(Fp8Scale));
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

Fp8Linear::Fp8Linear(Device device, Fp8Recipe recipe, const Fp8Room& room)
    : recipe_(recipe),
      codes_{Buffer(device, room.first, MemKind::workspace, "fp8 codes of the first operand"),
             Buffer(device, room.second, MemKind::workspace, "fp8 codes of the second operand")},
      scales_{Buffer(device, scale_bytes(recipe, room.first), MemKind::workspace, "fp8 scales of the first operand"),
              Buffer(device, scale_bytes(recipe, room.second), MemKind::workspace, "fp8 scales of the second operand")},
      gradient_(device, room.gradient, MemKind::workspace, "fp8 codes of a gradient, transposed") {}

Operand Fp8Linear::both_ways(Stream& s, const Operand& dy, int64_t N, int64_t out, DType dtype) const {
    require(dy.measured && N * out <= std::min(codes_[0].bytes(), gradient_.bytes()),
            "fp8 linear layer: no room for %ld x %ld codes of a gradient both ways", N, out);
    Operand codes = Operand::coded(codes_[0].as<uint8_t>(), dy.measured, Fp8::e5m2);
    codes.codes_t = gradient_.as<uint8_t>();
    quantise(s, {.y = codes_[0].as<uint8_t>(),
                 .y_t = gradient_.as<uint8_t>(),
                 .scale = dy.measured,
                 .x = dy.data,
                 .rows = N,
                 .columns = out,
                 .type = Fp8::e5m2,
                 .dtype = dtype});
    return codes;
}

Fp8Linear::Coded Fp8Linear::coded(Stream& s, int memory, const Side& side, DType dtype) const {
    const Operand& x = side.x;
    const int64_t rows = side.rows, columns = side.columns;
    const Buffer &room = codes_[memory], &scales = scales_[memory];
    require(x.codes ? one_scale() ? side.type == x.type : !side.transposed || x.codes_t : x.data != nullptr,
            "fp8 linear layer: an operand whose codes this product does not take");
    if (x.codes && !side.transposed) return {x.codes, x.scales};
    if (x.codes_t && side.transposed) return {x.codes_t, x.scales_t};
    require(rows * columns <= room.bytes(), "fp8 linear layer: %ld x %ld codes, room for %ld", rows, columns,
            room.bytes());
    uint8_t* codes = room.as<uint8_t>();
    if (x.again) {
        const void* kept = x.codes ? x.scales : x.measured;
        return {codes, kept ? kept : scales.data()};
    }
    uint8_t *y = side.transposed ? nullptr : codes, *y_t = side.transposed ? codes : nullptr;
    if (x.codes) {
        transpose8(s, {.y = codes, .x = x.codes, .rows = rows, .columns = columns});
        return {codes, x.scales};
    }
    const auto tiles = [&](auto how, auto* of_tiles) {
        how.y = y, how.y_t = y_t, how.x = x.data, how.rows = rows, how.columns = columns, how.dtype = dtype;
        (side.transposed ? how.scales_t : how.scales) = of_tiles;
        return how;
    };
    switch (recipe_) {
        case Fp8Recipe::mx:
            quantise_mx(s, tiles(QuantiseMx{}, scales.as<uint8_t>()));
            return {codes, scales.data()};
        case Fp8Recipe::block: {
            QuantiseBlocks how = tiles(QuantiseBlocks{}, scales.as<float>());
            how.tiles = side.tiles;
            quantise_blocks(s, how);
            return {codes, scales.data()};
        }
        case Fp8Recipe::none:
        case Fp8Recipe::tensor:
            break;
    }
    Fp8Scale* scale = x.measured ? x.measured : scales.as<Fp8Scale>();
    if (!x.measured) {
        s.zero(scale, sizeof *scale);
        abs_max(s, {.scale = scale, .x = x.data, .n = rows * columns, .dtype = dtype});
    }
    quantise(s, {.y = y,
                 .y_t = y_t,
                 .scale = scale,
                 .x = x.data,
                 .rows = rows,
                 .columns = columns,
                 .type = side.type,
                 .dtype = dtype});
    return {codes, scale};
}

void Fp8Linear::multiply(Stream& s, const Product& p) const {
    const Coded a = coded(s, 0, p.a, p.dtype), b = coded(s, 1, p.b, p.dtype);
    const auto run = [&](auto g, auto enqueue) {
        g.c = p.c, g.a = a.codes, g.b = b.codes, g.M = p.M, g.N = p.N, g.K = p.K;
        g.beta = p.beta, g.c_dtype = p.c_dtype, g.what = p.what;
        enqueue(g);
    };
    switch (recipe_) {
        case Fp8Recipe::mx:
            return run(Fp8MxGemm{}, [&](Fp8MxGemm& g) {
                g.a_scales = static_cast<const uint8_t*>(a.scales);
                g.b_scales = static_cast<const uint8_t*>(b.scales);
                fp8_mx_gemm(s, g);
            });
        case Fp8Recipe::block:
            return run(Fp8BlockGemm{}, [&](Fp8BlockGemm& g) {
                g.a_scales = static_cast<const float*>(a.scales);
                g.b_scales = static_cast<const float*>(b.scales);
                g.b_tiles = p.b.tiles;
                fp8_block_gemm(s, g);
            });
        case Fp8Recipe::none:
        case Fp8Recipe::tensor:
            break;
    }
    run(Fp8Gemm{}, [&](Fp8Gemm& g) {
        g.a_scale = static_cast<const Fp8Scale*>(a.scales);
        g.b_scale = static_cast<const Fp8Scale*>(b.scales);
        g.a_type = p.a.type, g.b_type = p.b.type, g.fast_accumulation = p.fast;
        fp8_gemm(s, g);
    });
}

void Fp8Linear::forward(Stream& s, void* y, const Operand& x, const Operand& w, int64_t N, int64_t in, int64_t out,
                        DType t, DType y_dtype) const {
    multiply(s, {.what = "Fp8Gemm y = x W^T",
                 .c = y,
                 .a = {x, N, in, false, Fp8::e4m3, Fp8Tiles::rows},
                 .b = {w, out, in, false, Fp8::e4m3, Fp8Tiles::squares},
                 .M = N,
                 .N = out,
                 .K = in,
                 .beta = 0,
                 .dtype = t,
                 .c_dtype = y_dtype,
                 .fast = true});
}

void Fp8Linear::backward_input(Stream& s, void* dx, const Operand& dy, const Operand& w, int64_t N, int64_t in,
                               int64_t out, DType t, DType dx_dtype) const {
    multiply(s, {.what = "Fp8Gemm dx = dy W",
                 .c = dx,
                 .a = {dy, N, out, false, Fp8::e5m2, Fp8Tiles::rows},
                 .b = {w, out, in, true, Fp8::e4m3, Fp8Tiles::squares},
                 .M = N,
                 .N = in,
                 .K = out,
                 .beta = 0,
                 .dtype = t,
                 .c_dtype = dx_dtype,
                 .fast = false});
}

void Fp8Linear::backward_weight(Stream& s, void* dw, const Operand& dy, const Operand& x, int64_t N, int64_t in,
                                int64_t out, DType t, DType grad_dtype) const {
    multiply(s, {.what = "Fp8Gemm dW = dy^T x",
                 .c = dw,
                 .a = {dy, N, out, true, Fp8::e5m2, Fp8Tiles::rows},
                 .b = {x, N, in, true, Fp8::e4m3, Fp8Tiles::rows},
                 .M = out,
                 .N = in,
                 .K = N,
                 .beta = 1,
                 .dtype = t,
                 .c_dtype = grad_dtype,
                 .fast = false});
}

}  // namespace rz
