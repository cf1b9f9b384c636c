#include "llama/train/run_guard.h"

#include <algorithm>
#include <cstdio>

#include "comm/watch.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/clock.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/train/resume.h"
#include "llama/train/snapshots.h"

namespace rz {

RunGuard::RunGuard(const TrainOptions& o, Process& process)
    : process_(process),
      report_hang_after_(std::min(30.0, o.timeout / 4)),
      guards_(GuardOptions{}),
      limit_(o.time_limit, monotonic_clock(), wall_clock()) {
    set_guards(o);
    install_stop_signals();
    Process::DiskWork work(process);
    if (!o.out_is_new) hold_folder(o);
    status_ = std::make_shared<RunStatus>(o.out, process.rank(), process.size(), o.steps, files_.get());
    report_failures();
    work.join();
}

// Collective: no rank writes a status into a folder that another run holds.
void RunGuard::hold_folder(const TrainOptions& o) {
    if (process_.is_root() && !o.out.empty()) lock_ = std::make_shared<RunLock>(o.out);
    process_.barrier();
    if (!o.out.empty()) process_.share_records(o.out + "/.ranks");
}

// The hook's state outlives this object: it is called when an error has left main's function already.
void RunGuard::report_failures() {
    process_.on_failure([files = files_, status = status_, lock = lock_](int code, const std::string& reason) mutable {
        status->failed(code, reason);
        if (code == kExitRequest) lock.reset();  // of several ranks each ends without a destructor
    });
}

void RunGuard::take_folder(const TrainOptions& o) {
    if (has_folder_) return;
    has_folder_ = true;
    if (o.out_is_new) {
        try {
            hold_folder(o);
        } catch (const Error& error) {
            fail("%s\n  --out FOLDER names another place, --out \"\" keeps nothing", error.what());
        }
        report_failures();
    }
    if (process_.is_root() && !o.out.empty()) {
        lock_->writes();
        if (o.overwrite) {
            if (const std::string to = set_aside(o.out); !to.empty())
                std::printf("moved    the earlier run to %s\n", to.c_str());
            status_->set_saved_step(-1);
        }
        for (const char* inside : {"", "/final", "/final_ema", "/checkpoints", "/wandb"})
            remove_left_temporaries(o.out + inside);
        CheckpointStore(o.out).clean();
    }
    status_->running(0);
    if (process_.is_root() && !o.out.empty()) begin_restarts(o.out);
}

void RunGuard::set_guards(const TrainOptions& o) {
    rolls_back_ = o.on_spike == OnSpike::rollback;
    guards_.set_options({.max_skips = o.max_skips, .spike_z = o.spike_z, .on_spike = o.on_spike});
}

StopCause RunGuard::own_stop() const {
    if (const StopCause cause = stop_signal(); cause != StopCause::none) return cause;
    if (process_.is_root() && limit_.reached(save_seconds_, step_seconds_)) return StopCause::time_limit;
    return StopCause::none;
}

void RunGuard::take_stop(StopCause cause, int rank) {
    if (cause == StopCause::none || end_) return;
    end_ = End{kExitRequeue, describe_stop(cause, rank), true};
}

void RunGuard::report_end(int exit_code, const std::string& reason) {
    if (!known_) known_ = End{exit_code, reason, false};
    if (process_.alone()) take_end(exit_code);
}

void RunGuard::take_end(int exit_code) {
    if (exit_code != 0 && (!end_ || end_->saves)) end_with(exit_code, known_ ? known_->reason : "");
}

void RunGuard::agree() {
    int64_t code = known_ ? known_->exit_code : 0;
    process_.broadcast(&code, 8, 0);
    take_end(int(code));
}

void RunGuard::look_for_stop() {
    if (process_.alone()) take_stop(own_stop(), 0);
}

void RunGuard::agree_on_stop() {
    const std::vector<StopCause> asked = process_.all_gather(own_stop());
    for (size_t r = 0; r < asked.size(); ++r) take_stop(asked[r], int(r));
}

bool RunGuard::is_outlier(int64_t step, double loss_sum, double tokens, double grad_norm) {
    double sum = 0;  // in rank order, as judge() adds them
    for (const double one : process_.all_gather(loss_sum)) sum += one;
    const bool outlier = guards_.is_outlier(sum / tokens, grad_norm);
    if (outlier) left_out_ = step;
    return outlier;
}

StepVerdict RunGuard::judge(const StepNumbers& n) {
    struct Vote : StepNumbers {
        StopCause stop;
        int32_t end;    // exit code of what rank 0 knows, or 0
        int32_t dumps;  // of the flight recorder, that this rank has been asked for
        int32_t unused = 0;
    };
    Watch* const watch = process_.watch().get();
    const Vote own{n, own_stop(), known_ ? known_->exit_code : 0, watch ? watch->dumps() : 0};
    const std::vector<Vote> votes = process_.all_gather(own);

    StepVerdict j;
    double sum = 0, z_sum = 0, slowest = 0;  // in rank order: the same bits everywhere
    std::vector<double> own_seconds;
    std::vector<SlowSigns> signs;
    for (const Vote& v : votes) {
        sum += v.loss_sum;
        z_sum += v.z_sum;
        j.data_hash += v.data_hash;
        j.attended.samples += v.attended.samples;
        j.attended.tiles += v.attended.tiles, j.attended.tiles_skipped += v.attended.tiles_skipped;
        slowest = std::max(slowest, v.seconds);
        j.seconds.push_back(v.seconds);
        if (watch) watch->ask_for_dump(v.dumps);
        own_seconds.push_back(v.own_seconds);
        signs.push_back(v.signs);
    }
    step_seconds_ = std::max(slowest, 0.9 * step_seconds_);

    j.loss = sum / n.tokens;
    j.z_loss = z_sum / n.tokens;
    const Verdict verdict = guards_.observe(n.step, j.loss, n.grad_norm, n.adapting_scale, n.step == left_out_);
    j.note = verdict.note;
    j.bad = verdict.spike || verdict.skipped || verdict.left_out;
    if (n.loss_scale > 0) j.json += format(",\"loss_scale\":%.9g", n.loss_scale);
    if (guards_.overflows() > 0) j.json += format(",\"overflows\":%ld", guards_.overflows());
    if (guards_.skipped() > 0) j.json += format(",\"skipped\":%ld", guards_.skipped());
    if (guards_.left_out() > 0) j.json += format(",\"left_out\":%ld", guards_.left_out());
    if (verdict.spike) j.json += format(",\"loss_z\":%.4g,\"norm_z\":%.4g", verdict.loss_z, verdict.norm_z);
    for (const auto& [name, bytes] :
         {std::pair("memory_by_rank", &Vote::memory), {"reserved_by_rank", &Vote::reserved}})
        for (size_t r = 0; r < votes.size(); ++r)
            j.by_rank += (r ? "," : format(",\"%s\":[", name)) + std::to_string(votes[r].*bytes) +
                         (r + 1 == votes.size() ? "]" : "");
    name_slow_rank(n.step, own_seconds, signs, j);
    // The first reason stands: steps that were under way already are still judged.
    if (!verdict.give_up.empty() && (!end_ || end_->saves))
        end_ = End{kExitNumbers, verdict.give_up, false, rolls_back_ ? n.step : 0};
    take_end(votes[0].end);
    for (size_t r = 0; r < votes.size(); ++r) take_stop(votes[r].stop, int(r));
    look_at_files();
    status_->running(n.step);
    return j;
}

// Nothing here waits for the file system.
void RunGuard::look_at_files() {
    if (!lock_) return;
    if (lost_->load()) report_end(kExitError, lock_->lost());
    const double busy = files_->busy_seconds();
    if (busy == 0) files_->add([lock = lock_, lost = lost_] { *lost = !lock->held(); });
    if (!hangs_ && busy > report_hang_after_) {
        std::fprintf(
            stderr,
            "train_llama: the file system of --out hangs: logs have waited for %.0f s; training continues until "
            "the next checkpoint\n",
            busy);
        hangs_ = true;
    } else if (hangs_ && busy < report_hang_after_) {
        std::fprintf(stderr, "train_llama: the file system of --out answers again\n");
        hangs_ = false;
    }
}

// A line in a hundred steps. The times of all ranks, for the report, at every tenth.
void RunGuard::name_slow_rank(int64_t step, const std::vector<double>& own_seconds, const std::vector<SlowSigns>& signs,
                              StepVerdict& j) {
    const int slow = stragglers_.observe(own_seconds);
    if (own_seconds.size() > 1 && step % 10 == 0) {
        for (size_t r = 0; r < own_seconds.size(); ++r)
            j.by_rank += format("%s%.4g", r == 0 ? ",\"seconds_by_rank\":[" : ",", own_seconds[r]);
        j.by_rank += "]";
    }
    if (slow < 0) return;
    const double ratio = stragglers_.seconds() / std::max(stragglers_.others(), 1e-9);
    j.json += format(",\"slow_rank\":%d,\"slow_ratio\":%.3g", slow, ratio);
    if (step < next_slow_line_) return;
    next_slow_line_ = step + 100;
    const std::string reason = slow_reason(signs, slow);
    j.line = format("slow     rank %d computes %.0f ms a step, the others %.0f ms (%.2f x): everyone waits for it",
                    slow, 1e3 * stragglers_.seconds(), 1e3 * stragglers_.others(), ratio) +
             (reason.empty() ? "" : "; " + reason);
}

std::string RunGuard::state() const { return guards_.to_json().dump(); }

void RunGuard::restore(const std::string& state, const std::string& where) {
    const Json json = parse_json(state, where);
    if (json.is_object() && json.empty()) return;
    guards_.from_json(json, where);
}

void RunGuard::saved(int64_t step, double seconds) {
    save_seconds_ = seconds;
    status_->saved(step);
}

}  // namespace rz
