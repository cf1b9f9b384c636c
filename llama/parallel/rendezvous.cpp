// The programs of all ranks, run together on bookkeeping and a clock.

#include <algorithm>
#include <map>

#include "kernels/runtime/check.h"
#include "llama/parallel/pipeline_program.h"

namespace rz {
namespace {

constexpr int64_t kNotYet = -1;

class AllRanks {
   public:
    AllRanks(const std::vector<RankProgram>& ranks, const PipelineCosts* costs, bool one_lane)
        : ranks_(ranks), costs_(costs), one_lane_(one_lane), state_(ranks.size()) {
        for (size_t r = 0; r < ranks.size(); ++r) read(int(r));
    }

    std::string run() {
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t r = 0; r < ranks_.size(); ++r)
                while (compute(int(r))) moved = true;
            for (auto& [key, queue] : queues_)
                while (queue.next < queue.messages.size() && carry(key, queue)) moved = true;
            if (!error_.empty()) return error_;
        }
        return stuck();
    }
    int64_t end() const { return end_; }

   private:
    struct Slot {
        int64_t free_at = 0;
        int in_use_by = -1;
    };
    using Place = std::pair<int, int>;  // stage and micro-batch
    struct Rank {
        std::vector<size_t> compute;  // positions of compute instructions
        size_t next = 0;
        int64_t free_at = 0;
        std::vector<int64_t> done;                 // by position: end; kNotYet
        std::map<Place, int64_t> input, gradient;  // when they are there
    };
    struct Message {
        int rank;
        size_t position;
    };
    struct Queue {
        std::vector<Message> messages;
        size_t next = 0;
    };
    // With lanes one queue for each rank, peer and direction; with one lane one for each rank.
    struct QueueKey {
        int rank, peer;
        bool sends;
        auto operator<=>(const QueueKey&) const = default;
    };

    QueueKey key_of(int rank, const Instr& i) const {
        return one_lane_ ? QueueKey{rank, 0, false} : QueueKey{rank, i.lane, i.what == Do::send};
    }
    const Instr& at(int rank, size_t position) const { return ranks_[size_t(rank)].program.code[position]; }

    void read(int rank) {
        Rank& mine = state_[size_t(rank)];
        const auto& code = ranks_[size_t(rank)].program.code;
        mine.done.assign(code.size(), kNotYet);
        for (size_t k = 0; k < code.size(); ++k) {
            if (code[k].computes()) mine.compute.push_back(k);
            if (code[k].what == Do::send || code[k].what == Do::recv)
                queues_[key_of(rank, code[k])].messages.push_back({rank, k});
        }
    }

    const StepShape& shape(int rank) const { return ranks_[size_t(rank)].shape; }

    // When the tensors that the instruction reads are there; kNotYet.
    int64_t inputs_at(int rank, const Instr& i) {
        Rank& mine = state_[size_t(rank)];
        const StageUnits& stage = shape(rank).stage(i.stage);
        const Place place(i.stage, i.micro_batch);
        if (i.what == Do::forward && i.first_unit == stage.first_unit && stage.first_unit > 0)
            return mine.input.count(place) ? mine.input.at(place) : kNotYet;
        const bool first_half = i.what == Do::backward || i.what == Do::input_grad;
        if (first_half && i.last_unit == stage.last_unit && stage.last_unit < shape(rank).last_unit())
            return mine.gradient.count(place) ? mine.gradient.at(place) : kNotYet;
        return 0;
    }

    // Charged where a pass of the stage begins.
    int64_t cost_of(const Instr& i, const StageUnits& stage) const {
        if (!costs_) return 0;
        const size_t s = size_t(i.stage);
        if (i.what == Do::forward) return i.first_unit == stage.first_unit ? costs_->forward[s] : 0;
        if (i.last_unit != stage.last_unit) return 0;
        return (i.what == Do::weight_grad ? 0 : costs_->input[s]) + (i.what == Do::input_grad ? 0 : costs_->weight[s]);
    }

    bool compute(int rank) {
        Rank& mine = state_[size_t(rank)];
        if (mine.next == mine.compute.size()) return false;
        const size_t position = mine.compute[mine.next];
        const Instr& i = at(rank, position);
        const StageUnits& stage = shape(rank).stage(i.stage);
        int64_t start = inputs_at(rank, i);
        if (start == kNotYet) return false;
        if (i.what == Do::forward && i.first_unit == stage.first_unit) {
            const int64_t slot = slot_free(rank, i);
            if (slot == kNotYet) return false;
            start = std::max(start, slot);
            slots_[{rank, i.stage, i.slot}].in_use_by = i.micro_batch;
        }
        const int64_t end = std::max(start, mine.free_at) + cost_of(i, stage);
        mine.free_at = mine.done[position] = end;
        end_ = std::max(end_, end);
        ++mine.next;
        hand_over(rank, i, stage, end);
        return true;
    }

    // To the rank's own stage above or below; and the slot, when the micro-batch leaves.
    void hand_over(int rank, const Instr& i, const StageUnits& stage, int64_t end) {
        Rank& mine = state_[size_t(rank)];
        if (i.what == Do::forward) {
            if (i.last_unit == stage.last_unit)
                if (const StageUnits* above = shape(rank).above(stage, i.micro_batch))
                    mine.input[{above->stage, i.micro_batch}] = end;
            return;
        }
        if (i.first_unit != stage.first_unit) return;
        if (i.what == Do::weight_grad) return;
        if (const StageUnits* below = shape(rank).below(stage, i.micro_batch))
            mine.gradient[{below->stage, i.micro_batch}] = end;
        leave(rank, i, end);
    }

    // A slot is free when its micro-batch has left and its gradient has been carried away.
    void leave(int rank, const Instr& i, int64_t end) {
        auto& slot = slots_[{rank, i.stage, i.slot}];
        slot.free_at = std::max(slot.free_at, end);
        left_[{rank, i.stage, i.micro_batch}] = true;
        free_if_done(rank, i);
    }
    void free_if_done(int rank, const Instr& i) {
        const SlotKey place{rank, i.stage, i.micro_batch};
        const StageUnits& stage = shape(rank).stage(i.stage);
        const bool elsewhere = stage.first_unit > 0 && !shape(rank).below(stage, i.micro_batch);
        if (left_[place] && (!elsewhere || gradient_gone_[place])) slots_[{rank, i.stage, i.slot}].in_use_by = -1;
    }
    int64_t slot_free(int rank, const Instr& i) {
        const Slot& slot = slots_[{rank, i.stage, i.slot}];
        if (slot.in_use_by == i.micro_batch) return 0;  // its own: taken when its input was received
        return slot.in_use_by >= 0 ? kNotYet : slot.free_at;
    }

    // The queue's next message, if both ends are ready.
    bool carry(const QueueKey& key, Queue& queue) {
        const Message mine = queue.messages[queue.next];
        const Instr& i = at(mine.rank, mine.position);
        if (i.what != Do::send) return false;  // carried from the sender's side
        const QueueKey other = one_lane_ ? QueueKey{i.lane, 0, false} : QueueKey{i.lane, mine.rank, false};
        const auto peer = queues_.find(other);
        if (peer == queues_.end() || peer->second.next == peer->second.messages.size()) return false;
        const Message theirs = peer->second.messages[peer->second.next];
        const Instr& recv = at(theirs.rank, theirs.position);
        if (recv.what != Do::recv || recv.lane != mine.rank) return false;
        if (recv.first_unit != i.first_unit || recv.last_unit != i.last_unit || recv.micro_batch != i.micro_batch) {
            error_ = format("rank %d, instruction %lld (%s) meets rank %d, instruction %lld (%s): another tensor",
                            mine.rank, (long long)mine.position, describe(i).c_str(), theirs.rank,
                            (long long)theirs.position, describe(recv).c_str());
            return false;
        }
        const int64_t made = written_at(mine);
        const bool up = i.last_unit > i.first_unit;
        const int64_t room = up ? slot_free(theirs.rank, recv) : 0;
        if (made == kNotYet || room == kNotYet) return false;
        const int64_t arrived =
            std::max({made, room, lane_free_[key], lane_free_[other]}) + (costs_ ? costs_->message : 0);
        lane_free_[key] = lane_free_[other] = arrived;
        arrive(mine, theirs, up, arrived);
        ++queue.next;
        ++peer->second.next;
        return true;
    }

    void arrive(const Message& mine, const Message& theirs, bool up, int64_t arrived) {
        const Instr &i = at(mine.rank, mine.position), &recv = at(theirs.rank, theirs.position);
        Rank& receiver = state_[size_t(theirs.rank)];
        (up ? receiver.input : receiver.gradient)[{recv.stage, recv.micro_batch}] = arrived;
        if (up) {
            slots_[{theirs.rank, recv.stage, recv.slot}].in_use_by = recv.micro_batch;
            return;
        }
        auto& slot = slots_[{mine.rank, i.stage, i.slot}];
        slot.free_at = std::max(slot.free_at, arrived);
        gradient_gone_[{mine.rank, i.stage, i.micro_batch}] = true;
        free_if_done(mine.rank, i);
    }

    // When the compute instruction before the send has ended.
    int64_t written_at(const Message& m) const {
        for (size_t k = m.position; k-- > 0;)
            if (at(m.rank, k).computes() && at(m.rank, k).stage == at(m.rank, m.position).stage &&
                at(m.rank, k).micro_batch == at(m.rank, m.position).micro_batch &&
                at(m.rank, k).what != Do::weight_grad)
                return state_[size_t(m.rank)].done[k];
        return kNotYet;
    }

    std::string stuck() const {
        for (size_t r = 0; r < ranks_.size(); ++r)
            if (const Rank& mine = state_[r]; mine.next < mine.compute.size()) {
                const size_t position = mine.compute[mine.next];
                return format("rank %lld, instruction %lld (%s): deadlock, it never runs", (long long)r,
                              (long long)position, describe(at(int(r), position)).c_str());
            }
        for (const auto& [key, queue] : queues_)
            if (queue.next < queue.messages.size()) {
                const Message& m = queue.messages[queue.next];
                return format("rank %d, instruction %lld (%s): no one meets it", m.rank, (long long)m.position,
                              describe(at(m.rank, m.position)).c_str());
            }
        return "";
    }

    struct SlotKey {
        int rank, stage, slot;
        auto operator<=>(const SlotKey&) const = default;
    };
    const std::vector<RankProgram>& ranks_;
    const PipelineCosts* costs_;
    bool one_lane_;
    std::vector<Rank> state_;
    std::map<QueueKey, Queue> queues_;
    std::map<QueueKey, int64_t> lane_free_;
    std::map<SlotKey, Slot> slots_;
    std::map<SlotKey, bool> left_, gradient_gone_;  // by rank, stage and micro-batch
    std::string error_;
    int64_t end_ = 0;
};

}  // namespace

std::string find_rendezvous_error(const std::vector<RankProgram>& ranks, bool one_lane) {
    return AllRanks(ranks, nullptr, one_lane).run();
}

int64_t run_programs(const std::vector<RankProgram>& ranks, const PipelineCosts& costs) {
    AllRanks all(ranks, &costs, costs.one_lane);
    const std::string why = all.run();
    require(why.empty(), "%s", why.c_str());
    return all.end();
}

}  // namespace rz
