#include "llama/parallel/executor.h"

#include <algorithm>

#include "kernels/runtime/check.h"

namespace rz {

Executor::Executor(Program program, StepShape shape, Stream& compute, Mesh* mesh)
    : program_(std::move(program)), shape_(std::move(shape)), compute_(compute), mesh_(mesh) {
    const auto talks = [](const Instr& i) { return i.what == Do::send || i.what == Do::recv; };
    require(mesh || std::none_of(program_.code.begin(), program_.code.end(), talks),
            "a program with messages needs a mesh to send them on");
}

void Executor::run(ProgramHost& host) {
    passages_.clear();
    times_ = {};
    if (keeps_times_) times_.begin = compute_.record(/*timing=*/true);
    for (const Instr& i : program_.code) {
        switch (i.what) {
            case Do::gather:
                host.gather(i);
                break;
            case Do::release:
                host.release(i);
                break;
            case Do::reduce:
                host.reduce(i);
                break;
            case Do::send:
                send(i, host);
                break;
            case Do::recv:
                recv(i, host);
                break;
            case Do::forward:
            case Do::backward:
            case Do::input_grad:
            case Do::weight_grad:
                compute(i, host);
                break;
        }
    }
}

void Executor::compute(const Instr& i, ProgramHost& host) {
    const StageUnits& s = shape_.stage(i.stage);
    const bool forward = i.what == Do::forward, input_half = i.what == Do::backward || i.what == Do::input_grad;
    Passage& p = passage(i.stage, i.micro_batch);
    if (forward && i.first_unit == s.first_unit) begin_forward(i, s, host);
    if (input_half && i.last_unit == s.last_unit) {
        compute_.wait(p.gradient_here);
        compute_.wait(events(i.stage, i.slot).gradient_sent);
    }
    // A pass of the stage is one task, also where its units come one by one.
    const bool begins = forward ? i.first_unit == s.first_unit : i.last_unit == s.last_unit;
    const bool ends = forward ? i.last_unit == s.last_unit : i.first_unit == s.first_unit;
    if (keeps_times_ && begins) times_.tasks.push_back({i, compute_.record(/*timing=*/true), {}});
    host.compute(i);
    if (keeps_times_ && ends) times_.tasks.back().end = compute_.record(/*timing=*/true);
    if (forward && i.last_unit == s.last_unit) {
        p.output_written = compute_.record();
        if (!shape_.trains) events(i.stage, i.slot).free = p.output_written;
    }
    if (input_half && i.first_unit == s.first_unit) end_backward(i, s, host);
}

void Executor::begin_forward(const Instr& i, const StageUnits& s, ProgramHost& host) {
    Passage& p = passage(i.stage, i.micro_batch);
    p.slot = i.slot;
    compute_.wait(p.input_here);
    compute_.wait(events(i.stage, i.slot).output_sent);
    if (const StageUnits* below = shape_.below(s, i.micro_batch))
        compute_.copy(host.boundary(Boundary::input, i.stage, i.slot),
                      host.boundary(Boundary::output, below->stage, passage(below->stage, i.micro_batch).slot),
                      host.boundary_bytes(i.micro_batch));
}

void Executor::end_backward(const Instr& i, const StageUnits& s, ProgramHost& host) {
    if (const StageUnits* below = shape_.below(s, i.micro_batch)) {
        const int slot = passage(below->stage, i.micro_batch).slot;
        compute_.wait(events(below->stage, slot).gradient_sent);
        compute_.copy(host.boundary(Boundary::gradient, below->stage, slot),
                      host.boundary(Boundary::gradient, i.stage, i.slot), host.boundary_bytes(i.micro_batch));
    }
    passage(i.stage, i.micro_batch).gradient_written = compute_.record();
    events(i.stage, i.slot).free = passage(i.stage, i.micro_batch).gradient_written;
}

// "3F12": what stage 3 made of micro-batch 12 going up, "3I12" going down; so the watchdog names lane, stage and
// micro-batch of a message that does not come.
static std::string name_of_message(int made_by, bool up, int micro_batch) {
    return "tensor " + std::to_string(made_by) + (up ? "F" : "I") + std::to_string(micro_batch);
}

void Executor::send(const Instr& i, ProgramHost& host) {
    const bool up = i.last_unit > i.first_unit;
    Passage& p = passage(i.stage, i.micro_batch);
    Link& link = mesh_->link_to(i.lane);
    link.stream().wait(up ? p.output_written : p.gradient_written);
    host.before_message(i, link.stream());
    link.send(host.boundary(up ? Boundary::output : Boundary::gradient, i.stage, i.slot),
              host.boundary_bytes(i.micro_batch), name_of_message(i.stage, up, i.micro_batch).c_str());
    host.after_message(i, link.stream());
    SlotEvents& slot = events(i.stage, i.slot);
    (up ? slot.output_sent : slot.gradient_sent) = link.stream().record();
}

void Executor::recv(const Instr& i, ProgramHost& host) {
    const bool up = i.last_unit > i.first_unit;
    const SlotEvents& slot = events(i.stage, i.slot);
    Link& link = mesh_->link_from(i.lane);
    link.stream().wait(slot.free);
    if (!up) link.stream().wait(slot.gradient_sent);
    host.before_message(i, link.stream());
    link.recv(host.boundary(up ? Boundary::input : Boundary::gradient, i.stage, i.slot),
              host.boundary_bytes(i.micro_batch), name_of_message(i.stage + (up ? -1 : 1), up, i.micro_batch).c_str());
    host.after_message(i, link.stream());
    Passage& p = passage(i.stage, i.micro_batch);
    const Event here = link.stream().record(keeps_times_);
    (up ? p.input_here : p.gradient_here) = here;
    if (keeps_times_) times_.arrivals.push_back({i, here});
}

}  // namespace rz
