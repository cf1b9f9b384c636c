#pragma once
// Options of `train_llama generate`.

#include <string>
#include <vector>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/device.h"
#include "llama/train/option_table.h"

namespace rz {

struct GenerateOptions {
    std::string from;                 // a run's folder, a checkpoint or a Hugging Face model
    std::string tokenizer;            // empty: the model folder's
    std::string prompt, prompt_file;  // file "-": standard input
    bool raw_prompt = false, interactive = false, ignore_eos = false, chat = false;
    std::string system;  // the system message of a chat; empty: none
    int64_t num_samples = 1;
    int64_t max_tokens = 256;
    double temperature = 0.8, top_p = 1.0;
    int64_t top_k = 0;  // 0: all
    uint64_t seed = 1337;
    DeviceChoice device = DeviceChoice::automatic;
    DType dtype = DType::f32;
    int64_t threads = 0;  // CPU; 0: what OpenMP chooses
    GemmTune gemm_tune = GemmTune::off;
    std::string gemm_cache;
};

CommandTable command_table(GenerateOptions&);

}  // namespace rz
