// When a run saves its state, to its folder or to memory, and whether it ends there (trainer.h).

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "llama/base/atomic_file.h"
#include "llama/train/trainer.h"

namespace rz {

static SaveOptions save_options(const Trainer& t) {
    const TrainOptions& o = t.options;
    return {.run_folder = o.out,
            .keep = o.keep,
            .keep_every = o.keep_every,
            .save_every = o.save_every,
            .background = o.background_save && o.save_every > 0,
            .tokenizer = t.sources.paths.tokenizer_files,
            .mark = !o.after_save.empty(),
            .timeout_s = std::max(o.timeout, o.disk_timeout),
            .shard_above = o.shard_above_mib << 20,
            .await_records = [log = t.log.get()] { log->wait_for_files(); }};
}

void open_saves(Trainer& t) {
    const TrainOptions& o = t.options;
    if (o.out.empty()) return;
    t.saver =
        std::make_unique<Saver>(t.process, *t.core, t.health, *t.log, save_options(t), t.health.report_hang_after(),
                                o.after_save, [&t](int64_t step) { return manifest_at(t, step); });
    if (o.snapshot_every > 0)
        t.snapshots = std::make_unique<Snapshots>(t.process, *t.core, t.health, *t.log, save_options(t), o.out,
                                                  is_snapshot(t.start.folder));
}

bool Trainer::saves(int64_t step) const {
    return saver && options.save_every > 0 && (step % options.save_every == 0 || step == options.steps);
}

bool Trainer::takes_snapshot(int64_t step) const {
    return snapshots && step % options.snapshot_every == 0 && step < options.steps;
}

void keep_request(Trainer& t) {
    const Manifest& was = t.start.resumed;
    if (!t.saver || was.step == 0 || was.step >= t.options.steps || is_snapshot(t.start.folder)) return;
    std::error_code none;
    const std::string own = CheckpointStore(t.options.out).path(was.step);
    const bool elsewhere = t.process.is_root() && !std::filesystem::equivalent(t.start.folder, own, none);
    if (t.process.max(int64_t(elsewhere)) != 0) {
        if (t.options.save_every == 0) return;
        save(t, was.step, t.reports_due);
        Process::DiskWork files(t.process);
        t.saver->finish();
        files.join();
        return;
    }
    Manifest now = manifest_at(t, was.step);
    now.files = was.files;
    const auto asked = [](const Manifest& m) {
        return std::tie(m.flags, m.lr_from_step, m.lr_from_rate, m.lr_rewarm, m.samples);
    };
    if (t.process.is_root() && asked(now) != asked(was))
        write_file_atomically(t.start.folder + "/" + kManifestName, now.to_json());
}

void save_last(Trainer& t, int64_t step, bool reports_due) {
    if (t.health.end()->saves && t.saver) save(t, step, reports_due);
}

// True: the state after `step` is good: known only now, where steps are reported one late.
static bool is_good(Trainer& t, bool reports_due) {
    t.metrics->flush();
    t.log->complete_rows();
    t.reports_due = reports_due;
    return !t.health.end() || t.health.end()->saves;
}

void save(Trainer& t, int64_t step, bool reports_due) {
    if (!is_good(t, reports_due)) return;
    Process::DiskWork files(t.process);
    t.saver->save(step);
    files.join();
    t.metrics->exclude_from_step_time();
}

void take_snapshot(Trainer& t, int64_t step) {
    if (!is_good(t, false)) return;
    t.snapshots->take(manifest_at(t, step));
    t.metrics->exclude_from_step_time();
}

bool ends(Trainer& t, int64_t step) {
    t.health.look_for_stop();
    if (!t.health.end() && t.stage_ends(step)) {
        save(t, step, t.reports(step));
        if (!t.health.end()) return true;
    }
    if (!t.health.end()) return false;
    if (t.health.end()->saves && step == t.options.steps) return false;  // done anyway
    save_last(t, step, t.reports(step));
    return true;
}

}  // namespace rz
