#pragma once
// The limits of every text that this program parses. A parser takes time and memory in proportion to what it reads, so
// these bound both; a file that is longer is refused before it is read. dev/guide/trust.md says which test holds each.

#include <cstdint>

namespace rz {

struct Limit {
    const char* what;  // for messages
    int64_t bytes;
    int64_t depth = 100;       // JSON: lists and objects inside each other
    int64_t values = 100'000;  // JSON: a value of two bytes takes forty in memory
};

// clang-format off
//                                                                  bytes    depth     values
constexpr Limit kAnyText           = {"a text file",              64 << 20,   100,  4'000'000};
constexpr Limit kTomlFile          = {"a TOML file",               1 << 20};
constexpr Limit kScheduleFile      = {"a schedule",               16 << 20};
constexpr Limit kModelConfig       = {"a model's config.json",     4 << 20};
constexpr Limit kWeightIndexFile   = {"an index of weights",      32 << 20,   100,  1'000'000};
constexpr Limit kSafetensorsHeader = {"a safetensors header",  100'000'000,   100,  4'000'000};
constexpr Limit kTokenizerFile     = {"a tokenizer",              64 << 20,   100,  8'000'000};
constexpr Limit kSideFile          = {"a file beside a model",    64 << 20,   100,  8'000'000};
constexpr Limit kChatTemplate      = {"a chat template",           1 << 20};
constexpr Limit kManifest          = {"a manifest",               64 << 20,   100,  4'000'000};
constexpr Limit kCheckpointFile    = {"a checkpoint's small file", 256 << 20};
constexpr Limit kDatasetFile       = {"a dataset.json",           16 << 20,   100,  1'000'000};
constexpr Limit kEvalTask          = {"a task of --eval-tasks",  256 << 20};  // the other two: of one line
constexpr Limit kPrompt            = {"a prompt",                 16 << 20};
constexpr Limit kRunMetrics        = {"a run's metrics",           1 << 30};  // the other two: of one line
// clang-format on

// A chat template is a program; it runs in a child.
constexpr int64_t kTemplateSeconds = 2, kTemplateMemory = 512 << 20, kTemplateOutput = 16 << 20;

}  // namespace rz
