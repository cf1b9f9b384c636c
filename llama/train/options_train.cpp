// The table of training's flags (options_train.h).

#include "llama/train/options_train.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "llama/base/clock.h"
#include "llama/base/text.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/presets.h"
#include "llama/train/options_schedule.h"

namespace rz {

constexpr int64_t kBig = int64_t(1) << 48;

static const std::initializer_list<DType> kFloats = {DType::f32, DType::bf16};

static std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const Preset& p : presets()) names.emplace_back(p.name);
    return names;
}

static void add_model(OptionGroup g, TrainOptions& o) {
    g.one_of("--preset", ResumeClass::no, preset_names(), o.preset, "Architecture to start from. --presets lists them.",
             [&o](const std::string& text) { o.preset = text; })
        .basic()
        .placeholder = "NAME";
    g.text("--init-from", ResumeClass::no, o.init_from,
           "Model to start from: a run's folder, a Hugging Face LLaMA, or a repo id in the local cache.")
        .basic();
    g.on_off("--allow-tokenizer-change", ResumeClass::no, o.allow_tokenizer_change,
             "Train on although the data's tokenizer is not that of --init-from.");
    g.on_off("--resize-vocab", ResumeClass::no, o.resize_vocab,
             "Give the model of --init-from or --resume more rows for a larger tokenizer: the mean of its own, with a "
             "little noise.");
    for (const ConfigField& f : config_fields()) {
        const int64_t min = f.min == 2 || f.member == &ModelConfig::kv_heads ? 0 : f.min;
        g.given_whole("--" + std::string(f.name), ResumeClass::no, min, f.max, std::string(f.help) + " [as the preset]",
                      [&o, name = f.name](int64_t value) { o.fields[name] = value; });
    }
    for (const ConfigSwitch& w : config_switches())
        g.on_off("--" + std::string(w.name), ResumeClass::no, o.switches[w.name],
                 (std::string(w.help) + " [as the preset]").c_str());
    g.choice("--head", ResumeClass::no, o.head, "Whether the head shares the embedding's weights. [as the preset]");
    g.real("--rope-theta", ResumeClass::no, o.rope_theta, 0, 1e12, "Base of RoPE. 0: as the preset.");
    g.real("--norm-eps", ResumeClass::no, o.norm_eps, 0, 1, "Epsilon of RMSNorm. 0: as the preset.");
    g.real("--init-std", ResumeClass::no, o.init_std, 0, 10,
           "Standard deviation of the initial weights. 0: as the preset.");
    g.real(
        "--init-scale", ResumeClass::no, o.init_scale, -1, 1e3,
        "Factor of --init-std for the projections that end a branch (o_proj, down_proj); OLMo 2: 1. 0: they begin at "
        "zero. -1: 1 / sqrt(2 layers).");
}

// "1,2"
static std::optional<std::array<int64_t, 2>> parse_skip_blocks(const std::string& text) {
    const std::vector<std::string> numbers = split(text, ',');
    if (numbers.size() != 2) return std::nullopt;
    for (const std::string& number : numbers)
        if (number.size() > 9 || !wrong_whole_number(number, 0, 1 << 20).empty()) return std::nullopt;
    return std::array{int64_t(std::stoll(numbers[0])), int64_t(std::stoll(numbers[1]))};
}

static std::string wrong_loss_scale(const std::string& text) {
    if (text == "dynamic") return "";
    char* end = nullptr;
    const double x = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(x > 0))
        return format("'%s' is neither dynamic nor a power of two", text.c_str());
    const double nearest = std::min(std::exp2(std::max(0.0, std::round(std::log2(x)))), double(kLargestLossScale));
    if (x == nearest) return "";
    return format("%s %s; nearest valid value: %.0f", text.c_str(),
                  x < 1 || x > nearest * 1.5 ? "is out of range" : "is not a power of two", nearest);
}

static std::string wrong_duration(const std::string& text) {
    try {
        parse_duration(text);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

// 4194304, 4M (of 2^20, as batches are counted), 0.5M
static std::optional<int64_t> parse_batch_tokens(const std::string& text) {
    double value = 0;
    const auto [after, bad] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    const std::string unit(after, text.data() + text.size());
    const double tokens_of = unit.empty()  ? 1
                             : unit == "K" ? 1 << 10
                             : unit == "M" ? 1 << 20
                             : unit == "G" ? 1 << 30
                                           : 0;
    const double all = value * tokens_of;
    if (bad != std::errc() || tokens_of == 0 || !(all >= 0 && all <= double(kBig)) || all != std::floor(all))
        return std::nullopt;
    return int64_t(all);
}

// "4M:252M,8M:2870G": batches as --batch-tokens has them, tokens as counts (k, M, B of 1000)
static std::optional<std::vector<TrainOptions::RampStage>> parse_ramp(const std::string& text) {
    std::vector<TrainOptions::RampStage> stages;
    if (text.empty()) return stages;
    for (const std::string& part : split(text, ',')) {
        const size_t colon = part.find(':');
        if (colon == std::string::npos) return std::nullopt;
        const int64_t batch = parse_batch_tokens(part.substr(0, colon)).value_or(0);
        const std::string until = plain_count(part.substr(colon + 1));
        if (batch == 0 || !wrong_whole_number(until, 1, kBig).empty()) return std::nullopt;
        const TrainOptions::RampStage s{batch, std::stoll(until)};
        if (!stages.empty() && (s.until <= stages.back().until || batch % stages.back().batch_tokens != 0))
            return std::nullopt;
        stages.push_back(s);
    }
    return stages;
}

static void add_guards(OptionGroup g, TrainOptions& o) {
    g.checked(
        "--time-limit", ResumeClass::no, "TIME",
        "Time after which the run has saved and stopped (exit code 75): 90m, 3h30m, seconds. [Slurm's end of the job]",
        wrong_duration, [&o](const std::string& text) { o.time_limit = parse_duration(text); });
    g.count("--max-skips", ResumeClass::always, o.max_skips, 0, kBig,
            "Number of non-finite steps in a row, each skipped, that end the run with exit code 72. 0: never.");
    g.real("--spike-z", ResumeClass::always, o.spike_z, 0, 1e6,
           "Deviations above the recent median at which a loss is a spike. 0: no detection.");
    g.choice(
        "--on-spike", ResumeClass::always, o.on_spike,
        "Action on a spike. skip: leave an update out whose loss or norm is six standard deviations above the mean of "
        "the last 128 (each update then waits for its loss; --max-skips does not count it). stop: end with exit code "
        "72 and save nothing after it. rollback: resume from an older checkpoint without the data in between, on "
        "--max-skips too.");
    g.count("--max-rollbacks", ResumeClass::always, o.max_rollbacks, 1, kBig,
            "Number of rollbacks in the whole run before it ends with exit code 72.");
    g.count("--rollback-steps", ResumeClass::always, o.rollback_steps, 1, kBig,
            "Number of steps before the spike that the checkpoint must be (else the oldest one is used).");
    g.count("--rollback-skip", ResumeClass::always, o.rollback_skip, 0, kBig,
            "Number of batches after the spike that are skipped as well.");
    g.count("--check-replicas", ResumeClass::always, o.check_replicas, 0, kBig,
            "Number of steps between comparisons of ranks that must hold the same state. 0: never.");
    g.count(
        "--recheck-every", ResumeClass::always, o.recheck_every, 0, kBig,
        "Number of steps between those computed twice, whose bits must agree; such a step takes twice as long. A rank "
        "whose bits differ is named and ends the run with exit code 73. 0: never.");
    g.count("--check-wire", ResumeClass::always, o.check_wire, 0, kBig,
            "Number of steps between comparisons of the sums of bits that each rank sent and received (before a save "
            "too). Two ranks that differ are named and end the run with exit code 73. 0: never, nothing is summed.");
}

void add_gemm_rows(OptionGroup& g, ResumeClass keeps, GemmTune& tune, std::string& cache) {
    g.choice("--gemm-tune", keeps, tune,
             "Time cuBLASLt's algorithms for each shape and take the fastest: of those with the bits of its first "
             "suggestion (on), or of all (bits-free). A run keeps its choices.");
    g.text("--gemm-cache", keeps, cache, "File of choices for other runs; read even if off.");
}

static void add_data(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup data(rows, "Data", "data", "data");
    data.text("--data", ResumeClass::always, o.data,
              "Folder made by data_prep/prepare.py: train and val shards, tokenizer; or a mix by shares of the tokens: "
              "a:0.7,b:0.3. synthetic, dummy: made on the spot.")
        .basic()
        .is_list = true;
    data.text("--data-command", ResumeClass::no, o.data_command,
              "Command that makes --data, for a recipe: it is named where the data are not here, never run.", "CMD");
    data.text("--data-weights-at", ResumeClass::always, o.data_weights_at,
              "Other shares from a step on: 1000:0.5,0.5;2000:0.2,0.8.", "STEP:SHARES;...");
    data.text("--train-data", ResumeClass::always, o.train_data,
              "Training shards, instead of --data: files or globs, comma-separated.")
        .is_list = true;
    data.text("--val-data", ResumeClass::always, o.val_data, "Validation shards: files or globs, comma-separated.")
        .is_list = true;
    data.text("--tokenizer", ResumeClass::always, o.tokenizer,
              "Tokenizer for samples: a tokenizer.json. [the data folder's]");
    data.on_off("--raw16", ResumeClass::always, o.raw16, "Read shards without a header as uint16 tokens (nanoGPT).");
    data.choice(
        "--data-order", ResumeClass::always, o.data_order,
        "Order of the training samples. sequential: as they lie in the shards; data that prepare.py --stream is "
        "still writing can be trained on in no other.");
    data.whole("--data-wait", ResumeClass::always, o.data_wait, 1, 1 << 30,
               "Number of seconds to wait for the next shard of data that are still being written.");
    data.whole(
        "--data-threads", ResumeClass::layout, o.data_threads, 0, 64,
        "Number of threads that read the next micro-batches of training ahead. 0: each is read when it is needed, "
        "as data are that are still being written.");

    data.choice("--doc-mask", ResumeClass::always, o.doc_boundary,
                "Documents packed into a row do not see each other, and positions restart. bos: a token begins each "
                "(prepare.py); eos: a token ends each.")
        .was("doc-boundary");
    data.whole("--doc-token", ResumeClass::always, o.doc_token, -1, INT32_MAX,
               "Id of that token. -1: the --data folder's.");
}

static void add_batch(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup batch(rows, "Batch and length of the run", "batch", "training");
    constexpr int64_t kMostSequences = 1 << 20;
    batch
        .checked(
            "--batch", ResumeClass::always, "N|auto",
            "Number of sequences per rank and micro-batch. auto: the most whose planned memory fits, for the same "
            "--batch-tokens.",
            [](const std::string& text) { return text == "auto" ? "" : wrong_whole_number(text, 1, kMostSequences); },
            [&o](const std::string& text) { o.batch = std::strtoll(text.c_str(), nullptr, 10); })
        .basic()
        .default_text = std::to_string(o.batch);
    batch.whole("--seq-len", ResumeClass::always, o.seq_len, 1, 1 << 24, "Number of tokens per sequence.").basic();
    batch
        .parsed(
            "--batch-tokens", ResumeClass::always, "N",
            "Number of tokens per update over all ranks, by accumulation: 524288, 512K and 0.5M are the same. 0: one "
            "micro-batch.",
            "is no whole number of tokens from 0 on, such as 524288, 512K or 4M (of 2^20)", parse_batch_tokens,
            [&o](int64_t tokens) { o.batch_tokens = tokens; })
        .basic()
        .kept_as([](const std::string& text) {
            const std::optional<int64_t> tokens = parse_batch_tokens(text);  // 4M is 4194304
            return tokens ? std::to_string(*tokens) : text;
        })
        .default_text = "0";
    batch
        .parsed("--batch-ramp", ResumeClass::always, "BATCH:TOKENS,...",
                "Smaller updates at first, of BATCH tokens until the run has seen TOKENS, then of --batch-tokens: "
                "4M:252M,8M:2870B is Llama 3 405B's before 16M. Each divides the next. A checkpoint is saved where it "
                "grows.",
                "is not BATCH:TOKENS,...: batches of which each divides the next, until numbers of tokens that ascend, "
                "such as 64K:1M,128K:5M",
                parse_ramp, [&o](const auto& stages) { o.batch_ramp = stages; })
        .is_list = true;
    batch.whole("--grad-accum", ResumeClass::no, o.grad_accum, 0, kMostMicroBatches,
                "Number of micro-batches of each rank per update, instead of --batch-tokens. 0: by --batch-tokens.");
    batch.count("--steps", ResumeClass::always, o.steps, 0, kBig, "Number of updates.").basic();
    batch
        .on_off("--auto", ResumeClass::no, o.recipe,
                "Choose batch, steps, learning rate, its schedule and decay by published rules, from the model's "
                "size; what is given stays. Each choice is printed with its source.")
        .basic();
}

static void add_optimizer(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup adam(rows, "Optimizer (decay on matrices only)", "optimizer", "optimizer");
    adam.choice("--optimizer", ResumeClass::always, o.optimizer,
                "Optimizer. muon: of the blocks' matrices, beside AdamW for embedding, head and vectors.")
        .basic();
    adam.real("--lr", ResumeClass::always, o.lr, 0, 1e3,
              "Peak learning rate. With --init-from, unless it is given: 5e-05.")
        .basic();
    adam.choice(
        "--lr-schedule", ResumeClass::always, o.decay,
        "Learning rate after the warm-up. wsd: the peak, then a decay by 1 - sqrt in the last --cooldown steps.");
    adam.real("--min-lr", ResumeClass::always, o.min_lr, -1, 1e3, "Learning rate of the last step. -1: lr / 10.");
    adam.count("--cooldown", ResumeClass::always, o.cooldown, -1, kBig,
               "Number of steps of wsd's decay. -1: a fifth of the run.");
    adam.count("--warmup", ResumeClass::always, o.warmup, -1, kBig,
               "Number of steps of linear warm-up. -1: a tenth of the run, at most 2000.")
        .basic()
        .also("warmup-steps");
    adam.real("--beta1", ResumeClass::always, o.beta1, 0, 0.999999, "Decay of the first moment.").also("adam-beta1");
    adam.real("--beta2", ResumeClass::always, o.beta2, 0, 0.999999, "Decay of the second moment.").also("adam-beta2");
    adam.real("--eps", ResumeClass::always, o.eps, 0, 1, "Epsilon, added to the root of the second moment.")
        .also("adam-epsilon");
    adam.real("--weight-decay", ResumeClass::always, o.weight_decay, 0, 1e3, "Decoupled weight decay.").basic();
    adam.on_off("--decay-embeddings", ResumeClass::always, o.decay_embeddings,
                "Decay the embedding, and with it a tied head (OLMo 2, SmolLM3: off).");
    adam.real("--max-grad-norm", ResumeClass::always, o.clip, 0, 1e9, "Largest global gradient norm. 0: no clipping.")
        .basic()
        .was("clip");
    adam.real("--z-loss", ResumeClass::always, o.z_loss, 0, 1,
              "Factor of the square of the logits' log-sum-exp, which is added to the loss of each target and reported "
              "beside it (OLMo 2: 1e-5). 0: none.");
    adam.real("--ema", ResumeClass::always, o.ema, 0, 0.9999999,
              "Keep an exponential moving average of the weights, which keeps X of itself in an update (0.999): it is "
              "validated beside them, saved, and written to OUT/final_ema. 0: none.");
    adam.whole(
        "--mup-base-width", ResumeClass::always, o.mup.base_width, 0, 1 << 24,
        "--dim of the model whose --lr and --init-std these are: each tensor's initial values and rate follow from it "
        "(muP for Adam, Yang et al. 2022). What is saved is a plain LLaMA. 0: no muP.");
    adam.whole(
        "--mup-base-depth", ResumeClass::always, o.mup.base_depth, 0, 1 << 16,
        "--layers of that model: each branch adds so much less in a deeper one (CompleteP, Dey et al. 2025). 0: no.");
    adam.whole("--mup-base-head-dim", ResumeClass::always, o.mup.base_head_dim, 0, 1 << 16,
               "--head-dim of that model. 0: this model's.");
    adam.real("--muon-lr", ResumeClass::always, o.muon_lr, 0, 1e3,
              "Peak learning rate of Muon's matrices, on --lr's schedule. 0: --lr.");
    adam.real("--muon-momentum", ResumeClass::always, o.muon_momentum, 0, 0.999999, "Decay of Muon's momentum.");
    adam.choice("--muon-scale", ResumeClass::always, o.muon_scale,
                "Factor of a step of Muon for A x B weights: 0.2 sqrt(max(A, B)), sqrt(max(1, A / B)) or sqrt(A / B).");
    adam.whole("--muon-ns-steps", ResumeClass::always, o.muon_ns_steps, 1, 100, "Number of Newton-Schulz steps.");
    adam.choice("--muon-coefficients", ResumeClass::always, o.muon_coefficients,
                "Coefficients of the Newton-Schulz steps. polar-express: other ones in each step (Amsel et al. 2025).");
    adam.real("--muon-beta2", ResumeClass::always, o.muon_beta2, 0, 0.999999,
              "NorMuon (Li et al. 2025): decay of a second moment of each row, by whose root the result's rows are "
              "divided (0.95). 0: none.");
    adam.choice("--muon-dtype", ResumeClass::always, o.muon_dtype,
                "Data type of the Newton-Schulz steps, and of what ranks send each other for them.", kFloats);
    adam.choice("--muon-blocks", ResumeClass::always, o.muon_blocks,
                "What is orthogonalised. tp: each rank's part of a matrix that --tp has cut; the results are others.");
    adam.seed("--seed", ResumeClass::always, o.seed, "Seed of the initial weights, the data order and the samples.")
        .basic();
}

static void add_device(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup device(rows, "Device, precision and memory", "device", "training");
    device.choice("--device", ResumeClass::gpu, o.device, "Device. auto: CUDA where it is usable.").basic();
    device
        .one_of("--dtype", ResumeClass::always, {"auto", "fp32", "bf16", "fp16"}, "auto",
                "Data type. auto: bf16 on a GPU (fp16 before compute capability 8.0), fp32 on the CPU.",
                [&o](const std::string& text) {
                    o.dtype_auto = text == "auto";
                    o.dtype = o.dtype_auto ? DType::f32 : parse_dtype("--dtype", text);
                })
        .basic();
    device.choice("--grad-dtype", ResumeClass::always, o.grad_dtype,
                  "Data type of gradients: what micro-batches are summed in. bf16: with --dtype bf16 only.", kFloats);
    device.choice("--adam-dtype", ResumeClass::always, o.adam_dtype,
                  "Data type of Adam's moments. bf16 rounds stochastically.", kFloats);
    device.choice(
        "--master-dtype", ResumeClass::always, o.master_dtype,
        "Data type of master weights. bf16 (with --dtype bf16): weights are their own masters, stochastically rounded.",
        kFloats);
    device.choice(
        "--fp8", ResumeClass::always, o.fp8.recipe,
        "Products of the blocks' linear layers in fp8 (with --dtype bf16). tensor: one scale for each operand; block: "
        "one for each 128 numbers; mx: one for each 32, from compute capability 10.0 on.");
    device.on_off("--fp8-gather", ResumeClass::always, o.fp8_gather,
                  "Gather the weights of layers in fp8 as fp8 (with --zero 3): half the bytes, the same bits.");
    device.on_off("--fp8-keep-weights", ResumeClass::always, o.fp8.keep_weights,
                  "Keep the weights of layers in fp8 as fp8 too, as they lie and transposed (with --zero 0 to 2): "
                  "2 bytes a weight, quantised once a step, not in every pass; the same bits.");
    device
        .parsed("--fp8-skip-blocks", ResumeClass::always, "FIRST,LAST",
                "Number of blocks at the beginning and at the end whose layers stay in bf16. [0,0]",
                "is not FIRST,LAST: two numbers, such as 1,1", parse_skip_blocks,
                [&o](const auto& blocks) { o.fp8.skip_first = blocks[0], o.fp8.skip_last = blocks[1]; })
        .is_list = true;
    device.checked("--loss-scale", ResumeClass::always, "dynamic|POWER_OF_TWO",
                   "Factor of the loss before the backward pass, divided out again before the clip. dynamic: begins at "
                   "65536, halves when the gradient overflows and doubles while it does not. [dynamic with fp16]",
                   wrong_loss_scale, [&o](const std::string& text) { o.loss_scale = text; });
    device.whole("--loss-scale-window", ResumeClass::always, o.loss_scale_window, 1, INT32_MAX,
                 "Number of updates without overflow after which a dynamic loss scale doubles.");
    device.whole("--loss-scale-hysteresis", ResumeClass::always, o.loss_scale_hysteresis, 1, INT32_MAX,
                 "Number of overflows, since it last doubled, from which on a dynamic loss scale halves.");
    device.on_off(
        "--cuda-graphs", ResumeClass::gpu, o.cuda_graphs,
        "Replay each micro-batch as one CUDA graph or, where ranks communicate, what lies between in a block's pass.");
    device
        .choice(
            "--recompute", ResumeClass::always, o.recompute,
            "Activations that the backward pass computes again instead of storing them. norms: what a branch reads; "
            "attention: q, k, v and its output; mlp: gate and up, these three also as a list, such as norms,mlp; "
            "block: all but the residual stream.")
        .basic()
        .placeholder = "none|norms|attention|mlp|block";
    device.choice(
        "--offload-optimizer", ResumeClass::gpu, o.offload_optimizer,
        "Keep master weights and Adam's moments in pinned memory of the host. stream: they come to the GPU in "
        "tiles; zero-copy: its kernel works on them there; cpu: the host updates them.");
    device.on_off("--offload-params", ResumeClass::gpu, o.offload_params,
                  "Keep this rank's parameters in pinned memory of the host (with --zero 3, on one rank too); units "
                  "come as they are gathered.");
    device.on_off("--offload-grads", ResumeClass::gpu, o.offload_grads,
                  "Keep this rank's gradients in pinned memory of the host (with --zero 2 or 3).");
    device.on_off("--offload-activations", ResumeClass::gpu, o.offload_activations,
                  "Keep what blocks keep for the backward pass in pinned memory of the host (with --recompute block).");
    device.whole("--logits-mib", ResumeClass::always, o.logits_mib, 0, 1 << 20,
                 "Largest chunk of logits, in MiB. 0: 1024 on CUDA, 32 on a CPU.");
    device.whole("--threads", ResumeClass::layout, o.threads, 0, 1 << 16,
                 "Number of CPU threads. 0: OMP_NUM_THREADS, or the cores divided among the ranks of this host.");
    add_gemm_rows(device, ResumeClass::gpu, o.gemm_tune, o.gemm_cache);
}

static std::optional<std::vector<int64_t>> parse_cut(const std::string& text) {
    std::vector<int64_t> blocks;
    if (text.empty()) return blocks;
    for (const std::string& number : split(text, ',')) {
        if (!wrong_whole_number(number, 1, kBig).empty()) return std::nullopt;
        blocks.push_back(std::stoll(number));
    }
    return blocks;
}

// How long, and the number of stages of "window:K".
static std::optional<std::pair<GatherFor, int64_t>> parse_gather(const std::string& text) {
    constexpr std::string_view kWindow = "window:";
    if (text == "op") return std::pair(GatherFor::op, 0);
    if (text == "step") return std::pair(GatherFor::step, 0);
    if (!text.starts_with(kWindow) || !wrong_whole_number(text.substr(kWindow.size()), 1, 1 << 20).empty())
        return std::nullopt;
    return std::pair(GatherFor::window, std::stoll(text.substr(kWindow.size())));
}

// "dp,tp,cp,pp": nothing if each of the four does not stand in it once.
static std::optional<std::array<Axis, 4>> parse_axis_order(const std::string& text) {
    const std::vector<std::string> names = split(text, ',');
    std::array<Axis, 4> order = GridOptions{}.order;
    const auto place = [&](Axis a) { return std::find(names.begin(), names.end(), name_of(a)); };
    if (names.size() != order.size() ||
        std::any_of(order.begin(), order.end(), [&](Axis a) { return place(a) == names.end(); }))
        return std::nullopt;
    std::sort(order.begin(), order.end(), [&](Axis a, Axis b) { return place(a) < place(b); });
    return order;
}

static void add_pipeline(OptionGroup& ranks, TrainOptions& o) {
    ranks
        .whole("--pp", ResumeClass::layout, o.pp, 1, 1 << 10,
               "Number of ranks of the pipeline, which hold the model's stages.")
        .basic();
    ranks.whole(
        "--pp-threads", ResumeClass::no, o.pp_threads, 0, 64,
        "As --pp with the --ranks that it takes: their number times --tp times --cp. 0: --pp's, however started.");
    add_schedule_row(
        ranks, ResumeClass::layout, o.pp_schedule,
        "gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe, dualpipev, or a file of PyTorch's text. [zb-v or 1f1b]");
    ranks.whole("--pp-stages-per-rank", ResumeClass::layout, o.pp_stages_per_rank, 0, 64,
                "Number of stages on each rank (interleaved). 0: 2.");
    ranks
        .parsed("--pp-layers", ResumeClass::layout, "N,N,...",
                "Number of blocks of each stage, such as 3,3,4,2. [balanced by FLOPs]",
                "must be the number of blocks of each stage, at least 1, separated by commas", parse_cut,
                [&o](const auto& blocks) { o.pp_cut = blocks; })
        .was("pp-cut")
        .is_list = true;
    ranks
        .parsed("--pp-gather", ResumeClass::layout, "step|window:K|op",
                "How long ZeRO-3 keeps gathered parameters: the step, K stages, or one use.",
                "must be step, op or window:K with K at least 1; nearest: window:3", parse_gather,
                [&o](const auto& gather) {
                    o.pp_gather = gather.first;
                    if (gather.first == GatherFor::window) o.pp_gather_window = gather.second;
                })
        .default_text = "op";
    ranks.whole("--pp-window", ResumeClass::layout, o.pp_window, 0, 1 << 20,
                "Largest number of micro-batches in flight; 0: as many as the schedule has.");
    ranks.whole(
        "--pp-tasks", ResumeClass::no, o.pp_tasks, 0, 1 << 20,
        "Number of steps whose tasks go to OUT/pipeline_tasks.RANK.jsonl: when each was ready, began and ended.");
}

static void add_ranks(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup ranks(rows, "Many ranks (--ranks N, or mpirun -n N)", "ranks", "distributed");
    ranks
        .whole("--ranks", ResumeClass::no, o.ranks, 0, 1 << 10,
               "Number of ranks that this process starts on this machine, on a GPU each or on its share of the cores. "
               "0: all have been started, by mpirun, torchrun or srun, or it is one.")
        .basic();
    ranks
        .whole("--zero", ResumeClass::always, o.zero, 0, 3,
               "ZeRO stage. Ranks shard: 1 the optimizer, 2 gradients too, 3 parameters too.")
        .basic();
    ranks.whole("--shard-size", ResumeClass::layout, o.shard_size, 0, 1 << 20,
                "Number of ranks that share one copy (hybrid sharding). 0: all.");
    ranks.whole("--prefetch", ResumeClass::always, o.prefetch, 0, 1 << 10,
                "Number of units that ZeRO-3 gathers ahead of use.");
    ranks.whole("--bucket-mib", ResumeClass::layout, o.bucket_mib, 0, 1 << 20,
                "Gradients of several blocks that one collective reduces, at most. 0: each block by itself, as soon as "
                "its backward pass has ended, which is between two attention kernels. A block is never cut: "
                "--ring-chunk cuts messages.");
    ranks.on_off("--overlap", ResumeClass::always, o.overlap, "Compute while collectives run. off: wait for each.");
    ranks.on_off("--accumulate-locally", ResumeClass::always, o.accumulate_locally,
                 "Reduce after the last micro-batch only (ZeRO-2 and 3), and keep whole gradients until then, with the "
                 "bits of --zero 1. off: at every weight gradient. [off; on where ranks of a pipeline hold the same "
                 "parameters, or no other rank shares]");
    ranks
        .whole("--tp", ResumeClass::layout, o.tp, 1, 1 << 10,
               "Number of ranks that share each tensor and the rows of the residual stream (tensor and sequence "
               "parallelism).")
        .basic();
    ranks
        .parsed("--axis-order", ResumeClass::layout, "LIST",
                "Order of the axes, neighbouring ranks first. [tp,cp,dp,pp]",
                "must name tp, cp, dp and pp once; nearest: tp,cp,dp,pp", parse_axis_order,
                [&o](const auto& order) { o.axis_order = order; })
        .is_list = true;
    ranks.on_off("--tp-overlap", ResumeClass::layout, o.tp_overlap,
                 "Compute products beside the collectives of --tp, by the rows of each rank.");
    ranks.choice("--tp-wire", ResumeClass::layout, o.tp_wire,
                 "Data type of partial sums between the ranks of --tp. [--dtype]", kFloats);
    ranks.whole("--cp", ResumeClass::layout, o.cp, 1, 1 << 10,
                "Number of ranks that share each sequence (context parallelism). Its length is a multiple of 2 x cp.");
    ranks.choice(
        "--cp-exchange", ResumeClass::layout, o.cp_exchange,
        "How keys and values reach the ranks of --cp. gather: all before attention, with one rank's bits. ring: "
        "from rank to rank during attention.");
    add_pipeline(ranks, o);
    ranks.checked(
        "--collectives", ResumeClass::always, "[tp=|data=]ring|direct|library|hier|symmetric|hier-symmetric",
        "Algorithm of the collectives; without an axis, data's. hier: two levels, inside the nodes and across them; on "
        "one node ring or direct, by bytes. "
        "symmetric: ranks of one host load from each other's memory (GPUs by NCCL's windows, or through pinned memory "
        "of the host where they have no P2P), with direct's bits. "
        "hier-symmetric: so inside the nodes, and messages across them, with hier's bits. "
        "library: NCCL's or MPI's own. [data=hier, on one node without GPUs ring; tp=direct]",
        [](const std::string& text) { return wrong_axis_algorithms(text); },
        [&o](const std::string& text) { o.collectives = parse_axis_algorithms(text); });
    ranks.whole("--ranks-per-node", ResumeClass::layout, o.ranks_per_node, 0, 1 << 20,
                "Number of neighbouring ranks that count as one node for hier. 0: those that share a host's memory.");
    ranks.choice(
        "--transport", ResumeClass::gpu, o.transport,
        "Transport that carries the bytes. auto: NCCL between GPUs, else MPI, or TCP where it did not start the "
        "ranks.",
        {TransportKind::automatic, TransportKind::mpi, TransportKind::tcp, TransportKind::nccl});
    ranks.whole(
        "--comm-sms", ResumeClass::gpu, o.comm_sms, 0, 1 << 10,
        "Multiprocessors that kernels whose blocks stay to the end (Hopper's attention, RMSNorm's backward) leave to "
        "communication; NCCL takes at most as many. The last bits of the norms' gradients depend on it. 0: none.");
    ranks.choice("--wire-dtype", ResumeClass::always, o.wire_dtype,
                 "Data type of gradients between ranks. [--dtype, or fp32 with fp16]", kFloats);
    ranks.whole("--ring-chunk", ResumeClass::layout, o.ring_chunk_kib, 0, 1 << 20,
                "Size of what one hop carries, in KiB. 0: what suits the transport.");
    ranks.real("--timeout", ResumeClass::always, o.timeout, 1, 1e6,
               "Seconds that a rank waits for another before the job ends.");
    ranks.real("--disk-timeout", ResumeClass::always, o.disk_timeout, 1, 1e6,
               "The same while ranks read and write checkpoints and final weights, if it is more; not for a process of "
               "the same host that is stopped.");
}

static void add_validation(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup val(rows, "Validation and samples", "validation", "validation");
    val.count("--val-every", ResumeClass::always, o.val_every, 0, kBig,
              "Number of steps between validations. 0: only at the end.")
        .basic();
    val.count("--val-tokens", ResumeClass::always, o.val_tokens, 1, kBig, "Number of tokens in each validation.");
    val.real("--stop-at-val-loss", ResumeClass::always, o.stop_at_val_loss, 0, 1e6,
             "Validation loss at or below which training ends as if it were the last step: time to a loss. 0: never.");
    val.count("--sample-every", ResumeClass::always, o.sample_every, 0, kBig,
              "Number of validations between printed samples. 0: none.");
    val.whole("--sample-tokens", ResumeClass::always, o.sample_tokens, 1, 1 << 20, "Number of tokens in a sample.");
    val.text("--prompt", ResumeClass::always, o.prompt, "Text that samples begin with.", "TEXT");
    val.count("--eval-every", ResumeClass::always, o.eval_every, 0, kBig,
              "Number of steps between evaluations on --eval-tasks. 0: none.");
    val.text("--eval-tasks", ResumeClass::always, o.eval_tasks,
             "Tasks, as for train_llama eval; windows are --seq-len long.", "LIST")
        .is_list = true;
    val.text("--eval-data", ResumeClass::always, o.eval_data,
             "Folder of the tasks, made by data_prep/prepare.py eval.");
    val.count("--eval-limit", ResumeClass::always, o.eval_limit, 0, kBig, "Number of examples of each task. 0: all.");
}

static void add_output(std::vector<OptionRow>& rows, TrainOptions& o) {
    OptionGroup out(rows, "Output", "output", "output");
    out.text("--out", ResumeClass::no, o.out,
             "Folder for numbers, checkpoints and final weights. Empty: none. [runs/DATE-TIME]")
        .basic()
        .also("output-dir");
    out.on_off("--overwrite", ResumeClass::no, o.overwrite,
               "Start in a folder that holds an earlier run, and move that run into OUT/before-TIME.")
        .basic();
    out.count("--log-every", ResumeClass::always, o.log_every, 1, kBig, "Number of steps between printed lines.")
        .basic()
        .also("logging-steps");
    out.on_off("--quiet", ResumeClass::no, o.quiet,
               "Print nothing but what is wrong with a step; log.txt and metrics.jsonl have everything.");
    out.count(
        "--stats-every", ResumeClass::always, o.stats_every, 0, kBig,
        "Number of steps between lines of stats.jsonl: norms of each tensor, its gradient and its update; residual "
        "stream and largest logit of each block. The last 20 steps are written when one goes wrong. 0: none.");
    out.text("--wandb", ResumeClass::always, o.wandb,
             "Project of Weights & Biases: OUT/wandb/ gets a run that `wandb sync` uploads.", "PROJECT")
        .basic();
    out.text("--wandb-name", ResumeClass::always, o.wandb_name, "Name of the run there. [the model's summary]", "NAME");
    out.text("--mllog", ResumeClass::no, o.mllog,
             "New file for MLPerf Training's log of a run to --stop-at-val-loss. Empty: none.", "FILE");
    out.whole("--trace-steps", ResumeClass::no, o.trace_steps, 0, 1000,
              "Number of steps, from the third on, to draw as a timeline in trace.json (for ui.perfetto.dev), with "
              "memory by kind; memory.svg has every allocation in them with its name.");
    out.real("--peak-tflops", ResumeClass::layout, o.peak_tflops, 0, 1e6,
             "Dense peak of a device in TFLOP/s, which MFU is measured against. 0: as llama/configs/machines has it.");
    out.on_off("--print-config", ResumeClass::no, o.print_config,
               "Show the model, its tensors and its memory, and stop.")
        .basic();
    out.on_off("--presets", ResumeClass::no, o.presets, "List the presets and stop.").basic();
}

static void add_checkpoints(OptionGroup keep, TrainOptions& o) {
    keep.checked(
            "--resume", ResumeClass::no, "auto|N|PATH|never",
            "Checkpoint to resume from. auto: the newest in --out, if any; N: of step N; never: none; or its folder.",
            nullptr, [&o](const std::string& text) { o.resume = parse_resume(text); })
        .basic();
    keep.count("--save-every", ResumeClass::always, o.save_every, 0, kBig,
               "Number of steps between checkpoints; one more at the end. 0: none.")
        .basic()
        .also("save-steps");
    keep.whole(
        "--max-restarts", ResumeClass::no, o.max_restarts, 0, 1 << 20,
        "Number of times that ranks of --ranks start again after one was killed, failed (70) or hung (71). Those "
        "that live keep their process, on CPUs and over NCCL. "
        "They resume from the newest snapshot (--snapshot-every) or checkpoint.");
    keep.count("--snapshot-every", ResumeClass::no, o.snapshot_every, 0, kBig,
               "Number of steps between snapshots of the state in the host's memory (/dev/shm), for ranks that start "
               "again (--max-restarts, dev/run/supervise.sh; on several hosts dev/run/keep.sh, with a copy on the next "
               "host). 0: none.");
    keep.whole("--keep", ResumeClass::always, o.keep, 0, 1 << 20,
               "Number of newest checkpoints that stay, at least 2. 0: all.")
        .wrong = [](const std::string& text) {
        return text == "1" ? "1 would leave none while the next is written; nearest valid value: 2"
                           : wrong_whole_number(text, 0, 1 << 20);
    };
    keep.count("--keep-every", ResumeClass::always, o.keep_every, 0, kBig,
               "Step whose multiples keep their checkpoints for good. 0: none.");
    keep.whole("--max-shard-mib", ResumeClass::always, o.shard_above_mib, 0, kBig >> 20,
               "Size in MiB above which a file of a checkpoint or of the final weights becomes one for each block, the "
               "weights' with an index that transformers reads. 0: always one file.")
        .was("shard-above");
    keep.on_off("--background-save", ResumeClass::always, o.background_save,
                "Save while training continues. off: training waits for each save, which then needs no memory for a "
                "copy of the state.");
    keep.text("--after-save", ResumeClass::no, o.after_save,
              "Shell command for each checkpoint, in the background on rank 0, with its folder in RINGZERO_CHECKPOINT. "
              "It is tried again until it succeeds, by later starts too; up to 8 checkpoints wait for it.",
              "CMD")
        .runs_commands = true;
    keep.text(
            "--before-resume", ResumeClass::no, o.before_resume,
            "Shell command before --resume looks for checkpoints, on rank 0, with their folder in RINGZERO_CHECKPOINT. "
            "If it fails, the run resumes from what is there.",
            "CMD")
        .runs_commands = true;
    keep.on_off("--allow-commands", ResumeClass::no, o.allow_commands,
                "Run the --after-save and --before-resume of a --config file, which others may have written.")
        .runs_commands = true;
    keep.on_off("--allow-data-change", ResumeClass::no, o.allow_data_change,
                "Resume although the data are not those of the checkpoint.");
    keep.on_off("--lr-continue", ResumeClass::no, o.lr_continue,
                "Resume with another schedule from the last learning rate on, down to --min-lr.");
    keep.count("--rewarm", ResumeClass::no, o.rewarm, 0, kBig,
               "Number of steps in which a resumed run's learning rate rises from the last one to --lr. 0: none.");
    keep.on_off("--allow-lr-jump", ResumeClass::no, o.allow_lr_jump,
                "Resume with another schedule although its learning rate is not near the last one.");
    keep.count("--branch", ResumeClass::no, o.branch, -1, kBig,
               "Step of the run --resume RUN at which a decay to --min-lr begins, in a new --out. -1: none.");
}

CommandTable command_table(TrainOptions& o) {
    CommandTable table{"",
                       "Trains a LLaMA, in raw CUDA C++ or on the CPU. Example:\n"
                       "  train_llama --preset bytes --data data/stdlib --steps 300 --out runs/first\n"
                       "  mpirun -n 4 train_llama --preset tiny --data data/tinystories\n",
                       {}};
    std::vector<OptionRow>& rows = table.rows;
    add_model({rows, "Model", "model", "model"}, o);
    add_data(rows, o);
    add_batch(rows, o);
    add_optimizer(rows, o);
    add_device(rows, o);
    add_ranks(rows, o);
    add_validation(rows, o);
    add_guards({rows, "Stopping and guards", "guards", "output"}, o);
    add_output(rows, o);
    add_checkpoints({rows, "Checkpoints (in --out)", "checkpoints", "output"}, o);
    return table;
}

}  // namespace rz
