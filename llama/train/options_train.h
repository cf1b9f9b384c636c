#pragma once
// Everything that training can be asked for, with its defaults: flags, --help and --config files share this table.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_tuning.h"
#include "comm/grid.h"
#include "llama/data/data_order.h"
#include "llama/data/documents.h"
#include "llama/model/config.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/parallel/context.h"
#include "llama/parallel/pipeline_program.h"
#include "llama/train/guards.h"
#include "llama/train/option_table.h"
#include "llama/train/schedule.h"
#include "zero/zero_options.h"

namespace rz {

enum class Head { tied, untied };
template <>
inline constexpr auto kNames<Head> = std::to_array<Named<Head>>({{Head::tied, "tied"}, {Head::untied, "untied"}});

constexpr int64_t kMostMicroBatches = 1 << 20;  // of an update on each rank
constexpr int64_t kLargestLossScale = int64_t(1) << 32;

// The value of --resume.
struct ResumeFrom {
    enum class Kind { nothing, newest, step, folder } kind = Kind::nothing;
    int64_t step = 0;
    std::string text;  // as it was given: of `folder`, a checkpoint's or a run's folder

    bool asked() const { return kind != Kind::nothing; }
    bool newest() const { return kind == Kind::newest; }
    bool looks_in_out() const { return newest() || kind == Kind::step; }
};
ResumeFrom parse_resume(const std::string& text);

std::string runs_folder();  // RINGZERO_RUNS, else runs; empty: a run without --out keeps nothing

enum class Optimizer { adamw, muon };  // muon: of the blocks' matrices; AdamW of all else
template <>
inline constexpr auto kNames<Optimizer> = std::to_array<Named<Optimizer>>({{Optimizer::adamw, "adamw"},
                                                                           {Optimizer::muon, "muon"}});

enum class MuonCoefficients { jordan, polar_express };
template <>
inline constexpr auto kNames<MuonCoefficients> = std::to_array<Named<MuonCoefficients>>(
    {{MuonCoefficients::jordan, "jordan"}, {MuonCoefficients::polar_express, "polar-express"}});

enum class MuonBlocks { whole, tp };  // what is orthogonalised: whole matrices, or the part that each rank of tp has
template <>
inline constexpr auto kNames<MuonBlocks> = std::to_array<Named<MuonBlocks>>({{MuonBlocks::whole, "whole"},
                                                                             {MuonBlocks::tp, "tp"}});

struct TrainOptions {
    // How the run was asked for: every argument, the flags given there or in a --config file, and the value of every
    // flag that a resumed run takes from its checkpoint unless it is given again.
    std::vector<std::string> arguments;
    std::set<std::string> given;
    std::map<std::string, std::string> kept_flags;
    std::map<std::string, std::string> values;  // of every flag: as given, or the default

    // model
    std::string preset = "bytes";
    std::string init_from;  // a run or a Hugging Face folder, instead of preset and random weights
    bool allow_tokenizer_change = false, resize_vocab = false;
    std::map<std::string, int64_t> fields;  // config_fields() that were given, by flag name; the preset has the rest
    std::map<std::string, std::optional<bool>> switches;  // config_switches(); none: as the preset
    std::optional<Head> head;                             // likewise
    double rope_theta = 0, norm_eps = 0, init_std = 0;    // 0: the preset's
    double init_scale = -1;                               // of the projections that end a branch; < 0: 1 / sqrt(2 L)

    // data
    std::string data;             // folder made by data_prep/prepare.py, or a mix (llama/data/mix.h)
    std::string data_command;     // that makes it; for people
    std::string data_weights_at;  // STEP:SHARES;...
    std::string train_data;       // or shards
    std::string val_data;
    std::string tokenizer;
    bool raw16 = false;
    DataOrder data_order = DataOrder::kShuffled;
    int64_t data_wait = 600;  // seconds, for data that are still being written
    int64_t data_threads = 4;
    DocBoundary doc_boundary = DocBoundary::none;
    int64_t doc_token = -1;  // -1: the dataset's

    // batch
    int64_t batch = 8;  // sequences per rank and micro-batch; 0: a run chooses (--batch auto)
    int64_t seq_len = 256;
    int64_t batch_tokens = 0;  // tokens per update over all ranks; 0: one micro-batch each
    int64_t grad_accum = 0;    // or micro-batches of each rank per update; 0: by batch_tokens
    // --batch-ramp: updates of so many tokens until so many tokens are seen, ascending; then of batch_tokens.
    struct RampStage {
        int64_t batch_tokens, until;
    };
    std::vector<RampStage> batch_ramp;
    int64_t stage_end = 0;  // tokens at which the stage ends that batch_tokens is of; 0: the last one
    int64_t steps = 1000;
    bool recipe = false;  // --auto

    // optimizer
    double lr = 1e-3, min_lr = -1;  // min_lr < 0: a tenth of lr
    int64_t warmup = -1;            // < 0: a tenth of the steps, at most 2000
    Decay decay = Decay::cosine;
    int64_t cooldown = -1;  // wsd; < 0: a fifth of the steps
    Optimizer optimizer = Optimizer::adamw;
    double muon_lr = 0;  // 0: lr
    double muon_momentum = 0.95;
    MuonScale muon_scale = MuonScale::match_rms_adamw;
    int64_t muon_ns_steps = 5;
    MuonCoefficients muon_coefficients = MuonCoefficients::jordan;
    double muon_beta2 = 0;
    DType muon_dtype = DType::bf16;
    MuonBlocks muon_blocks = MuonBlocks::whole;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
    double z_loss = 0;
    double ema = 0;
    bool decay_embeddings = true;
    Mup mup;
    uint64_t seed = 1337;

    // precision, memory, device
    DType dtype = DType::f32;
    bool dtype_auto = true;  // choose_dtype() says which
    DType grad_dtype = DType::f32;
    DType adam_dtype = DType::f32, master_dtype = DType::f32;
    std::string loss_scale;  // "dynamic" or a power of two; empty: dynamic with fp16
    int64_t loss_scale_window = 1000, loss_scale_hysteresis = 2;
    Fp8Options fp8;
    bool fp8_gather = true;
    Recompute recompute = Recompute::none;
    OffloadOptimizer offload_optimizer = OffloadOptimizer::none;
    bool offload_params = false, offload_grads = false, offload_activations = false;
    bool cuda_graphs = false;
    int64_t logits_mib = 0;  // 0: 1024 on CUDA, 32 on the CPU
    DeviceChoice device = DeviceChoice::automatic;
    int64_t threads = 0;  // CPU; 0: what OpenMP chooses
    GemmTune gemm_tune = GemmTune::off;
    std::string gemm_cache;  // cuBLASLt only

    // many ranks
    int64_t ranks = 0;  // that this process starts; 0: whoever started it has started them all
    int64_t max_restarts = 0;
    int64_t zero = 0;
    int64_t shard_size = 0;  // 0: all ranks
    int64_t prefetch = 1;
    int64_t bucket_mib = 0;  // of gradients that are reduced together; 0: each unit by itself
    bool overlap = true;
    std::optional<bool> accumulate_locally;  // none: only where reducing each micro-batch can't be, or saves nothing
    int64_t tp = 1;
    std::array<Axis, 4> axis_order = GridOptions{}.order;  // neighbouring ranks first
    bool tp_overlap = false;
    std::optional<DType> tp_wire;  // none: dtype
    int64_t cp = 1;
    ContextExchange cp_exchange = ContextExchange::gather;
    int64_t pp = 1, pp_stages_per_rank = 0;  // 0: the schedule's own
    int64_t pp_threads = 0;                  // 0: not given; else pp, and ranks are its product with tp and cp
    ScheduleChoice pp_schedule;              // none: zb-v or 1f1b
    std::vector<int64_t> pp_cut;             // blocks of each stage; none: balanced by FLOPs
    GatherFor pp_gather = GatherFor::op;
    int64_t pp_gather_window = 3;  // stages, for GatherFor::window
    int64_t pp_tasks = 0, pp_window = 0;
    AxisAlgorithms collectives;
    int64_t ranks_per_node = 0;  // 0: as the launcher placed them
    int64_t comm_sms = 0;        // multiprocessors that kernels whose blocks stay leave to communication
    TransportKind transport = TransportKind::automatic;
    std::optional<DType> wire_dtype;  // none: dtype, or fp32 with fp16
    int64_t ring_chunk_kib = 0;       // 0: what suits the transport
    double timeout = 600;             // seconds that a rank may wait for another
    double disk_timeout = 7200;       // the same while ranks read or write checkpoints and final weights

    // validation and samples
    int64_t val_every = 100;
    int64_t val_tokens = 65536;
    double stop_at_val_loss = 0;  // nats; 0: never
    int64_t sample_every = 0;     // validations between samples; 0: never
    int64_t sample_tokens = 200;
    std::string prompt;      // what samples begin with
    int64_t eval_every = 0;  // 0: never
    std::string eval_tasks, eval_data = "data/eval";
    int64_t eval_limit = 0;  // examples of each task; 0: all

    // stopping and guards
    double time_limit = 0;  // seconds; 0: Slurm's end of the job, if there is one
    int64_t max_skips = 10;
    double spike_z = 5.7;
    OnSpike on_spike = OnSpike::warn;
    int64_t max_rollbacks = 3, rollback_steps = 100, rollback_skip = 100;
    int64_t check_replicas = 0, recheck_every = 0, check_wire = 0;  // steps; 0: never

    // output
    std::string out;
    bool out_is_new = false;  // it was not given, and is made when the run begins
    bool overwrite = false;
    int64_t save_every = 1000, keep = 2, keep_every = 0;
    int64_t snapshot_every = 0;  // steps; 0: never
    bool restarted = false;      // it continues a run whose ranks have ended (snapshots.h)
    int64_t shard_above_mib = kShardAbove >> 20;
    bool background_save = true, allow_data_change = false;
    std::string after_save, before_resume;            // commands; empty: none
    bool allow_commands = false;                      // they may stand in a --config file
    bool lr_continue = false, allow_lr_jump = false;  // of a resumed run whose schedule is another
    int64_t rewarm = 0;
    int64_t branch = -1;  // step of the run that --resume names; -1: none
    ResumeFrom resume;
    int64_t log_every = 1;
    bool quiet = false;
    int64_t stats_every = 0;
    std::string wandb, wandb_name;  // a project of Weights & Biases; empty: none
    std::string mllog;              // file; empty: none
    int64_t trace_steps = 0;
    double peak_tflops = 0;  // that MFU is measured against; 0: the machine's
    bool print_config = false;
    bool presets = false;

    // Without --out a run has a folder of its own in runs_folder().
    bool keeps() const { return !out.empty() || (!given.count("out") && !runs_folder().empty()); }
    bool offloads() const {
        return offload_optimizer != OffloadOptimizer::none || offload_params || offload_grads || offload_activations;
    }
    // It is asked for that ZeRO-2 and 3 keep whole gradients until the last micro-batch.
    bool accumulates_locally() const { return zero >= 2 && accumulate_locally.value_or(false); }
    LossScaling loss_scaling() const;
    MuonOptions muon() const;  // refuses what --optimizer muon can not do
    DType gradient_wire_dtype() const { return wire_dtype.value_or(dtype == DType::f16 ? DType::f32 : dtype); }
};

// Bytes of an element by purpose; masters are 0 where the parameters are their own.
struct BytesPerParameter {
    int64_t parameter, gradient, master, moments, average;
    int64_t saved() const { return parameter + master + moments + average; }
    int64_t all() const { return saved() + gradient; }
};
BytesPerParameter bytes_per_parameter(const TrainOptions&);

CommandTable command_table(TrainOptions&);
// Rows that commands share.
void add_gemm_rows(OptionGroup&, ResumeClass, GemmTune& tune, std::string& cache);

// After parse_flags() with that table: notes what was given and what a checkpoint keeps, and sets defaults that depend
// on other flags.
void resolve_defaults(TrainOptions&, const std::vector<std::string>& arguments, const CommandTable&,
                      const ParsedFlags&);
// Checks the flags of this command line: throws on flags that contradict each other, or that would do nothing.
void check_given(const TrainOptions&);
// Throws on what these ranks can't do.
void check_ranks(const TrainOptions&, int64_t ranks);

// The values of the flags that a checkpoint keeps.
std::map<std::string, std::string> kept_flags(const CommandTable&, const ParsedFlags&);
// A checkpoint's flags by the names, and with the values of switches, that they have today.
std::map<std::string, std::string> current_flags(const CommandTable&, const std::map<std::string, std::string>& saved);
// The place at which a run is resumed.
struct ResumePlace {
    bool same_ranks = true;  // as many as before
    bool gpu = false;        // a usable one is here, and may be used
};
// Takes a checkpoint's flags where none were given, as their rows say. Returns one line for every flag that was given
// and differs from the checkpoint's, and for those that are not restored here; flags that this program does not know
// are named too. Throws on a value that the row refuses.
std::vector<std::string> adopt_flags(TrainOptions& options, const std::map<std::string, std::string>& saved,
                                     const ResumePlace&);

// The model that the options ask for: preset (or init_from's config.json), then overrides; `data_vocab` > 0 is the
// vocabulary of the data, used unless the preset or the user fixes one. Resolved.
ModelConfig model_config(const TrainOptions&, int64_t data_vocab);

// The fields that were given, over those of `config`; then resolve().
void override_fields(const TrainOptions&, ModelConfig& config);
// Throws if the sequences or the data's vocabulary do not fit the model.
void check_fit(const TrainOptions&, const ModelConfig&, int64_t data_vocab);

// --dtype auto: on a GPU bf16, or fp16 where its compute capability (such as 75; 0: the CPU) has no bf16 products; fp32
// on the CPU. Refuses products that the GPU lacks.
void choose_dtype(TrainOptions&, int capability);
bool will_use_gpu(const TrainOptions&);   // by --device and what is here
int gpu_capability(const TrainOptions&);  // then the least of this host's GPUs; else 0

// --auto: sets steps, batch, learning rate, its schedule and the decay where they are not given, for so many ranks and
// (of a plan, else 0) tokens. Returns a line for each, with its source.
std::vector<std::string> choose_recipe(TrainOptions&, const ModelConfig&, int64_t ranks, double tokens = 0);

// Sets batch_tokens and stage_end to those of a run that has seen so many tokens.
void enter_ramp_stage(TrainOptions&, int64_t tokens);

// Micro-batches per update of `ranks` on the dp axis. Throws with the nearest valid values if batch_tokens does not
// divide.
int64_t micro_batches(const TrainOptions&, int64_t ranks);

// The axes of the mesh that are asked for.
GridOptions grid_options(const TrainOptions&);

}  // namespace rz
