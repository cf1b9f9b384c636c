#include "llama/model/recipe.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/runtime/check.h"

namespace rz {

std::span<const Published> published() {
    constexpr double M = 1e6, B = 1e9, Mi = 1 << 20;
    static const char* const kPythia = "Biderman et al. 2023; EleutherAI/pythia, models/";
    static const char* const kGpt3 = "Brown et al. 2020, table 2.1";
    static const char* const kSmolLM2 = "huggingface/smollm, text/pretraining/smollm2";
    static const char* const kLlama2 = "Touvron et al. 2023b, table 1";
    static const char* const kLlama3 = "Grattafiori et al. 2024, table 3, section 3.4.1";
    static const char* const kLlama3Small = "Grattafiori et al. 2024, table 3; the 405B's batch";
    static const char* const kDeepSeek = "Bi et al. 2024; deepseek-ai/DeepSeek-LLM, README.md";
    static const std::vector<Published> all = {
        {"nanoGPT on characters", 10.65 * M, 1e-3, 16384, 16384, "its config/train_shakespeare_char.py"},
        {"Pythia 70M", 70 * M, 1e-3, 2 * Mi, 2 * Mi, kPythia},
        {"GPT-2 124M", 124 * M, 6e-4, 0.5 * Mi, 0.5 * Mi, "llm.c, scripts/run_gpt2_124M.sh"},
        {"GPT-3 125M", 125 * M, 6e-4, 0.5 * M, 0.5 * M, kGpt3},
        {"SmolLM2 135M", 134.5 * M, 3e-3, 512 * 2048, 512 * 2048, kSmolLM2},
        {"Pythia 160M", 160 * M, 6e-4, 2 * Mi, 2 * Mi, kPythia},
        {"GPT-3 350M", 350 * M, 3e-4, 0.5 * M, 0.5 * M, kGpt3},
        {"SmolLM2 360M", 361.8 * M, 3e-3, 768 * 2048, 768 * 2048, kSmolLM2},
        {"Pythia 410M", 410 * M, 3e-4, 2 * Mi, 2 * Mi, kPythia},
        {"GPT-3 760M", 760 * M, 2.5e-4, 0.5 * M, 0.5 * M, kGpt3},
        {"TinyLlama 1.1B", 1.1 * B, 4e-4, 2 * Mi, 2 * Mi, "Zhang et al. 2024; its model card"},
        {"GPT-3 1.3B", 1.3 * B, 2e-4, 1 * M, 1 * M, kGpt3},
        {"SmolLM2 1.7B", 1.71 * B, 5e-4, 1024 * 2048, 1024 * 2048, kSmolLM2},
        {"Pythia 2.8B", 2.8 * B, 1.6e-4, 2 * Mi, 2 * Mi, kPythia},
        {"SmolLM3 3B", 3.08 * B, 2e-4, 576 * 4096, 576 * 4096, "huggingface/smollm, text/pretraining"},
        {"GPT-3 6.7B", 6.7 * B, 1.2e-4, 2 * M, 2 * M, kGpt3},
        {"Llama 2 7B", 6.7 * B, 3e-4, 4 * M, 4 * M, kLlama2},
        {"DeepSeek LLM 7B", 6.9 * B, 4.2e-4, 2304 * 4096, 2304 * 4096, kDeepSeek},
        {"OLMo 2 7B", 7.3 * B, 3e-4, 4 * Mi, 4 * Mi, "allenai/OLMo, OLMo2-7B-stage1.yaml"},
        {"Llama 3 8B", 8.03 * B, 3e-4, 4 * Mi, 16 * Mi, kLlama3Small},
        {"Llama 2 13B", 13 * B, 3e-4, 4 * M, 4 * M, kLlama2},
        {"DeepSeek LLM 67B", 67 * B, 3.2e-4, 4608 * 4096, 4608 * 4096, kDeepSeek},
        {"Llama 2 70B", 69 * B, 1.5e-4, 4 * M, 4 * M, kLlama2},
        {"Llama 3 70B", 70.6 * B, 1.5e-4, 4 * Mi, 16 * Mi, kLlama3Small},
        {"Llama 3 405B", 406 * B, 8e-5, 4 * Mi, 16 * Mi, kLlama3},
    };
    return all;
}

constexpr double kRate = 0.3118, kRateExponent = -0.1250, kBatch = 0.2920, kBatchExponent = 0.3271;

static double flops_of_token(const ModelConfig& c, int64_t seq_len) {
    const double matrices = double(c.matmul_parameters() - c.vocab * c.dim);
    return 6 * matrices + 12 * double(c.layers) * double(c.q_rows()) * double(seq_len);
}

Recipe recipe_of_tokens(const ModelConfig& c, int64_t seq_len, double tokens) {
    if (tokens <= 0) tokens = 20 * double(c.parameter_count());
    const double flops = tokens * flops_of_token(c, seq_len);
    return {tokens, flops, kRate * std::pow(flops, kRateExponent), kBatch * std::pow(flops, kBatchExponent)};
}

// B = kBatch (steps B M)^e, solved for B.
Recipe recipe_of_steps(const ModelConfig& c, int64_t seq_len, double steps) {
    const double batch = std::pow(kBatch * std::pow(std::max(steps, 1.0) * flops_of_token(c, seq_len), kBatchExponent),
                                  1 / (1 - kBatchExponent));
    return recipe_of_tokens(c, seq_len, std::max(steps, 1.0) * batch);
}

std::string token_count(double tokens) {
    if (tokens >= 1e9) return format("%.3gB", tokens / 1e9);
    if (tokens >= 1e5) return format("%.2gM", tokens / 1e6);
    return format("%.3gk", tokens / 1e3);
}

static std::string as_published(const Published& p) {
    const std::string end = p.batch_end > p.batch ? " to " + token_count(p.batch_end) : "";
    return format("lr %g, %s%s tokens an update (%s, %s)", p.lr, token_count(p.batch).c_str(), end.c_str(), p.name,
                  p.source);
}

std::string recommended(const ModelConfig& c, const char* published_as) {
    for (const Published& p : published())
        if (published_as && std::string(published_as) == p.name) return as_published(p);
    const Recipe r = recipe_of_tokens(c, std::min<int64_t>(c.max_seq_len, 4096));
    return format("lr %.2g, %s tokens an update, %s tokens (the rules of --auto)", r.lr,
                  token_count(r.batch_tokens).c_str(), token_count(r.tokens).c_str());
}

std::string unlike_published(const ModelConfig& c, double lr, double batch_tokens) {
    constexpr double kFar = 4, kSize = 2;
    const double size = double(c.parameter_count());
    const auto factor = [](double x, double least, double most) {
        return x < least ? least / x : x > most ? x / most : 1.0;
    };
    const Published *rate = nullptr, *batch = nullptr;  // the nearest of that size
    const auto far_rate = [&](const Published& p) { return factor(lr, p.lr, p.lr); };
    const auto far_batch = [&](const Published& p) { return factor(batch_tokens, p.batch, p.batch_end); };
    for (const Published& p : published()) {
        if (factor(size, p.parameters, p.parameters) > kSize) continue;
        if (!rate || far_rate(p) < far_rate(*rate)) rate = &p;
        if (!batch || far_batch(p) < far_batch(*batch)) batch = &p;
    }
    std::string out;
    if (rate && lr > 0 && far_rate(*rate) > kFar)
        out = format("lr %g is %.0f x %s any published one of this size; nearest: %s", lr, far_rate(*rate),
                     lr > rate->lr ? "above" : "below", as_published(*rate).c_str());
    if (batch && far_batch(*batch) > kFar)
        out += (out.empty() ? "" : "\n") +
               format("%s tokens an update is %.0f x %s any published one of this size; nearest: %s",
                      token_count(batch_tokens).c_str(), far_batch(*batch),
                      batch_tokens > batch->batch ? "above" : "below", as_published(*batch).c_str());
    return out.empty() ? out : out + "\n--auto chooses by published rules";
}

}  // namespace rz
