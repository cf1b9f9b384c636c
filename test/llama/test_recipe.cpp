// Recommended rates and batches: the rule against the runs of those who made it, what is odd, and what --auto sets.
#include "llama/model/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/runtime/request.h"
#include "llama/model/presets.h"
#include "llama/train/options.h"
#include "test/llama/toy_run.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

// DeepSeek LLM 7B and 67B were trained on 2T tokens with what their rule gave (Bi et al. 2024, table 2): 4.2e-4 and
// 2304 sequences of 4096, 3.2e-4 and 4608. Rounded there, so within a tenth.
TEST(Recipe, GivesDeepSeeksOwnRuns) {
    struct Run {
        int64_t dim, layers, heads, kv_heads, ffn;
        double lr, sequences;
    };
    for (const Run& run : {Run{4096, 30, 32, 32, 11008, 4.2e-4, 2304}, {8192, 95, 64, 8, 22016, 3.2e-4, 4608}}) {
        ModelConfig c;
        c.dim = run.dim, c.layers = run.layers, c.heads = run.heads, c.kv_heads = run.kv_heads, c.ffn = run.ffn;
        c.vocab = 102400, c.max_seq_len = 4096;
        c.resolve();
        const Recipe r = recipe_of_tokens(c, 4096, 2e12);
        EXPECT_NEAR(r.lr, run.lr, 0.1 * run.lr);
        EXPECT_NEAR(r.batch_tokens, run.sequences * 4096, 0.1 * run.sequences * 4096);
    }
}

TEST(Recipe, OfStepsHasTheBatchOfItsOwnTokens) {
    const Recipe r = recipe_of_steps(resolved_preset("gpt2-124m"), 1024, 5000);
    EXPECT_NEAR(r.tokens, 5000 * r.batch_tokens, 1e-6 * r.tokens);
    EXPECT_NEAR(recipe_of_tokens(resolved_preset("gpt2-124m"), 1024).tokens, 20.0 * 124e6, 0.02 * 20 * 124e6);
}

TEST(Recipe, NamesWhatNobodyPublished) {
    EXPECT_EQ(unlike_published(resolved_preset("llama3.1-8b"), 3e-4, 4 << 20), "");
    EXPECT_EQ(unlike_published(resolved_preset("llama3.1-8b"), 3e-4, 16 << 20), "");
    EXPECT_EQ(unlike_published(resolved_preset("llama3.1-8b"), 4 * 4.2e-4, 2e6 / 3.9), "") << "within a factor of four";
    const std::string odd = unlike_published(resolved_preset("llama3.1-8b"), 1e-2, 8 * 256);
    EXPECT_TRUE(says(odd, "lr 0.01 is 24 x above"));
    EXPECT_TRUE(says(odd, "2.05k tokens an update is 977 x below"));
    EXPECT_TRUE(says(odd, "GPT-3 6.7B"));
    EXPECT_EQ(unlike_published(resolved_preset("bytes"), 1, 1), "") << "nothing of this size was published";
    for (const Preset& p : presets()) {
        if (!p.published) continue;
        const auto& all = published();
        const auto at = std::find_if(all.begin(), all.end(),
                                     [&](const Published& q) { return q.name == std::string(p.published); });
        ASSERT_NE(at, all.end()) << p.name;
        EXPECT_EQ(unlike_published(resolved_preset(p.name), at->lr, at->batch), "") << p.name;
        EXPECT_TRUE(says(preset_table(), at->source));
    }
}

TEST(Recipe, AutoSetsWhatIsNotGiven) {
    TrainOptions o;
    o.batch = 4, o.seq_len = 1024, o.tp = 2;
    const ModelConfig c = resolved_preset("gpt2-124m");
    std::vector<std::string> lines = choose_recipe(o, c, 16);
    const Recipe r = recipe_of_tokens(c, 1024);
    EXPECT_EQ(o.batch_tokens % (4 * 1024 * 8), 0) << "of 16 ranks two share a model";
    EXPECT_NEAR(double(o.batch_tokens), r.batch_tokens, 4 * 1024 * 8 / 2);
    EXPECT_NEAR(double(o.steps * o.batch_tokens), r.tokens, double(o.batch_tokens));
    EXPECT_NEAR(o.lr, r.lr, 0.005 * r.lr);
    EXPECT_DOUBLE_EQ(o.min_lr, 0.1 * o.lr);
    EXPECT_EQ(o.warmup, std::min<int64_t>(2000, o.steps / 10));
    EXPECT_EQ(lines.size(), 6u);
    EXPECT_EQ(o.kept_flags.at("steps"), std::to_string(o.steps)) << "a resume goes on with it";

    TrainOptions given;
    given.batch = 4, given.seq_len = 1024, given.steps = 300, given.lr = 1e-4, given.min_lr = 0, given.warmup = 7;
    given.given = {"steps", "lr", "min-lr", "warmup"};
    lines = choose_recipe(given, c, 1);
    EXPECT_EQ(given.steps, 300);
    EXPECT_EQ(given.lr, 1e-4);
    EXPECT_EQ(given.min_lr, 0);
    EXPECT_EQ(given.warmup, 7);
    EXPECT_NEAR(double(given.batch_tokens), recipe_of_steps(c, 1024, 300).batch_tokens, 4 * 1024 / 2);
    EXPECT_EQ(lines.size(), 3u) << "batch-tokens, weight-decay, lr-schedule";
}

TEST(Chosen, ARunWithoutOutIsKeptUnlessRunsFolderIsEmpty) {
    const char* const was = std::getenv("RINGZERO_RUNS");
    const std::string before = was ? was : "";
    unsetenv("RINGZERO_RUNS");
    EXPECT_EQ(runs_folder(), "runs");
    EXPECT_TRUE(train_options("--save-every 10").keeps());
    EXPECT_FALSE(train_options("--out=").keeps());
    setenv("RINGZERO_RUNS", "", 1);
    EXPECT_FALSE(train_options("").keeps());
    EXPECT_TRUE(train_options("--out o").keeps());
    Command command;
    EXPECT_EQ(parse_command_line({"--stats-every", "1"}, command), 2);
    was ? setenv("RINGZERO_RUNS", before.c_str(), 1) : unsetenv("RINGZERO_RUNS");
}

// A resumed run keeps the type that it began with, on another kind of device too.
TEST(Chosen, DtypeAutoIsTheDevicesAndARunKeepsItsOwn) {
    const struct {
        int gpu;  // its compute capability
        DType chosen;
    } cases[] = {{90, DType::bf16}, {80, DType::bf16}, {75, DType::f16}, {0, DType::f32}};
    for (const auto& c : cases) {
        TrainOptions o = train_options("--out o");
        choose_dtype(o, c.gpu);
        EXPECT_EQ(o.dtype, c.chosen);
        EXPECT_EQ(o.kept_flags.at("dtype"), name_of(c.chosen));
        for (const char* line : {"", "--dtype auto"}) {
            TrainOptions resumed = train_options(line);
            EXPECT_TRUE(adopt_flags(resumed, o.kept_flags, {.gpu = c.gpu == 0}).empty());
            choose_dtype(resumed, c.gpu == 0 ? 90 : 0);
            EXPECT_EQ(resumed.dtype, c.chosen);
        }
        TrainOptions given = train_options("--dtype fp16");
        choose_dtype(given, c.gpu);
        EXPECT_EQ(given.dtype, DType::f16);
    }
}

TEST(Chosen, ProductsThatTheGpuLacksAreRefused) {
    const auto refusal = [](const char* line, int gpu) {
        TrainOptions o = train_options(line);
        return error_of<RequestError>([&] { choose_dtype(o, gpu); });
    };
    const std::string bf16 = refusal("--dtype bf16", 75);
    EXPECT_TRUE(says(bf16, "--dtype bf16: a GPU of compute capability 7.5 has no bf16 products"));
    EXPECT_TRUE(says(bf16, "nearest: --dtype fp16, which scales the loss"));
    EXPECT_TRUE(says(refusal("--optimizer muon", 75), "nearest: --muon-dtype fp32"));
    EXPECT_EQ(refusal("--optimizer muon --muon-dtype fp32", 75), "");
    EXPECT_EQ(refusal("--dtype bf16", 0), "");
    EXPECT_EQ(refusal("--dtype bf16", 80), "");
    EXPECT_EQ(refusal("--dtype fp16", 75), "");
}

// Earlier programs summed in --dtype and sent what they summed, where nothing else was given; a checkpoint left it
// open.
TEST(Chosen, ARunOfAnEarlierProgramKeepsItsSums) {
    const std::string stays = " stays, the former default: the run keeps its sums";
    const std::map<std::string, std::string> narrow = {{"dtype", "bf16"}, {"grad-dtype", ""}, {"wire-dtype", ""}},
                                             wide = {{"dtype", "bf16"}, {"grad-dtype", "fp32"}, {"wire-dtype", ""}};
    const struct {
        std::map<std::string, std::string> saved;
        const char* given;
        std::vector<std::string> said;
        DType sums, wire;
    } cases[] = {
        {narrow, "", {"--grad-dtype bf16" + stays}, DType::bf16, DType::bf16},
        {{{"dtype", "bf16"}}, "--dtype bf16", {"--grad-dtype bf16" + stays}, DType::bf16, DType::bf16},
        {{{"dtype", "bf16"}, {"wire-dtype", "fp32"}}, "", {"--grad-dtype bf16" + stays}, DType::bf16, DType::f32},
        {narrow, "--grad-dtype fp32", {"--grad-dtype fp32, was bf16"}, DType::f32, DType::bf16},
        {wide, "", {"--wire-dtype fp32" + stays}, DType::f32, DType::f32},
        {wide, "--wire-dtype bf16", {"--wire-dtype bf16, was fp32"}, DType::f32, DType::bf16},
        {{{"dtype", "fp32"}, {"grad-dtype", ""}}, "", {}, DType::f32, DType::f32},
        {{{"dtype", "fp16"}, {"grad-dtype", ""}}, "", {}, DType::f32, DType::f32},
        // Nobody had given it, so nothing of it is lost beside another --dtype.
        {{{"dtype", "fp32"}, {"grad-dtype", ""}, {"wire-dtype", ""}},
         "--dtype fp16",
         {"--dtype fp16, was fp32"},
         DType::f32,
         DType::f32},
        {{{"wire-dtype", ""}}, "--wire-dtype bf16", {"--wire-dtype bf16, was not given"}, DType::f32, DType::bf16},
    };
    for (const auto& c : cases) {
        TrainOptions o = train_options(c.given);
        EXPECT_EQ(adopt_flags(o, c.saved, {.same_ranks = true}), c.said);
        EXPECT_EQ(o.grad_dtype, c.sums);
        EXPECT_EQ(o.gradient_wire_dtype(), c.wire);
        TrainOptions again = train_options("");
        EXPECT_EQ(adopt_flags(again, o.kept_flags, {.same_ranks = true}), std::vector<std::string>()) << "said once";
        EXPECT_EQ(again.grad_dtype, c.sums);
        EXPECT_EQ(again.gradient_wire_dtype(), c.wire);
    }
    // With a pipeline they accumulated ZeRO-2's and 3's gradients locally, and gathered parameters for the step.
    const auto layout = [](const char* given, ResumePlace place, std::string pp = "2") {
        TrainOptions o = train_options(given);
        adopt_flags(o, {{"zero", "3"}, {"pp", pp}, {"accumulate-locally", ""}, {"pp-gather", "step"}}, place);
        return std::pair(o.accumulate_locally, o.pp_gather);
    };
    EXPECT_EQ(layout("", {.same_ranks = true}), std::pair(std::optional(true), GatherFor::step));
    EXPECT_EQ(layout("--zero 3 --no-accumulate-locally", {.same_ranks = true}).first, std::optional(false));
    for (const auto& other : {layout("", {.same_ranks = false}), layout("--pp 4", {.same_ranks = true}),
                              layout("", {.same_ranks = true}, "1")})
        EXPECT_EQ(other, std::pair(std::optional<bool>(), GatherFor::op)) << "another layout";
    // Types that go with another --dtype are not restored beside it.
    TrainOptions o = train_options("--dtype fp32");
    adopt_flags(o, narrow, {.same_ranks = true});
    EXPECT_EQ(o.grad_dtype, DType::f32);
    EXPECT_EQ(o.gradient_wire_dtype(), DType::f32);
    check_ranks(o, 1);
}

}  // namespace
}  // namespace rz
