#include <map>

#include "kernels/runtime/check.h"
#include "llama/parallel/pipeline.h"

namespace rz {
namespace {

struct CellIndex {
    int rank = -1;
    int position = -1;
};

std::string where(int rank, size_t position, const Cell& cell) {
    return format("rank %d, position %zu (%s): ", rank, position, text_of(cell).c_str());
}

class ScheduleChecker {
   public:
    explicit ScheduleChecker(const PipelineSchedule& s) : s_(s) {}

    std::string run() {
        if (const std::string why = shape(); !why.empty()) return why;
        for (int r = 0; r < s_.ranks; ++r)
            for (size_t at = 0; at < s_.order[size_t(r)].size(); ++at)
                if (const std::string why = cell(r, at); !why.empty())
                    return where(r, at, s_.order[size_t(r)][at]) + why;
        if (const std::string why = missing(); !why.empty()) return why;
        return stuck();
    }

   private:
    std::string shape() const {
        if (s_.ranks < 1 || s_.stages < 1 || s_.micro_batches < 1 || int(s_.order.size()) != s_.ranks ||
            int(s_.rank_of.size()) != s_.stages)
            return format(
                "%d ranks, %d stages, %d micro-batches, %zu rows: a schedule has at least one of each, and a"
                " row for each rank",
                s_.ranks, s_.stages, s_.micro_batches, s_.order.size());
        for (const auto& homes : s_.rank_of)
            if (int(homes.size()) != s_.micro_batches) return "a stage does not say where each micro-batch is run";
        return "";
    }

    std::string cell(int rank, size_t at) {
        const Cell& c = s_.order[size_t(rank)][at];
        if (c.with && (c.a.op != Op::F || c.with->op == Op::F || c.with->op == Op::W))
            return "a forward is fused with a B or an I";
        for (const Task& t : tasks_of(c))
            if (const std::string why = task(t, rank, int(at)); !why.empty()) return text_of(t) + " " + why;
        return "";
    }

    std::string task(const Task& t, int rank, int at) {
        if (t.stage < 0 || t.stage >= s_.stages || t.micro_batch < 0 || t.micro_batch >= s_.micro_batches)
            return format("is outside of %d stages and %d micro-batches", s_.stages, s_.micro_batches);
        const int home = s_.rank_of[size_t(t.stage)][size_t(t.micro_batch)];
        if (home != rank) return format("belongs on rank %d", home);
        const bool first_half = t.op == Op::I || t.op == Op::B, second_half = t.op == Op::W || t.op == Op::B;
        const auto done = [&](Op op) { return done_.count({op, t.stage, t.micro_batch}) > 0; };
        if (t.op == Op::F && done(Op::F)) return "was run before";
        if (first_half && done(Op::I)) return "was run before, or its I was";
        if (second_half && done(Op::W)) return "was run before, or its W was";
        if (first_half && !done(Op::F)) return "comes before its F";
        if (t.op == Op::W && !done(Op::I)) return "comes before its I";
        if (t.op == Op::F) done_[{Op::F, t.stage, t.micro_batch}] = {rank, at};
        if (first_half) done_[{Op::I, t.stage, t.micro_batch}] = {rank, at};
        if (second_half) done_[{Op::W, t.stage, t.micro_batch}] = {rank, at};
        // By op: F, first halves, second halves. A stage's gradients are sums in the order of W.
        for (const Op op : {Op::F, Op::I, Op::W}) {
            if (op == Op::F ? t.op != Op::F : op == Op::I ? !first_half : !second_half) continue;
            const auto [latest, is_first] = latest_.insert({{op, t.stage, rank}, t.micro_batch});
            if (!is_first && latest->second > t.micro_batch)
                return format("comes after micro-batch %d: gradients are summed in ascending order", latest->second);
            latest->second = t.micro_batch;
        }
        return "";
    }

    std::string missing() const {
        for (int stage = 0; stage < s_.stages; ++stage)
            for (int m = 0; m < s_.micro_batches; ++m)
                for (const Op op : {Op::F, Op::I, Op::W})
                    if (!done_.count({op, stage, m}))
                        return format("rank %d: %s is missing", s_.rank_of[size_t(stage)][size_t(m)],
                                      text_of(Task{op, stage, m}).c_str());
        return "";
    }

    // Runs the ranks on dependencies alone.
    std::string stuck() const {
        std::map<Task, bool> ran;
        std::vector<size_t> next(size_t(s_.ranks), 0);
        const auto waits_for = [&](const Cell& c) -> std::optional<Task> {
            for (const Task& t : tasks_of(c)) {
                std::vector<Task> needs;
                if (t.op == Op::F && t.stage > 0) needs.push_back({Op::F, t.stage - 1, t.micro_batch});
                if ((t.op == Op::I || t.op == Op::B) && t.stage + 1 < s_.stages)
                    needs.push_back({Op::I, t.stage + 1, t.micro_batch});
                for (const Task& n : needs)
                    if (!ran.count(n)) return n;
            }
            return std::nullopt;
        };
        for (bool moved = true; moved;) {
            moved = false;
            for (int r = 0; r < s_.ranks; ++r) {
                auto& at = next[size_t(r)];
                const auto& cells = s_.order[size_t(r)];
                for (; at < cells.size() && !waits_for(cells[at]); ++at, moved = true)
                    for (const Task& t : tasks_of(cells[at]))
                        ran[{t.op == Op::B ? Op::I : t.op, t.stage, t.micro_batch}] = true;
            }
        }
        for (int r = 0; r < s_.ranks; ++r) {
            const auto& cells = s_.order[size_t(r)];
            const size_t at = next[size_t(r)];
            if (at < cells.size())
                return where(r, at, cells[at]) + "deadlock: it waits for " + text_of(*waits_for(cells[at])) +
                       ", which never runs";
        }
        return "";
    }

    const PipelineSchedule& s_;
    std::map<Task, CellIndex> done_;  // F, I and W; B is I and W
    struct OpKey {
        Op op;
        int stage, rank;
        auto operator<=>(const OpKey&) const = default;
    };
    std::map<OpKey, int> latest_;
};

}  // namespace

std::string find_pipeline_error(const PipelineSchedule& s) { return ScheduleChecker(s).run(); }

void check_pipeline(const PipelineSchedule& s) {
    const std::string why = find_pipeline_error(s);
    require(why.empty(), "%s", why.c_str());
}

}  // namespace rz
