#include "llama/model/presets.h"

#include <vector>

#include "kernels/runtime/request.h"
#include "llama/base/text.h"
#include "llama/model/recipe.h"

namespace rz {

struct Shape {
    int64_t dim, ffn, layers, heads, kv_heads, vocab;
};

static ModelConfig make(const Shape& s, bool tied, int64_t max_seq_len, double theta, int64_t bos, int64_t eos) {
    ModelConfig c;
    c.dim = s.dim, c.ffn = s.ffn, c.layers = s.layers, c.heads = s.heads, c.kv_heads = s.kv_heads, c.vocab = s.vocab;
    c.tied = tied;
    c.max_seq_len = max_seq_len;
    c.rope_theta = theta;
    c.bos = bos;
    if (eos >= 0) c.eos = {eos};
    return c;
}

static ModelConfig smollm2(const Shape& s, double theta) {
    ModelConfig c = make(s, true, 8192, theta, 0, 0);
    if (s.dim == 576) c.init_std = 1.0 / 24;
    return c;
}

static ModelConfig llama3(const Shape& s, bool tied, double factor) {
    ModelConfig c = make(s, tied, 131072, 5e5, 128000, 128001);
    c.rope_scaling = {.factor = factor, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8192};
    return c;
}

static ModelConfig qwen2_5(const Shape& s, bool tied, int64_t max_seq_len) {
    ModelConfig c = make(s, tied, max_seq_len, 1e6, 151643, 151643);
    c.norm_eps = 1e-6;
    c.qkv_bias = true;
    return c;
}

static ModelConfig qwen3(const Shape& s, bool tied) {
    ModelConfig c = make(s, tied, 32768, 1e6, 151643, 151643);
    c.norm_eps = 1e-6;
    c.head_dim = 128;
    c.qk_norm = true;
    return c;
}

static ModelConfig olmo2(const Shape& s) {
    ModelConfig c = make(s, false, 4096, 5e5, -1, 100257);
    c.norm_eps = 1e-6;
    c.post_norm = true;
    c.pad = 100277;
    return c;
}

static ModelConfig smollm3(const Shape& s) {
    ModelConfig c = make(s, true, 65536, 5e6, 128000, 128001);
    c.norm_eps = 1e-6;
    c.nope_every = 4;
    return c;
}

static ModelConfig mistral(const Shape& s) {
    ModelConfig c = make(s, false, 32768, 1e4, 1, 2);
    c.window = 4096;
    return c;
}

// LLaMA 3 before 3.1: shorter sequences, and positions as they are.
static ModelConfig first_llama3(const Shape& s) { return make(s, false, 8192, 5e5, 128000, 128001); }

std::span<const Preset> presets() {
    // clang-format off
    //                                dim   ffn  layers heads kv  vocab
    static const std::vector<Preset> all = {
        {"bytes", make({256, 688, 4, 8, 4, 512}, false, 2048, 1e4, -1, -1),
         "quickstart: bytes of text, minutes on two cores"},
        {"tiny", make({512, 1280, 5, 8, 4, 32000}, false, 2048, 1e4, 1, 2), "~46M"},
        {"small", make({1024, 2560, 24, 16, 4, 32000}, false, 2048, 1e4, 1, 2), "~318M"},
        {"medium", make({2048, 6144, 24, 16, 8, 32000}, false, 4096, 1e4, 1, 2), "~1.34B"},
        {"gpt2-124m", make({768, 2048, 12, 12, 12, 50304}, true, 1024, 1e4, 50256, 50256),
         "a LLaMA of GPT-2's size", "GPT-2 124M"},
        {"gpt2-355m", make({1024, 2752, 24, 16, 16, 50304}, true, 1024, 1e4, 50256, 50256),
         "a LLaMA of GPT-2 medium's size", "GPT-3 350M"},
        {"smollm2-135m", smollm2({576, 1536, 30, 9, 3, 49152}, 1e5), "HuggingFaceTB/SmolLM2-135M",
         "SmolLM2 135M"},
        {"smollm2-360m", smollm2({960, 2560, 32, 15, 5, 49152}, 1e5), "HuggingFaceTB/SmolLM2-360M",
         "SmolLM2 360M"},
        {"smollm2-1.7b", smollm2({2048, 8192, 24, 32, 32, 49152}, 130000),
         "HuggingFaceTB/SmolLM2-1.7B", "SmolLM2 1.7B"},
        {"smollm3-3b", smollm3({2048, 11008, 36, 16, 4, 128256}), "HuggingFaceTB/SmolLM3-3B", "SmolLM3 3B"},
        {"qwen2.5-0.5b", qwen2_5({896, 4864, 24, 14, 2, 151936}, true, 32768), "Qwen/Qwen2.5-0.5B"},
        {"qwen2.5-1.5b", qwen2_5({1536, 8960, 28, 12, 2, 151936}, true, 131072), "Qwen/Qwen2.5-1.5B"},
        {"qwen2.5-3b", qwen2_5({2048, 11008, 36, 16, 2, 151936}, true, 32768), "Qwen/Qwen2.5-3B"},
        {"qwen2.5-7b", qwen2_5({3584, 18944, 28, 28, 4, 152064}, false, 131072), "Qwen/Qwen2.5-7B"},
        {"qwen2.5-14b", qwen2_5({5120, 13824, 48, 40, 8, 152064}, false, 131072), "Qwen/Qwen2.5-14B"},
        {"qwen3-0.6b", qwen3({1024, 3072, 28, 16, 8, 151936}, true), "Qwen/Qwen3-0.6B-Base"},
        {"qwen3-1.7b", qwen3({2048, 6144, 28, 16, 8, 151936}, true), "Qwen/Qwen3-1.7B-Base"},
        {"qwen3-4b", qwen3({2560, 9728, 36, 32, 8, 151936}, true), "Qwen/Qwen3-4B-Base"},
        {"qwen3-8b", qwen3({4096, 12288, 36, 32, 8, 151936}, false), "Qwen/Qwen3-8B-Base"},
        {"olmo2-1b", olmo2({2048, 8192, 16, 16, 16, 100352}), "allenai/OLMo-2-0425-1B"},
        {"olmo2-7b", olmo2({4096, 11008, 32, 32, 32, 100352}), "allenai/OLMo-2-1124-7B", "OLMo 2 7B"},
        {"tinyllama-1.1b", make({2048, 5632, 22, 32, 4, 32000}, false, 2048, 1e4, 1, 2),
         "TinyLlama-1.1B", "TinyLlama 1.1B"},
        {"mistral-7b-v0.1", mistral({4096, 14336, 32, 32, 8, 32000}), "mistralai/Mistral-7B-v0.1"},
        {"llama3.2-1b", llama3({2048, 8192, 16, 32, 8, 128256}, true, 32), "meta-llama/Llama-3.2-1B"},
        {"llama3.2-3b", llama3({3072, 8192, 28, 24, 8, 128256}, true, 32), "meta-llama/Llama-3.2-3B"},
        {"llama3-8b", first_llama3({4096, 14336, 32, 32, 8, 128256}), "meta-llama/Meta-Llama-3-8B", "Llama 3 8B"},
        {"llama3-70b", first_llama3({8192, 28672, 80, 64, 8, 128256}), "meta-llama/Meta-Llama-3-70B", "Llama 3 70B"},
        {"llama3.1-8b", llama3({4096, 14336, 32, 32, 8, 128256}, false, 8), "meta-llama/Llama-3.1-8B", "Llama 3 8B"},
        {"llama3.1-70b", llama3({8192, 28672, 80, 64, 8, 128256}, false, 8),
         "meta-llama/Llama-3.1-70B", "Llama 3 70B"},
        {"llama3.1-405b", llama3({16384, 53248, 126, 128, 8, 128256}, false, 8),
         "meta-llama/Llama-3.1-405B", "Llama 3 405B"},
    };
    // clang-format on
    return all;
}

const Preset& find_preset(std::string_view name) {
    std::vector<std::string> names;
    for (const Preset& p : presets()) {
        if (name == p.name) return p;
        names.push_back(p.name);
    }
    refuse("no preset is called \"%.*s\": nearest is %s; there are %s", int(name.size()), name.data(),
           nearest_name(name, names).c_str(), joined(names).c_str());
}

std::string preset_table() {
    std::string out;
    for (const Preset& p : presets()) {
        ModelConfig c = p.config;
        c.resolve();
        out += format("%-15s %s%s%s\n%15s %s\n", p.name, summary(c).c_str(), *p.about ? "  # " : "", p.about, "",
                      recommended(c, p.published).c_str());
    }
    return out;
}

}  // namespace rz
