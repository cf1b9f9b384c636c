// Every op at widths of the presets (1b: 2048, 32 + 8 heads of 64, 8192; 8b: 4096, 32 + 8 heads of 128, 14336; 128256
// tokens) and few rows: dev/gpu/kernel_counts.py --gate counts what the kernels then ask of the memory. The ops' own
// tests compare them to the rounding; here numbers may be off by a hundredth.

#include "kernels/adamw.h"
#include "kernels/argmax.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/copy_rows.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"
#include "kernels/statistics.h"
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
    rmsnorm_forward(run.stream(), ops::NormCase{8, w.C, kType, DType::f32, true}.forward(run));
}
void norm_backward(KernelRun& run, const Width& w) {
    rmsnorm_backward(run.stream(), ops::NormCase{48, w.C, kType, DType::f32, true}.backward(run));
}
void swiglu(KernelRun& run, const Width& w) {
    const ops::SwigluCase c{2, w.F, kType};
    swiglu_forward(run.stream(), c.forward(run));
    swiglu_backward(run.stream(), c.backward(run, /*writes_h=*/false));
}
void rope(KernelRun& run, const Width& w) {  // 40 heads of a packed row
    rz::rope(run.stream(), ops::RopeCase{16, 16, 40, w.D, 8 * w.D, kType}.args(run));
}
void embedding(KernelRun& run, const Width& w) {
    const ops::EmbeddingCase c{8, w.C, 10, {3, 9, 3, 0, 7, 5, 1, 2}, kType};
    embedding_forward(run.stream(), c.forward(run));
    embedding_backward(run.stream(), c.backward(run));
}
void whole_vocabulary(KernelRun& run, const Width&) {
    argmax(run.stream(), {.best = run.out("best", 2, DType::f32),
                          .logits = run.in(2 * kVocab, kType, 1),
                          .N = 2,
                          .V = kVocab,
                          .dtype = kType});
    cross_entropy(run.stream(), ops::LogitsCase{2, kVocab, {17, 128000}, kType}.loss(run, /*gradient=*/true));
    sum_f32(run.stream(), {.out = run.inout_f64("sum", {1}), .x = run.in(8192, DType::f32, 3), .n = 8192});
}
void parts_of_the_vocabulary(KernelRun& run, const Width&) {  // of eight
    constexpr int64_t V = kVocab / 8;
    const ops::LogitsCase c{4, V, {17, 128000, 5, 3}, kType, 1, 0, kVocab};
    const VocabSoftmax part = c.softmax_of_part(run);
    vocab_softmax(run.stream(), part);
    VocabCrossEntropy loss = c.loss_of_part(run, /*gradient=*/true, std::vector<float>(4 * kVocabStats));
    loss.stats = part.stats;
    vocab_cross_entropy(run.stream(), loss);
}
void update(KernelRun& run, const Width& w) {
    const int64_t n = 8 * w.C;
    adamw(run.stream(), {.param = run.inout("param", n, kType, 1),
                         .master = run.inout("master", n, DType::f32, 1),
                         .m = run.inout("m", n, DType::f32, 2),
                         .v = run.inout("v", n, DType::f32, 3, 0.1f, 1),
                         .grad = run.in(n, DType::f32, 4),
                         .grad_scale = run.values<float>({1}),
                         .n = n,
                         .segment_end = run.values<int64_t>({n}),
                         .decays = run.values<uint8_t>({1}),
                         .segments = 1,
                         .lr = 1e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .step = 3,
                         .param_dtype = kType,
                         .grad_dtype = DType::f32});
    sum_squares(run.stream(), {.partial = run.out_f64("partial", ceil_div(n, 4096)),
                               .x = run.in(n, kType, 5),
                               .n = n,
                               .block = 4096,
                               .dtype = kType});
    segment_squares(run.stream(), {.sums = run.inout_f64("sums", {0, 1}),
                                   .x = run.in(n, kType, 6),
                                   .minus = run.in(n, kType, 7),
                                   .bounds = run.values<int64_t>({0, n / 2, n}),
                                   .segments = 2,
                                   .first = 0,
                                   .n = n,
                                   .dtype = kType});
}
void move(KernelRun& run, const Width& w) {
    const int64_t n = 8 * w.C;
    Stream& s = run.stream();
    cast(s, {.out = run.out("cast", n, kType),
             .x = run.in(n, DType::f32, 1),
             .n = n,
             .out_dtype = kType,
             .dtype = DType::f32});
    reduce_add(s, {.out = run.out("added", n, DType::f32),
                   .a = run.in(n, kType, 2),
                   .b = run.in(n, DType::f32, 3),
                   .n = n,
                   .out_dtype = DType::f32,
                   .a_dtype = kType,
                   .b_dtype = DType::f32});
    sum_rows(s, {.out = run.out("rows", n / 4, DType::f32),
                 .x = run.in(n, kType, 4),
                 .rows = 4,
                 .n = n / 4,
                 .stride = n / 4,
                 .out_dtype = DType::f32,
                 .dtype = kType});
    copy_rows(s, {.out = run.out("copied", n, kType),
                  .x = run.in(2 * n, kType, 5),
                  .rows = 8,
                  .columns = w.C,
                  .out_stride = w.C,
                  .stride = 2 * w.C,
                  .out_dtype = kType,
                  .dtype = kType});
    random_normal(s, {.x = run.out("drawn", n, kType), .n = n, .seed = 1, .stream = 2, .std = 0.02f, .dtype = kType});
}
void attention(KernelRun& run, const Width& w) {
    const ops::AttentionCase c{1, 256, 256, 4, 1, w.D, kType};
    const AttentionForward f = c.forward(run);
    attention_forward(run.stream(), f);
    AttentionBackward b = c.backward(run, f);
    b.kept_bytes = attention_kept_bytes(f.shape, compute_capability());
    if (b.kept_bytes > 0) b.kept = run.scratch(b.kept_bytes);
    attention_backward(run.stream(), b);
    attention_merge(run.stream(), c.merge(run, f.o, f.lse));
}
void codes(KernelRun& run, const Width& w) {
    const ops::QuantiseCase plain{128, w.C, kType}, both{128, w.C, kType, true, true};
    Fp8Scale* scale = run.inout("scale", zeros(4, DType::f32));
    const Quantise first = plain.whole(run, scale, Fp8::e4m3, "y1");
    abs_max(run.stream(), {.scale = scale, .x = first.x, .n = plain.size(), .dtype = kType});
    quantise(run.stream(), first);
    quantise(run.stream(), both.whole(run, scale, Fp8::e4m3, "y2"));
    quantise_blocks(run.stream(), both.blocks(run, Fp8Tiles::rows));
    quantise_mx(run.stream(), both.mx(run));
}

class Presets : public testing::TestWithParam<Case> {};

TEST_P(Presets, GiveTheCpusNumbers) {
    if (runs_source())
        GTEST_SKIP() << "the ops' own tests do this; these shapes are for what nvcc makes of the kernels";
    for (const Width& w : {Width{2048, 64, 8192}, Width{4096, 128, 14336}}) {
        const Op op = [&](KernelRun& run) { GetParam().op(run, w); };
        std::map<std::string, Tolerance> close;
        for (const auto& [name, result] : run_on(Device{}, op)) close[name] = {0.01, 0.02};
        for (const char* exact :
             {"y1", "y2", "y_t", "blocks", "blocks_t", "mx", "mx_t", "mx_scales", "mx_scales_t", "best"})
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
