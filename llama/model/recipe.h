#pragma once
// Which learning rate, which batch? What makers of models published, and rules fitted to such runs.

#include <span>
#include <string>

#include "llama/model/config.h"

namespace rz {

struct Published {
    const char* name;
    double parameters, lr;    // peak
    double batch, batch_end;  // tokens of an update; at the end of the run, where it grows
    const char* source;
};
std::span<const Published> published();  // ascending by parameters

struct Recipe {
    double tokens, flops;  // of the whole run
    double lr, batch_tokens;
};
// Recipe of a run over so many tokens, or (0) 20 a parameter (Hoffmann et al. 2022). With C = tokens x FLOPs of a
// token without embedding and head: lr = 0.3118 C^-0.1250, batch = 0.2920 C^0.3271 (DeepSeek LLM, Bi et al. 2024,
// section 3.1).
Recipe recipe_of_tokens(const ModelConfig&, int64_t seq_len, double tokens = 0);
// Recipe of a run of so many updates: the batch that the rule gives for its own tokens.
Recipe recipe_of_steps(const ModelConfig&, int64_t seq_len, double steps);

// "" or what is odd: no model of about this size (half to twice the parameters) was published with a rate, or a batch,
// within a factor of four.
std::string unlike_published(const ModelConfig&, double lr, double batch_tokens);

std::string token_count(double tokens);  // "0.5M", "16.8M", "160B"
// "lr 3e-04, 4M to 16M tokens an update (Llama 3 8B, Grattafiori et al. 2024)": as published under this name, or
// (nullptr) by rule
std::string recommended(const ModelConfig&, const char* published_as);

}  // namespace rz
