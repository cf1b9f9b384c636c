#include <gtest/gtest.h>

#include <cmath>

#include "llama/base/json.h"
#include "llama/model/config.h"
#include "llama/model/presets.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

ModelConfig config_toy() {
    ModelConfig c;
    c.dim = 64, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.ffn = 96, c.vocab = 50;
    return c;
}

constexpr const char* kRequired =
    R"("model_type":"llama","vocab_size":50,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,)"
    R"("num_attention_heads":4)";

// As a file of this model_type.
ModelConfig read_as(const std::string& type, const std::string& more) {
    std::string text = "{" + std::string(kRequired) + (more.empty() ? "" : "," + more) + "}";
    return config_from_json(text.replace(text.find("llama"), 5, type), "c.json");
}
ModelConfig read(const std::string& more) { return read_as("llama", more); }
std::string refusal_of_config(const std::string& more) {
    return error_of([&] { read(more); });
}

TEST(Presets, HaveThePublishedCounts) {
    const std::pair<const char*, int64_t> exact[] = {
        {"smollm2-135m", 134'515'008},      {"smollm2-360m", 361'821'120},    {"smollm2-1.7b", 1'711'376'384},
        {"tinyllama-1.1b", 1'100'048'384},  {"llama3.2-1b", 1'235'814'400},   {"llama3.2-3b", 3'212'749'824},
        {"llama3.1-8b", 8'030'261'248},     {"llama3.1-70b", 70'553'706'496}, {"llama3.1-405b", 405'853'388'800},
        {"llama3-8b", 8'030'261'248},       {"llama3-70b", 70'553'706'496},   {"qwen2.5-0.5b", 494'032'768},
        {"qwen2.5-1.5b", 1'543'714'304},    {"qwen2.5-3b", 3'085'938'688},    {"qwen2.5-7b", 7'615'616'512},
        {"qwen2.5-14b", 14'770'033'664},    {"qwen3-0.6b", 596'049'920},      {"qwen3-1.7b", 1'720'574'976},
        {"qwen3-4b", 4'022'468'096},        {"qwen3-8b", 8'190'735'360},      {"smollm3-3b", 3'075'098'624},
        {"mistral-7b-v0.1", 7'241'732'096}, {"olmo2-1b", 1'484'916'736},      {"olmo2-7b", 7'298'617'344},
    };
    for (const auto& [name, count] : exact) {
        EXPECT_EQ(resolved_preset(name).parameter_count(), count) << name;
    }
}

TEST(Presets, AreWithinTwoPercentOfTheirNames) {
    const std::pair<const char*, double> about[] = {
        {"tiny", 46e6}, {"small", 318e6}, {"medium", 1.34e9}, {"gpt2-124m", 124e6}, {"gpt2-355m", 355e6}};
    for (const auto& [name, count] : about) {
        EXPECT_NEAR(double(resolved_preset(name).parameter_count()), count, 0.02 * count) << name;
    }
}

TEST(Presets, OwnOnesHaveGroupedQueriesAndLlamasVocabulary) {
    for (const char* name : {"tiny", "small", "medium"}) {
        EXPECT_EQ(find_preset(name).config.vocab, 32000) << name;
        EXPECT_LT(find_preset(name).config.kv_heads, find_preset(name).config.heads) << name;
    }
}

TEST(Presets, UnknownNameGetsTheNearest) {
    const std::string e = error_of([] { find_preset("llama3.1-8B"); });
    EXPECT_TRUE(says(e, "nearest is llama3.1-8b")) << e;
}

TEST(Presets, EveryOneSurvivesConfigJson) {
    for (const Preset& p : presets()) {
        ModelConfig c = p.config;
        c.resolve();
        const ModelConfig back = config_from_json(config_to_json(c, DType::bf16), p.name);
        EXPECT_EQ(differences(c, back, "preset", "file"), "") << p.name;
        EXPECT_EQ(back.max_seq_len, c.max_seq_len);
        EXPECT_EQ(back.init_std, c.init_std);
        EXPECT_EQ(back.bos, c.bos);
        EXPECT_EQ(back.eos, c.eos);
        EXPECT_EQ(back.pad, c.pad);
    }
}

TEST(Config, DerivesHeadDimAndKvHeads) {
    ModelConfig c = config_toy();
    c.kv_heads = 0;
    c.resolve();
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_EQ(c.kv_heads, 4);
    EXPECT_EQ(c.qkv_rows(), 12 * 16);
}

TEST(Config, RefusalsNameTheFieldAndTheNearestValue) {
    const auto refused = [](auto&& change, const std::string& part) {
        ModelConfig c = config_toy();
        change(c);
        const std::string e = error_of([&] { c.resolve(); });
        EXPECT_TRUE(says(e, part)) << "got: " << e;
    };
    refused([](auto& c) { c.heads = 7; },
            "heads (num_attention_heads) = 7 does not divide dim (hidden_size) = 64: nearest heads 4 or 8");
    refused([](auto& c) { c.kv_heads = 3; },
            "kv-heads (num_key_value_heads) = 3 does not divide heads (num_attention_heads) = 4");
    refused([](auto& c) { c.dim = 60; }, "nearest 56 or 64");
    refused([](auto& c) { c.head_dim = 15; }, "nearest 14 or 16");
    refused([](auto& c) { c.vocab = int64_t(1e18); },
            "vocab (vocab_size) = 1000000000000000000 must be from 1 to 2147483647");
    refused([](auto& c) { c.layers = -1; }, "layers (num_hidden_layers) = -1");
    refused([](auto& c) { c.norm_eps = NAN; }, "norm-eps");
    refused([](auto& c) { c.rope_theta = INFINITY; }, "rope-theta");
    refused([](auto& c) { c.dim = 2048; }, "head-dim (head_dim) = 512 must be from 2 to 256");
    refused([](auto& c) { c.head_dim = 514; }, "head-dim (head_dim) = 514 must be from 2 to 256");
    refused([](auto& c) { c.dim = 1 << 20, c.ffn = 1 << 24, c.layers = 1 << 16, c.head_dim = 128; }, "does not fit");
}

TEST(ConfigJson, MinimalFileGetsTransformersDefaults) {
    const ModelConfig c = read("");
    EXPECT_EQ(c.kv_heads, 4);
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_EQ(c.max_seq_len, 2048);
    EXPECT_EQ(c.norm_eps, 1e-6);
    EXPECT_EQ(c.rope_theta, 10000);
    EXPECT_EQ(c.rope_scaling.factor, 1);
    EXPECT_FALSE(c.tied);
    EXPECT_EQ(c.bos, 1);
    EXPECT_EQ(c.eos, std::vector<int64_t>{2});
    EXPECT_EQ(c.pad, -1);
}

TEST(ConfigJson, AcceptsWhatRealFilesContain) {
    EXPECT_EQ(read(R"("pad_token_id":null,"eos_token_id":[128001,128008,128009])").eos.size(), 3u);
    EXPECT_EQ(read(R"("bos_token_id":null,"eos_token_id":null)").bos, -1);
    EXPECT_TRUE(read(R"("eos_token_id":null)").eos.empty());
    EXPECT_EQ(read(R"("pad_token_id":-1)").pad, -1);
    EXPECT_EQ(read(R"("num_key_value_heads":null,"head_dim":null,"rope_scaling":null)").head_dim, 16);
    EXPECT_EQ(read(R"("head_dim":32)").head_dim, 32);
    read(R"("architectures":["LlamaForCausalLM"],"is_llama_config":true,"rope_interleaved":false,"_name_or_path":"x",
            "use_cache":true,"transformers_version":"4.40.1","neftune_noise_alpha":null,"pretraining_tp":1,
            "attention_bias":false,"mlp_bias":false,"attention_dropout":0.0,"hidden_act":"silu",)"
         R"("torch_dtype":"bfloat16")");
}

TEST(ConfigJson, ReadsRopeInBothForms) {
    const char* const factors =
        R"("factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
    const std::string v4 =
        R"("rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3",)" + std::string(factors) + "}";
    const std::string older = R"("rope_theta":500000.0,"rope_scaling":{"type":"llama3",)" + std::string(factors) + "}";
    const std::string v5 =
        R"("rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,)" + std::string(factors) + "}";
    for (const std::string& text : {v4, older, v5, v4 + "," + v5}) {
        const ModelConfig c = read(text);
        EXPECT_EQ(c.rope_theta, 500000) << text;
        EXPECT_EQ(c.rope_scaling.factor, 32) << text;
        EXPECT_EQ(c.rope_scaling.low_freq_factor, 1) << text;
        EXPECT_EQ(c.rope_scaling.high_freq_factor, 4) << text;
        EXPECT_EQ(c.rope_scaling.original_max_position, 8192) << text;
    }
    EXPECT_EQ(read(R"("rope_parameters":{"rope_type":"default","rope_theta":130000})").rope_theta, 130000);
    EXPECT_EQ(read(R"("rope_parameters":{"rope_type":"default"},"rope_theta":130000)").rope_theta, 130000);
    EXPECT_TRUE(says(refusal_of_config(R"("rope_theta":10000,)" + v5), "contradicts rope_theta"));
    EXPECT_TRUE(says(refusal_of_config(v4 + R"(,"rope_parameters":{"rope_type":"default","rope_theta":500000})"),
                     "contradicts rope_scaling"));
}

TEST(ConfigJson, EveryRopeScalingIsReadAsItIsWritten) {
    for (const char* scaling :
         {R"({"rope_type":"linear","factor":2.5})", R"({"type":"dynamic","factor":2})",
          R"({"rope_type":"yarn","factor":4,"original_max_position_embeddings":512})",
          R"({"rope_type":"yarn","factor":4,"mscale":1.4,"mscale_all_dim":0.7,"beta_fast":20,"truncate":false})"}) {
        const ModelConfig c = read(std::string(R"("rope_scaling":)") + scaling);
        const ModelConfig again = config_from_json(config_to_json(c, DType::f32), "again.json");
        EXPECT_EQ(differences(c, again, "one", "the other"), "") << scaling;
        EXPECT_NE(c.rope_scaling.factor, 1) << scaling;
    }
    const ModelConfig plain = read(""), linear = read(R"("rope_scaling":{"rope_type":"linear","factor":8})"),
                      dynamic = read(R"("rope_scaling":{"rope_type":"dynamic","factor":8})");
    EXPECT_TRUE(says(differences(plain, linear, "a", "b"), "factor"));
    EXPECT_TRUE(says(differences(linear, dynamic, "a", "b"), "rope_type: linear in a, dynamic in b"));
}

// Written by dev/golden/make_golden.py; corner values of every kind.
TEST(ConfigJson, RopeIsWhatTransformersComputes) {
    for (const Json& c : read_json("test/golden/rope.json")) {
        const std::string fields = c["fields"].dump();
        const ModelConfig once = read(fields.substr(1, fields.size() - 2));
        const ModelConfig again = config_from_json(config_to_json(once, DType::f32), "again.json");
        for (const ModelConfig& config : {once, again}) {
            const auto found = rope_inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling);
            const auto expected = c["inverse_frequencies"].get<std::vector<double>>();
            ASSERT_EQ(found.size(), expected.size());
            for (size_t i = 0; i < found.size(); ++i)
                EXPECT_NEAR(found[i] / expected[i], 1, 1e-5) << i << " " << fields;
            EXPECT_NEAR(rope_attention_factor(config.rope_scaling), c["attention_factor"].get<double>(), 1e-9)
                << fields;
        }
        EXPECT_EQ(differences(once, again, "once", "again"), "") << fields;
    }
    const ModelConfig plain = read(""),
                      factor = read(R"("rope_scaling":{"rope_type":"yarn","factor":1,"attention_factor":1.7})");
    EXPECT_TRUE(says(differences(plain, factor, "a", "b"), "attention_factor: 1 in a, 1.7 in b"));
}

TEST(ConfigJson, MistralIsALlamaWithAWindow) {
    const auto mistral = [](const std::string& more) { return read_as("mistral", more); };
    // Without one; with one that no sequence reaches; with one; where the file does not say
    const std::tuple<const char*, int64_t, const char*, const char*> cases[] = {
        {R"("sliding_window":null)", 0, "", "LlamaForCausalLM"},
        {R"("sliding_window":2048,"max_position_embeddings":2048)", 2048, "", "MistralForCausalLM"},
        {R"("sliding_window":64,"max_position_embeddings":128)", 64, "window: 0 in a, 64 in b\n",
         "\"sliding_window\": 64"},
        {R"("max_position_embeddings":8192)", 4096, "window: 0 in a, 4096 in b\n", "\"sliding_window\": 4096"}};
    for (const auto& [fields, window, want, name] : cases) {
        const std::string more = std::string(fields) + R"(,"num_key_value_heads":4)";
        const ModelConfig c = mistral(more);
        EXPECT_EQ(c.window, window) << fields;
        EXPECT_EQ(differences(read(R"("num_key_value_heads":4)"), c, "a", "b"), want) << fields;
        const std::string text = config_to_json(c, DType::f32);
        EXPECT_TRUE(says(text, name)) << text;
        EXPECT_EQ(config_from_json(text, "again").window, window);
    }
    EXPECT_TRUE(says(error_of([&] { mistral(R"("sliding_window":0)"); }), "sliding_window"));
}

TEST(ConfigJson, ArchitecturesAreReadAndWrittenByTheirClasses) {
    const ModelConfig llama = read(R"("num_key_value_heads":2)");
    const auto differ = [&](const ModelConfig& c) { return differences(llama, c, "llama", "c"); };
    const std::string rest = R"("num_key_value_heads":2,"rope_theta":1e4,"head_dim":16)";
    const std::tuple<const char*, const char*, std::string, std::string> cases[] = {
        {"qwen2", "Qwen2ForCausalLM", rest + R"(,"use_sliding_window":false,"sliding_window":32,"max_window_layers":1)",
         "qkv-bias: 0 in llama, 1 in c\n"},
        {"qwen3", "Qwen3ForCausalLM",
         rest + R"(,"attention_bias":false,"layer_types":["full_attention","full_attention"])",
         "qk-norm: 0 in llama, 1 in c\n"},
        {"smollm3", "SmolLM3ForCausalLM", rest + R"(,"no_rope_layers":[1,0],"tie_word_embeddings":false)",
         "nope-every: 0 in llama, 2 in c\n"},
        {"olmo2", "Olmo2ForCausalLM", rest + R"(,"attention_bias":false,"rms_norm_eps":1e-6)",
         "post-norm: 0 in llama, 1 in c\n"},
    };
    for (const auto& [type, name, fields, want] : cases) {
        const ModelConfig c = read_as(type, fields);
        EXPECT_EQ(differ(c), want);
        const std::string text = config_to_json(c, DType::bf16);
        EXPECT_TRUE(says(text, name) && says(text, format("\"%s\"", type))) << text;
        EXPECT_EQ(differences(c, config_from_json(text, "again"), "once", "again"), "");
    }
    // transformers takes these where a file does not say
    const ModelConfig qwen3 = read_as("qwen3", R"("num_key_value_heads":null)"), smollm3 = read_as("smollm3", ""),
                      olmo2 = read_as("olmo2", "");
    EXPECT_EQ(qwen3.head_dim, 128);
    EXPECT_EQ(qwen3.kv_heads, 4);
    EXPECT_EQ(qwen3.bos, -1);
    EXPECT_TRUE(qwen3.eos.empty());
    EXPECT_TRUE(smollm3.tied);
    EXPECT_EQ(smollm3.rope_theta, 2e6);
    EXPECT_EQ(smollm3.nope_every, 0) << "two blocks have no fourth";
    EXPECT_TRUE(says(config_to_json(smollm3, DType::f32), "LlamaForCausalLM"));
    EXPECT_EQ(olmo2.kv_heads, 4);
    EXPECT_EQ(olmo2.norm_eps, 1e-5);
    EXPECT_EQ(olmo2.eos, std::vector<int64_t>{50279});
    EXPECT_EQ(olmo2.pad, 1);
}

TEST(ConfigJson, ArchitecturesRefuseWhatTheirClassesWouldCompute) {
    const std::tuple<const char*, const char*, const char*> cases[] = {
        {"qwen2", R"("use_sliding_window":true)", "use_sliding_window"},
        {"qwen3", R"("attention_bias":true)", "attention_bias"},
        {"olmo2", R"("attention_bias":true)", "attention_bias"},
        {"qwen3", R"("layer_types":["full_attention","sliding_attention"])", "layer_types"},
        {"qwen2", R"("architectures":["Qwen3ForCausalLM"])", "contradicts"},
        {"smollm3", R"("no_rope_layers":[1])", "no_rope_layers"},
        {"smollm3", R"("no_rope_layers":[0,1])", "no_rope_layers"},
    };
    for (const auto& [type, fields, part] : cases) {
        const std::string more = std::string(fields) + R"(,"num_key_value_heads":2)";
        EXPECT_TRUE(says(error_of([&] { read_as(type, more); }), part)) << fields;
    }
    ModelConfig c = config_toy();
    c.qkv_bias = c.qk_norm = true;
    EXPECT_TRUE(says(error_of([&] { c.resolve(); }), "qkv-bias with qk-norm"));
    c.qkv_bias = false, c.nope_every = 2;
    EXPECT_TRUE(says(error_of([&] { c.resolve(); }), "qk-norm with nope-every"));
    c.qk_norm = false, c.qkv_bias = true;
    EXPECT_TRUE(says(error_of([&] { c.resolve(); }), "qkv-bias with nope-every"));
    c.nope_every = 0, c.window = 8;
    EXPECT_TRUE(says(error_of([&] { c.resolve(); }), "qkv-bias with window"));
    c.qkv_bias = false, c.post_norm = true;
    EXPECT_TRUE(says(error_of([&] { c.resolve(); }), "post-norm with window"));
}

TEST(ConfigJson, RefusesByName) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("rope_parameters":{"rope_type":"longrope"})", "\"longrope\""},
        {R"("rope_scaling":{"rope_type":"llama3","factor":8})", "low_freq_factor"},
        {R"("rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5})", "partial_rotary_factor"},
        {R"("rope_scaling":"llama3")", "rope_scaling"},
        {R"("rope_theta":"10000")", "rope_theta"},
        {R"("rope_theta":0)", "rope_theta"},
        {R"("attention_bias":true)", "attention_bias"},
        {R"("mlp_bias":true)", "mlp_bias"},
        {R"("rope_interleaved":true)", "rope_interleaved"},
        {R"("attention_dropout":0.1)", "attention_dropout"},
        {R"("hidden_act":"gelu")", "hidden_act"},
        {R"("architectures":["Qwen2ForCausalLM"])", "contradicts"},
        {R"("architectures":["OlmoForCausalLM"])", "OlmoForCausalLM"},
        {R"("rope_scaling":{"rope_type":"linear"})", "factor"},
        {R"("rope_scaling":{"rope_type":"yarn","factor":2,"beta_fast":1,"beta_slow":2})", "beta_fast"},
        {R"("rope_scaling":{"rope_type":"yarn","factor":2,"attention_factor":0})", "attention_factor"},
        {R"("quantization_config":{"bits":4})", "quantization_config"},
        {R"("num_key_value_heads":3)", "num_key_value_heads"},
        {R"("num_key_value_heads":0)", "num_key_value_heads"},
        {R"("head_dim":15)", "head_dim"},
        {R"("max_position_embeddings":1000000000000000000)", "max_position_embeddings"},
        {R"("max_position_embeddings":1e18)", "max_position_embeddings"},
        {R"("max_position_embeddings":2048.5)", "max_position_embeddings"},
        {R"("max_position_embeddings":99999999999999999999)", "max_position_embeddings"},
        {R"("tie_word_embeddings":1)", "tie_word_embeddings"},
        {R"("eos_token_id":"</s>")", "eos_token_id"},
        {R"("rms_norm_eps":1e999)", "not valid JSON"},
        {R"("use_cache":true,"use_cache":true)", "duplicate JSON key \"use_cache\""},
    };
    for (const auto& [text, part] : cases) {
        const std::string e = refusal_of_config(text);
        EXPECT_TRUE(says(e, part)) << text << "\n  got: " << e;
        EXPECT_EQ(e.rfind("c.json: ", 0), 0u) << "an error names the file: " << e;
    }
    const auto whole = [](const std::string& text) { return error_of([&] { config_from_json(text, "c.json"); }); };
    EXPECT_TRUE(says(whole("{}"), "model_type"));
    EXPECT_TRUE(says(whole("[1]"), "object"));
    EXPECT_TRUE(says(whole(""), "not valid JSON"));
    EXPECT_TRUE(says(whole(R"({"model_type":"olmo"})"), "olmo"));
    EXPECT_TRUE(says(whole(R"({"model_type":"llama"})"), "hidden_size"));
    const std::string heads = R"({"model_type":"llama","vocab_size":50,"hidden_size":64,"intermediate_size":96,)"
                              R"("num_hidden_layers":2,"num_attention_heads":7})";
    EXPECT_TRUE(says(whole(heads), "num_attention_heads"));
    EXPECT_TRUE(says(whole(std::string(500, '[')), "nested"));
}

TEST(ConfigJson, WritesTheFormBothMajorVersionsRead) {
    ModelConfig c = config_toy();
    c.rope_scaling.factor = 8;
    c.eos = {3, 4};
    c.resolve();
    const std::string text = config_to_json(c, DType::bf16);
    for (const char* part :
         {"\"rope_theta\": 10000.0", "\"rope_type\": \"llama3\"", "\"torch_dtype\": \"bfloat16\"",
          "\"dtype\": \"bfloat16\"", "\"LlamaForCausalLM\"", "\"pad_token_id\": null", "\"rms_norm_eps\": 1e-05"})
        EXPECT_TRUE(says(text, part)) << part << " is not in\n" << text;
    EXPECT_FALSE(says(text, "rope_parameters"));
}

TEST(Config, DifferencesNameFieldAndBothValues) {
    ModelConfig a = config_toy(), b = config_toy();
    a.resolve(), b.resolve();
    EXPECT_EQ(differences(a, b, "run", "file"), "");
    b.layers = 3;
    b.max_seq_len = 1;  // changes no weight
    EXPECT_EQ(differences(a, b, "run", "file"), "layers: 2 in run, 3 in file\n");
}

}  // namespace
}  // namespace rz
