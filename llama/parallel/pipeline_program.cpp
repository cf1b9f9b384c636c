#include "llama/parallel/pipeline_program.h"

#include <algorithm>
#include <map>

#include "kernels/runtime/request.h"

namespace rz {
namespace {

Do do_of(Op op) {
    switch (op) {
        case Op::F:
            return Do::forward;
        case Op::I:
            return Do::input_grad;
        case Op::W:
            return Do::weight_grad;
        case Op::B:
            return Do::backward;
    }
    fail("a task of kind %d", int(op));
}

// An instruction and the time at which the simulation ran it.
struct TimedInstr {
    Instr instr;
    int64_t start = 0, end = 0;  // a recv: when the tensor was sent, and arrived
};

class RankBuilder {
   public:
    RankBuilder(const PipelineSchedule& s, const PipelineRun& run, const PipelineProgramOptions& o, bool one_lane,
                int rank)
        : s_(s), run_(run), o_(o), one_lane_(one_lane), rank_(rank) {
        shape_.unit_bytes = o.unit_bytes;
        shape_.tied = o.tied;
        shape_.micro_batches = s.micro_batches;
        shape_.shard = o.shard;
        if (!o.shared.empty()) shape_.shared = o.shared[size_t(rank)];
        for (const int stage : s.stages_of(rank)) {
            StageUnits held = o.cut[size_t(stage)];
            const auto& home = s.rank_of[size_t(stage)];
            const auto first = std::find(home.begin(), home.end(), rank);
            const auto count = std::count(home.begin(), home.end(), rank);
            require(std::find_if(first, home.end(), [&](int r) { return r != rank; }) - first == count,
                    "rank %d, stage %d: its micro-batches are not consecutive", rank, stage);
            if (count < s.micro_batches)
                held.first_micro_batch = int(first - home.begin()), held.micro_batches = int(count);
            shape_.stages.push_back(held);
        }
    }

    RankProgram build() {
        place_messages();
        take_slots();
        std::vector<Instr> code = units_one_by_one();
        code = place_reduces(code, shape_);
        if (o_.shard.sharded_parameters) code = gathers(code);
        RankProgram out{shape_, {code, slots_}};
        check_program(out.program, out.shape, rank_);
        return out;
    }

   private:
    const Cell& cell(size_t k) const { return s_.order[size_t(rank_)][k]; }
    const PipelineRun::Span& span(size_t k) const { return run_.spans[size_t(rank_)][k]; }
    size_t cells() const { return s_.order[size_t(rank_)].size(); }
    const StageUnits& cut(int stage) const { return o_.cut[size_t(stage)]; }

    Instr compute(const Task& t) const {
        return {.what = do_of(t.op),
                .stage = t.stage,
                .first_unit = cut(t.stage).first_unit,
                .last_unit = cut(t.stage).last_unit,
                .micro_batch = t.micro_batch};
    }
    // The message that `m.made_by` made, seen from the stage that sends or receives it.
    Instr message(const PipelineRun::Message& m, bool sends) const {
        const bool up = m.made_by.op == Op::F;
        const int from = m.made_by.stage, to = from + (up ? 1 : -1);
        return {.what = sends ? Do::send : Do::recv,
                .stage = sends ? from : to,
                .first_unit = up ? cut(from).last_unit : cut(from).first_unit,
                .last_unit = up ? cut(to).first_unit : cut(to).last_unit,
                .micro_batch = m.made_by.micro_batch,
                .lane = sends ? m.to : m.from};
    }

    void place_messages() {
        std::vector<std::vector<TimedInstr>> before(cells() + 1);  // messages, by the cell that they stand before
        size_t reached = 0;
        for (const auto& m : run_.messages) {
            if (m.from != rank_ && m.to != rank_) continue;
            size_t at = 0;
            if (m.from == rank_)
                while (!makes(cell(at).a, m.made_by)) ++at;
            else
                while (at < cells() && span(at).start < m.sent) ++at;
            if (m.from == rank_) ++at;
            if (one_lane_) at = reached = std::max(reached, at);  // one order of all messages
            before[at].push_back({message(m, m.from == rank_), m.sent, m.arrived});
        }
        for (size_t k = 0; k <= cells(); ++k) {
            code_.insert(code_.end(), before[k].begin(), before[k].end());
            if (k < cells()) code_.push_back({compute(cell(k).a), span(k).start, span(k).end});
        }
    }
    static bool makes(const Task& t, const Task& made) {
        return (t.op == Op::B ? Op::I : t.op) == made.op && t.stage == made.stage && t.micro_batch == made.micro_batch;
    }

    struct Pool {
        std::vector<int64_t> free_at;  // by slot; -1: in use
        // The slot that has been free longest at `now`, or a new one.
        int take(int64_t now) {
            int best = -1;
            for (int i = 0; i < int(free_at.size()); ++i)
                if (free_at[size_t(i)] >= 0 && free_at[size_t(i)] <= now &&
                    (best < 0 || free_at[size_t(i)] < free_at[size_t(best)]))
                    best = i;
            if (best < 0) best = int(free_at.size()), free_at.push_back(0);
            free_at[size_t(best)] = -1;
            return best;
        }
    };

    void take_slots() {
        std::map<int, Pool> forward, weight;              // by stage
        std::map<std::pair<int, int>, int> slot, w_slot;  // by stage and micro-batch
        // A slot is free when its micro-batch's input gradient is done and has been carried away, and both stand before
        // in the code.
        std::map<std::pair<int, int>, int> holds;  // by stage and micro-batch: of the two, how many are left
        std::map<std::pair<int, int>, int64_t> done_at;
        const auto releases = [](const Instr& i) {
            return i.what == Do::input_grad || i.what == Do::backward ||
                   (i.what == Do::send && i.last_unit < i.first_unit);
        };
        for (const TimedInstr& t : code_) holds[{t.instr.stage, t.instr.micro_batch}] += releases(t.instr);
        for (TimedInstr& t : code_) {
            Instr& i = t.instr;
            const std::pair key(i.stage, i.micro_batch);
            if (i.what == Do::input_grad) w_slot[key] = weight[i.stage].take(t.start);
            if (i.what == Do::input_grad || i.what == Do::weight_grad) i.w_slot = w_slot.at(key);
            if (i.what == Do::weight_grad) {
                weight[i.stage].free_at[size_t(i.w_slot)] = t.end;
                continue;
            }
            if (!slot.count(key)) slot[key] = forward[i.stage].take(t.start);
            i.slot = slot.at(key);
            if (!releases(i)) continue;
            done_at[key] = std::max(done_at[key], t.end);
            if (--holds[key] == 0) forward[i.stage].free_at[size_t(i.slot)] = done_at[key];
        }
        for (const StageUnits& s : shape_.stages)
            slots_.push_back({s.stage, int(forward[s.stage].free_at.size()), int(weight[s.stage].free_at.size())});
    }
    // Units that are gathered or reduced one by one are computed one by one.
    std::vector<Instr> units_one_by_one() const {
        const bool by_use = o_.shard.sharded_parameters && o_.gather == GatherFor::op;
        std::map<int, size_t> last;  // by stage: the last instruction that adds to gradients
        for (size_t k = 0; k < code_.size(); ++k)
            if (!writes(code_[k].instr, shape_).empty() && code_[k].instr.what != Do::input_grad)
                last[code_[k].instr.stage] = k;
        std::vector<Instr> out;
        for (size_t k = 0; k < code_.size(); ++k) {
            const Instr& i = code_[k].instr;
            const bool adds = i.what == Do::backward || i.what == Do::weight_grad;
            const bool reduces = adds && (o_.shard.reduce_each || last.at(i.stage) == k);
            if (!i.computes() || !(by_use || reduces)) {
                out.push_back(i);
                continue;
            }
            for (int n = 0; n <= i.last_unit - i.first_unit; ++n) {
                Instr one = i;
                one.first_unit = one.last_unit = i.what == Do::forward ? i.first_unit + n : i.last_unit - n;
                out.push_back(one);
            }
        }
        return out;
    }

    // ---- gathers

    std::vector<Instr> gathers(const std::vector<Instr>& code) {
        std::vector<Instr> out;
        switch (o_.gather) {
            case GatherFor::step:
                out = gather_for_step(code);
                break;
            case GatherFor::window:
                out = gather_for_window(code);
                break;
            case GatherFor::op:
                return place_gathers(code, shape_);
        }
        std::map<int64_t, int> whole;
        for (const Instr& i : out) {
            int& n = whole[i.what == Do::gather || i.what == Do::release ? o_.unit_bytes[size_t(i.first_unit)] : 0];
            if (i.what == Do::gather) shape_.shard.whole_units = std::max(shape_.shard.whole_units, ++n);
            if (i.what == Do::release) --n;
        }
        return out;
    }

    std::vector<Instr> gather_for_step(const std::vector<Instr>& code) const {
        std::map<int, size_t> last_read;
        std::vector<Instr> out;
        for (size_t k = 0; k < code.size(); ++k)
            for (const int u : reads(code[k], shape_)) {
                if (!last_read.count(u)) out.push_back(about(Do::gather, u, code[k]));
                last_read[u] = k;
            }
        for (size_t k = 0; k < code.size(); ++k) {
            out.push_back(code[k]);
            for (const int u : reads(code[k], shape_))
                if (last_read.at(u) == k) out.push_back(about(Do::release, u, code[k]));
        }
        return out;
    }

    // At most `window` stages are whole; one that is missing takes the place of the one whose next use is farthest.
    std::vector<Instr> gather_for_window(const std::vector<Instr>& code) const {
        require_request(o_.window >= 1,
                        "parameters gathered for a window of %d stages: it must hold at least one\n  nearest: 1",
                        o_.window);
        const auto next_use = [&](int stage, size_t from) {
            while (from < code.size() && (code[from].stage != stage || reads(code[from], shape_).empty())) ++from;
            return from;
        };
        struct Held {
            std::vector<int> units;
            Instr user;  // the latest
        };
        std::map<int, Held> whole;   // by stage
        std::map<int, int> holders;  // by unit: stages. A tied head's unit may have two.
        std::vector<Instr> out;
        const auto release = [&](const Held& held) {
            for (const int u : held.units)
                if (--holders[u] == 0) out.push_back(about(Do::release, u, held.user));
        };
        for (size_t k = 0; k < code.size(); ++k) {
            const std::vector<int> units = reads(code[k], shape_);
            if (!units.empty() && !whole.count(code[k].stage) && int(whole.size()) == o_.window) {
                auto farthest = whole.begin();
                for (auto held = whole.begin(); held != whole.end(); ++held)
                    if (next_use(held->first, k) > next_use(farthest->first, k)) farthest = held;
                release(farthest->second);
                whole.erase(farthest);
            }
            for (const int u : units) {
                Held& held = whole[code[k].stage];
                held.user = code[k];
                if (std::find(held.units.begin(), held.units.end(), u) != held.units.end()) continue;
                held.units.push_back(u);
                if (holders[u]++ == 0) out.push_back(about(Do::gather, u, code[k]));
            }
            out.push_back(code[k]);
        }
        for (const auto& [stage, held] : whole) release(held);
        return out;
    }

    const PipelineSchedule& s_;
    const PipelineRun& run_;
    const PipelineProgramOptions& o_;
    bool one_lane_;
    int rank_;
    StepShape shape_;
    std::vector<TimedInstr> code_;
    std::vector<StageSlots> slots_;
};

}  // namespace

PipelineSchedule unfused(const PipelineSchedule& s) {
    PipelineSchedule out = s;
    for (auto& cells : out.order) {
        std::vector<Cell> single;
        for (const Cell& c : cells)
            for (const Task& t : tasks_of(c)) single.push_back({t});
        cells = single;
    }
    return out;
}

std::vector<RankProgram> pipeline_programs(const PipelineSchedule& schedule, const PipelineCosts& costs,
                                           const PipelineProgramOptions& options) {
    check_pipeline(schedule);
    require(int(options.cut.size()) == schedule.stages, "%zu stages are cut, the schedule has %d", options.cut.size(),
            schedule.stages);
    int next = 0;
    for (int s = 0; s < schedule.stages; ++s) {
        const StageUnits& c = options.cut[size_t(s)];
        require(c.stage == s && c.first_unit == next && c.last_unit >= next, "stage %d begins at unit %d, expected %d",
                s, c.first_unit, next);
        next = c.last_unit + 1;
    }
    require(next == int(options.unit_bytes.size()), "the stages have %d units, the model %zu", next,
            options.unit_bytes.size());
    const PipelineSchedule single = unfused(schedule);
    const PipelineRun run = simulate(single, costs);
    std::vector<RankProgram> out;
    for (int r = 0; r < schedule.ranks; ++r)
        out.push_back(RankBuilder(single, run, options, costs.one_lane, r).build());
    const std::string why = find_rendezvous_error(out, costs.one_lane);
    require(why.empty(), "%s", why.c_str());
    return out;
}

}  // namespace rz
