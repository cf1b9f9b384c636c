#include <gtest/gtest.h>

#include <cmath>

#include "llama/model/param_table.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

class EveryPreset : public testing::TestWithParam<const char*> {};

TEST_P(EveryPreset, TensorsFillUnitsWithoutHoles) {
    const ModelConfig c = resolved_preset(GetParam());
    const ParamTable table(c);
    int64_t parameters = 0, offset = 0;
    size_t t = 0;
    ASSERT_EQ(int64_t(table.units().size()), c.layers + 2);
    for (size_t u = 0; u < table.units().size(); ++u) {
        const Unit& unit = table.units()[u];
        ASSERT_EQ(unit.offset, offset);
        ASSERT_EQ(unit.offset % 256, 0);
        ASSERT_EQ(unit.block % 256, 0);
        ASSERT_EQ(unit.padded % unit.block, 0);
        ASSERT_LE(unit.blocks(), 1024);
        ASSERT_LT(unit.padded - unit.size, unit.block) << "padding is less than a block";
        ASSERT_EQ(size_t(unit.first_tensor), t);
        int64_t inside = unit.offset;
        for (int i = 0; i < unit.tensors; ++i, ++t) {
            const Tensor& tensor = table.tensors()[t];
            ASSERT_EQ(tensor.offset, inside) << tensor.name;
            ASSERT_EQ(tensor.offset % 8, 0) << tensor.name << " is 16-byte aligned in bf16";
            ASSERT_EQ(tensor.unit, int(u));
            ASSERT_EQ(table.find(tensor.name), &tensor);
            int64_t size = 1;
            for (const int64_t extent : tensor.shape) size *= extent;
            ASSERT_EQ(tensor.size, size);
            inside += size;
            parameters += size;
        }
        ASSERT_EQ(unit.offset + unit.size, inside);
        offset += unit.padded;
    }
    EXPECT_EQ(t, table.tensors().size());
    EXPECT_EQ(int64_t(t), (9 + (c.qkv_bias ? 3 : 0) + (c.q_gains() > 0 ? 2 : 0)) * c.layers + (c.tied ? 2 : 3));
    EXPECT_EQ(table.size(), offset);
    EXPECT_EQ(table.parameters(), parameters);
    EXPECT_EQ(parameters, c.parameter_count()) << "the formula and the table are written independently";
}

// Padding is of the local buffer: logical offsets, which draw random numbers and order the norm, are those of one rank.
TEST_P(EveryPreset, EqualSlicesMoveNoLogicalOffset) {
    const ModelConfig c = resolved_preset(GetParam());
    const ParamTable one(c);
    for (const int ranks : {2, 3, 48, 1000}) {
        const ParamTable table(c, {.sharers = ranks});
        int64_t offset = 0, seen = 0;
        ASSERT_EQ(table.held_units().size(), one.units().size());
        for (size_t u = 0; u < one.units().size(); ++u) {
            const UnitLayout &held = table.held_units()[u], &unit = one.units()[u];
            ASSERT_EQ(held.offset, offset);
            ASSERT_EQ(held.offset % 256, 0);
            ASSERT_EQ(held.global_offset, unit.offset);
            ASSERT_EQ(held.size, unit.size);
            ASSERT_EQ(held.block, unit.block);
            ASSERT_EQ(table.part_padded(int(u)), held.padded);
            if (held.equal)
                ASSERT_LE(double(held.padded - held.size), 0.005 * double(held.size));
            else
                ASSERT_EQ(held.padded, unit.padded);
            table.for_each_run(offset, offset + held.padded, INT64_MAX, [&](const TensorRun& run) {
                ASSERT_EQ(run.local - held.offset, one.tensors()[size_t(run.tensor)].offset + run.first - unit.offset);
                seen += run.count;
            });
            offset += held.padded;
        }
        EXPECT_EQ(seen, one.parameters());
        EXPECT_GE(table.decay_segments().back().end,
                  table.held_units().back().global_offset + table.held_units().back().padded);
    }
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryPreset,
                         testing::Values("bytes", "tiny", "small", "medium", "gpt2-124m", "smollm2-135m",
                                         "smollm2-360m", "llama3.2-1b", "llama3.1-405b", "qwen2.5-0.5b", "qwen3-8b",
                                         "olmo2-1b"));

// The padding that equal slices add: unit_layout.h.
TEST(ParamTable, PaddingForEqualSlicesIsWhatTheTableSays) {
    struct {
        const char* name;
        int ranks;
        double padding, share;  // %, and of the parameters in units with equal slices
    } const rows[] = {{"bytes", 8, 0.032, 4},           {"tiny", 8, 0.040, 70},
                      {"small", 96, 0.242, 100},        {"smollm2-135m", 64, 0.340, 100},
                      {"smollm2-135m", 6, 0.020, 21},   {"llama3.2-1b", 2048, 0.037, 100},
                      {"llama3.1-8b", 512, 0.003, 100}, {"llama3.1-8b", 1000, 0.433, 100}};
    for (const auto& row : rows) {
        const ParamTable table(resolved_preset(row.name), {.sharers = row.ranks});
        int64_t padded = 0, equal = 0;
        for (const UnitLayout& u : table.held_units()) padded += u.padded, equal += u.equal ? u.size : 0;
        const double all = double(table.parameters());
        EXPECT_NEAR(100 * (double(padded) / all - 1), row.padding, 0.0006) << row.name << ", " << row.ranks;
        EXPECT_NEAR(100 * double(equal) / all, row.share, 0.6) << row.name << ", " << row.ranks;
    }
}

TEST(ParamTable, OrderIsThatOfTheForwardPass) {
    ModelConfig c;
    c.dim = 64, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.head_dim = 32, c.ffn = 96, c.vocab = 51;
    c.resolve();
    const ParamTable table(c);
    const std::vector<std::string> want = {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
    };
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(table.tensors()[i].name, want[i]);
    EXPECT_EQ(table.tensors().back().name, "lm_head.weight");
    EXPECT_EQ(table.block(1, kV).name, "model.layers.1.self_attn.v_proj.weight");
    EXPECT_EQ(table.block(1, kDown).name, "model.layers.1.mlp.down_proj.weight");
    EXPECT_EQ(table.block(0, kQ).shape, (std::vector<int64_t>{128, 64}));
    EXPECT_EQ(table.block(0, kK).shape, (std::vector<int64_t>{64, 64}));
    EXPECT_EQ(table.block(0, kO).shape, (std::vector<int64_t>{64, 128}));
    EXPECT_EQ(table.final_norm().name, "model.norm.weight");
    EXPECT_EQ(table.head().shape, (std::vector<int64_t>{51, 64}));
    EXPECT_EQ(table.find("lm_head.bias"), nullptr);
}

TEST(ParamTable, TiedHeadIsTheEmbedding) {
    const ParamTable table(resolved_preset("smollm2-135m"));
    EXPECT_EQ(&table.head(), &table.embedding());
    EXPECT_EQ(table.find("lm_head.weight"), nullptr);
    EXPECT_EQ(table.tensors().back().name, "model.norm.weight");
    EXPECT_EQ(table.units().back().padded, 768) << "576 rounded up to 256s";
}

TEST(ParamTable, MatricesDecayAndLastProjectionsStartSmaller) {
    ModelConfig c = resolved_preset("tiny");
    const ParamTable table(c);
    for (const Tensor& t : table.tensors()) {
        EXPECT_EQ(t.decay, t.shape.size() == 2) << t.name;
        EXPECT_EQ(t.init == Init::kOnes, t.shape.size() == 1) << t.name;
    }
    EXPECT_DOUBLE_EQ(table.block(0, kO).init_std, 0.02 / std::sqrt(10.0));
    EXPECT_DOUBLE_EQ(table.block(4, kDown).init_std, 0.02 / std::sqrt(10.0));
    EXPECT_DOUBLE_EQ(table.block(0, kUp).init_std, 0.02);
    c.branch_init = 0.5;
    EXPECT_DOUBLE_EQ(ParamTable(c).block(0, kO).init_std, 0.01);
    EXPECT_DOUBLE_EQ(ParamTable(c).block(0, kV).init_std, 0.02);
}

TEST(ParamTable, DecaySegmentsAgreeWithTensors) {
    for (const auto& [name, embedding] :
         {std::pair("tiny", true), {"smollm2-135m", true}, {"tiny", false}, {"smollm2-135m", false}}) {
        const ParamTable table(resolved_preset(name));
        const auto segments = table.decay_segments(embedding);
        EXPECT_EQ(segments.back().end, table.size());
        for (const Tensor& t : table.tensors())
            for (const int64_t i : {t.offset, t.offset + t.size - 1}) {
                size_t s = 0;
                while (segments[s].end <= i) ++s;
                EXPECT_EQ(segments[s].decay, t.decay && (embedding || &t != &table.embedding())) << t.name;
            }
        for (size_t s = 1; s < segments.size(); ++s) {
            EXPECT_LT(segments[s - 1].end, segments[s].end);
            EXPECT_NE(segments[s - 1].decay, segments[s].decay);
        }
    }
}

}  // namespace
}  // namespace rz
