#include "llama/parallel/executor.h"

#include <algorithm>

#include "comm/flight.h"
#include "kernels/runtime/check.h"
#include "kernels/runtime/nvtx.h"

namespace rz {

void* ProgramHost::boundary(Boundary, int stage, int) { fail("stage %d has no boundary on this rank", stage); }
int64_t ProgramHost::boundary_bytes(int) { fail("a host of one stage has no messages"); }
GraphSet::Key ProgramHost::graph_key(int) { fail("a host without graphs of micro-batches"); }

void Executor::run(const RankProgram& program, ProgramHost& host) {
    ProgramRun run(*this, program, host);
    while (const Instr* i = run.next()) run.enqueue(*i);
}

ProgramRun::ProgramRun(Executor& executor, const RankProgram& program, ProgramHost& host)
    : executor_(executor),
      shape_(program.shape),
      code_(program.program.code),
      host_(host),
      compute_(executor.compute_),
      talks_(std::any_of(code_.begin(), code_.end(), [](const Instr& i) { return i.is_message(); })),
      times_(executor.keeps_times_ && program.shape.trains) {
    require(executor.mesh_ || !talks_, "a program with messages needs a mesh to send them on");
    require(!executor.replays_ || !talks_, "a micro-batch with messages can't be one graph");
    if (!times_) return;
    executor.times_ = {};
    executor.times_.begin = compute_.record(/*timing=*/true);
}

ProgramRun::ProgramRun(Executor& executor, const RankProgram& program, std::unique_ptr<ProgramHost> host)
    : ProgramRun(executor, program, *host) {
    own_ = std::move(host);
}

ProgramRun::~ProgramRun() {
    if (in_graph_) executor_.graphs_.abandon();
}

const Instr* ProgramRun::next() {
    const bool replays = executor_.replays_ && shape_.trains;
    while (replays && (at_ == 0 || at_ == code_.size() || code_[at_].micro_batch != code_[at_ - 1].micro_batch)) {
        if (in_graph_) executor_.graphs_.end();
        in_graph_ = false;
        if (at_ == code_.size()) break;
        const int micro_batch = code_[at_].micro_batch;
        in_graph_ = executor_.graphs_.begin(compute_, host_.graph_key(micro_batch));
        if (in_graph_) break;
        while (at_ < code_.size() && code_[at_].micro_batch == micro_batch) ++at_;
    }
    if (at_ == code_.size()) {
        work_scope = {};
        return nullptr;
    }
    const Instr& i = code_[at_++];
    work_scope = {i.first_unit, i.micro_batch, i.stage};
    return &i;
}

void ProgramRun::enqueue(const Instr& i) {
    switch (i.what) {
        case Do::gather:
            return gather(i);
        case Do::recv:
            return recv(i);
        case Do::forward:
            return forward(i);
        case Do::backward:
            return backward(i);
        case Do::input_grad:
            return input_grad(i);
        case Do::weight_grad:
            return weight_grad(i);
        case Do::send:
            return send(i);
        case Do::reduce:
            return reduce(i);
        case Do::release:
            return release(i);
    }
}

// A pass of the stage is one task, also where its units come one by one.
void ProgramRun::compute(const Instr& i, bool begins, bool ends) {
    const bool named = compute_.computes();
    if (named && begins) nvtx_push(task_name(i));
    if (times_ && begins) executor_.times_.tasks.push_back({i, compute_.record(/*timing=*/true), {}});
    host_.compute(i);
    if (times_ && ends) executor_.times_.tasks.back().end = compute_.record(/*timing=*/true);
    if (named && ends) nvtx_pop();
}

void ProgramRun::forward(const Instr& i) {
    const StageUnits& s = shape_.stage(i.stage);
    const bool ends = i.last_unit == s.last_unit;
    if (i.first_unit == s.first_unit) begin_forward(i, s);
    compute(i, i.first_unit == s.first_unit, ends);
    if (!ends || !talks_) return;
    MicroBatchState& p = passage(i.stage, i.micro_batch);
    p.output_written = compute_.record();
    if (!shape_.trains) executor_.events(i.stage, i.slot).free = p.output_written;
}

void ProgramRun::input_half(const Instr& i) {
    const StageUnits& s = shape_.stage(i.stage);
    const bool begins = i.last_unit == s.last_unit, ends = i.first_unit == s.first_unit;
    if (begins && talks_) {
        compute_.wait(passage(i.stage, i.micro_batch).gradient_here);
        compute_.wait(executor_.events(i.stage, i.slot).gradient_sent);
    }
    compute(i, begins, ends);
    if (ends) end_backward(i, s);
}

void ProgramRun::weight_grad(const Instr& i) {
    const StageUnits& s = shape_.stage(i.stage);
    compute(i, i.last_unit == s.last_unit, i.first_unit == s.first_unit);
}

void ProgramRun::begin_forward(const Instr& i, const StageUnits& s) {
    MicroBatchState& p = passage(i.stage, i.micro_batch);
    p.slot = i.slot;
    if (talks_) {
        compute_.wait(p.input_here);
        compute_.wait(executor_.events(i.stage, i.slot).output_sent);
    }
    if (const StageUnits* below = shape_.below(s, i.micro_batch))
        compute_.copy(host_.boundary(Boundary::input, i.stage, i.slot),
                      host_.boundary(Boundary::output, below->stage, passage(below->stage, i.micro_batch).slot),
                      host_.boundary_bytes(i.micro_batch));
}

void ProgramRun::end_backward(const Instr& i, const StageUnits& s) {
    if (const StageUnits* below = shape_.below(s, i.micro_batch)) {
        const int slot = passage(below->stage, i.micro_batch).slot;
        if (talks_) compute_.wait(executor_.events(below->stage, slot).gradient_sent);
        compute_.copy(host_.boundary(Boundary::gradient, below->stage, slot),
                      host_.boundary(Boundary::gradient, i.stage, i.slot), host_.boundary_bytes(i.micro_batch));
    }
    if (!talks_) return;
    const Event written = compute_.record();
    passage(i.stage, i.micro_batch).gradient_written = written;
    executor_.events(i.stage, i.slot).free = written;
}

// "3F12": what stage 3 made of micro-batch 12 going up, "3I12" going down; so the watchdog names lane, stage and
// micro-batch of a message that does not come.
static std::string name_of_message(int made_by, bool up, int micro_batch) {
    return "tensor " + std::to_string(made_by) + (up ? "F" : "I") + std::to_string(micro_batch);
}

void ProgramRun::send(const Instr& i) {
    const bool up = i.last_unit > i.first_unit;
    MicroBatchState& p = passage(i.stage, i.micro_batch);
    Link& link = executor_.mesh_->link_to(i.lane);
    link.stream().wait(up ? p.output_written : p.gradient_written);
    host_.before_message(i, link.stream());
    link.send(host_.boundary(up ? Boundary::output : Boundary::gradient, i.stage, i.slot),
              host_.boundary_bytes(i.micro_batch), name_of_message(i.stage, up, i.micro_batch).c_str());
    host_.after_message(i, link.stream());
    Executor::SlotEvents& slot = executor_.events(i.stage, i.slot);
    (up ? slot.output_sent : slot.gradient_sent) = link.stream().record();
}

void ProgramRun::recv(const Instr& i) {
    const bool up = i.last_unit > i.first_unit;
    const Executor::SlotEvents& slot = executor_.events(i.stage, i.slot);
    Link& link = executor_.mesh_->link_from(i.lane);
    link.stream().wait(slot.free);
    if (!up) link.stream().wait(slot.gradient_sent);
    host_.before_message(i, link.stream());
    link.recv(host_.boundary(up ? Boundary::input : Boundary::gradient, i.stage, i.slot),
              host_.boundary_bytes(i.micro_batch), name_of_message(i.stage + (up ? -1 : 1), up, i.micro_batch).c_str());
    host_.after_message(i, link.stream());
    MicroBatchState& p = passage(i.stage, i.micro_batch);
    const Event here = link.stream().record(times_);
    (up ? p.input_here : p.gradient_here) = here;
    if (times_) executor_.times_.arrivals.push_back({i, here});
}

}  // namespace rz
