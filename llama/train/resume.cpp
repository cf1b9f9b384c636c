#include "llama/train/resume.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <ranges>

#include "kernels/runtime/check.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/base/text.h"
#include "llama/checkpoint/after_save.h"
#include "llama/data/data_loader.h"
#include "llama/model/hf.h"
#include "llama/train/guards.h"
#include "llama/train/neighbours.h"
#include "llama/train/run_status.h"
#include "llama/train/snapshots.h"

namespace rz {

namespace fs = std::filesystem;

static void check_flags(const std::map<std::string, std::string>& saved, const std::string& where) {
    TrainOptions fresh;
    const CommandTable table = command_table(fresh);
    const std::map<std::string, std::string> flags = current_flags(table, saved);
    for (const OptionRow& row : table.rows) {
        const auto flag = flags.find(row.flag.substr(2));
        const std::string wrong =
            flag == flags.end() || flag->second.empty() || !row.wrong ? "" : row.wrong(flag->second);
        require(wrong.empty(), "%s: flags: %s: %s", where.c_str(), row.flag.c_str(), wrong.c_str());
    }
}

// The parts of a manifest that others read, before it counts as good.
static Manifest checked_manifest(const std::string& folder) {
    const Manifest manifest = check_checkpoint(folder);
    const std::string where = folder + "/" + kManifestName;
    try {
        DataFingerprint::from_json(manifest.data);
        if (const Json guards = parse_json(manifest.guards, where); !guards.empty())
            Guards({}).from_json(guards, where + ": guards");
        load_config(folder);
        check_flags(manifest.flags, where);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        fail("%s: %s", where.c_str(), error.what());
    }
    return manifest;
}

static const char* word_of(const std::string& folder) { return is_snapshot(folder) ? "snapshot" : "checkpoint"; }

// Rank 0. Takes the newest good one of `saved`, descending; tells about those that are not. Nothing where there is
// none, or snapshots alone.
static std::optional<ResumePoint> newest_good(const std::vector<SavedStep>& saved, std::vector<std::string> notes) {
    for (size_t i = 0; i < saved.size(); ++i) {
        const std::string& folder = saved[i].folder;
        ResumePoint point{.folder = folder, .manifest = {}, .may_fall_back = true, .older = {}, .notes = notes};
        try {
            point.manifest = checked_manifest(folder);
            require(point.manifest.step == saved[i].step, "%s: its manifest is of step %ld", folder.c_str(),
                    point.manifest.step);
        } catch (const Error& error) {
            notes.push_back(std::string(word_of(folder)) + " refused: " + error.what());
            continue;
        }
        point.older.assign(saved.begin() + int64_t(i) + 1, saved.end());
        return point;
    }
    if (saved.empty() || is_snapshot(saved.back().folder)) {
        for (const std::string& n : notes) std::fprintf(stderr, "train_llama: %s\n", n.c_str());
        return std::nullopt;
    }
    std::string all;
    for (const std::string& n : notes) all += "\n  " + n;
    fail("%s: none of its checkpoints can be resumed from:%s\n  give another --out, or --overwrite",
         parent_folder(saved.back().folder).c_str(), all.c_str());
}

// Descending; `steps` are ascending, as everywhere.
static std::vector<SavedStep> saved_steps(const CheckpointStore& store, const std::vector<int64_t>& steps) {
    std::vector<SavedStep> saved;
    for (const int64_t step : steps | std::views::reverse) saved.push_back({step, store.path(step)});
    return saved;
}

// Ranks that start again can continue from this. A snapshot before a checkpoint of the same step.
static std::optional<ResumePoint> newest_of_both(const TrainOptions& o, const CheckpointStore& own,
                                                 const std::vector<int64_t>& steps) {
    if (!o.restarted || o.snapshot_every == 0) return newest_good(saved_steps(own, steps), {});
    const CheckpointStore memory = snapshot_store();
    std::vector<SavedStep> saved = saved_steps(memory, memory.steps());
    std::vector<std::string> notes;
    if (saved.empty()) notes.emplace_back("no snapshot is whole");
    for (const SavedStep& one : saved_steps(own, steps)) saved.push_back(one);
    std::stable_sort(saved.begin(), saved.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
    std::optional<ResumePoint> point = newest_good(saved, notes);
    if (!point)
        std::fprintf(stderr, "train_llama: no snapshot is whole and there is no checkpoint: the run begins again\n");
    else if (!is_snapshot(point->folder) && !point->notes.empty())
        point->notes.push_back(format("going back to the checkpoint of step %ld", point->manifest.step));
    return point;
}

// A run that begins writes its own metrics, checkpoints and weights over what it finds: not over those of a run that
// has saved something or, unless it is to be resumed, that has made a step.
static void refuse_used_folder(const TrainOptions& o, const CheckpointStore& own, int64_t saved_step) {
    if (o.out.empty()) return;
    std::string found;
    struct stat st;
    if (path_exists(own.folder() + "/latest"))
        found = "checkpoints/latest names " + read_file(own.folder() + "/latest");
    else if (saved_step == kUnreadable)
        found = "run_status.json, which can't be read, may tell of a checkpoint";
    else if (saved_step >= 0)
        found = format("run_status.json says that step %ld was saved", saved_step);
    else if (path_exists(o.out + "/final"))
        found = "final/ has its weights";
    else if (!o.resume.newest() && again([&] { return ::stat((o.out + "/metrics.jsonl").c_str(), &st); }) == 0 &&
             st.st_size > 0)
        found = "metrics.jsonl has its steps";
    while (!found.empty() && found.back() == '\n') found.pop_back();
    require_request(found.empty(),
                    "--out %s holds an earlier run (%s)%s\n  give another --out, or --overwrite, "
                    "which starts here and moves the earlier run aside",
                    o.out.c_str(), found.c_str(), o.resume.newest() ? ", but no checkpoint to resume from" : "");
}

// `steps` is what the store has.
static ResumePoint checkpoint_of_step(const CheckpointStore& store, const std::vector<int64_t>& steps, int64_t step,
                                      const char* flag) {
    require_request(std::find(steps.begin(), steps.end(), step) != steps.end(),
                    "%s %ld: %s holds no such checkpoint; it has: %s", flag, step, store.folder().c_str(),
                    steps.empty() ? "none" : joined(steps).c_str());
    ResumePoint point{.folder = store.path(step), .manifest = checked_manifest(store.path(step))};
    require(point.manifest.step == step, "%s: its manifest is of step %ld", point.folder.c_str(), point.manifest.step);
    return point;
}

static std::optional<ResumePoint> choose(const TrainOptions& o, int64_t saved_step) {
    std::error_code none;
    const std::string& from = o.resume.text;
    const CheckpointStore own(o.out);
    if (o.overwrite) return std::nullopt;  // what is there is moved aside when the run begins
    // Also those without a manifest: they are named, and no new run starts beside them.
    const std::vector<int64_t> steps = o.out.empty() ? std::vector<int64_t>{} : own.folders();
    if (o.resume.newest()) {
        require_request(!o.out.empty(),
                        "--resume auto looks for checkpoints in --out, which is not given: name the run's folder");
        std::optional<ResumePoint> point = newest_of_both(o, own, steps);
        if (!point) refuse_used_folder(o, own, saved_step);
        return point;
    }
    if (o.resume.kind == ResumeFrom::Kind::step) {
        require_request(!o.out.empty(),
                        "--resume %s is a step of the run in --out, which is not given: name the run's folder",
                        from.c_str());
        return checkpoint_of_step(own, steps, o.resume.step, "--resume");
    }
    const bool inside = o.resume.asked() && fs::equivalent(fs::path(from).parent_path(), own.folder(), none);
    require_request(
        steps.empty() || inside,
        "%s holds checkpoints up to step %ld of an earlier run\n  --resume auto continues it; another --out "
        "starts a new run; --overwrite starts one here and moves the earlier one aside",
        o.out.c_str(), steps.empty() ? 0l : steps.back());
    if (!inside) refuse_used_folder(o, own, saved_step);
    if (!o.resume.asked()) return std::nullopt;
    require_request(is_folder(from), "--resume %s: neither \"auto\" nor a step nor a folder", from.c_str());
    const bool is_run = !is_file(from + "/" + kManifestName) && is_folder(from + "/checkpoints");
    require_request(o.branch < 0 || is_run, "--branch %ld: --resume %s is not a run's folder with checkpoints",
                    o.branch, from.c_str());
    if (is_run) {
        const CheckpointStore other(from);
        const std::vector<int64_t> theirs = other.folders();
        require_request(!theirs.empty(), "--resume %s: this run has no checkpoints", from.c_str());
        if (o.branch >= 0) return checkpoint_of_step(other, theirs, o.branch, "--branch");
        return newest_good(saved_steps(other, theirs), {});
    }
    return ResumePoint{.folder = from, .manifest = checked_manifest(from)};
}

// Rank 0's point on all ranks.
static std::optional<ResumePoint> share(std::optional<ResumePoint> point, Process& process) {
    if (process.alone()) return point;
    const bool root = process.is_root();
    const std::string folder = process.broadcast_text(root && point ? point->folder : "", 0);
    if (folder.empty()) return std::nullopt;
    const std::string manifest = process.broadcast_text(root ? point->manifest.to_json() : "", 0);
    int64_t known[] = {root && point->may_fall_back, root && is_snapshot(folder)};
    process.broadcast(known, sizeof known, 0);
    if (!root) {
        point = ResumePoint{.folder = folder, .manifest = Manifest::from_json(manifest, folder)};
        point->may_fall_back = known[0] != 0;
        if (known[1]) point->folder = snapshot_store().path(point->manifest.step);  // of this host
    }
    return point;
}

static std::optional<ResumePoint> choose_after_command(const TrainOptions& o, int64_t saved_step) {
    std::string problem;  // the other ranks wait for it
    if (!o.before_resume.empty()) {
        std::printf("hook     --before-resume runs: %s\n", o.before_resume.c_str());
        std::fflush(stdout);
        problem = run_before_resume(o.before_resume, o.out, 0.8 * std::max(o.timeout, o.disk_timeout));
    }
    std::optional<ResumePoint> point = choose(o, saved_step);
    if (problem.empty()) return point;
    require(point.has_value(), "the command of --before-resume %s, and %s has no checkpoint: nothing begins anew",
            problem.c_str(), o.out.c_str());
    point->notes.push_back("the command of --before-resume " + problem + "; resumes from what is there");
    return point;
}

std::optional<ResumePoint> find_checkpoint(const TrainOptions& o, Process& process, int64_t saved_step) {
    Process::DiskWork files(process);
    if (o.restarted && o.snapshot_every > 0) restore_snapshots(process);
    std::optional<ResumePoint> point =
        share(process.is_root() ? choose_after_command(o, saved_step) : std::nullopt, process);
    files.join();
    return point;
}

ResumePoint checkpoint_at(const TrainOptions& o, Process& process, int64_t step) {
    Process::DiskWork files(process);
    std::optional<ResumePoint> point;
    if (process.is_root()) {
        const std::string folder = CheckpointStore(o.out).path(step);
        point = ResumePoint{.folder = folder, .manifest = check_checkpoint(folder)};
    }
    point = share(std::move(point), process);
    files.join();
    return *point;
}

std::string set_aside(const std::string& out) {
    std::vector<std::string> names = names_in(out);
    std::erase_if(names,
                  [](const std::string& n) { return n.rfind("run.lock", 0) == 0 || n.rfind("before-", 0) == 0; });
    if (names.empty()) return "";
    const std::string first = out + "/before-" + utc_text("%Y%m%dT%H%M%SZ");
    std::string to = first;
    for (int n = 2; path_exists(to); ++n) to = format("%s-%d", first.c_str(), n);
    make_folder(to);
    for (const std::string& name : names)
        if (again([&] { return ::rename((out + "/" + name).c_str(), (to + "/" + name).c_str()); }) != 0)
            fail("%s/%s: can't be moved to %s: %s", out.c_str(), name.c_str(), to.c_str(), std::strerror(errno));
    fsync_folder(to);
    fsync_folder(out);
    return to;
}

std::optional<ResumePoint> find_rollback(const TrainOptions& o, Process& process, int64_t from) {
    std::optional<ResumePoint> point;
    if (process.is_root()) {
        const CheckpointStore store(o.out);
        try {
            std::vector<int64_t> before = store.steps();
            std::erase_if(before, [&](int64_t step) { return step >= from; });
            std::vector<int64_t> old = before;
            std::erase_if(old, [&](int64_t step) { return step > from - o.rollback_steps; });
            if (old.empty() && !before.empty()) old = {before.front()};
            point = newest_good(saved_steps(store, old), {});
        } catch (const Error& error) {
            std::fprintf(stderr, "train_llama: %s\n", error.what());
        }
    }
    return share(point, process);
}

ResumePoint fall_back(Process& process, const ResumePoint& point, const std::string& why) {
    std::optional<ResumePoint> next;
    if (process.is_root()) {
        std::error_code none;
        if (is_snapshot(point.folder))
            fs::remove_all(point.folder, none);  // where it is all there is, the run begins again
        require(!point.older.empty(), "%s: there is no older checkpoint to fall back to", why.c_str());
        std::vector<std::string> notes = point.notes;
        notes.push_back(std::string(word_of(point.folder)) + " refused: " + why);
        next = newest_good(point.older, notes);
        require(next.has_value(), "%s", why.c_str());
        if (is_snapshot(point.folder))
            next->notes.push_back(
                format("going back to the %s of step %ld", word_of(next->folder), next->manifest.step));
    }
    return *share(next, process);
}

Schedule schedule_of(const TrainOptions& o, const Manifest& m) {
    return {.decay = o.decay,
            .peak = o.lr,
            .floor = o.min_lr,
            .warmup = o.warmup,
            .cooldown = o.cooldown,
            .steps = o.steps,
            .from_step = m.lr_from_step,
            .from_rate = m.lr_from_rate,
            .rewarm = m.lr_rewarm};
}

Schedule resumed_schedule(TrainOptions& o, const Manifest& m) {
    Schedule now = schedule_of(o, m);
    if (m.step == 0 || m.step >= o.steps) return now;
    TrainOptions was = o;
    was.given.clear(), was.arguments.clear();
    adopt_flags(was, m.flags, {.same_ranks = false});
    const Schedule before = schedule_of(was, m);
    const double last = before.at(m.step), next = now.at(m.step + 1);
    const auto near = [](double a, double b) { return std::abs(a - b) <= 0.1 * std::abs(b); };
    const auto continues = [&](double from) {
        now.from_step = m.step, now.from_rate = from, now.rewarm = o.rewarm;
        return now;
    };
    if (o.branch >= 0) {
        now.decay = o.decay = Decay::wsd;
        now.cooldown = o.cooldown = o.steps - m.step;
        o.kept_flags["lr-schedule"] = name_of(o.decay);
        o.kept_flags["cooldown"] = std::to_string(o.cooldown);
        return continues(last);
    }
    if (was.optimizer != o.optimizer) {  // Muon's momentum is zero: a new warm-up
        if (o.rewarm == 0) o.rewarm = std::clamp<int64_t>(o.warmup, 1, o.steps - m.step);
        return continues(0);
    }
    if (m.step < before.steps && near(next, before.at(m.step + 1))) return now;  // as it was going to be anyway
    if (o.lr_continue || o.rewarm > 0) return continues(last);
    require_request(
        near(next, last) || o.allow_lr_jump,
        "the learning rate would jump: it was %.4g at step %ld, and --lr, --steps, --warmup and --lr-schedule make it "
        "%.4g at step %ld\n"
        "  --lr-continue continues from %.4g down to --min-lr %.4g, --rewarm N rises to --lr %.4g in N steps, "
        "--allow-lr-jump jumps",
        last, m.step, next, m.step + 1, last, std::min(o.min_lr, last), o.lr);
    return now;
}

// The largest number of sequences, at most --batch, that makes up the same update on these ranks. A supervisor gives
// its command's --batch again on other ranks: a number that does not divide is a mistake on as many as before alone.
static std::string fit_batch(TrainOptions& o, int64_t ranks, bool same_ranks) {
    const int64_t sequences = o.batch_tokens / o.seq_len;
    if (o.batch_tokens % o.seq_len != 0 || sequences % ranks != 0) {
        std::string nearest;
        for (const int64_t way : {-1, 1})
            for (int64_t n = ranks + way; n > 0 && n <= sequences; n += way)
                if (sequences % n == 0) {
                    nearest += (nearest.empty() ? "" : " or ") + std::to_string(n);
                    break;
                }
        refuse(
            "the checkpoint's updates are of %ld tokens (%ld sequences of %ld), which do not divide "
            "among %ld ranks that share them\n"
            "  nearest: %s of such ranks (each with its tp, pp and cp), or another --batch-tokens",
            o.batch_tokens, sequences, o.seq_len, ranks, nearest.c_str());
    }
    const int64_t asked = o.batch;
    while (sequences / ranks % o.batch != 0) --o.batch;
    if (o.batch == asked) return "";
    require_request(!same_ranks || !o.given.count("batch"),
                    "--batch %ld does not divide the checkpoint's updates, %ld sequences on each of %ld ranks\n"
                    "  nearest: --batch %ld, or another --batch-tokens",
                    asked, sequences / ranks, ranks, o.batch);
    return format("--batch %ld, was %ld: so that an update stays at %ld tokens on %ld ranks", o.batch, asked,
                  o.batch_tokens, ranks);
}

std::vector<std::string> adopt_options(TrainOptions& o, const Manifest& manifest, int64_t ranks) {
    std::vector<std::string> lines =
        adopt_flags(o, manifest.flags, {.same_ranks = manifest.ranks == ranks, .gpu = will_use_gpu(o)});
    const auto saved = manifest.flags.find("optimizer");
    const bool of_muon = saved != manifest.flags.end() && saved->second == name_of(Optimizer::muon);
    require_request(!of_muon || o.optimizer == Optimizer::muon,
                    "--optimizer adamw: the checkpoint is of --optimizer muon, without AdamW's second moments of "
                    "matrices\n  nearest: --optimizer muon, or --init-from with its weights");
    for (std::string& line : lines)
        if (line.rfind("--collectives ", 0) == 0)
            line += ": sums are rounded in another order, so bits differ from here on";
    const int64_t last_batch = o.batch_tokens;
    if (!o.batch_ramp.empty()) o.batch_tokens = o.batch_ramp.front().batch_tokens;  // divides the others
    if (!o.given.count("batch-tokens") && !o.given.count("grad-accum"))
        if (const std::string line =
                fit_batch(o, Grid(int(ranks), grid_options(o)).size(Axis::dp), manifest.ranks == ranks);
            !line.empty())
            lines.push_back(line);
    o.batch_tokens = last_batch;
    if (manifest.ranks != ranks || manifest.zero != o.zero)
        lines.push_back(
            format("%ld ranks with --zero %ld, was %ld with --zero %ld", ranks, o.zero, manifest.ranks, manifest.zero));
    return lines;
}

ModelConfig resumed_config(const TrainOptions& o, const ResumePoint& point, int64_t data_vocab) {
    ModelConfig stored = load_config(point.folder);
    if (o.resize_vocab && data_vocab > stored.vocab) stored.vocab = data_vocab;
    ModelConfig asked = stored;
    if (o.given.count("preset") || o.given.count("init-from"))
        asked = model_config(o, data_vocab);
    else
        override_fields(o, asked);
    const std::string table = differences(stored, asked, "the checkpoint", "what is asked for");
    require_request(
        table.empty(),
        "%s holds another model than is asked for:\n%s\n  leave the model's flags out to resume it, or give "
        "another --out",
        point.folder.c_str(), table.c_str());
    ModelConfig config = stored;
    if (o.fields.count("max-seq-len")) config.max_seq_len = asked.max_seq_len;  // RoPE reaches as far as it is told to
    check_fit(o, config, data_vocab);
    return config;
}

}  // namespace rz
