#pragma once
// The command line: which command, and its options. Those of training, plan, schedule and coordinates have headers of
// their own.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "llama/model/hf.h"
#include "llama/train/coordinates.h"
#include "llama/train/options_plan.h"
#include "llama/train/options_schedule.h"
#include "llama/train/options_train.h"

namespace rz {

// A model to use, and on what.
struct ModelUse {
    std::string from;       // a run's folder, a checkpoint or a Hugging Face model
    std::string tokenizer;  // empty: the model folder's
    DeviceChoice device = DeviceChoice::automatic;
    DType dtype = DType::f32;
    int64_t threads = 0;  // CPU; 0: each command has its own default
    GemmTune gemm_tune = GemmTune::off;
    std::string gemm_cache;
};

// ---- train_llama generate

struct GenerateOptions : ModelUse {
    std::string prompt, prompt_file;  // file "-": standard input
    bool raw_prompt = false, interactive = false, ignore_eos = false, chat = false;
    std::string system;  // the system message of a chat; empty: none
    int64_t num_samples = 1;
    int64_t max_tokens = 256;
    double temperature = 0.8, top_p = 1.0;
    int64_t top_k = 0;  // 0: all
    uint64_t seed = 1337;
};

CommandTable command_table(GenerateOptions&);

// ---- train_llama eval

enum class AddBos { automatic, on, off };
template <>
inline constexpr auto kNames<AddBos> =
    std::to_array<Named<AddBos>>({{AddBos::automatic, "auto"}, {AddBos::on, "on"}, {AddBos::off, "off"}});

struct EvalOptions : ModelUse {
    std::string data = "data/eval", tasks;
    int64_t limit = 0;  // examples of each task; 0: all
    int64_t batch = 8;  // items at a time, on each rank
    int64_t zero = 0;   // 3: each rank keeps a part of the parameters
    int64_t tp = 1;
    int64_t max_length = 0;  // tokens that the model sees at once; 0: all its positions
    AddBos bos = AddBos::automatic;
    std::string out, requests;  // files to write; empty: none
    int64_t logits_mib = 0;     // 0: 1024 on CUDA, 32 on the CPU
};

CommandTable command_table(EvalOptions&);

// ---- train_llama export, train_llama average

enum class ModelFormat { hf, gguf };
template <>
inline constexpr auto kNames<ModelFormat> = std::to_array<Named<ModelFormat>>({{ModelFormat::hf, "hf"},
                                                                               {ModelFormat::gguf, "gguf"}});

struct ExportOptions {
    ModelFormat format = ModelFormat::hf;
    std::string from, to;
    bool average = false;        // the average of the weights instead
    bool overwrite = false;      // a model that is there already
    std::optional<DType> dtype;  // of the weights written; none: as stored
    int64_t shard_above_mib = kShardAbove >> 20;
    std::string tokenizer;  // whose files are copied; empty: those of `from`
};

CommandTable command_table(ExportOptions&);

// For `train_llama average A B C --to D`: `from` has A,B,C.
struct AverageOptions : ExportOptions {};
CommandTable command_table(AverageOptions&);
// The words after `average`, up to the first flag, as the value of --from.
std::vector<std::string> models_as_flag(std::vector<std::string> arguments);

using Command = std::variant<TrainOptions, GenerateOptions, EvalOptions, ExportOptions, AverageOptions, ScheduleStudy,
                             PlanOptions, CoordinatesOptions>;

// Parses, checks each value by itself and what was given together. On --help, --presets or an error prints and returns
// the exit code: 0 or 2.
std::optional<int> parse_command_line(const std::vector<std::string>& arguments, Command&);

}  // namespace rz
