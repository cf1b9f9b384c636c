// How a run ends: normally, early, or by going back (trainer.h).

#include <cstdio>
#include <utility>

#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/version.h"
#include "llama/checkpoint/export_weights.h"
#include "llama/checkpoint/finite.h"
#include "llama/report/rank_report.h"
#include "llama/train/trainer.h"

namespace rz {

Manifest manifest_at(const Trainer& t, int64_t step) {
    const Manifest& resumed = t.start.resumed;
    const Batches& batches = *t.batches;
    Manifest m;
    m.run_id = t.start.run_id;
    m.commit = build_commit();
    m.written_at = utc_text(kTimeForm);
    m.device = t.core->device.name();
    m.step = step;
    m.updates = t.metrics->updates();
    m.samples = batches.samples_before(step + 1);
    m.tokens = batches.tokens_after(step);
    m.data_hash = t.metrics->data_hash();
    m.validations = t.validations;
    m.rollbacks = resumed.rollbacks;
    m.reports_due = t.reports_due;
    if (t.lr.from_step <= step) {
        m.lr_from_step = t.lr.from_step;
        m.lr_from_rate = t.lr.from_rate;
        m.lr_rewarm = t.lr.rewarm;
    }
    m.seconds = resumed.seconds + t.start.timer.seconds();
    m.ranks = t.mesh->world().size;
    m.zero = t.options.zero;
    m.flags = t.options.kept_flags;
    m.flags["collectives"] = text_of({t.mesh->algorithm(), t.options.collectives.tp});
    m.nodes = t.mesh->grid().nodes(Axis::data);
    if (t.options.batch_ramp.empty()) m.flags["batch-tokens"] = std::to_string(batches.tokens_per_step());
    if (t.process.is_root()) m.data = t.sources.train->fingerprint(m.samples).to_json();
    t.shard_sums->follow(t.sources.files());
    m.shards = t.shard_sums->known();
    if (t.core->zero.options.loss_scaling.on()) {
        const LossScaleState& l = t.metrics->loss_scale();
        m.loss_scale = {double(l.scale), l.good, l.patience};
    }
    m.guards = t.health.state();
    m.gemm_choices = t.gemm_choices;
    return m;
}

// PaLM (Chowdhery et al. 2022, section 5.1): back to a checkpoint some steps before the spike, and on without the
// batches that were seen since then, and some more. The checkpoint's manifest gets the new place in the data before
// anything else, so that a run which is killed from here on does the same.
std::optional<ResumePoint> plan_rollback(Trainer& t, int64_t from) {
    const TrainOptions& o = t.options;
    const RunGuard::End end = *t.health.end();
    const std::vector<Rollback>& earlier = t.start.resumed.rollbacks;
    std::optional<ResumePoint> point;
    const auto refuse = [&](const std::string& why) {
        t.health.end_with(end.exit_code, end.reason + why);
        return std::nullopt;
    };
    if (int64_t(earlier.size()) >= o.max_rollbacks)
        return refuse(format("; after %zu rollbacks (--max-rollbacks)", earlier.size()));
    if (point = find_rollback(o, t.process, from); !point) return refuse("; there is no checkpoint to roll back to");
    const int64_t next = t.batches->samples_before(from + 1) + o.rollback_skip * t.samples_per_step();
    Manifest& m = point->manifest;
    m.rollbacks = earlier;
    m.rollbacks.push_back({from, m.step, next - m.samples, end.reason});
    m.samples = next;
    std::string problem;
    if (t.process.is_root()) {
        try {
            write_file_atomically(point->folder + "/" + kManifestName, m.to_json());
        } catch (const Error& error) {
            problem = error.what();
        }
    }
    problem = t.process.broadcast_text(problem, 0);
    if (!problem.empty()) return refuse("; it can't be rolled back: " + problem);
    t.health.forget_end();
    t.health.status().saved(m.step);
    point->rolls_back = true;
    point->may_fall_back = false;  // an older one would lack the record
    return point;
}

static int finish_early(Trainer& t, bool last_save_good) {
    const RunGuard::End& end = *t.health.end();
    const int64_t saved = t.health.status().saved_step(), resumed = t.start.resumed.step, last = t.metrics->last_step();
    std::string saves = saved >= 0    ? format("the last checkpoint is of step %ld", saved)
                        : resumed > 0 ? format("the last checkpoint is that of step %ld", resumed)
                        : t.saver     ? "there is no checkpoint yet"
                                      : "nothing is saved without --out";
    if (end.saves && t.saver && !last_save_good) saves = "THE STATE COULD NOT BE SAVED; " + saves;
    t.log->line(format("%s after step %ld: %s; %s", end.exit_code == kExitRequeue ? "stopped " : "ends", last,
                       end.reason.c_str(), saves.c_str()));
    if (end.exit_code == kExitRequeue) {
        t.health.status().stopped(last, end.exit_code, end.reason);
    } else if (t.process.is_root()) {
        std::fprintf(stderr, "train_llama: %s\n", end.reason.c_str());
        t.health.status().failed(end.exit_code, end.reason);
    }
    t.log->plot();
    t.log->wait_for_files();
    return end.exit_code;
}

// After all else, and well within the deadline of the ranks that wait for this one; briefly where the run was asked to
// stop.
static void finish_commands(Trainer& t, int exit_code) {
    if (t.saver) t.saver->finish_commands(exit_code == kExitRequeue ? 5 : t.options.timeout / 2);
}

RunEnd finish(Trainer& t) {
    if (t.mlperf) t.mlperf->run_stop(t.batches->samples_before(t.metrics->last_step() + 1));
    const std::string& out = t.options.out;
    TrainState& core = *t.core;
    RunGuard& health = t.health;
    t.metrics->flush();
    Process::DiskWork files(t.process);
    const int64_t last = t.metrics->last_step();
    const bool last_save_good = !t.saver || t.saver->finish();
    health.agree();
    if (!health.end() || health.end()->saves)
        if (const std::string bad = find_not_finite(t.process, core.device, core.compute, core.zero, core.table);
            !bad.empty())
            health.end_with(kExitNumbers, format("not finite after step %ld: ", last) + bad);
    if (health.end() && health.end()->undo_from > 0)
        if (std::optional<ResumePoint> point = plan_rollback(t, health.end()->undo_from))
            return {kExitNumbers, std::move(point)};
    if (!health.end() &&
        t.stage_ends(last)) {  // --batch-ramp: the next stage begins as if the program were started again
        require(last_save_good,
                "--batch-ramp: the checkpoint after step %ld could not be saved, and the next stage begins there",
                last);
        files.join();
        t.log->wait_for_files();
        return {kExitSuccess, checkpoint_at(t.options, t.process, last)};
    }
    if (health.end() && !(health.end()->saves && last == t.options.steps)) {
        const int exit_code = finish_early(t, last_save_good);
        finish_commands(t, exit_code);
        files.join();
        return {exit_code};
    }
    if (!out.empty()) {
        const auto write = [&](const std::string& folder) {
            export_weights(folder, core.config, core.table, t.process, core.device, core.compute, core.zero,
                           t.sources.paths.tokenizer_files, t.options.shard_above_mib << 20);
            t.log->line("saved    " + folder);
        };
        write(out + "/final");
        if (t.options.ema > 0) {
            core.zero.optimizer.show_average();
            write(out + "/final_ema");
            core.zero.optimizer.show_weights();
        }
    }
    files.join();
    core.compute.synchronize();
    RankPlaces places;
    for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp})
        places.emplace_back(name_of(axis), core.mesh.place(axis).rank);
    RankTraffic sent;
    for (size_t i = 0; i < kCountedAxes.size(); ++i)
        sent.emplace_back(name_of(kCountedAxes[i]), t.metrics->bytes_in_steps()[i]);
    const RankReport ranks = gather_rank_report(t.process, places, core.device, t.metrics->steps_done(), sent);
    t.log->line(ranks.text);
    t.log->describe("ranks.json", ranks.json);
    if (t.trace) t.trace->write_memory();
    health.status().finished(last);
    finish_commands(t, kExitSuccess);
    t.log->finish();
    t.log->wait_for_files();
    files.join();
    return {kExitSuccess};
}

}  // namespace rz
