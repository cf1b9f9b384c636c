#pragma once
// Everything a user can ask for, with its defaults: the one table that flags, --help and --config files share.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "llama/model/config.h"
#include "llama/parallel/study.h"

namespace rz {

struct Options {
    enum class Command { train, generate, export_model, schedule } command = Command::train;

    // How the run was asked for: every argument, the flags given there or in a --config file, and the value of every
    // flag that a resumed run takes from its checkpoint unless it is given again.
    std::vector<std::string> arguments;
    std::set<std::string> given;
    std::map<std::string, std::string> kept_flags;

    // model
    std::string preset = "bytes";
    std::string init_from;                  // a Hugging Face folder, instead of preset and random weights
    std::map<std::string, int64_t> fields;  // config_fields() that were given, by flag name; the preset has the rest
    std::string head;                       // "tied", "untied" or as the preset
    double rope_theta = 0, norm_eps = 0, init_std = 0;  // 0: the preset's

    // data
    std::string data;        // folder made by data_prep/prepare.py
    std::string train_data;  // or shards
    std::string val_data;
    std::string tokenizer;
    bool raw16 = false;

    // batch
    int64_t batch = 8;  // sequences per rank and micro-batch
    int64_t seq_len = 256;
    int64_t batch_tokens = 0;  // tokens per update over all ranks; 0: one micro-batch each
    int64_t steps = 1000;

    // optimizer
    double lr = 1e-3, min_lr = -1;  // min_lr < 0: a tenth of lr
    int64_t warmup = -1;            // < 0: a tenth of the steps, at most 2000
    std::string lr_schedule = "cosine";
    int64_t cooldown = -1;  // wsd; < 0: a fifth of the steps
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
    uint64_t seed = 1337;

    // precision, memory, device
    std::string dtype = "fp32";
    std::string grad_dtype;  // empty: dtype
    std::string adam_dtype = "fp32", master_dtype = "fp32";
    std::string recompute = "none";
    std::string cuda_graphs = "off";
    int64_t logits_mib = 0;  // 0: 1024 on CUDA, 32 on the CPU
    std::string device = "auto";
    int64_t threads = 0;                        // CPU; 0: what OpenMP chooses
    std::string gemm_tune = "off", gemm_cache;  // cuBLASLt only; empty: default_gemm_cache() where tuned

    // many ranks
    int64_t zero = 0;
    int64_t shard_size = 0;  // 0: all ranks
    int64_t prefetch = 1;
    bool no_overlap = false, accumulate_locally = false;
    std::string collectives = "ring", transport = "auto";
    std::string wire_dtype;      // empty: grad_dtype
    int64_t ring_chunk_kib = 0;  // 0: what suits the transport
    double timeout = 600;        // seconds that a rank may wait for another

    // validation and samples
    int64_t val_every = 100;
    int64_t val_tokens = 65536;
    int64_t sample_every = 0;  // validations between samples; 0: never
    int64_t sample_tokens = 200;

    // stopping and guards
    std::string time_limit;
    int64_t max_skips = 10;
    double spike_z = 8;
    std::string on_spike = "warn";
    int64_t max_rollbacks = 3, rollback_steps = 100, rollback_skip = 100;
    int64_t check_replicas = 0;

    // output
    std::string out;
    bool overwrite = false;
    int64_t save_every = 1000, keep = 2, keep_every = 0;
    bool no_background_save = false, allow_data_change = false;
    std::string resume;  // "", "auto", a step, or a checkpoint's folder
    int64_t log_every = 1;
    int64_t trace_steps = 0;
    bool print_config = false;
    bool presets = false;

    // generate, export
    std::string from;
    std::string to, export_dtype;  // export; dtype empty: as stored
    std::string prompt;
    int64_t max_tokens = 256;
    double temperature = 0.8, top_p = 1.0;
    int64_t top_k = 0;

    ScheduleStudy study;  // schedule
};

// Parses and checks each value by itself. On --help, or an error, prints and returns false with `exit_code` set
// (0 or 2).
bool parse_options(int argc, char** argv, Options& options, int& exit_code);

// Parses again with a checkpoint's flags where none were given. Returns one line for every flag that was given and
// differs from the checkpoint's; flags that this program does not know are named too.
std::vector<std::string> adopt_flags(Options& options, const std::map<std::string, std::string>& saved);

// The model that the options ask for: preset (or init_from's config.json), then overrides; `data_vocab` > 0 is the
// vocabulary of the data, used unless the preset or the user fixes one. Resolved.
ModelConfig model_config(const Options&, int64_t data_vocab);

// The fields that were given, over those of `config`; then resolve().
void override_fields(const Options&, ModelConfig& config);
// Throws if the sequences or the data's vocabulary do not fit the model.
void check_fit(const Options&, const ModelConfig&, int64_t data_vocab);

// Micro-batches per update of `ranks` on the dp axis. Throws with the nearest valid values if batch_tokens does not
// divide.
int64_t micro_batches(const Options&, int64_t ranks);

// The axes of the mesh that are asked for.
GridOptions grid_options(const Options&);

DType parse_dtype(const std::string& flag, const std::string& value);

}  // namespace rz
