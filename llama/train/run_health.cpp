// The part of a run that looks after itself: faults on request, guards, and the end (run.h).

#include <cstring>

#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/checkpoint/replicas.h"
#include "llama/train/run.h"

namespace rz {

Run::Drain::~Drain() {
    try {
        if (stream) stream->synchronize();
    } catch (...) {  // reported by whoever synchronised first
    }
}

void Run::begin_step(int64_t step) {
    process.set_step(step);
    if (trace_) trace_->begin_step(step);
    fault_point("step");
    const FaultAction action = fault_point("gradient");
    if (action != FaultAction::nan && action != FaultAction::inf) return;
    // Gradients are added to what stands there, so that this element stays bad.
    static const uint32_t kNan = 0x7fc00000, kInf = 0x7f800000;
    const int64_t e = size_of(zero->options().grad_dtype);
    const char* value = reinterpret_cast<const char*>(action == FaultAction::nan ? &kNan : &kInf);
    compute_->copy(zero->gradients(int(zero->units().size()) - 1), value + (4 - e), e);
}

Judgement Run::judge(const Probe& probe, double loss_sum, double norm, double own_seconds, double seconds) {
    if (fault_point("loss") == FaultAction::spike) loss_sum *= 10;
    Judgement j = health_.judge({.step = probe.step,
                                 .loss_sum = loss_sum,
                                 .tokens = double(tokens_per_step()),
                                 .grad_norm = norm,
                                 .seconds = seconds,
                                 .own_seconds = own_seconds,
                                 .data_hash = probe.data_hash});
    if (!j.line.empty()) log_->line(j.line);
    return j;
}

void Run::check_replicas(int64_t step) {
    for (const auto& [point, part] :
         {std::pair("weights", StatePart::model), {"masters", StatePart::master}, {"moments", StatePart::m}})
        if (const FaultAction action = fault_point(point); action == FaultAction::flip || action == FaultAction::nan)
            damage_state(*compute_, *zero, part, action == FaultAction::nan);
    if (options.check_replicas == 0 || (step % options.check_replicas != 0 && !saves(step))) return;
    const std::string difference = compare_replicas(process, *mesh_, device_, *compute_, *zero, table_);
    if (!difference.empty()) health_.end_with(kExitReplicas, format("step %lld: ", (long long)step) + difference);
}

bool Run::stops(int64_t step) {
    health_.look_for_stop();
    if (!health_.end()) return false;
    if (health_.end()->saves && step == options.steps) return false;  // done anyway
    if (health_.end()->saves && writer_) save(step);
    return true;
}

// PaLM (Chowdhery et al. 2022, section 5.1): back to a checkpoint some steps before the spike, and on without the
// batches that were seen since then, and some more. The checkpoint's manifest gets the new place in the data before
// anything else, so that a run which is killed from here on does the same.
void Run::plan_rollback() {
    Health::End end = *health_.end();
    const int64_t from = end.undo_from, done = int64_t(resumed_.rollbacks.size());
    std::optional<ResumePoint> point;
    std::string why_not;
    if (done >= options.max_rollbacks)
        why_not = format("after %lld rollbacks (--max-rollbacks)", (long long)done);
    else if (point = find_rollback(options, process, from); !point)
        why_not = "there is no checkpoint to roll back to";
    if (!why_not.empty()) return health_.end_with(end.exit_code, end.reason + "; " + why_not);
    const int64_t next = samples_before(from + 1) + options.rollback_skip * samples_per_step();
    Manifest& m = point->manifest;
    m.rollbacks = resumed_.rollbacks;
    m.rollbacks.push_back({from, m.step, next - m.samples, end.reason});
    m.samples = next;
    std::string problem;
    if (process.is_root()) {
        try {
            write_file_atomically(point->folder + "/" + kManifestName, m.to_json());
        } catch (const Error& error) {
            problem = error.what();
        }
    }
    problem = process.all_gather_text(problem)[0];
    if (!problem.empty()) return health_.end_with(end.exit_code, end.reason + "; it can't be rolled back: " + problem);
    health_.forget_end();
    health_.status().saved(m.step);
    point->rolls_back = true;
    point->may_fall_back = false;  // an older one would lack the record
    rollback_ = std::move(point);
}

void Run::tell_of_rollback() {
    const Rollback& r = resumed_.rollbacks.back();
    log_->event(r.to,
                format("rollback %s: on from step %lld, without %lld sequences of the data (%zu of at most %lld)",
                       r.reason.c_str(), (long long)r.to, (long long)r.samples, resumed_.rollbacks.size(),
                       (long long)options.max_rollbacks),
                "rollback", Json{{"from", r.from}, {"samples", r.samples}, {"reason", r.reason}}.dump());
}

// Run::finish for a run that ends early. Returns its exit code.
int Run::finish_early(bool last_save_good) {
    const Health::End& end = *health_.end();
    const int64_t saved = health_.status().saved_step();
    std::string saves = saved >= 0 ? format("the last checkpoint is of step %lld", (long long)saved)
                        : resumed_.step > 0
                            ? format("the last checkpoint is that of step %lld", (long long)resumed_.step)
                        : options.out.empty() ? "nothing is saved without --out"
                                              : "there is no checkpoint yet";
    if (end.saves && writer_ && !last_save_good) saves = "THE STATE COULD NOT BE SAVED; " + saves;
    log_->line(format("%s behind step %lld: %s; %s", end.exit_code == kExitRequeue ? "stopped " : "ends",
                      (long long)last_step_, end.reason.c_str(), saves.c_str()));
    if (end.exit_code == kExitRequeue) {
        health_.status().stopped(last_step_, end.exit_code, end.reason);
    } else {
        if (process.is_root()) {
            std::fprintf(stderr, "train_llama: %s\n", end.reason.c_str());
            health_.status().failed(end.exit_code, end.reason);
        }
    }
    log_->plot();
    return end.exit_code;
}

}  // namespace rz
