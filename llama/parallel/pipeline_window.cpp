#include <algorithm>
#include <map>

#include "kernels/runtime/request.h"
#include "llama/parallel/pipeline.h"

namespace rz {
namespace {

// Runs the ranks on unit costs; each takes the first task of its order that may start. A micro-batch is let in only
// while fewer than `most` are between the first stage's F and its weight gradient.
class Window {
   public:
    Window(const PipelineSchedule& s, int most) : s_(s), most_(most) {
        for (const auto& cells : s.order) {
            auto& tasks = left_.emplace_back();
            for (const Cell& c : cells)
                for (const Task& t : tasks_of(c)) tasks.push_back(t);
        }
    }

    PipelineSchedule run() {
        PipelineSchedule out = s_;
        for (auto& cells : out.order) cells.clear();
        std::vector<int64_t> free_at(size_t(s_.ranks), 0);
        for (int64_t now = 0; std::any_of(left_.begin(), left_.end(), [](const auto& l) { return !l.empty(); });
             ++now) {
            require_request(now <= int64_t(s_.stages) * s_.micro_batches * 8, "a window of %d micro-batches never ends",
                            most_);
            for (int r = 0; r < s_.ranks; ++r) {
                if (free_at[size_t(r)] > now) continue;
                auto& tasks = left_[size_t(r)];
                const auto next =
                    std::find_if(tasks.begin(), tasks.end(), [&](const Task& t) { return ready(t, now); });
                if (next == tasks.end()) continue;
                const Task t = *next;
                tasks.erase(next);
                out.order[size_t(r)].push_back({t});
                free_at[size_t(r)] = now + (t.op == Op::B ? 2 : 1);
                if (t.op == Op::F && t.stage == 0) ++inside_;
                if (t.op == Op::F || t.op == Op::W) done_[t] = free_at[size_t(r)];
                if (t.op == Op::I || t.op == Op::B) done_[{Op::I, t.stage, t.micro_batch}] = free_at[size_t(r)];
                if (t.stage == 0 && (t.op == Op::W || t.op == Op::B)) leaves_.push_back(free_at[size_t(r)]);
            }
        }
        return out;
    }

   private:
    bool there(const Task& t, int64_t now) const {
        const auto at = done_.find(t);
        return at != done_.end() && at->second <= now;
    }
    bool ready(const Task& t, int64_t now) const {
        const int m = t.micro_batch;
        if (t.op == Op::W) return there({Op::I, t.stage, m}, now);
        if (t.op != Op::F)
            return there({Op::F, t.stage, m}, now) && (t.stage + 1 == s_.stages || there({Op::I, t.stage + 1, m}, now));
        if (t.stage > 0) return there({Op::F, t.stage - 1, m}, now);
        const auto gone = std::count_if(leaves_.begin(), leaves_.end(), [&](int64_t at) { return at <= now; });
        return inside_ - gone < most_;
    }

    const PipelineSchedule& s_;
    int most_;
    std::vector<std::vector<Task>> left_;  // by rank
    std::map<Task, int64_t> done_;         // B as I
    std::vector<int64_t> leaves_;          // when micro-batches left
    int64_t inside_ = 0;                   // that were let in
};

}  // namespace

PipelineSchedule limit_in_flight(const PipelineSchedule& s, int most) {
    require_request(most >= 1, "a window of %d: at least one micro-batch must be in flight\n  nearest: 1", most);
    return Window(s, most).run();
}

}  // namespace rz
