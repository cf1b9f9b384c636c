#include <algorithm>
#include <map>
#include <set>

#include "kernels/runtime/check.h"
#include "llama/parallel/program.h"

namespace rz {
namespace {

// Runs the program on nothing but bookkeeping. Each function returns what is wrong, or "".
class ProgramChecker {
   public:
    ProgramChecker(const Program& program, const StepShape& shape) : program_(program), shape_(shape) {
        gathered_.resize(size_t(shape.units()));
        for (size_t at = 0; at < program.code.size(); ++at)
            for (int u : writes(program.code[at], shape)) last_write_[{u, program.code[at].micro_batch}] = at;
    }

    std::string run(int rank) {
        for (at_ = 0; at_ < program_.code.size(); ++at_) {
            const Instr& i = program_.code[at_];
            if (const std::string why = step(i); !why.empty())
                return format("rank %d, instruction %zu (%s): %s", rank, at_, describe(i).c_str(), why.c_str());
        }
        const std::string why = end();
        return why.empty() ? why : format("rank %d, at the end of the step: %s", rank, why.c_str());
    }

   private:
    // A micro-batch's place within a stage.
    struct Pass {
        bool entered = false;           // its input is there: received, or from the rank's own stage below
        bool gradient = false;          // the gradient of its output is there
        int forward = 0, backward = 0;  // units passed
        int input = 0, weight = 0;      // units passed by the halves
        int slot = -1, w_slot = -1;
        bool ended = false;  // the last pass that reads or writes the slot is complete
        bool sent = false, gradient_sent = false;
    };

    std::string step(const Instr& i) {
        const StageUnits* stage = find_stage(i.stage);
        if (!stage) return "this rank does not hold the stage";
        const auto [first, end] = micro_batches_of(*stage);
        if (i.micro_batch < first || i.micro_batch >= end)
            return format("micro-batches %d to %d pass the stage", first, end - 1);
        if (i.last && i.what != Do::reduce) return "only a reduce can be the last";
        if ((i.lane >= 0) != (i.what == Do::send || i.what == Do::recv)) return "a lane belongs to send and recv";
        switch (i.what) {
            case Do::gather:
                return gather(i);
            case Do::release:
                return release(i);
            case Do::reduce:
                return reduce(i);
            case Do::recv:
                return recv(i, *stage);
            case Do::send:
                return send(i, *stage);
            case Do::forward:
            case Do::backward:
            case Do::input_grad:
            case Do::weight_grad:
                break;
        }
        if (i.first_unit > i.last_unit || i.first_unit < stage->first_unit || i.last_unit > stage->last_unit)
            return format("the stage has units %d to %d", stage->first_unit, stage->last_unit);
        if (shape_.shard.sharded_parameters)
            for (int u : reads(i, shape_))
                if (!gathered_[size_t(u)]) return format("unit %d is not gathered", u);
        std::string why = i.what == Do::forward ? forward(i, *stage) : backward(i, *stage);
        for (int u : writes(i, shape_))
            if (why.empty()) why = add_gradients(u, i.micro_batch);
        return why;
    }

    // ---- parameters

    std::string gather(const Instr& i) {
        if (!shape_.shard.sharded_parameters) return "parameters are whole: nothing is gathered";
        if (const std::string why = one_unit(i); !why.empty()) return why;
        if (gathered_[size_t(i.first_unit)]) return "the unit is gathered already";
        if (!shape_.has_room(i.first_unit, gathered_)) return "as many units are whole as can be at once";
        gathered_[size_t(i.first_unit)] = true;
        return "";
    }

    std::string release(const Instr& i) {
        if (const std::string why = one_unit(i); !why.empty()) return why;
        if (!gathered_[size_t(i.first_unit)]) return "the unit is not gathered";
        gathered_[size_t(i.first_unit)] = false;
        return "";
    }

    // ---- gradients

    std::string add_gradients(int unit, int micro_batch) {
        std::set<int>& pending = unreduced_[unit];
        if (reduced_last_.count(unit)) return format("the gradients of unit %d were reduced for the last time", unit);
        const auto complete = [&](int m) { return last_write_.at({unit, m}) < at_; };
        if (shape_.shard.reduce_each && !pending.empty() && std::all_of(pending.begin(), pending.end(), complete))
            return format("the gradients of unit %d still hold micro-batch %d: reduce them first", unit,
                          *pending.begin());
        pending.insert(micro_batch);
        return "";
    }

    std::string reduce(const Instr& i) {
        if (const std::string why = one_unit(i); !why.empty()) return why;
        const int unit = i.first_unit;
        std::set<int>& pending = unreduced_[unit];
        if (pending.empty()) return "nothing was added to its gradients since they were reduced";
        for (int m : pending)
            if (last_write_.at({unit, m}) > at_)
                return format("micro-batch %d adds to its gradients later, at instruction %zu", m,
                              last_write_.at({unit, m}));
        if (!pending.count(i.micro_batch)) return format("its gradients hold micro-batch %d", *pending.begin());
        reduced_[unit] += int(pending.size());
        const int all = micro_batches_into(unit);
        const bool complete = reduced_[unit] == all;
        if (!shape_.shard.reduce_each && !complete)
            return format("gradients are kept whole, and hold %d of %d micro-batches", int(pending.size()), all);
        if (i.last != complete)
            return format(complete ? "it completes the step but is not the last"
                                   : "it is the last, but %d micro-batches are not reduced",
                          all - reduced_[unit]);
        pending.clear();
        if (complete) reduced_last_.insert(unit);
        return "";
    }

    // ---- activations

    std::string forward(const Instr& i, const StageUnits& stage) {
        Pass& p = pass(i);
        const int done = p.forward;
        if (i.first_unit != stage.first_unit + done)
            return done == units_of(stage) ? "the micro-batch has passed the stage already"
                                           : format("unit %d comes next", stage.first_unit + done);
        if (done == 0) {
            if (stage.first_unit > 0 && !p.entered) return "its input was not received";
            if (const std::string why = ascending(Do::forward, i); !why.empty()) return why;
            if (p.slot < 0)
                if (const std::string why = take_slot(i); !why.empty()) return why;
        }
        if (i.slot != p.slot) return format("the micro-batch is in slot %d", p.slot);
        p.forward += i.last_unit - i.first_unit + 1;
        if (p.forward < units_of(stage)) return "";
        if (const StageUnits* above = shape_.above(stage, i.micro_batch))
            passes_[{above->stage, i.micro_batch}].entered = true;
        if (!shape_.trains) p.ended = true, free_slot(i, stage, p);
        return "";
    }

    std::string backward(const Instr& i, const StageUnits& stage) {
        if (!shape_.trains) return "the program is forward only";
        Pass& p = pass(i);
        const int n = units_of(stage);
        if (p.forward < n) return "its forward pass is not complete";
        if (stage.last_unit < shape_.last_unit() && !p.gradient) return "the gradient of its output was not received";
        const bool whole = i.what == Do::backward;
        if (whole ? p.input > 0 : p.backward > 0) return "backward and its two halves are mixed";
        int& done = whole ? p.backward : i.what == Do::input_grad ? p.input : p.weight;
        if (i.last_unit != stage.last_unit - done)
            return done == n ? "the micro-batch has passed the stage already"
                             : format("unit %d comes next", stage.last_unit - done);
        if (done == 0)
            if (const std::string why = ascending(i.what, i); !why.empty()) return why;
        if (i.what == Do::weight_grad ? i.slot >= 0 : i.slot != p.slot)
            return i.what == Do::weight_grad ? "it reads its weight slot only"
                                             : format("the micro-batch is in slot %d", p.slot);
        if (i.what == Do::input_grad && done == 0)
            if (const std::string why = take_weight_slot(i); !why.empty()) return why;
        if (i.w_slot != p.w_slot)
            return p.w_slot < 0 ? "backward keeps nothing for later: it has no weight slot"
                                : format("what it reads is in weight slot %d", p.w_slot);
        done += i.last_unit - i.first_unit + 1;
        if (i.what == Do::weight_grad && done > p.input) return "its input gradient is not complete";
        if (i.what != Do::weight_grad && done == n)
            if (const StageUnits* below = shape_.below(stage, i.micro_batch))
                passes_[{below->stage, i.micro_batch}].gradient = true;
        if (done == n && i.what == Do::weight_grad) w_slot_user_.erase({i.stage, p.w_slot});
        if (done == n && i.what != Do::weight_grad) p.ended = true, free_slot(i, stage, p);
        return "";
    }

    std::string ascending(Do what, const Instr& i) {
        const auto [before, first] = latest_.insert({{what, i.stage}, i.micro_batch});
        if (!first && before->second >= i.micro_batch)
            return format("micro-batch %d came before: gradients are summed in ascending order", before->second);
        before->second = i.micro_batch;
        return "";
    }

    // ---- slots

    std::string take_slot(const Instr& i) {
        return take(i, i.slot, slots(i.stage).forward, "", slot_user_, pass(i).slot);
    }

    std::string take_weight_slot(const Instr& i) {
        return take(i, i.w_slot, slots(i.stage).weight, "weight ", w_slot_user_, pass(i).w_slot);
    }

    std::string take(const Instr& i, int slot, int count, const char* kind, std::map<std::pair<int, int>, int>& users,
                     int& taken) {
        if (slot < 0 || slot >= count) return format("the stage has %d %sslots", count, kind);
        const auto [user, free] = users.insert({{i.stage, slot}, i.micro_batch});
        if (!free) return format("the %sslot still holds micro-batch %d", kind, user->second);
        taken = slot;
        return "";
    }

    // A slot is in use until the last pass over it is complete and what it holds for another rank is sent.
    void free_slot(const Instr& i, const StageUnits& stage, const Pass& p) {
        const bool sends = shape_.trains ? sends_gradient(stage) : sends_output(stage);
        if (p.ended && (!sends || (shape_.trains ? p.gradient_sent : p.sent))) slot_user_.erase({i.stage, p.slot});
    }

    // ---- messages

    std::string recv(const Instr& i, const StageUnits& stage) {
        Pass& p = pass(i);
        if (i.last_unit == stage.first_unit && i.first_unit == i.last_unit - 1) {
            if (p.entered) return "the input is there already";
            p.entered = true;
            return take_slot(i);
        }
        if (i.last_unit != stage.last_unit || i.first_unit != i.last_unit + 1)
            return format("no tensor crosses there: the stage has units %d to %d", stage.first_unit, stage.last_unit);
        if (p.gradient) return "the gradient is there already";
        if (i.slot != p.slot || p.slot < 0) return format("the micro-batch is in slot %d", p.slot);
        p.gradient = true;
        return "";
    }

    std::string send(const Instr& i, const StageUnits& stage) {
        Pass& p = pass(i);
        const int n = units_of(stage);
        if (i.first_unit == stage.last_unit && i.last_unit == i.first_unit + 1) {
            if (p.forward < n) return "the stage has not written its output";
            if (p.sent) return "the output was sent already";
            p.sent = true;
            if (i.slot != p.slot) return format("the micro-batch is in slot %d", p.slot);
            if (!shape_.trains) free_slot(i, stage, p);
            return "";
        }
        if (i.first_unit != stage.first_unit || i.last_unit != i.first_unit - 1 || i.last_unit < 0)
            return format("no tensor crosses there: the stage has units %d to %d", stage.first_unit, stage.last_unit);
        if (std::max(p.backward, p.input) < n) return "the stage has not written its input's gradient";
        if (p.gradient_sent) return "the gradient was sent already";
        if (i.slot != p.slot) return format("the micro-batch is in slot %d", p.slot);
        p.gradient_sent = true;
        free_slot(i, stage, p);
        return "";
    }

    // ---- the end

    std::string end() {
        for (const StageUnits& stage : shape_.stages)
            for (int m = micro_batches_of(stage).first; m < micro_batches_of(stage).second; ++m)
                if (const std::string why = complete(stage, passes_[{stage.stage, m}]); !why.empty())
                    return format("stage %d, micro-batch %d: %s", stage.stage, m, why.c_str());
        for (int u = 0; u < shape_.units(); ++u)
            if (gathered_[size_t(u)]) return format("unit %d is not released", u);
        for (const auto& [unit, pending] : unreduced_)
            if (!pending.empty()) return format("the gradients of unit %d are not reduced", unit);
        return "";
    }

    std::string complete(const StageUnits& stage, const Pass& p) {
        const int n = units_of(stage);
        if (p.forward < n) return format("%d of %d units passed forward", p.forward, n);
        if (sends_output(stage) && !p.sent) return "its output is not sent";
        if (!shape_.trains) return "";
        if (p.backward < n && p.input < n) return format("%d of %d units passed backward", p.backward + p.input, n);
        if (p.backward < n && p.weight < n) return format("%d of %d weight gradients", p.weight, n);
        if (sends_gradient(stage) && !p.gradient_sent) return "its input's gradient is not sent";
        return "";
    }

    // ----

    std::string one_unit(const Instr& i) const {
        if (i.first_unit != i.last_unit || i.first_unit < 0 || i.first_unit >= shape_.units())
            return format("it names one of %d units", shape_.units());
        return "";
    }
    // First, and the one after the last.
    std::pair<int, int> micro_batches_of(const StageUnits& s) const {
        return {s.first_micro_batch,
                s.micro_batches < 0 ? shape_.micro_batches : s.first_micro_batch + s.micro_batches};
    }
    // How many add to the unit's gradients: those of its stage, or, of a tied head, of the last stage.
    int micro_batches_into(int unit) const {
        for (const int end : {unit, shape_.last_unit()})
            for (const StageUnits& s : shape_.stages)
                if (s.first_unit <= end && end <= s.last_unit)
                    return micro_batches_of(s).second - micro_batches_of(s).first;
        return 0;
    }
    static int units_of(const StageUnits& stage) { return stage.last_unit - stage.first_unit + 1; }
    const StageUnits* find_stage(int stage) const {
        for (const StageUnits& s : shape_.stages)
            if (s.stage == stage) return &s;
        return nullptr;
    }
    bool sends_output(const StageUnits& stage) const {
        return stage.last_unit < shape_.last_unit() && !shape_.above(stage, stage.first_micro_batch);
    }
    bool sends_gradient(const StageUnits& stage) const {
        return stage.first_unit > 0 && !shape_.below(stage, stage.first_micro_batch);
    }
    StageSlots slots(int stage) const {
        for (const StageSlots& s : program_.slots)
            if (s.stage == stage) return s;
        return {stage, 0, 0};
    }
    Pass& pass(const Instr& i) { return passes_[{i.stage, i.micro_batch}]; }

    const Program& program_;
    const StepShape& shape_;
    size_t at_ = 0;
    std::vector<bool> gathered_;                                  // by unit
    std::map<std::pair<int, int>, Pass> passes_;                  // by stage and micro-batch
    std::map<std::pair<Do, int>, int> latest_;                    // by op and stage: micro-batch
    std::map<std::pair<int, int>, int> slot_user_, w_slot_user_;  // by stage and slot: micro-batch
    std::map<std::pair<int, int>, size_t> last_write_;            // by unit and micro-batch: position
    std::map<int, std::set<int>> unreduced_;                      // by unit: micro-batches in its gradients
    std::map<int, int> reduced_;                                  // by unit: micro-batches
    std::set<int> reduced_last_;
};

}  // namespace

std::string find_program_error(const Program& program, const StepShape& shape, int rank) {
    return ProgramChecker(program, shape).run(rank);
}

void check_program(const Program& program, const StepShape& shape, int rank) {
    const std::string why = find_program_error(program, shape, rank);
    require(why.empty(), "%s", why.c_str());
}

}  // namespace rz
