#include "llama/parallel/program.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/runtime/check.h"

namespace rz {

bool StepShape::in_turn() const {
    return !tied && shard.whole_units == 0 && stages.size() == 1 && stages[0].first_unit == 0 &&
           stages[0].last_unit == last_unit();
}

bool StepShape::has_room(int unit, const std::vector<bool>& gathered) const {
    const int slots = shard.whole_units > 0 ? shard.whole_units : 1 + shard.prefetch;
    int same = 0, all = 0;
    for (size_t u = 0; u < gathered.size(); ++u)
        if (gathered[u]) ++all, same += unit_bytes[u] == unit_bytes[size_t(unit)];
    if (!in_turn()) return same < slots;
    const bool ends_meet = (unit == 0 && gathered.back()) || (unit == last_unit() && gathered.front());
    return all < slots && !ends_meet;
}

const StageUnits& StepShape::stage(int number) const {
    for (const StageUnits& s : stages)
        if (s.stage == number) return s;
    fail("this rank does not hold stage %d", number);
}

const StageUnits* StepShape::below(const StageUnits& stage, int micro_batch) const {
    for (const StageUnits& s : stages)
        if (s.last_unit == stage.first_unit - 1 && s.passed_by(micro_batch)) return &s;
    return nullptr;
}

const StageUnits* StepShape::above(const StageUnits& stage, int micro_batch) const {
    for (const StageUnits& s : stages)
        if (s.first_unit == stage.last_unit + 1 && s.passed_by(micro_batch)) return &s;
    return nullptr;
}

static bool covers(const Instr& i, int unit) { return i.first_unit <= unit && unit <= i.last_unit; }

std::vector<int> reads(const Instr& i, const StepShape& shape) {
    if (!i.computes() || i.what == Do::weight_grad) return {};
    const bool forward = i.what == Do::forward;
    std::vector<int> units;
    for (int u = i.first_unit; u <= i.last_unit; ++u)
        if (forward || u > 0) units.push_back(u);
    if (!forward) std::reverse(units.begin(), units.end());
    const bool has_head = covers(i, shape.last_unit()) && forward != shape.trains;
    if (has_head && std::find(units.begin(), units.end(), shape.head_unit()) == units.end())
        units.insert(forward ? units.end() : units.begin() + 1, shape.head_unit());
    return units;
}

std::vector<int> writes(const Instr& i, const StepShape& shape) {
    if (i.what != Do::backward && i.what != Do::input_grad && i.what != Do::weight_grad) return {};
    std::vector<int> units;
    // The head's weight gradient comes with its input gradient.
    if (i.what != Do::weight_grad && covers(i, shape.last_unit())) units.push_back(shape.head_unit());
    if (i.what != Do::input_grad)
        for (int u = i.last_unit; u >= i.first_unit; --u)
            if (std::find(units.begin(), units.end(), u) == units.end()) units.push_back(u);
    return units;
}

// ---- generators -----------------------------------------------------------------------------------------------------

std::vector<Instr> place_reduces(const std::vector<Instr>& code, const StepShape& shape) {
    std::map<std::pair<int, int>, size_t> last_of;  // by unit and micro-batch: the last instruction that adds
    std::map<int, size_t> last;                     // by unit
    for (size_t at = 0; at < code.size(); ++at)
        for (int u : writes(code[at], shape)) last_of[{u, code[at].micro_batch}] = last[u] = at;
    std::map<int, std::set<int>> open;  // by unit: micro-batches that have added some and will add more
    std::map<int, Instr> at_the_end;    // by unit, ascending: both holders do them in the same order
    std::vector<Instr> out;
    for (size_t at = 0; at < code.size(); ++at) {
        const Instr& i = code[at];
        out.push_back(i);
        for (int u : writes(i, shape)) {
            if (last_of.at({u, i.micro_batch}) > at) {
                open[u].insert(i.micro_batch);
                continue;
            }
            open[u].erase(i.micro_batch);
            const bool ends = last.at(u) == at;
            Instr reduce = about(Do::reduce, u, i);
            reduce.last = ends;
            if (ends && std::find(shape.shared.begin(), shape.shared.end(), u) != shape.shared.end())
                at_the_end[u] = reduce;
            else if (ends || (shape.shard.reduce_each && open[u].empty()))
                out.push_back(reduce);
        }
    }
    for (const auto& [unit, reduce] : at_the_end) out.push_back(reduce);
    return out;
}

Program single_stage_program(const StepShape& shape) {
    require(shape.stages.size() == 1 && shape.stages[0].first_unit == 0 &&
                shape.stages[0].last_unit == shape.last_unit() && shape.units() >= 3,
            "a single-stage program holds all %d units, at least 3, in one stage", shape.units());
    require(shape.micro_batches > 0, "a step of %d micro-batches: there must be at least one", shape.micro_batches);
    const int stage = shape.stages[0].stage;
    std::vector<Instr> code;
    const auto pass = [&](Do what, int unit, int micro_batch) {
        code.push_back({.what = what,
                        .stage = stage,
                        .first_unit = unit,
                        .last_unit = unit,
                        .micro_batch = micro_batch,
                        .slot = 0});
    };
    for (int m = 0; m < shape.micro_batches; ++m) {
        for (int u = 0; u < shape.units(); ++u) pass(Do::forward, u, m);
        for (int u = shape.last_unit(); shape.trains && u >= 0; --u) pass(Do::backward, u, m);
    }
    return {.code = place_gathers(place_reduces(code, shape), shape), .slots = {{stage, 1, 0}}};
}

namespace {

// Walks the code and keeps which units are whole.
class GatherPass {
   public:
    GatherPass(const std::vector<Instr>& code, const StepShape& shape)
        : code_(code), shape_(shape), gathered_(size_t(shape.units())) {
        for (size_t at = 0; at < code.size(); ++at)
            if (code[at].computes()) compute_.push_back(at);
    }

    std::vector<Instr> run() {
        size_t k = 0;  // among the compute instructions
        for (const Instr& i : code_) {
            if (!i.computes()) {
                out_.push_back(i);
                continue;
            }
            const std::vector<int> now = reads(i, shape_);
            for (int u : now)
                if (!gathered_[size_t(u)]) {
                    require(shape_.has_room(u, gathered_), "unit %d can't be gathered for the %s: no slot is free", u,
                            describe(i).c_str());
                    gather(u, i);
                }
            if (!now.empty()) prefetch(k);
            out_.push_back(i);
            for (auto u = now.rbegin(); u != now.rend(); ++u)
                if (!reads_unit(k + 1, *u)) release(*u, i);
            ++k;
        }
        return std::move(out_);
    }

   private:
    const Instr& compute(size_t k) const { return code_[compute_[k]]; }
    bool reads_unit(size_t k, int unit) const {
        if (k >= compute_.size()) return false;
        const std::vector<int> units = reads(compute(k), shape_);
        return std::find(units.begin(), units.end(), unit) != units.end();
    }
    void gather(int unit, const Instr& user) {
        out_.push_back(about(Do::gather, unit, user));
        gathered_[size_t(unit)] = true;
    }
    void release(int unit, const Instr& user) {
        out_.push_back(about(Do::release, unit, user));
        gathered_[size_t(unit)] = false;
    }
    void prefetch(size_t k) {
        std::map<int, size_t> read_at;  // by unit, the last of the instructions looked at that reads it
        for (int u : reads(compute(k), shape_)) read_at[u] = k;
        int left = shape_.shard.prefetch;
        for (size_t next = k + 1; next < compute_.size(); ++next) {
            const Instr& user = compute(next);
            if (user.micro_batch != compute(k).micro_batch && !shape_.shard.prefetch_next_micro_batch) return;
            for (int u : reads(user, shape_)) {
                const auto before = read_at.find(u);
                if (before != read_at.end() && before->second + 1 < next) return;  // released in between
                const bool seen = before != read_at.end();
                read_at[u] = next;
                if (seen) continue;
                if (left-- == 0) return;
                if (gathered_[size_t(u)]) continue;
                if (!shape_.has_room(u, gathered_)) return;
                gather(u, user);
            }
        }
    }

    const std::vector<Instr>& code_;
    const StepShape& shape_;
    std::vector<size_t> compute_;  // positions of the compute instructions
    std::vector<bool> gathered_;   // by unit
    std::vector<Instr> out_;
};

}  // namespace

std::vector<Instr> place_gathers(const std::vector<Instr>& code, const StepShape& shape) {
    return shape.shard.sharded_parameters ? GatherPass(code, shape).run() : code;
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string task_name(const Instr& i) { return name_of(i.what) + format(" %d of stage %d", i.micro_batch, i.stage); }

std::string describe(const Instr& i) {
    std::string s = name_of(i.what);
    if (i.what == Do::send || i.what == Do::recv)
        s += format(" from unit %d to unit %d", i.first_unit, i.last_unit);
    else if (i.first_unit == i.last_unit)
        s += format(" of unit %d", i.first_unit);
    else
        s += format(" of units %d to %d", i.first_unit, i.last_unit);
    s += format(", stage %d, micro-batch %d", i.stage, i.micro_batch);
    if (i.slot >= 0) s += format(", slot %d", i.slot);
    if (i.w_slot >= 0) s += format(", weight slot %d", i.w_slot);
    if (i.lane >= 0) s += format(", lane %d", i.lane);
    return i.last ? s + ", last" : s;
}

std::string text_of(const Program& program) {
    std::string s;
    for (const Instr& i : program.code) s += describe(i) + "\n";
    return s;
}

}  // namespace rz
