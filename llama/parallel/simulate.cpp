#include "llama/parallel/simulate.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/runtime/check.h"

namespace rz {

PipelineCosts PipelineCosts::even(const PipelineSchedule& s, int64_t f, int64_t i, int64_t w, int64_t message) {
    const int64_t v = s.stages_per_rank();
    require(f >= 0 && i >= 0 && w >= 0 && message >= 0,
            "costs of %ld, %ld, %ld ticks and %ld a message: they can't"
            " be negative",
            f, i, w, message);
    require(f % v == 0 && i % v == 0 && w % v == 0, "costs of %ld, %ld and %ld ticks do not divide by %ld stages", f, i,
            w, v);
    const auto all = [&](int64_t cost) { return std::vector<int64_t>(size_t(s.stages), cost / v); };
    return {.forward = all(f), .input = all(i), .weight = all(w), .message = message};
}

int64_t PipelineCosts::of(const Task& t) const {
    const size_t s = size_t(t.stage);
    switch (t.op) {
        case Op::F:
            return forward[s];
        case Op::I:
            return input[s];
        case Op::W:
            return weight[s];
        case Op::B:
            return input[s] + weight[s];
    }
    fail("a task of kind %d", int(t.op));
}

double PipelineRun::util_step() const {
    int64_t busy = 0;
    for (const Rank& r : ranks) busy += r.busy;
    return makespan == 0 ? 1 : double(busy) / (double(makespan) * double(ranks.size()));
}

double PipelineRun::util_span() const {
    int64_t busy = 0, span = 0;
    for (const Rank& r : ranks) busy += r.busy, span += r.last_end - r.first_start;
    return span == 0 ? 1 : double(busy) / double(span);
}

namespace {

class Simulator {
   public:
    // With `order`, messages go in that order, one at a time on each rank.
    Simulator(const PipelineSchedule& s, const PipelineCosts& costs, const std::vector<Task>* order)
        : s_(s), costs_(costs), fixed_order_(order) {
        run_.ranks.resize(size_t(s.ranks));
        run_.spans.resize(size_t(s.ranks));
        next_.resize(size_t(s.ranks));
        free_at_.resize(size_t(s.ranks));
        lane_free_.resize(size_t(s.ranks));
        arrival_.assign(2 * size_t(s.stages) * size_t(s.micro_batches), -1);
        message_of_.assign(arrival_.size(), -1);
        for (int r = 0; r < s.ranks; ++r) ready_.push_back(ready(r));
    }

    // Always the earliest event: a cell that starts, or a message that leaves.
    PipelineRun run() {
        for (;;) {
            const Choice cell = earliest_cell(), message = earliest_message();
            if (cell.index < 0 && message.index < 0) break;
            if (message.index >= 0 && (cell.index < 0 || message.at <= cell.at))
                send(size_t(message.index), message.at);
            else
                start(cell.index, cell.at);
        }
        for (int r = 0; r < s_.ranks; ++r)
            require(next_[size_t(r)] == s_.order[size_t(r)].size(), "rank %d, position %zu (%s): deadlock", r,
                    next_[size_t(r)], text_of(s_.order[size_t(r)][next_[size_t(r)]]).c_str());
        for (int r = 0; r < s_.ranks; ++r) count_rank(r);
        count_queues();
        return std::move(run_);
    }

   private:
    struct Choice {
        int64_t at = 0;
        int index = -1;
    };

    int home(const Task& t) const { return s_.rank_of[size_t(t.stage)][size_t(t.micro_batch)]; }
    // The task on whose tensor `t` waits. B and I are one here, and W depends only on its own rank.
    std::optional<Task> input_of(const Task& t) const {
        if (t.op == Op::F && t.stage > 0) return Task{Op::F, t.stage - 1, t.micro_batch};
        if ((t.op == Op::I || t.op == Op::B) && t.stage + 1 < s_.stages) return Task{Op::I, t.stage + 1, t.micro_batch};
        return std::nullopt;
    }

    size_t index_of(const Task& t) const {
        return ((t.op == Op::F ? 0 : size_t(s_.stages)) + size_t(t.stage)) * size_t(s_.micro_batches) +
               size_t(t.micro_batch);
    }

    // When the rank's next cell may start; -1: not known yet, or there is none.
    int64_t ready(int r) const {
        const auto& cells = s_.order[size_t(r)];
        if (next_[size_t(r)] == cells.size()) return -1;
        int64_t at = free_at_[size_t(r)];
        for (const Task& t : tasks_of(cells[next_[size_t(r)]]))
            if (const auto input = input_of(t)) {
                const int64_t there = arrival_[index_of(*input)];
                if (there < 0) return -1;
                at = std::max(at, there);
            }
        return at;
    }

    Choice earliest_cell() const {
        Choice best;
        for (int r = 0; r < s_.ranks; ++r)
            if (ready_[size_t(r)] >= 0 && (best.index < 0 || ready_[size_t(r)] < best.at))
                best = {ready_[size_t(r)], r};
        return best;
    }

    void start(int r, int64_t at) {
        const Cell& cell = s_.order[size_t(r)][next_[size_t(r)]++];
        int64_t cost = 0;
        for (const Task& t : tasks_of(cell)) cost += costs_.of(t);
        const int64_t end = at + cost, idle = at - free_at_[size_t(r)];
        run_.spans[size_t(r)].push_back({at, end, at + costs_.of(cell.a), idle});
        run_.ranks[size_t(r)].busy += cost;
        free_at_[size_t(r)] = end;
        run_.makespan = std::max(run_.makespan, end);
        for (const Task& t : tasks_of(cell)) {
            if (const auto input = input_of(t))
                if (const int64_t m = message_of_[index_of(*input)]; m >= 0) run_.messages[size_t(m)].taken = at;
            if (t.op == Op::W) continue;
            const Task made{t.op == Op::F ? Op::F : Op::I, t.stage, t.micro_batch};
            const Task reader{made.op, t.stage + (t.op == Op::F ? 1 : -1), t.micro_batch};
            if (reader.stage < 0 || reader.stage >= s_.stages) continue;
            if (home(reader) == r)
                arrival_[index_of(made)] = end;
            else
                waiting_.push_back(
                    {.made_by = made, .from = r, .to = home(reader), .made = end, .sent = 0, .arrived = 0, .taken = 0});
        }
        ready_[size_t(r)] = ready(r);
    }

    int64_t leaves_at(const PipelineRun::Message& m) const {
        if (fixed_order_) return std::max({m.made, lane_free_[size_t(m.from)], lane_free_[size_t(m.to)]});
        const auto lane = pair_free_.find({m.from, m.to});
        return std::max(m.made, lane == pair_free_.end() ? 0 : lane->second);
    }

    // The oldest message of each lane may leave; with a fixed order only the next one of that.
    Choice earliest_message() const {
        Choice best;
        std::set<std::pair<int, int>> seen;
        for (size_t i = 0; i < waiting_.size(); ++i) {
            const auto& m = waiting_[i];
            if (fixed_order_ ? m.made_by != (*fixed_order_)[run_.messages.size()] : !seen.insert({m.from, m.to}).second)
                continue;
            const int64_t at = leaves_at(m);
            if (best.index < 0 || at < best.at) best = {at, int(i)};
        }
        return best;
    }

    void send(size_t index, int64_t at) {
        PipelineRun::Message m = waiting_[index];
        waiting_.erase(waiting_.begin() + long(index));
        m.sent = at;
        m.arrived = at + costs_.message;
        pair_free_[{m.from, m.to}] = lane_free_[size_t(m.from)] = lane_free_[size_t(m.to)] = m.arrived;
        arrival_[index_of(m.made_by)] = m.arrived;
        message_of_[index_of(m.made_by)] = int64_t(run_.messages.size());
        run_.messages.push_back(m);
        ready_[size_t(m.to)] = ready(m.to);
    }

    void count_rank(int r) {
        PipelineRun::Rank& rank = run_.ranks[size_t(r)];
        const auto& cells = s_.order[size_t(r)];
        const auto& spans = run_.spans[size_t(r)];
        if (cells.empty()) return;
        rank.first_start = spans.front().start;
        rank.last_end = spans.back().end;
        int forward = 0, weight = 0;
        size_t first_backward = cells.size(), last_forward = 0;
        for (size_t i = 0; i < cells.size(); ++i)
            for (const Task& t : tasks_of(cells[i])) {
                if (t.op == Op::F) rank.peak_forward = std::max(rank.peak_forward, ++forward), last_forward = i;
                if (t.op == Op::I) rank.peak_weight = std::max(rank.peak_weight, ++weight);
                if (t.op == Op::W) --weight;
                if (t.op == Op::W || t.op == Op::B) --forward;
                if (t.op == Op::I || t.op == Op::B) first_backward = std::min(first_backward, i);
            }
        for (size_t i = 0; i < cells.size(); ++i)
            (i <= first_backward ? rank.warm_up : i > last_forward ? rank.drain : rank.steady) += spans[i].wait;
        rank.drain += run_.makespan - rank.last_end;
    }

    // A message that arrives at the tick at which it is taken counts: it is there when the cell looks for it.
    void count_queues() {
        struct Change {
            int64_t at;
            int by;
        };
        struct Queue {
            int rank, stage;  // that reads
            bool forward;
            auto operator<=>(const Queue&) const = default;
        };
        std::map<Queue, std::vector<Change>> changes;
        for (const auto& m : run_.messages) {
            const bool forward = m.made_by.op == Op::F;
            auto& list = changes[{m.to, m.made_by.stage + (forward ? 1 : -1), forward}];
            list.push_back({m.arrived, +1});
            list.push_back({m.taken, -1});
        }
        for (auto& [key, list] : changes) {
            std::sort(list.begin(), list.end(),
                      [](const Change& a, const Change& b) { return a.at != b.at ? a.at < b.at : a.by > b.by; });
            int depth = 0, peak = 0;
            for (const Change& c : list) peak = std::max(peak, depth += c.by);
            PipelineRun::Rank& rank = run_.ranks[size_t(key.rank)];
            int& most = key.forward ? rank.peak_queue_forward : rank.peak_queue_backward;
            most = std::max(most, peak);
        }
    }

    const PipelineSchedule& s_;
    const PipelineCosts& costs_;
    const std::vector<Task>* fixed_order_;
    PipelineRun run_;
    std::vector<size_t> next_;        // by rank: cell
    std::vector<int64_t> free_at_;    // by rank
    std::vector<int64_t> lane_free_;  // by rank, with one lane
    std::map<std::pair<int, int>, int64_t> pair_free_;
    std::vector<int64_t> ready_;       // by rank
    std::vector<int64_t> arrival_;     // of the tensor that a task made, where it is read; -1: not yet
    std::vector<int64_t> message_of_;  // that carries it; -1: none
    std::vector<PipelineRun::Message> waiting_;
};

}  // namespace

PipelineRun simulate(const PipelineSchedule& s, const PipelineCosts& costs) {
    require(int(costs.forward.size()) == s.stages && int(costs.input.size()) == s.stages &&
                int(costs.weight.size()) == s.stages,
            "costs of %zu stages for a schedule of %d", costs.forward.size(), s.stages);
    PipelineRun lanes = Simulator(s, costs, nullptr).run();
    if (!costs.one_lane) return lanes;
    std::stable_sort(lanes.messages.begin(), lanes.messages.end(),
                     [](const auto& a, const auto& b) { return a.made != b.made ? a.made < b.made : a.from < b.from; });
    std::vector<Task> order;
    for (const auto& m : lanes.messages) order.push_back(m.made_by);
    return Simulator(s, costs, &order).run();
}

}  // namespace rz
