// Every op at widths of the presets (1b: 2048, 32 + 8 heads of 64, 8192; 8b: 4096, 32 + 8 heads of 128, 14336; 128256
// tokens) and few rows: dev/gpu/kernel_counts.py --gate counts what the kernels then ask of the memory. The ops' own
// tests compare them to the rounding; here numbers may be off by a hundredth.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adamw.h"
#include "kernels/argmax.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/bit_sum.h"
#include "kernels/copy_rows.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8/quantise.h"
#include "kernels/fp8/quantise_blocks.h"
#include "kernels/fp8/quantise_mx.h"
#include "kernels/global_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/statistics.h"
#include "kernels/swiglu.h"
#include "kernels/vocab_cross_entropy.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

constexpr DType kType = DType::bf16;
constexpr int64_t kVocab = 128256;

struct Width {
    int64_t C, D, F;
};
struct Case {
    const char* name;
    void (*op)(KernelRun&, const Width&);
};

void norm_forward(KernelRun& run, const Width& w) {
    rmsnorm_forward(run.stream(), {.y = run.output("y", 8 * w.C, kType),
                                   .rstd = run.output<float>("rstd", 8, DType::f32),
                                   .sum = run.output("sum", 8 * w.C, kType),
                                   .x = run.input(normal(8 * w.C, kType, 1)),
                                   .residual = run.input(normal(8 * w.C, kType, 2)),
                                   .w = run.input(normal(w.C, kType, 3)),
                                   .N = 8,
                                   .C = w.C,
                                   .eps = 1e-5f,
                                   .dtype = kType});
}
void norm_backward(KernelRun& run, const Width& w) {
    rmsnorm_backward(run.stream(), {.dx = run.output("dx", 48 * w.C, kType),
                                    .dw = run.inout("dw", normal(w.C, DType::f32, 5)),
                                    .dy = run.input(normal(48 * w.C, kType, 1)),
                                    .x = run.input(normal(48 * w.C, kType, 2)),
                                    .w = run.input(normal(w.C, kType, 3)),
                                    .rstd = run.input<float>(std::vector<float>(48, 1)),
                                    .dresidual = run.input(normal(48 * w.C, kType, 4)),
                                    .scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(w.C))),
                                    .N = 48,
                                    .C = w.C,
                                    .dtype = kType,
                                    .grad_dtype = DType::f32});
}
void swiglu(KernelRun& run, const Width& w) {
    const void* gate_up = run.input(normal(2 * 2 * w.F, kType, 1));
    swiglu_forward(run.stream(),
                   {.h = run.output("h", 2 * w.F, kType), .gate_up = gate_up, .N = 2, .F = w.F, .dtype = kType});
    swiglu_backward(run.stream(), {.dgate_up = run.output("dgate_up", 2 * 2 * w.F, kType),
                                   .dh = run.input(normal(2 * w.F, kType, 2)),
                                   .gate_up = gate_up,
                                   .N = 2,
                                   .F = w.F,
                                   .dtype = kType});
}
void rope(KernelRun& run, const Width& w) {
    std::vector<float> cosines(size_t(16 * w.D / 2)), sines(cosines.size());
    rope_tables(cosines.data(), sines.data(), 16, w.D, 10000, {});
    rz::rope(run.stream(), {.x = run.inout("x", normal(16 * 48 * w.D, kType, 1)),  // 40 heads of a packed row
                            .cos_table = run.input<float>(cosines),
                            .sin_table = run.input<float>(sines),
                            .N = 16,
                            .T = 16,
                            .heads = 40,
                            .D = w.D,
                            .row_stride = 48 * w.D,
                            .dtype = kType});
}
void embedding(KernelRun& run, const Width& w) {
    const std::vector<int32_t> tokens = {3, 9, 3, 0, 7, 5, 1, 2}, rows = {3, 6, 7, 0, 2, 5, 4, 1},
                               starts = {0, 1, 2, 3, 5, 6, 7, 8}, ids = {0, 1, 2, 3, 5, 7, 9};
    embedding_forward(run.stream(), {.x = run.output("x", 8 * w.C, kType),
                                     .table = run.input(normal(10 * w.C, kType, 1)),
                                     .tokens = run.input<int32_t>(tokens),
                                     .N = 8,
                                     .C = w.C,
                                     .V = 10,
                                     .dtype = kType});
    embedding_backward(run.stream(), {.dtable = run.inout("dtable", normal(10 * w.C, DType::f32, 2)),
                                      .dx = run.input(normal(8 * w.C, kType, 3)),
                                      .rows = run.input<int32_t>(rows),
                                      .starts = run.input<int32_t>(starts),
                                      .ids = run.input<int32_t>(ids),
                                      .distinct = 7,
                                      .N = 8,
                                      .C = w.C,
                                      .V = 10,
                                      .dtype = kType,
                                      .grad_dtype = DType::f32});
}
void whole_vocabulary(KernelRun& run, const Width&) {
    const Data logits = normal(2 * kVocab, kType, 1);
    const auto* targets = run.input<int32_t>(std::vector<int32_t>{17, 128000});
    argmax(run.stream(), {.best = run.output<int32_t>("best", 2, DType::f32),
                          .logits = run.input(logits),
                          .N = 2,
                          .V = kVocab,
                          .dtype = kType});
    const float* loss = run.output<float>("loss", 2, DType::f32);
    cross_entropy(run.stream(), {.loss = const_cast<float*>(loss),
                                 .logits = run.inout("logits", logits),
                                 .targets = targets,
                                 .N = 2,
                                 .V = kVocab,
                                 .grad_scale = 1,
                                 .write_gradient = true,
                                 .dtype = kType});
    sum_f32(run.stream(),
            {.out = run.inout_f64("sum", {1}), .x = run.input<float>(normal(8192, DType::f32, 3)), .n = 8192});
}
void parts_of_the_vocabulary(KernelRun& run, const Width&) {  // of eight
    constexpr int64_t V = kVocab / 8;
    const auto* targets = run.input<int32_t>(std::vector<int32_t>{17, 128000, 5, 3});
    float* stats = run.output<float>("stats", 4 * kVocabStats, DType::f32);
    void* logits = run.inout("logits", normal(4 * V, kType, 1));
    vocab_softmax(run.stream(),
                  {.stats = stats, .logits = logits, .targets = targets, .N = 4, .V = V, .first = 0, .dtype = kType});
    vocab_cross_entropy(run.stream(), {.loss = run.output<float>("loss", 4, DType::f32),
                                       .logits = logits,
                                       .stats = stats,
                                       .targets = targets,
                                       .N = 4,
                                       .V = V,
                                       .first = 0,
                                       .parts = 1,
                                       .vocab = kVocab,
                                       .grad_scale = 1,
                                       .write_gradient = true,
                                       .dtype = kType});
}
void update(KernelRun& run, const Width& w) {
    const int64_t n = 8 * w.C;
    adamw(run.stream(), {.param = run.inout("param", normal(n, kType, 1)),
                         .master = run.inout("master", normal(n, DType::f32, 1)),
                         .m = run.inout("m", normal(n, DType::f32, 2)),
                         .v = run.inout("v", normal(n, DType::f32, 3, 0.1f, 1)),
                         .grad = run.input(normal(n, DType::f32, 4)),
                         .grad_scale = run.input<float>(std::vector<float>{1}),
                         .n = n,
                         .segment_end = run.input<int64_t>(std::vector<int64_t>{n}),
                         .decays = run.input<uint8_t>(std::vector<uint8_t>{1}),
                         .segments = 1,
                         .lr = 1e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .step = 3,
                         .param_dtype = kType,
                         .grad_dtype = DType::f32});
    sum_squares(run.stream(), {.partial = run.output_f64("partial", ceil_div(n, 4096)),
                               .x = run.input(normal(n, kType, 5)),
                               .n = n,
                               .block = 4096,
                               .dtype = kType});
    segment_squares(run.stream(), {.sums = run.inout_f64("sums", {0, 1}),
                                   .x = run.input(normal(n, kType, 6)),
                                   .minus = run.input(normal(n, kType, 7)),
                                   .bounds = run.input<int64_t>(std::vector<int64_t>{0, n / 2, n}),
                                   .segments = 2,
                                   .first = 0,
                                   .n = n,
                                   .dtype = kType});
}
void move(KernelRun& run, const Width& w) {
    const int64_t n = 8 * w.C;
    Stream& s = run.stream();
    cast(s, {.out = run.output("cast", n, kType),
             .x = run.input(normal(n, DType::f32, 1)),
             .n = n,
             .out_dtype = kType,
             .dtype = DType::f32});
    reduce_add(s, {.out = run.output("added", n, DType::f32),
                   .a = run.input(normal(n, kType, 2)),
                   .b = run.input(normal(n, DType::f32, 3)),
                   .n = n,
                   .out_dtype = DType::f32,
                   .a_dtype = kType,
                   .b_dtype = DType::f32});
    sum_rows(s, {.out = run.output("rows", n / 4, DType::f32),
                 .x = run.input(normal(n, kType, 4)),
                 .rows = 4,
                 .n = n / 4,
                 .stride = n / 4,
                 .out_dtype = DType::f32,
                 .dtype = kType});
    copy_rows(s, {.out = run.output("copied", n, kType),
                  .x = run.input(normal(2 * n, kType, 5)),
                  .rows = 8,
                  .columns = w.C,
                  .out_stride = w.C,
                  .stride = 2 * w.C,
                  .out_dtype = kType,
                  .dtype = kType});
    random_normal(s,
                  {.x = run.output("drawn", n, kType), .n = n, .seed = 1, .stream = 2, .std = 0.02f, .dtype = kType});
}
void attention(KernelRun& run, const Width& w) {
    const int64_t T = 256, H = 4, K = 1, q_row = H * w.D, kv_row = K * w.D;
    const AttentionShape shape{.B = 1,
                               .Tq = T,
                               .Tk = T,
                               .H = H,
                               .K = K,
                               .D = w.D,
                               .q_row = q_row,
                               .q_batch = T * q_row,
                               .kv_row = kv_row,
                               .kv_batch = T * kv_row,
                               .o_row = q_row,
                               .o_batch = T * q_row,
                               .scale = 1 / std::sqrt(float(w.D)),
                               .dtype = kType};
    const void *q = run.input(normal(T * q_row, kType, 1)), *k = run.input(normal(T * kv_row, kType, 2)),
               *v = run.input(normal(T * kv_row, kType, 3));
    void* o = run.output("o", T * q_row, kType);
    float* lse = run.output<float>("lse", H * T, DType::f32);
    attention_forward(run.stream(), {.o = o, .lse = lse, .q = q, .k = k, .v = v, .shape = shape});
    const int64_t kept = attention_kept_bytes(shape, compute_capability());
    attention_backward(run.stream(), {.dq = run.output("dq", T * q_row, kType),
                                      .dk = run.output("dk", T * kv_row, kType),
                                      .dv = run.output("dv", T * kv_row, kType),
                                      .d_o = run.input(normal(T * q_row, kType, 4)),
                                      .q = q,
                                      .k = k,
                                      .v = v,
                                      .o = o,
                                      .lse = lse,
                                      .workspace = run.scratch(attention_backward_workspace(shape)),
                                      .shape = shape,
                                      .kept = kept > 0 ? run.scratch(kept) : nullptr,
                                      .kept_bytes = kept});
    attention_merge(run.stream(), {.o = run.inout<float>("merged", normal(T * q_row, DType::f32, 5)),
                                   .lse = run.inout<float>("merged_lse", normal(H * T, DType::f32, 6)),
                                   .part_o = o,
                                   .part_lse = lse,
                                   .B = 1,
                                   .T = T,
                                   .H = H,
                                   .D = w.D,
                                   .o_batch = T * q_row,
                                   .part_batch = T * q_row,
                                   .first = false,
                                   .dtype = kType});
}
void codes(KernelRun& run, const Width& w) {
    constexpr int64_t kRows = 128;
    const int64_t n = kRows * w.C;
    const void* x = run.input(normal(n, kType, 1));
    auto* scale = static_cast<Fp8Scale*>(run.inout<void>("scale", zeros(4, DType::f32)));
    abs_max(run.stream(), {.scale = scale, .x = x, .n = n, .dtype = kType});
    const auto bytes = [&](const char* name, int64_t count) {
        return run.output<uint8_t>(name, count / 4, DType::f32);
    };
    for (const bool transposed : {false, true})
        quantise(run.stream(), {.y = bytes(transposed ? "y2" : "y", n),
                                .y_t = transposed ? bytes("y_t", n) : nullptr,
                                .scale = scale,
                                .x = x,
                                .rows = kRows,
                                .columns = w.C,
                                .type = Fp8::e4m3,
                                .dtype = kType});
    quantise_blocks(run.stream(),
                    {.y = bytes("blocks", n),
                     .scales = run.output<float>("scales", fp8_scales_of(Fp8Tiles::rows, kRows, w.C), DType::f32),
                     .y_t = bytes("blocks_t", n),
                     .scales_t = run.output<float>("scales_t", fp8_scales_of(Fp8Tiles::rows, w.C, kRows), DType::f32),
                     .x = x,
                     .rows = kRows,
                     .columns = w.C,
                     .tiles = Fp8Tiles::rows,
                     .dtype = kType});
    quantise_mx(run.stream(), {.y = bytes("mx", n),
                               .scales = bytes("mx_scales", mx_scales_of(kRows, w.C)),
                               .y_t = bytes("mx_t", n),
                               .scales_t = bytes("mx_scales_t", mx_scales_of(w.C, kRows)),
                               .x = x,
                               .rows = kRows,
                               .columns = w.C,
                               .dtype = kType});
}

class Presets : public testing::TestWithParam<Case> {};

TEST_P(Presets, GiveTheCpusNumbers) {
    if (runs_source())
        GTEST_SKIP() << "the ops' own tests do this; these shapes are for what nvcc makes of the kernels";
    for (const Width& w : {Width{2048, 64, 8192}, Width{4096, 128, 14336}}) {
        const Op op = [&](KernelRun& run) { GetParam().op(run, w); };
        std::map<std::string, Tolerance> close;
        for (const auto& [name, result] : run_on(Device{}, op)) close[name] = {0.01, 0.02};
        for (const char* exact : {"y2", "y_t", "blocks", "blocks_t", "mx", "mx_t", "mx_scales", "mx_scales_t", "best"})
            close.erase(exact);
        compare_on_devices(op, close);
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, Presets,
                         testing::Values(Case{"norm_forward", norm_forward}, Case{"norm_backward", norm_backward},
                                         Case{"swiglu", swiglu}, Case{"rope", rope}, Case{"embedding", embedding},
                                         Case{"whole_vocabulary", whole_vocabulary},
                                         Case{"parts_of_the_vocabulary", parts_of_the_vocabulary},
                                         Case{"update", update}, Case{"move", move}, Case{"attention", attention},
                                         Case{"codes", codes}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace rz::test
