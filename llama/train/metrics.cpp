#include "llama/train/metrics.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/runtime/context.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/report/rank_report.h"

namespace rz {

Metrics::Metrics(Process& process, TrainState& core, CommMeter& meter, Batches& batches, const Schedule& lr,
                 RunGuard& health, Log& log, Trace* trace, const std::string& trace_file, int64_t steps,
                 int64_t log_every)
    : process_(process),
      core_(core),
      meter_(meter),
      batches_(batches),
      lr_(lr),
      health_(health),
      log_(log),
      trace_(trace),
      trace_file_(trace_file),
      steps_(steps),
      log_every_(log_every) {
    Numbers numbers = make_numbers(core.device);
    for (size_t i = 0; i < probes_.size(); ++i) probes_[i].host = std::move(numbers[i]);
    last_done_ = core.compute.record(/*timing=*/true);
    bytes_before_ = core.mesh.bytes_by_axis();
}

Metrics::Numbers Metrics::make_numbers(Device device) {
    Numbers numbers;
    for (Buffer& b : numbers)
        b = Buffer::host_for(device, kScaleState + sizeof(LossScaleState), MemKind::workspace, "step numbers");
    return numbers;
}

// `loss_scale`: on the device, or nullptr.
void Metrics::restore(int64_t updates, uint64_t data_hash, int64_t last_step, const LossScaleState* loss_scale) {
    if (loss_scale) core_.compute.copy(&loss_scale_, loss_scale, sizeof loss_scale_);
    core_.compute.synchronize();
    updates_ = updates;
    data_hash_ = data_hash;
    last_step_ = last_step;
}

void Metrics::begin(int64_t step) {
    if (is_watched(step)) statistics_->begin();
    if (trace_) trace_->begin_step(step);
}

// A message is the tensor that a task made for a neighbour: named by step, the stage that made it, its direction, the
// micro-batch, and which of the copies of the pipeline it is in.
void Metrics::trace_tasks(int64_t step, const StepEvents& events) {
    const Mesh& mesh = core_.mesh;
    const int64_t copies = mesh.world().size / mesh.place(Axis::pp).size,
                  copy = mesh.place(Axis::data).rank * mesh.place(Axis::tp).size + mesh.place(Axis::tp).rank;
    const auto number = [&](int made_by, bool up, int micro_batch) {
        int64_t n = step * (int64_t(core_.plan->schedule.stages) * 2) + made_by * 2 + up;
        n = n * core_.plan->schedule.micro_batches + micro_batch;
        return n * copies + copy;
    };
    for (const StepEvents::Task& task : events.tasks) {
        const Instr& t = task.instr;
        const bool forward = t.what == Do::forward;
        Trace::Task out{.name = task_name(t), .start = task.start, .end = task.end, .made = {}, .read = {}};
        for (const Instr& i : core_.program.program.code) {
            if (!i.is_message() || i.stage != t.stage || i.micro_batch != t.micro_batch || t.what == Do::weight_grad)
                continue;
            const bool up = i.last_unit > i.first_unit;
            if (up != forward) continue;
            if (i.what == Do::send) out.made.push_back(number(i.stage, up, i.micro_batch));
            if (i.what == Do::recv) out.read.push_back(number(i.stage + (up ? -1 : 1), up, i.micro_batch));
        }
        trace_->add(std::move(out));
    }
}

void Metrics::end(int64_t step) {
    Probe& probe = probes_[size_t(step % 2)];
    probe.times = core_.model.take_times();
    if (trace_ && core_.plan && trace_->covers(step)) trace_tasks(step, probe.times);
    if (trace_ && trace_->end_step(step, trace_file_))
        log_.line("trace    " + trace_file_ + ": open it in ui.perfetto.dev");
    probe.step = step;
    probe.data_hash = batches_.take_hash();
    probe.attended = batches_.take_attended();
    probe.data_wait = batches_.take_waited();
    core_.compute.copy(probe.host.data(), core_.model.loss_sum(), 8);
    core_.compute.copy(probe.host.bytes_at(8), core_.zero.optimizer.norm(), 4);
    core_.compute.copy(probe.host.bytes_at(16), core_.zero.optimizer.updates(), 8);
    if (const LossScaleState* l = core_.zero.optimizer.loss_scale())
        core_.compute.copy(probe.host.bytes_at(kScaleState), l, sizeof *l);
    if (const double* z = core_.model.z_sum()) core_.compute.copy(probe.host.bytes_at(24), z, 8);
    if (is_watched(step)) statistics_->end(step);
    probe.done = core_.compute.record(/*timing=*/true);
    const BytesByAxis sent = core_.mesh.bytes_by_axis();
    for (size_t i = 0; i < sent.size(); ++i) probe.sent[i] = sent[i] - bytes_before_[i];
    bytes_before_ = sent;
    core_.model.reset_loss();
    probe.comm = meter_.cut();
    report(probes_[size_t((step + 1) % 2)]);
    last_step_ = step;
}

void Metrics::flush() {
    // Steps are reported in order: the other one of the two is the older.
    report(probes_[size_t((last_step_ + 1) % 2)]);
    report(probes_[size_t(last_step_ % 2)]);
}

void Metrics::exclude_from_step_time() {
    if (core_.mesh.world().size > 1) meter_.take();
    bytes_before_ = core_.mesh.bytes_by_axis();
    last_done_ = core_.compute.record(/*timing=*/true);
}

static bool is_printed(int64_t step, int64_t every, int64_t last) {
    return step % every == 0 || step == last || step == 1;
}

void Metrics::report(Probe& probe) {
    if (probe.step < 0) return;
    probe.done.synchronize();
    double loss_sum = 0, z_sum = 0;
    float norm = 0;
    std::memcpy(&loss_sum, probe.host.data(), 8);
    std::memcpy(&norm, probe.host.bytes_at(8), 4);
    if (core_.model.z_sum()) std::memcpy(&z_sum, probe.host.bytes_at(24), 8);
    std::memcpy(&updates_, probe.host.bytes_at(16), 8);
    StepReport r{.step = probe.step,
                 .loss = 0,
                 .grad_norm = norm,
                 .learning_rate = lr_.at(probe.step),
                 .seconds = probe.done.seconds_since(last_done_),
                 .tokens = batches_.tokens_per_step(),
                 .tokens_so_far = batches_.tokens_after(probe.step),
                 .data_hash = 0,
                 .memory_bytes = core_.device.context->memory.peak(core_.device.kind)};
    if (core_.mesh.world().size > 1) {
        const CommTotals comm = meter_.take_complete(std::move(probe.comm));
        r.comm_seconds = comm.total_s;
        r.exposed_seconds = comm.exposed_s, r.overlap = comm.overlap_efficiency();
        for (size_t i = 0; i < kCountedAxes.size(); ++i) {
            const std::string axis = name_of(kCountedAxes[i]);
            const auto seconds = comm.axes.find(axis);
            r.bytes_sent += probe.sent[i];
            if (probe.sent[i] > 0)
                r.axes.push_back({axis, probe.sent[i], seconds == comm.axes.end() ? 0 : seconds->second});
        }
    }
    r.data_wait = probe.data_wait;
    if (!probe.times.tasks.empty()) r.phases = phase_times(probe.times, probe.done);
    const double loss_scale = core_.zero.options.loss_scaling.on() ? double(loss_scale_.scale) : 1;  // of this step
    const StepVerdict judgement = judge(probe, loss_sum, z_sum, norm, own_seconds(probe, r), r.seconds);
    r.loss = judgement.loss;
    r.data_hash = data_hash_ += judgement.data_hash;
    r.note = judgement.note;
    r.seconds_by_rank = judgement.seconds;
    r.json = judgement.json;
    r.by_rank = judgement.by_rank;
    if (const std::string epochs = batches_.epochs_json(probe.step); !epochs.empty()) r.json += ",\"epochs\":" + epochs;
    if (core_.options.stage.z_loss > 0) r.z_loss = judgement.z_loss;
    if (batches_.has_targets()) r.json += format(",\"targets\":%ld", batches_.targets_of(probe.step));
    if (batches_.documents()) {
        const Batches::Attended& a = judgement.attended;
        r.attention_share = a.samples / double(batches_.samples_per_step());
        r.json += format(",\"attention_share\":%.6g,\"attention_tiles\":%.0f,\"attention_tiles_skipped\":%.0f",
                         r.attention_share, a.tiles, a.tiles_skipped);
    }
    if (core_.plan) report_pipeline(probe, r);
    if (statistics_) report_statistics(probe, r, judgement, loss_scale);
    ++steps_done_;
    for (size_t i = 0; i < probe.sent.size(); ++i) bytes_in_steps_[i] += probe.sent[i];
    last_done_ = probe.done;
    log_.step(r, is_printed(probe.step, log_every_, steps_));
    probe.step = -1;
}

void Metrics::report_statistics(const Probe& probe, const StepReport& r, const StepVerdict& judgement,
                                double loss_scale) {
    constexpr size_t kSteps = 20;
    Past now{probe.step, "", ""};
    if (is_watched(probe.step))
        now.statistics = statistics_->report(probe.step, process_, loss_scale, batches_.tokens_per_step());
    if (!process_.is_root()) return;
    if (!now.statistics.empty()) log_.statistics(probe.step, now.statistics);
    const OrderedJson numbers = {{"step", probe.step},    {"loss", r.loss},       {"grad_norm", r.grad_norm},
                                 {"lr", r.learning_rate}, {"seconds", r.seconds}, {"note", r.note}};
    now.numbers = numbers.dump();  // what is not finite is null
    now.numbers.pop_back();
    past_.push_back(std::move(now));
    if (past_.size() > kSteps) past_.pop_front();
    if (!judgement.bad) return;
    std::string steps;
    for (const Past& p : past_)
        steps += (steps.empty() ? "" : ",\n") + p.numbers + ",\"batch\":" + batches_.samples_json(p.step) +
                 (p.statistics.empty() ? "" : ",\"statistics\":" + p.statistics) + "}";
    log_.bad_step(probe.step, format("{\"step\":%ld,\"steps\":[\n", probe.step) + steps + "]}");
}

void Metrics::report_pipeline(const Probe& probe, StepReport& r) {
    const std::vector<TaskTime> tasks = task_times(probe.times);
    const int size = core_.mesh.world().size;
    std::vector<int> places;
    for (int rank = 0; rank < size; ++rank) places.push_back(core_.mesh.grid().place(Axis::pp, rank).rank);
    const std::vector<PipelineNumbers> ranks = process_.all_gather(pipeline_numbers(tasks));
    const PipelineSummary s = summarise(ranks, places);
    r.utilisation = s.util_step;
    if (is_printed(probe.step, log_every_, steps_)) {  // then the line of the step
        log_.line(stages_line(ranks));
        log_.line(stages_by_rank_line(ranks, places));
    }
    r.json += ",\"pipeline\":" + s.json;
    if (task_steps_ <= 0) return;
    for (const TaskTime& t : tasks) task_lines_ += json_line(t, probe.step, core_.mesh.world().rank);
    if (--task_steps_ == 0 || probe.step == steps_) {
        task_steps_ = 0;
        write_file_atomically(task_file_, task_lines_);
        log_.line("tasks    " + task_file_ + ", and one for each other rank");
    }
}

// Time of the step without waiting for other ranks. For a pipeline's rank as if all had the same share of the work.
double Metrics::own_seconds(const Probe& probe, const StepReport& r) const {
    const double own = r.seconds - r.exposed_seconds;
    if (!core_.plan || probe.times.tasks.empty()) return own;
    const std::vector<PipelineRun::Rank>& ranks = core_.plan->predicted.ranks;
    double all = 0;
    for (const PipelineRun::Rank& rank : ranks) all += double(rank.busy);
    const double busy = double(ranks[size_t(core_.mesh.place(Axis::pp).rank)].busy);
    const double waited = pipeline_numbers(task_times(probe.times)).waiting;
    return std::max(0.0, own - waited) * all / double(ranks.size()) / std::max(busy, 1.0);
}

// With the fault "loss", asked for once a step.
double Metrics::seen_loss(int64_t step, double loss_sum) {
    if (spike_fault_.first != step) spike_fault_ = {step, fault_point("loss") == FaultAction::spike};
    return spike_fault_.second ? 10 * loss_sum : loss_sum;
}

bool Metrics::is_outlier(int64_t step) {
    flush();
    double loss_sum = 0;
    float norm = 0;
    core_.compute.copy(&loss_sum, core_.model.loss_sum(), 8);
    core_.compute.copy(&norm, core_.zero.optimizer.norm(), 4);
    core_.compute.synchronize();
    const int64_t targets = std::max<int64_t>(1, batches_.targets_of(step));
    return health_.is_outlier(step, seen_loss(step, loss_sum), double(targets), double(norm));
}

StepVerdict Metrics::judge(const Probe& probe, double loss_sum, double z_sum, double norm, double own_seconds,
                           double seconds) {
    loss_sum = seen_loss(probe.step, loss_sum);
    const LossScaling& scaling = core_.zero.options.loss_scaling;
    const double scale = double(loss_scale_.scale);  // of this step: the state after the one before
    StepVerdict j = health_.judge({.step = probe.step,
                                   .loss_sum = loss_sum,
                                   .z_sum = z_sum,
                                   .tokens = double(std::max<int64_t>(1, batches_.targets_of(probe.step))),
                                   .grad_norm = norm,
                                   .loss_scale = scaling.on() ? scale : 0,
                                   .adapting_scale = scaling.dynamic && scale > double(scaling.least) ? scale : 0,
                                   .seconds = seconds,
                                   .own_seconds = own_seconds,
                                   .data_hash = probe.data_hash,
                                   .attended = probe.attended,
                                   .memory = core_.device.context->memory.peak(core_.device.kind),
                                   .reserved = reserved_bytes(core_.device),
                                   .signs = signs_.look()});
    if (scaling.on()) std::memcpy(&loss_scale_, probe.host.bytes_at(kScaleState), sizeof loss_scale_);
    if (!j.line.empty()) log_.line(j.line);
    return j;
}

}  // namespace rz
