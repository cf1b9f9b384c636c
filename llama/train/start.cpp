#include "llama/train/start.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/crc32.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/base/text.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/train/snapshots.h"

namespace rz {

std::string choose_run_id(Process& process) {
    uint32_t id = std::random_device()();
    process.broadcast(&id, sizeof id, 0);
    return format("%08x", id);
}

void check_same_flags(const TrainOptions& o, Process& process) {
    if (process.alone()) return;
    static const std::set<std::string> kOwn = {"threads", "data-threads", "gemm-cache", "quiet"};
    const auto as_text = [&](const std::string& flag) {
        return format("--%s %s", flag.c_str(), o.values.at(flag).c_str());
    };
    // Few bytes where all are alike.
    uint64_t hash = 0;
    for (const auto& [flag, value] : o.values)
        if (!kOwn.count(flag)) hash = hash * 31 + crc32(as_text(flag));
    if (process.max(int64_t(hash >> 1)) == -process.max(-int64_t(hash >> 1))) return;
    std::string all;
    for (const auto& [flag, value] : o.values)
        if (!kOwn.count(flag)) all += as_text(flag) + '\n';
    const std::vector<std::string> ranks = process.all_gather_text(all);
    const std::vector<std::string> first = split(ranks[0], '\n');
    for (size_t r = 1; r < ranks.size(); ++r)
        for (const std::string& line : split(ranks[r], '\n'))
            require_request(std::find(first.begin(), first.end(), line) != first.end(),
                            "rank %zu was started with %s, rank 0 was not\n  start all ranks with the same flags", r,
                            line.c_str());
}

std::string choose_run_folder(Process& process) {
    const std::string first = runs_folder() + local_text("/%Y-%m-%d-%H%M%S");
    std::string folder = first;
    for (int n = 2; process.is_root() && path_exists(folder); ++n) folder = format("%s-%d", first.c_str(), n);
    return process.broadcast_text(folder, 0);
}

// Every rank writes its own slices into --out.
void check_folder_is_shared(const std::string& out, const std::string& run_id, Process& process) {
    if (process.alone() || out.empty()) return;
    std::string in = out;  // or the folder that it will be made in
    while (process.is_root() && !path_exists(in)) in = parent_folder(in);
    const std::string probe = process.broadcast_text(in, 0) + "/.seen-by-all-" + run_id;
    if (process.is_root()) write_file_atomically(probe, "");
    process.barrier();
    std::string blind;  // this host, if it does not see the file
    // A network file system may remember for some seconds that a file is not there.
    for (int tries = 0; ::access(probe.c_str(), F_OK) != 0; ++tries) {
        if (tries == 50) {
            blind = host_name();
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const std::vector<std::string> hosts = process.all_gather_text(blind);
    if (process.is_root()) ::unlink(probe.c_str());
    for (size_t r = 0; r < hosts.size(); ++r)
        require_request(hosts[r].empty(),
                        "--out %s: what rank 0 wrote there is not seen by rank %zu on %s\n"
                        "  ranks on several hosts need a folder on a shared file system, at the same path",
                        out.c_str(), r, hosts[r].c_str());
}

void name_end_tokens(ModelConfig& config, const DataPaths& paths) {
    if (config.bos < 0) config.bos = paths.bos;
    for (const int64_t id : {paths.eos, paths.bos})
        if (id >= 0 && id < config.vocab && std::find(config.eos.begin(), config.eos.end(), id) == config.eos.end())
            config.eos.push_back(id);
}

// The difference between the tokenizers of two places; nothing, with a line for the user, if that can't be known.
static std::string tokenizer_difference(const std::string& data, const std::string& model, bool larger) try {
    return Tokenizer::load(data).difference(Tokenizer::load(model), larger);
} catch (const Error& error) {
    std::fprintf(stderr, "train_llama: the data's tokenizer can't be compared with the model's: %s\n", error.what());
    return "";
}

// A tokenizer that can't be read is known at the start, not when the model is to write.
static void try_tokenizer(const TrainOptions& o, const std::string& path) try {
    Tokenizer::load(path);
} catch (const Error& error) {
    if (!o.tokenizer.empty()) throw;
    std::fprintf(stderr, "train_llama: %s\n  the run keeps this tokenizer, and generate can't use it\n", error.what());
}

TokenizerFiles carried_files(const TrainOptions& o, const DataPaths& paths, const std::string& model,
                             const ModelConfig& config) {
    TokenizerFiles files;
    if (!model.empty()) files = TokenizerFiles::beside_model(model);
    for (const std::string& line : files.left_out()) std::fprintf(stderr, "train_llama: %s\n", line.c_str());
    try {
        const TokenizerFiles of_data(paths.tokenizer);
        if (!of_data.has_tokenizer() || !files.has_tokenizer()) {
            if (of_data.has_tokenizer() && !model.empty())
                std::fprintf(stderr, "train_llama: %s has no tokenizer to compare the data's with\n", model.c_str());
            if (of_data.has_tokenizer()) try_tokenizer(o, paths.tokenizer);
            if (of_data.has_tokenizer()) files.replace_tokenizer(of_data);
        } else {
            const std::string difference = tokenizer_difference(paths.tokenizer, model, o.resize_vocab);
            require_request(difference.empty() || o.allow_tokenizer_change,
                            "the data's tokenizer is not the model's: %s\n"
                            "  prepare the data with --tokenizer %s, or --allow-tokenizer-change",
                            difference.c_str(), model.c_str());
            if (!difference.empty() || o.resize_vocab) files.replace_tokenizer(of_data);
            files.add_chat_template(of_data);
        }
    } catch (const Error& error) {
        // A tokenizer that was asked for has to be there. One that the data folder names never costs a run.
        if (!o.tokenizer.empty() || path_exists(paths.tokenizer)) throw;
        std::fprintf(stderr, "train_llama: %s; checkpoints will have no tokenizer\n", error.what());
    }
    files.set_token_ids(config);
    return files;
}

static void check_data(Manifest& m, const TrainOptions& options, const DataMix& data, Process& process) {
    const DataFingerprint was = DataFingerprint::from_json(m.data),
                          now = DataFingerprint::from_json(
                              process.broadcast_text(process.is_root() ? data.fingerprint().to_json() : "", 0));
    const std::string difference = was.difference(now);
    if (difference.empty()) return;
    require_request(options.allow_data_change,
                    "the training data are not those of the checkpoint: %s\n"
                    "  --allow-data-change resumes with them, from the same number of tokens",
                    difference.c_str());
    if (process.is_root()) std::fprintf(stderr, "train_llama: the training data changed: %s\n", difference.c_str());
    // The position counts samples; of another length, they are as many tokens further on.
    if (was.seq_len != now.seq_len) m.samples = m.tokens / now.seq_len;
}

// A fixed scale is what the options say; a dynamic one continues where it was.
static void restore_loss_scale(const LossScaleRecord& l, Zero& zero) {
    const LossScaling& o = zero.options.loss_scaling;
    if (!o.dynamic || l.scale == 0) return;
    const float scale = std::clamp(float(l.scale), o.least, o.most);
    zero.optimizer.set_loss_scale(
        {scale, 1 / scale, int32_t(l.good), int32_t(std::min<int64_t>(l.patience, o.hysteresis))});
}

// The run is at its end: what continues it, what begins another, and which flags came too late.
static void tell_of_the_end(const Manifest& m, const TrainOptions& o) {
    std::string late;
    for (const auto& [name, was] : m.flags)
        if (const auto now = o.kept_flags.find(name); name != "steps" && o.given.count(name) && now->second != was)
            late += (late.empty() ? "" : ", ") + format("--%s %s", name.c_str(), now->second.c_str());
    std::printf(
        "nothing is left to do: raise --steps to train further, or begin anew with --out NEW or --overwrite%s\n",
        late.empty() ? "" : ("; without effect: " + late).c_str());
}

Manifest load_checkpoint(ResumePoint& from, const TrainOptions& options, const DataMix& data, Process& process,
                         TrainState& core, RunGuard& health) {
    Manifest m;
    for (;;) {
        m = from.manifest;
        check_data(m, options, data, process);
        LoadReport report;
        const ModelConfig stored = load_config(from.folder);
        std::optional<ParamTable> smaller;
        std::optional<HfWeights> weights;
        std::optional<GrownRows> grown;
        if (stored.vocab < core.config.vocab) {
            smaller.emplace(stored);
            weights.emplace(from.folder, core.table, &options.seed);
            grown.emplace(*smaller, *weights);
            for (const std::string& w : weights->warnings()) report.notes.push_back(w);
        }
        const std::string problem = load_state(from.folder, from.manifest, core.table, process, core.device,
                                               core.compute, core.zero, &report, grown ? &*grown : nullptr);
        from.notes.insert(from.notes.end(), report.notes.begin(), report.notes.end());
        if (problem.empty()) break;
        require(from.may_fall_back, "%s", problem.c_str());
        from = fall_back(process, from, problem);
    }
    if (from.folder == CheckpointStore(options.out).path(m.step)) health.status().set_saved_step(m.step);
    core.zero.optimizer.set_updates(m.updates);
    restore_loss_scale(m.loss_scale, core.zero);
    health.restore(m.guards, from.folder + ": guards");
    if (!process.is_root()) return m;
    for (const std::string& note : from.notes) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    std::printf("resumed  %s%s: step %ld, %ld tokens\n", is_snapshot(from.folder) ? "the snapshot " : "",
                from.folder.c_str(), m.step, m.tokens);
    if (m.step >= options.steps) tell_of_the_end(m, options);
    return m;
}

void abandon_newer(const std::string& out, int64_t step, const std::string& run_id) {
    const CheckpointStore store(out);
    const std::vector<int64_t> newer = store.abandon_after(step, run_id);
    for (const int64_t s : newer)
        std::fprintf(stderr, "train_llama: the checkpoint of step %ld is newer: renamed to %s-abandoned-%s\n", s,
                     store.path(s).c_str(), run_id.c_str());
    if (!newer.empty())
        std::fprintf(stderr,
                     "train_llama: to take them back, stop this run, rename its own checkpoints of step %ld and later, "
                     "and then each STEP-abandoned-%s to STEP\n",
                     newer[0], run_id.c_str());
}

void start_sums(ShardSums& sums, const DataPaths& paths, bool may_differ) {
    for (const DataPaths::Set& set : paths.sets)
        for (const auto& [files, all] : {std::pair(&set.train, &set.train_sums), {&set.val, &set.val_sums}})
            for (size_t i = 0; i < all->size() && !may_differ; ++i)
                if ((*all)[i] >= 0) sums.expect((*files)[i], uint32_t((*all)[i]));
    sums.start();
}

void report_damage(const ShardSums& sums, RunGuard& health) {
    if (const std::string damaged = sums.damaged(); !damaged.empty())
        health.report_end(kExitError, damaged + "\n  --allow-data-change trains on it");
}

const char* why_dtype(const TrainOptions& o) { return o.dtype_auto ? " (--dtype auto)" : ""; }

std::string where_kept(const TrainOptions& o) {
    if (o.out.empty())
        return "out      none: nothing of this run is kept; --out FOLDER keeps weights, checkpoints, numbers";
    if (!o.out_is_new) return "";
    return "out      " + o.out + " keeps this run; --out FOLDER names another place, --out \"\" keeps nothing";
}

void announce_data(const DataSources& s, Log& log) {
    const size_t shards = s.train_shards();
    log.line(format("data     %ld training tokens in %zu shard%s, %ld validation tokens", s.train->tokens(), shards,
                    shards == 1 ? "" : "s", s.val_tokens()));
    if (!s.paths.about.empty()) log.line("         " + s.paths.about);
    const std::vector<DataSet>& sets = s.train->sets();
    for (size_t k = 0; sets.size() > 1 && k < sets.size(); ++k) {
        std::string shares;
        for (const MixStage& stage : s.train->plan().stages())
            shares += (shares.empty() ? "" : format(", from sample %ld on ", stage.first)) + stage.shares.text[k];
        log.line(
            format("         %s: %ld tokens, share %s", sets[k].name.c_str(), sets[k].data.tokens(), shares.c_str()));
    }
    if (s.train->has_targets()) log.line("         the loss is on the tokens that the shards mark as targets");
}

void tell_of_rollback(Log& log, const Rollback& r, size_t count, int64_t most) {
    log.event(r.to,
              format("rollback %s: on from step %ld, without %ld sequences of the data (%zu of at most %ld)",
                     r.reason.c_str(), r.to, r.samples, count, most),
              "rollback", Json{{"from", r.from}, {"samples", r.samples}, {"reason", r.reason}}.dump());
}

}  // namespace rz
