#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/checkpoint/gguf.h"
#include "llama/model/hf.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelGolden = "test/golden/model/";  // tests run in the repository's root

ModelConfig hf_toy(bool tied) {
    ModelConfig c;
    c.dim = 16, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.ffn = 24, c.vocab = 19, c.tied = tied;
    c.resolve();
    return c;
}

// Element i of tensor k: its position in the flat buffer, so a wrong answer is obvious. Exact in bf16 up to 256.
float value_at(const Tensor& t, int64_t i) { return float((t.offset + i) % 251); }

void fill(const Tensor& t, int64_t first, int64_t count, DType dtype, void* out) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[size_t(i)] = value_at(t, first + i);
    convert(values.data(), DType::f32, out, dtype, count, "fill");
}

class HfTest : public testing::Test {
   protected:
    std::string path(const std::string& name) const { return root_ / name; }
    void write(const std::string& name, const std::string& text) const { write_text(path(name), text); }

    std::string save(const ModelConfig& c, DType dtype, const std::string& name = "model") {
        const ParamTable table(c);
        save_model(path(name), c, table, dtype,
                   [&](const Tensor& t, int64_t first, int64_t n, void* out) { fill(t, first, n, dtype, out); });
        return path(name);
    }

    // Writes these tensors of the table to `file`, after `change` had its way with their list.
    struct Part {
        TensorSpec spec;
        const Tensor* source;
    };
    void write_part(const std::string& file, const std::vector<Part>& parts) {
        std::vector<TensorSpec> specs;
        for (const Part& p : parts) specs.push_back(p.spec);
        SafetensorsWriter writer(file, specs);
        for (size_t i = 0; i < parts.size(); ++i) {
            int64_t n = 1;
            for (const int64_t extent : specs[i].shape) n *= extent;
            std::vector<float> values(size_t(n), 7.0f);
            for (int64_t j = 0; parts[i].source && j < n; ++j) values[size_t(j)] = value_at(*parts[i].source, j);
            const DType dtype = specs[i].type == "BF16"  ? DType::bf16
                                : specs[i].type == "F16" ? DType::f16
                                                         : DType::f32;
            std::vector<char> bytes(size_t(n * size_of(dtype)));
            convert(values.data(), DType::f32, bytes.data(), dtype, n, "part");
            writer.write(i, 0, bytes.data(), int64_t(bytes.size()));
        }
        writer.commit();
    }
    static std::vector<Part> parts_of(const ParamTable& table, const std::string& type = "F32") {
        std::vector<Part> parts;
        for (const Tensor& t : table.tensors()) parts.push_back({{t.name, type, t.shape}, &t});
        return parts;
    }
    // A folder with these parts in one file.
    std::string single(const ModelConfig& c, const std::vector<Part>& parts) {
        make_folder(path("m"));
        write("m/config.json", config_to_json(c, DType::f32));
        write_part(path("m/model.safetensors"), parts);
        return path("m");
    }

    const TempFolder root_;
};

void expect_values(const HfWeights& weights, const ParamTable& table, DType dtype) {
    for (const Tensor& t : table.tensors()) {
        std::vector<char> bytes(size_t(t.size * size_of(dtype)));
        std::vector<float> got(size_t(t.size), NAN);
        weights.read(t, 0, t.size, dtype, bytes.data());
        convert(bytes.data(), dtype, got.data(), DType::f32, t.size, "got");
        for (int64_t i = 0; i < t.size; ++i) ASSERT_EQ(got[size_t(i)], value_at(t, i)) << t.name << " element " << i;
    }
}

TEST_F(HfTest, SaveAndLoadGiveTheSameBits) {
    for (const bool tied : {false, true})
        for (const DType stored : {DType::f32, DType::bf16, DType::f16})
            for (const DType wanted : {DType::f32, DType::bf16, DType::f16}) {
                const ModelConfig c = hf_toy(tied);
                const std::string folder = save(c, stored);
                const ModelConfig back = load_config(resolve_model(folder));
                EXPECT_EQ(differences(c, back, "saved", "loaded"), "");
                const ParamTable table(back);
                const HfWeights weights(folder, table);
                EXPECT_EQ(weights.dtype(), stored);
                EXPECT_TRUE(weights.warnings().empty());
                expect_values(weights, table, wanted);
            }
}

TEST_F(HfTest, LoadAndExportOfTransformersFilesKeepEveryByte) {
    for (const char* name : {"gqa", "tied", "llama3_rope"}) {
        const std::string source = std::string(kModelGolden) + name;
        const ModelConfig c = load_config(source);
        const ParamTable table(c);
        const HfWeights weights(source, table);
        const DType dtype = weights.dtype();
        save_model(path("out"), c, table, dtype, [&](const Tensor& t, int64_t first, int64_t n, void* out) {
            weights.read(t, first, n, dtype, out);
        });
        const Safetensors theirs(source + "/model.safetensors"), ours(path("out/model.safetensors"));
        ASSERT_EQ(theirs.tensors().size(), ours.tensors().size());
        EXPECT_EQ(int64_t(ours.tensors().size()), 9 * c.layers + (c.tied ? 2 : 3));
        for (const StoredTensor& t : theirs.tensors()) {
            const StoredTensor* o = ours.find(t.name);
            ASSERT_NE(o, nullptr) << t.name;
            EXPECT_EQ(o->type, t.type);
            EXPECT_EQ(o->shape, t.shape);
            ASSERT_EQ(o->bytes(), t.bytes());
            EXPECT_EQ(std::memcmp(ours.data(*o), theirs.data(t), size_t(t.bytes())), 0) << t.name;
        }
        EXPECT_EQ(differences(c, load_config(path("out")), "theirs", "ours"), "");
    }
}

// llama.cpp multiplies each angle by what the tensor divides it by, and cos and sin by the factor, whatever the betas.
TEST_F(HfTest, GgufOfYarnGivesLlamaCppTheFrequenciesOfTransformers) {
    int yarns = 0;
    for (const Json& expected : read_json("test/golden/rope.json")) {
        const Json& fields = expected["fields"];
        if (fields["rope_parameters"]["rope_type"] != "yarn") continue;
        Json json = fields;
        json.update(
            {{"model_type", "llama"}, {"hidden_size", 16}, {"num_hidden_layers", 1}, {"num_attention_heads", 2}});
        json.update({{"intermediate_size", 24}, {"vocab_size", 19}});
        const ModelConfig c = config_from_json(json.dump(), "c.json");
        const std::string folder = save(c, DType::f32, "yarn" + std::to_string(++yarns));
        const ParamTable table(c);
        save_gguf(path("yarn.gguf"), c, table, DType::f32, HfWeights(folder, table), nullptr);
        const std::string bytes = read_file(path("yarn.gguf"));
        const auto number = [&](size_t at, auto value) {
            return std::memcpy(&value, bytes.data() + at, sizeof value), value;
        };
        const auto after = [&](const std::string& name) {
            const size_t at = bytes.find(name);
            return at == std::string::npos ? at : at + name.size();
        };
        EXPECT_EQ(after("llama.rope.scaling.type"), std::string::npos) << fields;
        const size_t factor = after("llama.rope.scaling.attn_factor");
        EXPECT_FLOAT_EQ(factor == std::string::npos ? 1 : number(factor + 4, 0.0f),
                        expected["attention_factor"].get<float>())
            << fields;
        const size_t tensor = after("rope_freqs.weight");
        ASSERT_EQ(tensor == std::string::npos, c.rope_scaling.factor == 1) << fields;
        if (tensor == std::string::npos) continue;
        const int64_t size = round_up(c.head_dim / 2 * 4, 32);  // it is the last one
        for (int64_t i = 0; i < c.head_dim / 2; ++i) {
            const double divisor = number(bytes.size() - size_t(size) + size_t(4 * i), 0.0f);
            const double plain = std::pow(c.rope_theta, -2.0 * double(i) / double(c.head_dim));
            EXPECT_NEAR(plain / divisor / expected["inverse_frequencies"][size_t(i)].get<double>(), 1, 1e-5) << fields;
        }
    }
    EXPECT_GT(yarns, 8);
}

TEST_F(HfTest, ReadsPartOfATensorAndRefusesToReadPastIt) {
    const ModelConfig c = hf_toy(false);
    const std::string folder = save(c, DType::bf16);
    const ParamTable table(c);
    const HfWeights weights(folder, table);
    const Tensor& t = *table.find("model.layers.1.mlp.down_proj.weight");
    float out[5] = {NAN, NAN, NAN, NAN, NAN};
    weights.read(t, 17, 5, DType::f32, out);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out[i], value_at(t, 17 + i));
    EXPECT_THROW(weights.read(t, t.size - 4, 5, DType::f32, out), Error);
}

TEST_F(HfTest, ListsEverythingThatIsWrong) {
    const ModelConfig c = hf_toy(false);
    const ParamTable table(c);
    std::vector<Part> parts = parts_of(table);
    std::erase_if(parts, [](const Part& p) { return p.spec.name == "model.layers.1.mlp.up_proj.weight"; });
    parts[2].spec.shape = {8, 16};
    parts[3].spec.type = "I32";
    parts.push_back({{"model.layers.0.self_attn.q_proj.bias", "F32", {16}}, nullptr});
    parts.push_back({{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}}, nullptr});
    const std::string folder = single(c, parts);
    const std::string e = error_of([&] { HfWeights(folder, table); });
    EXPECT_TRUE(says(e, "4 problems"));
    EXPECT_TRUE(says(e, "missing: model.layers.1.mlp.up_proj.weight [24, 16]"));
    EXPECT_TRUE(says(e, "wrong shape: " + parts[2].spec.name + " is [8, 16], config.json makes it [16, 16]"));
    EXPECT_TRUE(says(e, "wrong type: " + parts[3].spec.name + " is I32"));
    EXPECT_TRUE(says(e, "unexpected: model.layers.0.self_attn.q_proj.bias F32 [16]"));
}

TEST_F(HfTest, AcceptsMixedTypesAndOldFrequencies) {
    const ModelConfig c = hf_toy(false);
    const ParamTable table(c);
    std::vector<Part> parts = parts_of(table, "BF16");
    for (Part& p : parts)
        if (p.spec.shape.size() == 1) p.spec.type = "F32";
    parts[0].spec.type = "F16";
    parts.push_back({{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}}, nullptr});
    const std::string folder = single(c, parts);
    const HfWeights weights(folder, table);
    EXPECT_EQ(weights.dtype(), DType::bf16);
    EXPECT_EQ(weights.stored_dtype(table.final_norm()), DType::f32);
    expect_values(weights, table, DType::f32);
}

TEST_F(HfTest, TiedModelMayCarryItsHead) {
    const ModelConfig c = hf_toy(true);
    const ParamTable table(c);
    std::vector<Part> parts = parts_of(table);
    parts.push_back({{"lm_head.weight", "F32", {19, 16}}, &table.embedding()});
    EXPECT_TRUE(HfWeights(single(c, parts), table).warnings().empty());
    parts.back().source = nullptr;
    const HfWeights other(single(c, parts), table);
    ASSERT_EQ(other.warnings().size(), 1u);
    EXPECT_TRUE(says(other.warnings()[0], "lm_head.weight differs"));
    expect_values(other, table, DType::f32);
    // Untied without a head is an error that says what may be meant.
    const ParamTable untied(hf_toy(false));
    const std::string e = error_of([&] { HfWeights(path("m"), ParamTable(hf_toy(false))); });
    parts.pop_back();
    EXPECT_EQ(e, "") << "it has a head";
    EXPECT_TRUE(
        says(error_of([&] { HfWeights(single(c, parts), untied); }), "missing: lm_head.weight [19, 16]; if the head"));
}

class HfShards : public HfTest {
   protected:
    HfShards() : config_(hf_toy(false)), table_(config_), parts_(parts_of(table_, "BF16")) {
        make_folder(path("s"));
        for (size_t i = 0; i < parts_.size(); ++i) {
            map_[parts_[i].spec.name] = i < 8 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
            (i < 8 ? first_ : second_).push_back(parts_[i]);
        }
    }
    std::string open() {  // the error, or ""
        std::string json;
        for (const auto& [tensor, file] : map_) json += (json.empty() ? "\"" : ",\"") + tensor + "\":\"" + file + "\"";
        write("s/model.safetensors.index.json", "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + json + "}}");
        if (!first_.empty()) write_part(path("s/model-00001-of-00002.safetensors"), first_);
        if (!second_.empty()) write_part(path("s/model-00002-of-00002.safetensors"), second_);
        return error_of([&] { expect_values(HfWeights(path("s"), table_), table_, DType::f32); });
    }
    ModelConfig config_;
    ParamTable table_;
    std::vector<Part> parts_, first_, second_;
    std::map<std::string, std::string> map_;
};

TEST_F(HfShards, AreReadThroughTheIndex) { EXPECT_EQ(open(), ""); }

TEST_F(HfShards, NamesThatLeaveTheFolderAreRefused) {
    for (const char* name : {"../x.safetensors", "a/b.safetensors", "/etc/passwd", "..", "", "a\\\\b.safetensors"}) {
        map_.begin()->second = name;
        EXPECT_TRUE(says(open(), "only plain file names")) << name;
    }
}

TEST_F(HfShards, MissingShardIsNamed) {
    second_.clear();
    EXPECT_TRUE(says(open(), "missing file: model-00002-of-00002.safetensors"));
}

TEST_F(HfShards, TensorInTwoFilesIsNamed) {
    second_.push_back(first_[0]);
    const std::string e = open();
    EXPECT_TRUE(says(e, "stored twice: model.embed_tokens.weight"));
    EXPECT_TRUE(says(e, "which the index places in model-00001"));
}

TEST_F(HfShards, TensorTheIndexDoesNotKnowIsNamed) {
    map_.erase("model.norm.weight");
    EXPECT_TRUE(says(open(), "not in the index: model.norm.weight"));
}

TEST_F(HfShards, TensorTheShardDoesNotHaveIsNamed) {
    first_.pop_back();
    const std::string e = open();
    EXPECT_TRUE(says(e, "not in model-00001-of-00002.safetensors: model.layers.0.mlp.gate_proj.weight"));
    EXPECT_TRUE(says(e, "missing: model.layers.0.mlp.gate_proj.weight"));
}

// Larger than asked for: a file for each unit and an index. Then one file again, and shards of another cut.
TEST_F(HfTest, ExportWritesAFileForEachUnitAboveASize) {
    const ModelConfig c = hf_toy(false);
    const ParamTable table(c);
    const auto source = [&](const Tensor& t, int64_t first, int64_t n, void* out) {
        for (int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = float(t.offset + first + i);
    };
    save_model(path("one"), c, table, DType::f32, source);
    save_model(path("many"), c, table, DType::f32, source, {}, 1);
    EXPECT_FALSE(fs::exists(path("many/model.safetensors")));
    const auto map = parse_weight_map(read_file(path("many/model.safetensors.index.json")), "index");
    EXPECT_EQ(map.size(), table.tensors().size());
    std::set<std::string> files;
    for (const auto& [tensor, file] : map) files.insert(file);
    EXPECT_EQ(files.size(), table.units().size());
    EXPECT_EQ(map.at("model.norm.weight"), *files.rbegin());
    const HfWeights one(path("one"), table), many(path("many"), table);
    for (const Tensor& t : table.tensors()) {
        std::vector<float> a(size_t(t.size), -1), b(size_t(t.size), -2);
        one.read(t, 0, t.size, DType::f32, a.data());
        many.read(t, 0, t.size, DType::f32, b.data());
        EXPECT_EQ(a, b) << t.name;
    }
    // Over an earlier file of all tensors, which readers would take.
    save_model(path("one"), c, table, DType::f32, source, {}, 1);
    EXPECT_FALSE(fs::exists(path("one/model.safetensors")));
}

TEST_F(HfTest, ExportRefusesAFolderWithShards) {
    write("model/model.safetensors.index.json", "{}");
    EXPECT_TRUE(says(error_of([&] { save(hf_toy(false), DType::f32); }), "choose another folder"));
}

TEST_F(HfTest, ExportCopiesTokenizerFiles) {
    write("tok/tokenizer.json", "[1]");
    write("tok/generation_config.json", "[2]");
    write("tok/other.txt", "3");
    const ModelConfig c = hf_toy(false);
    const ParamTable table(c);
    const auto zeros = [](const Tensor&, int64_t, int64_t n, void* out) { std::memset(out, 0, size_t(n) * 4); };
    save_model(path("out"), c, table, DType::f32, zeros, path("tok/tokenizer.json"));
    EXPECT_EQ(read_file(path("out/tokenizer.json")), "[1]");
    EXPECT_EQ(read_file(path("out/generation_config.json")), "[2]");
    EXPECT_FALSE(fs::exists(path("out/other.txt")));
    save_model(path("out"), c, table, DType::f32, zeros, path("out"));  // onto itself
    EXPECT_EQ(read_file(path("out/tokenizer.json")), "[1]");
}

TEST_F(HfTest, WhatLiesBesideAModelIsCarried) {
    const std::string model = save(hf_toy(false), DType::f32);
    for (const char* name : {"tokenizer.json", "chat_template.jinja", "special_tokens_map.json", "LICENSE",
                             "pytorch_model.bin", ".hidden", "manifest.json"})
        write_file_atomically(model + "/" + name, "[]");
    write_file_atomically(model + "/generation_config.json", R"({"temperature": 0.6, "eos_token_id": [3]})");
    ModelConfig c = hf_toy(false);
    c.bos = 1, c.eos = {2, 3};
    TokenizerFiles files = TokenizerFiles::beside_model(model);
    files.set_token_ids(c);
    make_folder(path("out"));
    files.write_to(path("out"));
    EXPECT_EQ(names_in(path("out")),
              (std::vector<std::string>{"LICENSE", "chat_template.jinja", "generation_config.json",
                                        "special_tokens_map.json", "tokenizer.json"}));
    const std::string generation = read_file(path("out/generation_config.json"));
    EXPECT_TRUE(says(generation, "\"temperature\": 0.6"));
    ModelConfig read = hf_toy(false);
    read_generation_config(path("out"), read);
    EXPECT_EQ(read.eos, c.eos);
    EXPECT_EQ(read.bos, 1);
    EXPECT_THROW(TokenizerFiles::beside_model(path("gone")), Error);
    // Another tokenizer: what came with the old one goes, but not the rest.
    write("tok/tokenizer.json", "[\"new\"]");
    files.replace_tokenizer(path("tok"));
    make_folder(path("out2"));
    files.write_to(path("out2"));
    EXPECT_EQ(names_in(path("out2")),
              (std::vector<std::string>{"LICENSE", "generation_config.json", "tokenizer.json"}));
    EXPECT_EQ(read_file(path("out2/tokenizer.json")), "[\"new\"]");
    // Conversations were prepared with a template: it comes where there is none, and not where there is one.
    for (const char* text : {"{{ x }}", "{{ y }}"}) {
        write("tok/tokenizer_config.json", format(R"({"chat_template": "%s"})", text));
        files.add_chat_template(path("tok"));
        files.write_to(path("out2"));
        EXPECT_TRUE(says(read_file(path("out2/tokenizer_config.json")), R"("chat_template": "{{ x }}")"));
    }
    remove_model(model);
    EXPECT_EQ(names_in(model), (std::vector<std::string>{".hidden", "LICENSE", "manifest.json", "pytorch_model.bin"}));
}

TEST_F(HfTest, ALargerVocabularyKeepsTheOldRowsToTheBit) {
    for (const bool tied : {true, false}) {
        const std::string model = save(hf_toy(tied), DType::bf16, tied ? "tied" : "untied");
        ModelConfig larger = hf_toy(tied);
        larger.vocab += 5;
        larger.resolve();
        const ParamTable table(larger), old(hf_toy(tied));
        EXPECT_TRUE(says(error_of([&] { HfWeights(model, table); }), "wrong shape"));
        const uint64_t seed = 7, other = 8;
        const HfWeights weights(model, table, &seed), again(model, table, &seed), differently(model, table, &other);
        EXPECT_EQ(weights.warnings().size(), tied ? 1u : 2u);
        for (const Tensor* t : {&table.embedding(), &table.head()}) {
            const int64_t kept = hf_toy(tied).vocab * larger.dim;
            std::vector<float> all(size_t(t->size)), part(all), before(size_t(kept), 0.0f), noise(all);
            weights.read(*t, 0, t->size, DType::f32, all.data());
            HfWeights(model, old).read(*old.find(t->name), 0, kept, DType::f32, before.data());
            EXPECT_EQ(std::memcmp(all.data(), before.data(), before.size() * 4), 0);
            for (int64_t at = 0; at < t->size; at += 7)  // in pieces across the edge: the same bits
                again.read(*t, at, std::min<int64_t>(7, t->size - at), DType::f32, part.data() + at);
            EXPECT_EQ(part, all);
            differently.read(*t, 0, t->size, DType::f32, noise.data());
            EXPECT_NE(noise, all) << "the seed";
            double spread = 0;
            for (int64_t c = 0; c < larger.dim; ++c) {
                double mean = 0;
                for (int64_t r = 0; r < hf_toy(tied).vocab; ++r) mean += before[size_t(r * larger.dim + c)];
                mean /= double(hf_toy(tied).vocab);
                for (int64_t r = hf_toy(tied).vocab; r < larger.vocab; ++r) {
                    const double off = all[size_t(r * larger.dim + c)] - mean;
                    EXPECT_LT(std::abs(off), 6 * 0.01 * 126);  // values lie in [0, 251): their deviation is below 126
                    spread += std::abs(off);
                }
            }
            EXPECT_GT(spread, 0);
            EXPECT_TRUE(says(error_of([&] { weights.read(*t, t->size, 1, DType::f32, all.data()); }), "asked of"));
        }
    }
}

class Resolve : public HfTest {
   protected:
    Resolve() {
        for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
            const char* value = ::getenv(name);
            saved_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
            ::unsetenv(name);
        }
        ::setenv("HF_HUB_CACHE", path("hub").c_str(), 1);
        write("hub/models--org--Some-Model_1.5/refs/main", "abc123\n");
        write("hub/models--org--Some-Model_1.5/snapshots/abc123/config.json",
              config_to_json(hf_toy(false), DType::f32));
    }
    ~Resolve() override {
        for (const auto& [name, value] : saved_)
            if (value)
                ::setenv(name, value->c_str(), 1);
            else
                ::unsetenv(name);
    }
    std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

TEST_F(Resolve, FoldersAndTheirFilesAreFound) {
    const std::string folder = save(hf_toy(false), DType::f32);
    EXPECT_EQ(resolve_model(folder), folder);
    EXPECT_EQ(resolve_model(folder + "/config.json"), folder);
    EXPECT_EQ(resolve_model(folder + "/model.safetensors"), folder);
    EXPECT_TRUE(says(error_of([&] { resolve_model(root_.path); }), "holds no config.json"));
    write("x.bin", "");
    EXPECT_TRUE(says(error_of([&] { resolve_model(path("x.bin")); }), "name the model's folder"));
    EXPECT_TRUE(says(error_of([&] { resolve_model("no/such/folder"); }), "no such folder"));
    EXPECT_TRUE(says(error_of([&] { resolve_model(""); }), "no such folder"));
}

TEST_F(Resolve, ReposAreFoundInEveryCacheLocation) {
    const std::string snapshot = "/models--org--Some-Model_1.5/snapshots/abc123";
    EXPECT_EQ(resolve_model("org/Some-Model_1.5"), path("hub") + snapshot);
    EXPECT_EQ(resolve_model("org/Some-Model_1.5@main"), path("hub") + snapshot);
    EXPECT_EQ(resolve_model("org/Some-Model_1.5@abc123"), path("hub") + snapshot);
    ::unsetenv("HF_HUB_CACHE");
    ::setenv("HF_HOME", root_.path.c_str(), 1);
    EXPECT_EQ(resolve_model("org/Some-Model_1.5"), path("hub") + snapshot);
    ::unsetenv("HF_HOME");
    make_folder(path("xdg/huggingface"));
    fs::create_directory_symlink(path("hub"), path("xdg/huggingface/hub"));
    ::setenv("XDG_CACHE_HOME", path("xdg").c_str(), 1);
    EXPECT_EQ(resolve_model("org/Some-Model_1.5"), path("xdg/huggingface/hub") + snapshot);
    ::unsetenv("XDG_CACHE_HOME");
    make_folder(path("home"));
    fs::create_directory_symlink(path("xdg"), path("home/.cache"));
    ::setenv("HOME", path("home").c_str(), 1);
    EXPECT_EQ(resolve_model("org/Some-Model_1.5"), path("home/.cache/huggingface/hub") + snapshot);
}

TEST_F(Resolve, AbsentRepoGetsTheCommandThatFetchesIt) {
    const std::string e = error_of([] { resolve_model("HuggingFaceTB/SmolLM2-135M"); });
    EXPECT_TRUE(says(e, "hf download HuggingFaceTB/SmolLM2-135M"));
    EXPECT_TRUE(says(e, "curl -fL"));
    EXPECT_TRUE(says(error_of([] { resolve_model("org/Some-Model_1.5@v9"); }), "revision v9"));
    for (const char* bad : {"org/../x", "../org", "a/b/c", "org/", "/x", "org/na me", "org/x@../y", "org/x@"})
        EXPECT_NE(error_of([&] { resolve_model(bad); }), "") << bad;
    write("hub/models--org--Some-Model_1.5/refs/evil", "../../..");
    EXPECT_TRUE(says(error_of([] { resolve_model("org/Some-Model_1.5@evil"); }), "names no snapshot"));
}

TEST_F(HfTest, OldPickleFilesAreExplained) {
    write("p/pytorch_model.bin", "");
    EXPECT_TRUE(says(error_of([&] { HfWeights(path("p"), ParamTable(hf_toy(true))); }), "save_pretrained"));
}

}  // namespace
}  // namespace rz
