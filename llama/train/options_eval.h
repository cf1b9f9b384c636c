#pragma once
// Options of `train_llama eval`.

#include <string>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/device.h"
#include "llama/train/option_table.h"

namespace rz {

enum class AddBos { automatic, on, off };
template <>
inline constexpr auto kNames<AddBos> =
    std::to_array<Named<AddBos>>({{AddBos::automatic, "auto"}, {AddBos::on, "on"}, {AddBos::off, "off"}});

struct EvalOptions {
    std::string from;       // a run's folder, a checkpoint or a Hugging Face model
    std::string tokenizer;  // empty: the model folder's
    std::string data = "data/eval", tasks;
    int64_t limit = 0;  // examples of each task; 0: all
    int64_t batch = 8;  // items at a time, on each rank
    int64_t zero = 0;   // 3: each rank keeps a part of the parameters
    int64_t tp = 1;
    int64_t max_length = 0;  // tokens that the model sees at once; 0: all its positions
    AddBos bos = AddBos::automatic;
    std::string out, requests;  // files to write; empty: none
    DeviceChoice device = DeviceChoice::automatic;
    DType dtype = DType::f32;
    int64_t logits_mib = 0;  // 0: 1024 on CUDA, 32 on the CPU
    int64_t threads = 0;     // CPU; 0: OMP_NUM_THREADS, or the cores divided among the ranks of the host
    GemmTune gemm_tune = GemmTune::off;
    std::string gemm_cache;
};

CommandTable command_table(EvalOptions&);

}  // namespace rz
