#pragma once
// Runs of a tiny model: the flags of a command line as text, and a shard of tokens.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "llama/base/json.h"
#include "llama/train/options.h"

namespace rz {

inline constexpr const char* kToyModel =
    "--device cpu --preset bytes --dim 16 --layers 2 --heads 2 --kv-heads 1 --ffn 24 --head-dim 8 --seq-len 16 ";

// The words of a line, which has no quotes.
inline std::vector<std::string> words_of(const std::string& line) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    return words;
}

inline TrainOptions train_options(const std::string& flags) {
    Command command;
    EXPECT_FALSE(parse_command_line(words_of(flags), command).has_value()) << flags;
    return std::get<TrainOptions>(command);
}

// A shard of so many tokens below 251. `marked`: 1, its header says that which tokens are targets stands behind them.
inline void write_tokens(const std::filesystem::path& path, int32_t tokens, int32_t marked = 0,
                         const std::string& marks = "") {
    std::ofstream shard(path, std::ios::binary);
    const int32_t header[256] = {20240520, 1, tokens, marked};
    shard.write(reinterpret_cast<const char*>(header), sizeof header);
    for (int32_t i = 0; i < tokens; ++i) {
        const uint16_t id = uint16_t(i * 7919 % 251);
        shard.write(reinterpret_cast<const char*>(&id), 2);
    }
    shard << marks;
}

// A shard of 32-bit tokens that count up from `first`.
inline void write_counting_tokens(const std::filesystem::path& path, int32_t tokens, int32_t first) {
    std::ofstream shard(path, std::ios::binary);
    const int32_t header[256] = {20240801, 7, tokens};
    shard.write(reinterpret_cast<const char*>(header), sizeof header);
    for (int32_t id = first; id < first + tokens; ++id) shard.write(reinterpret_cast<const char*>(&id), 4);
}

// The rows of metrics.jsonl.
inline std::vector<Json> metrics_in(const std::filesystem::path& run) {
    std::vector<Json> rows;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) rows.push_back(parse_json(line, "metrics.jsonl"));
    return rows;
}

}  // namespace rz
