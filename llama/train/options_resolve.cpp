// Defaults that depend on other flags, and what flags come to (options_train.h).

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/runtime/capability.h"
#include "kernels/runtime/request.h"
#include "llama/model/hf.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/presets.h"
#include "llama/model/recipe.h"
#include "llama/train/options_train.h"

namespace rz {

constexpr double kFineTuningRate = 5e-5;  // where --init-from is given and --lr is not

// Defaults that depend on other flags, and incompatible flags.
static void settle_schedule(TrainOptions& o) {
    const bool wsd = o.decay == Decay::wsd, constant = o.decay == Decay::constant;
    require_request(!o.given.count("cooldown") || o.cooldown < 0 || wsd,
                    "--cooldown is wsd's: --lr-schedule %s has none\n  nearest: --lr-schedule wsd", name_of(o.decay));
    require_request(!o.given.count("min-lr") || o.min_lr < 0 || !constant,
                    "--min-lr: --lr-schedule constant stays at --lr\n  nearest: --min-lr -1, or --lr-schedule wsd");
    if (o.warmup < 0) o.warmup = std::min<int64_t>(2000, o.steps / 10);
    if (o.cooldown < 0) o.cooldown = wsd ? o.steps / 5 : 0;
    require_request(!wsd || o.cooldown <= o.steps,
                    "--cooldown %ld is longer than the run: --steps %ld\n  nearest: --cooldown %ld", o.cooldown,
                    o.steps, o.steps);
    if (o.min_lr < 0 || constant) o.min_lr = constant ? o.lr : 0.1 * o.lr;
    require_request(o.min_lr <= o.lr,
                    "--min-lr %g is the floor under --lr %g and can't be above it\n  nearest: --min-lr %g", o.min_lr,
                    o.lr, o.lr);
}

static void set_value(TrainOptions& o, const std::string& flag, const std::string& value) {
    o.values[flag] = o.kept_flags[flag] = value;
}

static void keep_wire_dtype(TrainOptions& o) { o.kept_flags["wire-dtype"] = name_of(o.gradient_wire_dtype()); }

void choose_dtype(TrainOptions& o, int capability) {
    require_request(!o.fp8.on() || has_products(capability, DType::bf16),
                    "--fp8 %s: a GPU of compute capability %d.%d has no fp8 products, which came with 8.9\n  nearest: "
                    "--fp8 none",
                    name_of(o.fp8.recipe), capability / 10, capability % 10);
    if (o.dtype_auto) {
        o.dtype = capability == 0 ? DType::f32 : has_products(capability, DType::bf16) ? DType::bf16 : DType::f16;
        set_value(o, "dtype", name_of(o.dtype));
        keep_wire_dtype(o);
    }
    require_products("--dtype", o.dtype, capability, "--dtype fp16, which scales the loss");
    if (o.optimizer == Optimizer::muon) require_products("--muon-dtype", o.muon_dtype, capability, "--muon-dtype fp32");
}

bool will_use_gpu(const TrainOptions& o) { return o.device != DeviceChoice::cpu && cuda_device_count() > 0; }
int gpu_capability(const TrainOptions& o) {
    int least = 0;
    for (int i = 0; will_use_gpu(o) && i < cuda_device_count(); ++i) {
        const int own = compute_capability({DeviceKind::cuda, i, nullptr});
        least = least == 0 ? own : std::min(least, own);
    }
    return least;
}

std::vector<std::string> choose_recipe(TrainOptions& o, const ModelConfig& c, int64_t ranks, double tokens) {
    std::vector<std::string> lines;
    const auto given = [&](const char* flag) { return o.given.count(flag) > 0; };
    const auto chosen = [&](const char* flag, const std::string& value, const std::string& why) {
        set_value(o, flag, value);
        lines.push_back(format("auto     --%s %s: %s", flag, value.c_str(), why.c_str()));
    };
    const double fixed = double(o.batch_tokens);
    const bool by_steps = given("steps") && tokens <= 0;
    const Recipe r = by_steps && fixed == 0 ? recipe_of_steps(c, o.seq_len, double(o.steps))
                     : by_steps             ? recipe_of_tokens(c, o.seq_len, fixed * double(o.steps))
                                            : recipe_of_tokens(c, o.seq_len, tokens);
    const std::string rule = format("for C = %.2g FLOPs (DeepSeek LLM, Bi et al. 2024, section 3.1)", r.flops);
    if (fixed == 0) {
        const int64_t micro =
            std::max<int64_t>(1, o.batch) * o.seq_len * Grid(int(ranks), grid_options(o)).size(Axis::dp);
        o.batch_tokens = std::max<int64_t>(1, std::llround(r.batch_tokens / double(micro))) * micro;
        chosen("batch-tokens", std::to_string(o.batch_tokens),
               format("0.2920 C^0.3271 = %.3g ", r.batch_tokens) + rule + ", in whole micro-batches");
    }
    if (!given("steps") || tokens > 0) {
        o.steps = std::max<int64_t>(1, std::llround(r.tokens / double(o.batch_tokens)));
        chosen("steps", std::to_string(o.steps),
               tokens > 0
                   ? format("%s tokens, as --tokens says", token_count(tokens).c_str())
                   : format("%s tokens, 20 for each parameter (Hoffmann et al. 2022)", token_count(r.tokens).c_str()));
    }
    if (!given("lr")) {
        o.lr = std::strtod(format("%.3g", r.lr).c_str(), nullptr);
        chosen("lr", format("%.3g", r.lr), "0.3118 C^-0.1250 " + rule);
    }
    if (!given("weight-decay"))
        chosen("weight-decay", format("%g", o.weight_decay = 0.1), "Llama 2 (Touvron et al. 2023b)");
    if (!given("warmup")) {
        o.warmup = std::min<int64_t>(2000, o.steps / 10);
        chosen("warmup", std::to_string(o.warmup), "2000 steps, Llama 2's, or a tenth of a shorter run");
    }
    if (!given("lr-schedule")) {
        o.decay = Decay::cosine;
        chosen("lr-schedule", "cosine", given("min-lr") ? "Llama 2's" : "Llama 2's, down to a tenth of --lr");
    }
    if (!given("min-lr")) o.min_lr = -1;
    if (!given("cooldown")) o.cooldown = -1;
    settle_schedule(o);
    return lines;
}

void resolve_defaults(TrainOptions& o, const std::vector<std::string>& arguments, const CommandTable& table,
                      const ParsedFlags& found) {
    o.arguments = arguments;
    o.given = found.given;
    o.values = found.values;
    o.kept_flags = kept_flags(table, found);
    if (o.dtype_auto)
        o.given.erase("dtype");  // a resumed run keeps its own
    else
        keep_wire_dtype(o);
    if (!o.init_from.empty() && !o.given.count("lr")) {
        o.lr = kFineTuningRate;
        o.values["lr"] = o.kept_flags["lr"] = format("%g", o.lr);
    }
    // Flags on the command line beat a recipe that resumes.
    const auto on_command_line = [&](const std::string& flag) {
        return std::any_of(arguments.begin(), arguments.end(),
                           [&](const std::string& a) { return a == flag || a.starts_with(flag + "="); });
    };
    if (o.overwrite && o.resume.asked() && on_command_line("--overwrite") != on_command_line("--resume")) {
        if (on_command_line("--overwrite"))
            o.resume = {};
        else
            o.overwrite = false;
    }
    settle_schedule(o);
    if (o.pp_threads > 0) {
        require_request(!o.given.count("pp") || o.pp == o.pp_threads,
                        "--pp-threads %ld with --pp %ld\n  nearest: --pp-threads %ld alone", o.pp_threads, o.pp,
                        o.pp_threads);
        o.pp = o.pp_threads;
        o.values["pp"] = o.kept_flags["pp"] = std::to_string(o.pp);
        const int64_t ranks = o.pp * o.tp * o.cp;
        require_request(o.ranks == 0 || o.ranks == ranks,
                        "--pp-threads %ld of %ld ranks with --ranks %ld\n  nearest: --pp %ld --ranks %ld", o.pp, ranks,
                        o.ranks, o.pp, o.ranks);
        o.ranks = ranks;
    }
}

ResumeFrom parse_resume(const std::string& text) {
    using enum ResumeFrom::Kind;
    const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
    if (text.empty() || text == "never") return {};
    if (text == "auto") return {newest, 0, text};
    if (digits && text.size() <= 15) return {step, std::strtoll(text.c_str(), nullptr, 10), text};
    return {folder, 0, text};
}

std::string runs_folder() {
    const char* const set = std::getenv("RINGZERO_RUNS");
    return set ? set : "runs";
}

LossScaling TrainOptions::loss_scaling() const {
    LossScaling l{.window = int(loss_scale_window), .hysteresis = int(loss_scale_hysteresis)};
    if (dtype != DType::f16) return l;
    l.dynamic = loss_scale.empty() || loss_scale == "dynamic";
    l.initial = l.dynamic ? 65536.0f : std::strtof(loss_scale.c_str(), nullptr);
    l.most = float(kLargestLossScale);
    return l;
}

MuonOptions TrainOptions::muon() const {
    if (optimizer == Optimizer::adamw) return {};
    require_request(!mup.on(),
                    "--optimizer muon with --mup-base-width %ld, whose rates are Adam's\n  nearest: --optimizer adamw, "
                    "or leave out muP",
                    mup.base_width);
    require_request(tp == 1 || muon_beta2 == 0 || muon_blocks == MuonBlocks::whole,
                    "--muon-beta2 %g with --muon-blocks tp: a row's moment is of the whole row, which no rank has\n  "
                    "nearest: --muon-blocks whole, or --muon-beta2 0",
                    muon_beta2);
    return {.on = true,
            .momentum = float(muon_momentum),
            .rate = muon_lr > 0 && lr > 0 ? float(muon_lr / lr) : 1.0f,
            .scale = muon_scale,
            .steps = int(muon_ns_steps),
            .polar_express = muon_coefficients == MuonCoefficients::polar_express,
            .whole = muon_blocks == MuonBlocks::whole,
            .beta2 = float(muon_beta2),
            .dtype = muon_dtype};
}

BytesPerParameter bytes_per_parameter(const TrainOptions& o) {
    return {.parameter = size_of(o.dtype),
            .gradient = size_of(o.grad_dtype),
            .master = o.master_dtype == o.dtype ? 0 : size_of(o.master_dtype),
            .moments = 2 * size_of(o.adam_dtype),
            .average = o.ema > 0 ? size_of(DType::f32) : 0};
}

void check_ranks(const TrainOptions& o, int64_t ranks) {
    require_request(o.zero > 0 || o.shard_size == 0 || o.shard_size == ranks,
                    "--shard-size %ld needs --zero 1, 2 or 3\n  nearest: --zero 1, or leave it out", o.shard_size);
    require_request(
        o.master_dtype == DType::f32 || o.master_dtype == o.dtype,
        "--master-dtype %s with --dtype %s: narrow masters are the parameters themselves, so both must be the same\n"
        "  nearest: --master-dtype fp32",
        name_of(o.master_dtype), name_of(o.dtype));
    require_request(o.ema == 0 || o.master_dtype == DType::f32,
                    "--ema %g with --master-dtype %s: what an update adds to the average is too small for narrow "
                    "masters\n  nearest: --master-dtype fp32",
                    o.ema, name_of(o.master_dtype));
    require_request(
        o.grad_dtype == DType::f32 || o.grad_dtype == o.dtype,
        "--grad-dtype %s with --dtype %s: gradients have --dtype's type, or fp32\n  nearest: --grad-dtype fp32",
        name_of(o.grad_dtype), name_of(o.dtype));
    require_request(o.loss_scale.empty() || o.dtype == DType::f16,
                    "--loss-scale %s: --dtype %s needs none\n  nearest: leave it out, or --dtype fp16",
                    o.loss_scale.c_str(), name_of(o.dtype));
    require_request(
        !o.given.count("fp8-gather") || (o.fp8.on() && o.zero == 3),
        "--fp8-gather is about --zero 3 with layers in fp8, and these are --zero %ld --fp8 %s\n  nearest: --zero 3 "
        "--fp8 tensor, or leave it out",
        o.zero, name_of(o.fp8.recipe));
    require_request(!o.given.count("fp8-keep-weights") || o.fp8.on(),
                    "--fp8-keep-weights is about fp8 layers, and --fp8 is none\n"
                    "  nearest: --fp8 tensor, or leave it out");
    require_request(!o.fp8.keep_weights || o.zero < 3,
                    "--fp8-keep-weights on keeps all weights on each rank, and --zero %ld gathers them for each pass\n"
                    "  nearest: --zero 2, or --fp8-keep-weights off",
                    o.zero);
    require_request(
        !o.given.count("fp8-skip-blocks") || o.fp8.on(),
        "--fp8-skip-blocks is about fp8 layers, and --fp8 is none\n  nearest: --fp8 tensor, or leave it out");
    for (const char* flag : {"loss-scale-window", "loss-scale-hysteresis"})
        require_request(
            !o.given.count(flag) || o.loss_scaling().dynamic,
            "--%s is a dynamic loss scale's, and --dtype %s%s%s has none\n  nearest: --dtype fp16 --loss-scale "
            "dynamic",
            flag, name_of(o.dtype), o.loss_scale.empty() ? "" : " --loss-scale ", o.loss_scale.c_str());
}

ModelConfig model_config(const TrainOptions& o, int64_t data_vocab) {
    ModelConfig c = o.init_from.empty() ? find_preset(o.preset).config : load_config(model_folder(o.init_from));
    if (data_vocab > 0 && (o.init_from.empty() || (o.resize_vocab && data_vocab > c.vocab))) c.vocab = data_vocab;
    override_fields(o, c);
    check_fit(o, c, data_vocab);
    return c;
}

void override_fields(const TrainOptions& o, ModelConfig& c) {
    for (const ConfigField& f : config_fields())
        if (auto it = o.fields.find(f.name); it != o.fields.end()) c.*f.member = it->second;
    for (const ConfigSwitch& w : config_switches())
        if (auto it = o.switches.find(w.name); it != o.switches.end() && it->second) c.*w.member = *it->second;
    if (o.head) c.tied = *o.head == Head::tied;
    if (o.rope_theta > 0) c.rope_theta = o.rope_theta;
    if (o.norm_eps > 0) c.norm_eps = o.norm_eps;
    if (o.init_std > 0) c.init_std = o.init_std;
    if (o.init_scale >= 0) c.branch_init = o.init_scale;
    try {
        c.resolve();
    } catch (const Error& error) {
        refuse("%s", error.what());
    }
}

void enter_ramp_stage(TrainOptions& o, int64_t tokens) {
    o.stage_end = 0;
    if (o.batch_ramp.empty()) return;
    const int64_t most = o.batch_ramp.back().batch_tokens;
    require_request(o.grad_accum == 0 && o.batch_tokens % most == 0,
                    "--batch-ramp: updates of %ld tokens do not divide those that follow, of %ld (--batch-tokens)\n"
                    "  nearest: --batch-tokens %ld",
                    most, o.batch_tokens, std::max<int64_t>(1, o.batch_tokens / most) * most);
    for (const TrainOptions::RampStage& s : o.batch_ramp) {
        if (tokens >= s.until) continue;
        o.batch_tokens = s.batch_tokens;
        o.stage_end = s.until;
        return;
    }
}

int64_t micro_batches(const TrainOptions& o, int64_t ranks) {
    const int64_t micro = checked_mul(checked_mul(o.batch, o.seq_len, "batch"), ranks, "batch");
    if (o.grad_accum > 0) return o.grad_accum;
    if (o.batch_tokens == 0) return 1;
    // A step is a list of instructions for each of them.
    require_request(o.batch_tokens / micro <= kMostMicroBatches,
                    "--batch-tokens %ld makes %ld micro-batches of %ld tokens (--batch %ld x --seq-len %ld x %ld "
                    "ranks); an update has at most %ld\n  nearest: --batch-tokens %ld, or a larger --batch",
                    o.batch_tokens, o.batch_tokens / micro, micro, o.batch, o.seq_len, ranks, kMostMicroBatches,
                    kMostMicroBatches * micro);
    if (o.batch_tokens % micro == 0) return o.batch_tokens / micro;
    const int64_t below = o.batch_tokens / micro;
    std::string nearest;
    if (below > 0) nearest = format("--batch-tokens %ld (%ld micro-batches) or ", below * micro, below);
    nearest += format("--batch-tokens %ld (%ld)", (below + 1) * micro, below + 1);
    refuse(
        "--batch-tokens %ld does not divide into micro-batches\n"
        "  --batch %ld x --seq-len %ld x %ld ranks = %ld tokens per micro-batch\n  nearest: %s",
        o.batch_tokens, o.batch, o.seq_len, ranks, micro, nearest.c_str());
}

}  // namespace rz
