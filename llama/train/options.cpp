#include "llama/train/options.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "llama/model/hf.h"
#include "llama/model/presets.h"
#include "llama/train/stop.h"

namespace rz {

// ---- strict values: each error says what was found and the nearest valid value --------------------------------------

static CLI::Validator whole_number(int64_t min, int64_t max) {
    CLI::Validator v;
    v.description("");
    v.operation([min, max](std::string& text) -> std::string {
        errno = 0;
        char* end = nullptr;
        const long double real = std::strtold(text.c_str(), &end);
        const std::string rest = end;
        const bool digits = !text.empty() && text.find_first_not_of("0123456789", text[0] == '-') == std::string::npos;
        if (digits && real >= (long double)min && real <= (long double)max) return "";
        if (end == text.c_str() || std::isnan(real))
            return format("'%s' is not a whole number; it must be from %lld to %lld", text.c_str(), (long long)min,
                          (long long)max);
        const long double nearest = std::min(std::max(std::floor(real + 0.5L), (long double)min), (long double)max);
        const char* what = !rest.empty() ? "is not a whole number"
                           : digits      ? "is out of range"
                                         : "is not a plain whole number";
        return format("%s %s; nearest valid value: %lld", text.c_str(), what, (long long)nearest);
    });
    return v;
}

static CLI::Validator real_number(double min, double max) {
    CLI::Validator v;
    v.description("");
    v.operation([min, max](std::string& text) -> std::string {
        char* end = nullptr;
        const double real = std::strtod(text.c_str(), &end);
        if (end == text.c_str() || std::isnan(real))
            return format("'%s' is not a number; it must be from %g to %g", text.c_str(), min, max);
        if (*end == '\0' && real >= min && real <= max) return "";
        return format("%s %s; nearest valid value: %g", text.c_str(), *end ? "is not a number" : "is out of range",
                      std::min(std::max(real, min), max));
    });
    return v;
}

static std::string joined(const std::vector<std::string>& names) {
    std::string all;
    for (const auto& n : names) all += (all.empty() ? "" : "|") + n;
    return all;
}

static CLI::Validator one_of(std::vector<std::string> names) {
    CLI::Validator v;
    const std::string all = joined(names);
    v.description("");
    v.operation([names, all](std::string& text) -> std::string {
        for (const auto& n : names)
            if (n == text) return "";
        return format("'%s' is not one of %s; nearest: %s", text.c_str(), all.c_str(),
                      nearest_name(text, names).c_str());
    });
    return v;
}

// ---- the table ------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kBig = int64_t(1) << 48;

// Adds options to one group of the help.
struct Group {
    CLI::App& app;
    std::string name;

    CLI::Option* text(const char* flag, std::string& to, const char* help) {
        return app.add_option(flag, to, help)->group(name)->capture_default_str()->type_name("PATH");
    }
    CLI::Option* whole(const char* flag, int64_t& to, int64_t min, int64_t max, const char* help) {
        return app.add_option(flag, to, help)
            ->group(name)
            ->capture_default_str()
            ->type_name("N")
            ->check(whole_number(min, max));
    }
    CLI::Option* real(const char* flag, double& to, double min, double max, const char* help) {
        return app.add_option(flag, to, help)
            ->group(name)
            ->capture_default_str()
            ->type_name("X")
            ->check(real_number(min, max));
    }
    CLI::Option* choice(const char* flag, std::string& to, const std::vector<std::string>& names, const char* help) {
        return app.add_option(flag, to, help)
            ->group(name)
            ->capture_default_str()
            ->type_name(joined(names))
            ->check(one_of(names));
    }
    CLI::Option* flag(const char* flag, bool& to, const char* help) {
        return app.add_flag(flag, to, help)->group(name);
    }
};

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const Preset& p : presets()) names.emplace_back(p.name);
    return names;
}

void add_model(Group g, Options& o) {
    g.choice("--preset", o.preset, preset_names(), "Architecture to start from; --presets lists them")
        ->type_name("NAME");
    g.text("--init-from", o.init_from, "Start from a Hugging Face LLaMA: folder, or repo id in the local cache");
    for (const ConfigField& f : config_fields()) {
        const std::string name = f.name;
        g.app
            .add_option_function<int64_t>(
                "--" + name, [&o, name](const int64_t& v) { o.fields[name] = v; },
                std::string(f.help) + " [as the preset]")
            ->group(g.name)
            ->type_name("N")
            ->check(whole_number(f.min == 2 || name == "kv-heads" ? 0 : f.min, f.max));
    }
    g.choice("--head", o.head, {"tied", "untied"}, "Share the head's weights with the embedding [as the preset]");
    g.real("--rope-theta", o.rope_theta, 0, 1e12, "RoPE base; 0: as the preset");
    g.real("--norm-eps", o.norm_eps, 0, 1, "RMSNorm epsilon; 0: as the preset");
    g.real("--init-std", o.init_std, 0, 10, "Deviation of initial weights; 0: as the preset");
}

CLI::Validator length_of_time() {
    CLI::Validator v;
    v.description("");
    v.operation([](std::string& text) -> std::string {
        try {
            parse_duration(text);
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    });
    return v;
}

void add_guards(Group g, Options& o) {
    g.text("--time-limit", o.time_limit,
           "Save and stop (exit code 75) before this time is over: 90m, 3h30m, seconds [Slurm's end of the job]")
        ->type_name("TIME")
        ->check(length_of_time());
    g.whole("--max-skips", o.max_skips, 0, kBig,
            "Non-finite steps in a row, each skipped, until the run ends with exit code 72; 0: never");
    g.real("--spike-z", o.spike_z, 0, 1e6,
           "Deviations from the recent median that make a spike of loss or norm; 0: don't look");
    g.choice(
        "--on-spike", o.on_spike, {"warn", "stop", "rollback"},
        "stop: end with exit code 72, nothing saved after the spike; rollback: also for --max-skips, go on from an "
        "older checkpoint without the data in between");
    g.whole("--max-rollbacks", o.max_rollbacks, 1, kBig, "Rollbacks of the whole run, then it ends with exit code 72");
    g.whole("--rollback-steps", o.rollback_steps, 1, kBig,
            "To the newest checkpoint so many steps before the spike, or the oldest there is");
    g.whole("--rollback-skip", o.rollback_skip, 0, kBig, "Batches beyond that of the spike that are left out as well");
    g.whole("--check-replicas", o.check_replicas, 0, kBig,
            "Steps between comparisons of the state over ranks that hold the same; 0: never");
}

void add_gemm(Group g, Options& o) {
    g.choice("--gemm-tune", o.gemm_tune, {"off", "on"},
             "Time cuBLASLt's algorithms at each new shape, keep the fastest");
    g.text("--gemm-cache", o.gemm_cache,
           "File of tuned choices, read even if off [~/.cache/ringzero/gemm_tuning.txt if on]; all ranks must see it");
}

void add_data_and_batch(CLI::App& app, Options& o) {
    Group data{app, "Data"};
    data.text("--data", o.data, "Folder made by data_prep/prepare.py (train and val shards, tokenizer)");
    data.text("--train-data", o.train_data, "Token shards instead: files or globs, comma-separated");
    data.text("--val-data", o.val_data, "Validation shards");
    data.text("--tokenizer", o.tokenizer, "tokenizer.json for samples [the data folder's]");
    data.flag("--raw16", o.raw16, "Shards without a header are uint16 tokens (nanoGPT)");

    Group batch{app, "Batch and length of the run"};
    batch.whole("--batch", o.batch, 1, 1 << 20, "Sequences per rank and micro-batch");
    batch.whole("--seq-len", o.seq_len, 1, 1 << 24, "Tokens per sequence");
    batch.whole("--batch-tokens", o.batch_tokens, 0, kBig,
                "Tokens per update over all ranks, by accumulation; 0: one micro-batch");
    batch.whole("--steps", o.steps, 0, kBig, "Updates");
}

void add_optimizer(CLI::App& app, Options& o) {
    Group adam{app, "Optimizer (AdamW; decay on matrices only)"};
    adam.real("--lr", o.lr, 0, 1e3, "Peak learning rate");
    adam.choice("--lr-schedule", o.lr_schedule, {"cosine", "linear", "constant", "wsd"},
                "After the warm-up; wsd: the peak, and a decay by 1 - sqrt in the last --cooldown steps");
    adam.real("--min-lr", o.min_lr, -1, 1e3, "Floor, which the last step has; -1: lr / 10");
    adam.whole("--cooldown", o.cooldown, -1, kBig, "Steps of wsd's decay; -1: a fifth of the run");
    adam.whole("--warmup", o.warmup, -1, kBig, "Steps of linear warm-up; -1: a tenth of the run, at most 2000");
    adam.real("--beta1", o.beta1, 0, 0.999999, "First moment's decay");
    adam.real("--beta2", o.beta2, 0, 0.999999, "Second moment's decay");
    adam.real("--eps", o.eps, 0, 1, "Added to the root of the second moment");
    adam.real("--weight-decay", o.weight_decay, 0, 1e3, "Decoupled weight decay");
    adam.real("--clip", o.clip, 0, 1e9, "Largest global gradient norm; 0: no clipping");
    app.add_option("--seed", o.seed, "Of weights, data order and samples")
        ->group(adam.name)
        ->capture_default_str()
        ->type_name("N")
        ->check(whole_number(0, INT64_MAX));
}

void add_device(CLI::App& app, Options& o) {
    Group device{app, "Device, precision and memory"};
    device.choice("--device", o.device, {"auto", "cuda", "cpu"}, "auto: CUDA where it is usable");
    device.choice("--dtype", o.dtype, {"fp32", "bf16"}, "Of weights and activations");
    device.choice("--grad-dtype", o.grad_dtype, {"fp32", "bf16"}, "Of gradients [--dtype]");
    device.choice("--adam-dtype", o.adam_dtype, {"fp32", "bf16"}, "Of Adam's moments; bf16 rounds stochastically");
    device.choice(
        "--master-dtype", o.master_dtype, {"fp32", "bf16"},
        "Of master weights; bf16 needs --dtype bf16: the weights are their own masters, rounded stochastically");
    device.choice(
        "--cuda-graphs", o.cuda_graphs, {"off", "on"},
        "Replay each micro-batch as one CUDA graph, or, where ranks communicate in it, as one per block and pass");
    device.choice("--recompute", o.recompute, {"none", "mlp", "block"},
                  "Activations computed again in the backward pass");
    device.whole("--logits-mib", o.logits_mib, 0, 1 << 20,
                 "Largest chunk of logits, MiB; 0: 1024 on CUDA, 32 on a CPU");
    device.whole("--threads", o.threads, 0, 1 << 16, "CPU threads; 0: what OpenMP chooses");
    add_gemm(device, o);
}

void add_ranks(CLI::App& app, Options& o) {
    Group ranks{app, "Many ranks (mpirun -n N)"};
    ranks.whole("--zero", o.zero, 0, 3, "What ranks share: 1 optimizer, 2 and gradients, 3 and parameters");
    ranks.whole("--shard-size", o.shard_size, 0, 1 << 20, "Ranks that share one copy (hybrid sharding); 0: all");
    ranks.whole("--prefetch", o.prefetch, 0, 1 << 10, "ZeRO-3: units gathered ahead of use");
    ranks.flag("--no-overlap", o.no_overlap, "Wait for each collective instead of computing meanwhile");
    ranks.flag("--accumulate-locally", o.accumulate_locally,
               "ZeRO-2 and 3: reduce after the last micro-batch only; keeps whole gradients");
    ranks.choice("--collectives", o.collectives, {"ring", "direct", "library"},
                 "Algorithm; library is NCCL's or MPI's own");
    ranks.choice("--transport", o.transport, {"auto", "mpi", "nccl"},
                 "What carries bytes; auto: NCCL between GPUs, else MPI");
    ranks.choice("--wire-dtype", o.wire_dtype, {"fp32", "bf16"}, "Of gradients between ranks [--grad-dtype]");
    ranks.whole("--ring-chunk", o.ring_chunk_kib, 0, 1 << 20, "KiB that one hop carries; 0: what suits the transport");
    ranks.real("--timeout", o.timeout, 1, 1e6, "Seconds that a rank may wait for another before the job ends");
}

void add_validation(CLI::App& app, Options& o) {
    Group val{app, "Validation and samples"};
    val.whole("--val-every", o.val_every, 0, kBig, "Steps between validations; 0: only at the end");
    val.whole("--val-tokens", o.val_tokens, 1, kBig, "Tokens of each validation");
    val.whole("--sample-every", o.sample_every, 0, kBig, "Validations between printed samples; 0: none");
    val.whole("--sample-tokens", o.sample_tokens, 1, 1 << 20, "Tokens of a sample");
    val.text("--prompt", o.prompt, "What samples begin with")->type_name("TEXT");
}

void add_output(CLI::App& app, Options& o) {
    Group out{app, "Output"};
    out.text("--out", o.out,
             "Folder for metrics.jsonl, the loss curve, checkpoints and the final weights; empty: none");
    out.flag("--overwrite", o.overwrite,
             "Begin in a folder that holds an earlier run, which is moved into OUT/before-TIME");
    out.whole("--log-every", o.log_every, 1, kBig, "Steps between printed lines");
    out.whole("--trace-steps", o.trace_steps, 0, 1000,
              "Steps, from the third on, whose timeline is drawn in trace.json (for ui.perfetto.dev)");
    out.flag("--print-config", o.print_config, "Show the model, its tensors and memory, and stop");
    out.flag("--presets", o.presets, "List the presets and stop");

    Group keep{app, "Checkpoints (in --out)"};
    keep.text(
            "--resume", o.resume,
            "auto: go on from the newest good checkpoint in --out, or begin; N: from step N; or a checkpoint's folder")
        ->type_name("auto|N|PATH");
    keep.whole("--save-every", o.save_every, 0, kBig, "Steps between checkpoints, and one at the end; 0: none");
    keep.whole("--keep", o.keep, 0, 1 << 20, "Newest checkpoints that stay, at least 2; 0: all")
        ->check(CLI::Validator(
            [](std::string& text) {
                return text == "1" ? std::string("1 would leave none while the next is written; nearest valid value: 2")
                                   : "";
            },
            ""));
    keep.whole("--keep-every", o.keep_every, 0, kBig,
               "Of older ones, those at multiples of this step stay too; 0: none");
    keep.flag("--no-background-save", o.no_background_save,
              "Training waits for each save, which then needs no memory for a copy of the state");
    keep.flag("--allow-data-change", o.allow_data_change, "Resume although the data are not those of the checkpoint");
}

void add_training(CLI::App& app, Options& o) {
    add_model({app, "Model"}, o);
    add_data_and_batch(app, o);
    add_optimizer(app, o);
    add_device(app, o);
    add_ranks(app, o);
    add_validation(app, o);
    add_guards({app, "Stopping and guards"}, o);
    add_output(app, o);
}

void add_generate(CLI::App& app, Options& o) {
    Group g{app, "Generation"};
    g.text("--from", o.from, "A run's folder, a checkpoint, or any Hugging Face LLaMA")->required();
    g.text("--prompt", o.prompt, "Text to continue")->type_name("TEXT");
    g.whole("--max-tokens", o.max_tokens, 1, 1 << 24, "Longest continuation");
    g.real("--temperature", o.temperature, 0, 100, "0: always the likeliest token");
    g.whole("--top-k", o.top_k, 0, 1 << 30, "Only the k likeliest; 0: all");
    g.real("--top-p", o.top_p, 0, 1, "Only the likeliest that reach this probability together");
    app.add_option("--seed", o.seed, "Of the random choices")
        ->group(g.name)
        ->capture_default_str()
        ->type_name("N")
        ->check(whole_number(0, INT64_MAX));
    g.text("--tokenizer", o.tokenizer, "tokenizer.json [the model folder's]");
    g.choice("--device", o.device, {"auto", "cuda", "cpu"}, "auto: CUDA where it is usable");
    g.choice("--dtype", o.dtype, {"fp32", "bf16"}, "Of weights and activations");
    g.whole("--threads", o.threads, 0, 1 << 16, "CPU threads; 0: what OpenMP chooses");
    add_gemm(g, o);
}

void add_export(CLI::App& app, Options& o) {
    Group g{app, "Export"};
    g.text("--from", o.from, "A run's folder, a checkpoint, or any Hugging Face LLaMA")->required();
    g.text("--to", o.to, "Folder to write: config.json, model.safetensors and the tokenizer's files")->required();
    g.choice("--dtype", o.export_dtype, {"fp32", "bf16", "fp16"}, "Of the weights written [as stored]");
    g.text("--tokenizer", o.tokenizer, "Folder or tokenizer.json whose files are copied [--from's]");
}

// Whether a run that goes on takes this flag from its checkpoint. What depends on the machine (device, threads, ranks)
// it does not, and the model comes with the weights.
bool is_kept(const CLI::Option& option, const std::string& name) {
    const std::string group = option.get_group();
    for (const char* kept : {"Data", "Batch", "Optimizer", "Validation"})
        if (group.rfind(kept, 0) == 0) return true;
    for (const char* kept : {"dtype", "grad-dtype", "master-dtype", "adam-dtype", "save-every", "keep", "keep-every",
                             "max-skips", "spike-z", "on-spike", "max-rollbacks", "rollback-steps", "rollback-skip"})
        if (name == kept) return true;
    return false;
}

void note_flags(const CLI::App& app, Options& o) {
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty()) continue;
        const std::string name = option->get_lnames()[0];
        if (option->count() > 0) o.given.insert(name);
        if (!is_kept(*option, name)) continue;
        std::string value = option->get_default_str();
        if (option->count() > 0) value = option->results().back();
        o.kept_flags[name] = value;
    }
}

// "--stepz": "did you mean --steps?"
std::string did_you_mean(const CLI::App& app, const std::string& unknown) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return nearest_name(unknown.substr(0, unknown.find('=')), names);
}

}  // namespace

static int report(const CLI::App& app, const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
        app.exit(error);
        return 0;
    }
    std::cerr << "train_llama: " << error.what() << '\n';
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
        for (const std::string& word : app.remaining())
            if (word.rfind("-", 0) == 0)
                std::cerr << "  " << word << " is no flag; did you mean " << did_you_mean(app, word) << "?\n";
    }
    if (const auto* config = dynamic_cast<const CLI::ConfigError*>(&error)) {
        const std::string what = config->what();
        const std::string key = what.substr(what.rfind(' ') + 1);
        std::cerr << "  the keys of a --config file are the flags without dashes; did you mean "
                  << did_you_mean(app, "--" + key).substr(2) << "?\n";
    }
    std::cerr << "  --help lists every flag with its default\n";
    return 2;
}

static const char* name_of(Options::Command command) {
    return command == Options::Command::generate       ? "generate"
           : command == Options::Command::export_model ? "export"
           : command == Options::Command::schedule     ? "schedule"
                                                       : "training";
}

// Defaults that hang on other flags, and flags that say nothing together.
static void settle_schedule(Options& o) {
    const bool wsd = o.lr_schedule == "wsd", constant = o.lr_schedule == "constant";
    require(!o.given.count("cooldown") || o.cooldown < 0 || wsd,
            "--cooldown is wsd's: --lr-schedule %s has none\n  nearest: --lr-schedule wsd", o.lr_schedule.c_str());
    require(!o.given.count("min-lr") || o.min_lr < 0 || !constant,
            "--min-lr: --lr-schedule constant stays at --lr\n  nearest: --min-lr -1, or --lr-schedule wsd");
    if (o.warmup < 0) o.warmup = std::min<int64_t>(2000, o.steps / 10);
    if (o.cooldown < 0) o.cooldown = wsd ? o.steps / 5 : 0;
    require(!wsd || o.cooldown <= o.steps,
            "--cooldown %lld is longer than the run: --steps %lld\n  nearest: --cooldown %lld", (long long)o.cooldown,
            (long long)o.steps, (long long)o.steps);
    if (o.min_lr < 0 || constant) o.min_lr = constant ? o.lr : 0.1 * o.lr;
    require(o.min_lr <= o.lr, "--min-lr %g is the floor under --lr %g and can't be above it\n  nearest: --min-lr %g",
            o.min_lr, o.lr, o.lr);
}

// What was asked for on this command line: flags that contradict each other, or that would be taken and do nothing.
static void check_given(const Options& o) {
    if (o.command != Options::Command::train) {
        require(
            o.given.empty(),
            "--%s is a flag of training and does nothing for %s\n  leave it out; %s's own flags come behind its name",
            o.given.empty() ? "" : o.given.begin()->c_str(), name_of(o.command), name_of(o.command));
        return;
    }
    require(!o.given.count("preset") || o.init_from.empty(),
            "--preset %s and --init-from %s both say what the model is\n  leave one of them out", o.preset.c_str(),
            o.init_from.c_str());
    require(!o.raw16 || o.data.empty(),
            "--raw16 is about --train-data: the shards of a --data folder say what they are\n  leave it out");
    require(!o.given.count("prefetch") || o.zero == 3,
            "--prefetch is about units gathered ahead, which --zero %lld does not do\n  nearest: --zero 3",
            (long long)o.zero);
    require(!o.accumulate_locally || o.zero >= 2,
            "--accumulate-locally: --zero %lld always does\n  leave it out, or --zero 2 or 3", (long long)o.zero);
    require(!o.given.count("sample-tokens") || o.sample_every > 0,
            "--sample-tokens without samples\n  nearest: --sample-every 1");
    require(o.on_spike == "warn" || o.spike_z > 0,
            "--on-spike %s never happens with --spike-z 0, which does not look for spikes\n  nearest: --spike-z 8",
            o.on_spike.c_str());
    for (const char* flag : {"max-rollbacks", "rollback-steps", "rollback-skip"})
        require(!o.given.count(flag) || o.on_spike == "rollback" || !o.resume.empty(),
                "--%s without rollbacks\n  nearest: --on-spike rollback", flag);
    require(o.on_spike != "rollback" || !o.out.empty(),
            "--on-spike rollback goes back to checkpoints, which lie in --out, and that is not given: name a folder");
    require(!o.overwrite || !o.out.empty(), "--overwrite is about the folder --out, which is not given: leave it out");
    require(!o.overwrite || o.resume.empty(),
            "--overwrite begins anew and --resume %s goes on with an earlier run\n  leave one of them out",
            o.resume.c_str());
    for (const char* flag : {"save-every", "keep-every"})
        require(!o.given.count(flag) || !o.out.empty() || (flag[0] == 's' ? o.save_every : o.keep_every) == 0,
                "--%s is about checkpoints, which lie in --out, and that is not given: name a folder", flag);
}

static bool parse(Options& o, int& exit_code) {
    CLI::App app{
        "Trains a LLaMA, in raw CUDA C++ or on the CPU. Example:\n"
        "  train_llama --preset bytes --data data/stdlib --steps 300 --out runs/first\n"
        "  mpirun -n 4 train_llama --preset tiny --data data/tinystories",
        "train_llama"};
    auto formatter = std::make_shared<CLI::Formatter>();
    formatter->column_width(34);
    app.formatter(formatter);
    app.set_config("--config", "", "TOML file with any of these flags (without dashes); flags given here win");
    app.allow_config_extras(false);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // so that scripts can append "$@"
    add_training(app, o);
    CLI::App* generate = app.add_subcommand("generate", "Continue a prompt with a trained model");
    add_generate(*generate, o);
    CLI::App* exports =
        app.add_subcommand("export", "Write a model folder for Hugging Face's libraries, vLLM and llama.cpp");
    add_export(*exports, o);
    CLI::App* schedule = app.add_subcommand("schedule", "Draw, time and compare pipeline schedules");
    add_schedule_options(*schedule, o.study);
    try {
        app.parse(std::vector<std::string>(o.arguments.rbegin(), o.arguments.rend()));
    } catch (const CLI::ParseError& error) {
        CLI::App* named = &app;
        for (CLI::App* command : {generate, exports, schedule})
            if (command->parsed()) named = command;
        exit_code = report(*named, error);
        return false;
    }
    if (generate->parsed()) o.command = Options::Command::generate;
    if (exports->parsed()) o.command = Options::Command::export_model;
    if (schedule->parsed()) o.command = Options::Command::schedule;
    note_flags(app, o);
    try {
        settle_schedule(o);
    } catch (const Error& error) {
        std::cerr << "train_llama: " << error.what() << '\n';
        exit_code = 2;
        return false;
    }
    return true;
}

bool parse_options(int argc, char** argv, Options& o, int& exit_code) {
    o.arguments.assign(argv + 1, argv + argc);
    if (!parse(o, exit_code)) return false;
    try {
        check_given(o);
    } catch (const Error& error) {
        std::cerr << "train_llama: " << error.what() << '\n';
        exit_code = 2;
        return false;
    }
    if (o.presets) {
        std::cout << preset_table();
        exit_code = 0;
        return false;
    }
    return true;
}

static bool same_value(const std::string& a, const std::string& b) {
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    const bool numbers = !a.empty() && !b.empty() && *end_a == '\0' && *end_b == '\0';
    return numbers ? x == y : a == b;
}

std::vector<std::string> adopt_flags(Options& o, const std::map<std::string, std::string>& saved) {
    std::vector<std::string> lines;
    Options fresh;
    fresh.arguments = o.arguments;
    for (const auto& [name, value] : saved) {
        if (o.given.count(name)) {
            const std::string& now = o.kept_flags[name];
            if (!same_value(now, value))
                lines.push_back(format("--%s %s, was %s", name.c_str(), now.c_str(), value.c_str()));
        } else if (o.kept_flags.count(name)) {
            if (!value.empty() && value != "false")
                fresh.arguments.push_back("--" + name + (value == "true" ? "" : "=" + value));
        } else {
            lines.push_back(
                format("--%s %s of the checkpoint is not known to this program", name.c_str(), value.c_str()));
        }
    }
    const std::vector<std::string> given = o.arguments;
    int exit_code = 0;
    require(parse(fresh, exit_code), "the checkpoint's flags and those given do not go together");
    fresh.arguments = given;
    fresh.given = o.given;
    o = fresh;
    return lines;
}

// ---- combinations ---------------------------------------------------------------------------------------------------

DType parse_dtype(const std::string& flag, const std::string& value) {
    if (value == "fp32") return DType::f32;
    if (value == "bf16") return DType::bf16;
    fail("%s %s: it must be fp32 or bf16", flag.c_str(), value.c_str());
}

ModelConfig model_config(const Options& o, int64_t data_vocab) {
    ModelConfig c = o.init_from.empty() ? find_preset(o.preset).config : load_config(resolve_model(o.init_from));
    if (o.init_from.empty() && data_vocab > 0) c.vocab = data_vocab;
    override_fields(o, c);
    check_fit(o, c, data_vocab);
    return c;
}

void override_fields(const Options& o, ModelConfig& c) {
    for (const ConfigField& f : config_fields())
        if (auto it = o.fields.find(f.name); it != o.fields.end()) c.*f.member = it->second;
    if (!o.head.empty()) c.tied = o.head == "tied";
    if (o.rope_theta > 0) c.rope_theta = o.rope_theta;
    if (o.norm_eps > 0) c.norm_eps = o.norm_eps;
    if (o.init_std > 0) c.init_std = o.init_std;
    c.resolve();
}

void check_fit(const Options& o, const ModelConfig& c, int64_t data_vocab) {
    require(
        o.seq_len <= c.max_seq_len,
        "--seq-len %lld is longer than the model's %lld positions\n  nearest: --seq-len %lld, or raise --max-seq-len",
        (long long)o.seq_len, (long long)c.max_seq_len, (long long)c.max_seq_len);
    require(data_vocab <= c.vocab,
            "the data has %lld token ids, the model a vocabulary of %lld\n  nearest: --vocab %lld",
            (long long)data_vocab, (long long)c.vocab, (long long)data_vocab);
}

GridOptions grid_options(const Options& o) { return {.shard_size = int(o.shard_size)}; }

int64_t micro_batches(const Options& o, int64_t ranks) {
    const int64_t micro = checked_mul(checked_mul(o.batch, o.seq_len, "batch"), ranks, "batch");
    if (o.batch_tokens == 0) return 1;
    if (o.batch_tokens % micro == 0) return o.batch_tokens / micro;
    const int64_t below = o.batch_tokens / micro;
    std::string nearest;
    if (below > 0)
        nearest = format("--batch-tokens %lld (%lld micro-batches) or ", (long long)(below * micro), (long long)below);
    nearest += format("--batch-tokens %lld (%lld)", (long long)((below + 1) * micro), (long long)(below + 1));
    fail(
        "--batch-tokens %lld does not divide into micro-batches\n"
        "  --batch %lld x --seq-len %lld x %lld ranks = %lld tokens per micro-batch\n  nearest: %s",
        (long long)o.batch_tokens, (long long)o.batch, (long long)o.seq_len, (long long)ranks, (long long)micro,
        nearest.c_str());
}

}  // namespace rz
