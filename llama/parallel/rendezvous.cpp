// The programs of all ranks, run together on bookkeeping alone: whether all come to their end.

#include <map>
#include <set>

#include "kernels/runtime/check.h"
#include "llama/parallel/pipeline_program.h"

namespace rz {
namespace {

class AllRanks {
   public:
    AllRanks(const std::vector<RankProgram>& ranks, bool one_lane)
        : ranks_(ranks), one_lane_(one_lane), state_(ranks.size()) {
        for (size_t r = 0; r < ranks.size(); ++r) read(int(r));
    }

    std::string run() {
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t r = 0; r < ranks_.size(); ++r)
                while (compute(int(r))) moved = true;
            for (auto& [key, queue] : queues_)
                while (queue.next < queue.messages.size() && carry(queue)) moved = true;
            if (!error_.empty()) return error_;
        }
        return stuck();
    }

   private:
    using StageMicroBatch = std::pair<int, int>;  // stage and micro-batch
    struct Rank {
        std::vector<size_t> compute;  // positions of compute instructions
        size_t next = 0;
        std::vector<bool> done;                     // by position
        std::set<StageMicroBatch> input, gradient;  // that are there
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
        mine.done.resize(code.size());
        for (size_t k = 0; k < code.size(); ++k) {
            if (code[k].computes()) mine.compute.push_back(k);
            if (code[k].what == Do::send || code[k].what == Do::recv)
                queues_[key_of(rank, code[k])].messages.push_back({rank, k});
        }
    }

    const StepShape& shape(int rank) const { return ranks_[size_t(rank)].shape; }

    // True: the tensors that the instruction reads are there.
    bool has_inputs(int rank, const Instr& i) const {
        const Rank& mine = state_[size_t(rank)];
        const StageUnits& stage = shape(rank).stage(i.stage);
        const StageMicroBatch place(i.stage, i.micro_batch);
        if (i.what == Do::forward && i.first_unit == stage.first_unit && stage.first_unit > 0)
            return mine.input.count(place) > 0;
        const bool first_half = i.what == Do::backward || i.what == Do::input_grad;
        if (first_half && i.last_unit == stage.last_unit && stage.last_unit < shape(rank).last_unit())
            return mine.gradient.count(place) > 0;
        return true;
    }

    bool compute(int rank) {
        Rank& mine = state_[size_t(rank)];
        if (mine.next == mine.compute.size()) return false;
        const size_t position = mine.compute[mine.next];
        const Instr& i = at(rank, position);
        const StageUnits& stage = shape(rank).stage(i.stage);
        if (!has_inputs(rank, i)) return false;
        if (i.what == Do::forward && i.first_unit == stage.first_unit) {
            if (!slot_free(rank, i)) return false;
            user_[{rank, i.stage, i.slot}] = i.micro_batch;
        }
        mine.done[position] = true;
        ++mine.next;
        hand_over(rank, i, stage);
        return true;
    }

    // To the rank's own stage above or below; and the slot, when the micro-batch leaves.
    void hand_over(int rank, const Instr& i, const StageUnits& stage) {
        Rank& mine = state_[size_t(rank)];
        if (i.what == Do::forward) {
            if (i.last_unit == stage.last_unit)
                if (const StageUnits* above = shape(rank).above(stage, i.micro_batch))
                    mine.input.insert({above->stage, i.micro_batch});
            return;
        }
        if (i.first_unit != stage.first_unit || i.what == Do::weight_grad) return;
        if (const StageUnits* below = shape(rank).below(stage, i.micro_batch))
            mine.gradient.insert({below->stage, i.micro_batch});
        left_.insert({rank, i.stage, i.micro_batch});
        free_if_done(rank, i);
    }

    // A slot is free when its micro-batch has left and its gradient has been carried away.
    void free_if_done(int rank, const Instr& i) {
        const SlotKey place{rank, i.stage, i.micro_batch};
        const StageUnits& stage = shape(rank).stage(i.stage);
        const bool elsewhere = stage.first_unit > 0 && !shape(rank).below(stage, i.micro_batch);
        if (left_.count(place) && (!elsewhere || gradient_gone_.count(place))) user_.erase({rank, i.stage, i.slot});
    }
    bool slot_free(int rank, const Instr& i) const {
        const auto user = user_.find({rank, i.stage, i.slot});
        return user == user_.end() || user->second == i.micro_batch;  // its own: taken when its input was received
    }

    // The queue's next message, if both ends are ready.
    bool carry(Queue& queue) {
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
            error_ =
                format("rank %d, instruction %zu (%s) meets rank %d, instruction %zu (%s): another tensor", mine.rank,
                       mine.position, describe(i).c_str(), theirs.rank, theirs.position, describe(recv).c_str());
            return false;
        }
        const bool up = i.last_unit > i.first_unit;
        if (!is_written(mine) || (up && !slot_free(theirs.rank, recv))) return false;
        arrive(mine, theirs, up);
        ++queue.next;
        ++peer->second.next;
        return true;
    }

    void arrive(const Message& mine, const Message& theirs, bool up) {
        const Instr &i = at(mine.rank, mine.position), &recv = at(theirs.rank, theirs.position);
        Rank& receiver = state_[size_t(theirs.rank)];
        (up ? receiver.input : receiver.gradient).insert({recv.stage, recv.micro_batch});
        if (up) {
            user_[{theirs.rank, recv.stage, recv.slot}] = recv.micro_batch;
            return;
        }
        gradient_gone_.insert({mine.rank, i.stage, i.micro_batch});
        free_if_done(mine.rank, i);
    }

    // True: the compute instruction before the send has ended.
    bool is_written(const Message& m) const {
        for (size_t k = m.position; k-- > 0;)
            if (at(m.rank, k).computes() && at(m.rank, k).stage == at(m.rank, m.position).stage &&
                at(m.rank, k).micro_batch == at(m.rank, m.position).micro_batch &&
                at(m.rank, k).what != Do::weight_grad)
                return state_[size_t(m.rank)].done[k];
        return false;
    }

    std::string stuck() const {
        for (size_t r = 0; r < ranks_.size(); ++r)
            if (const Rank& mine = state_[r]; mine.next < mine.compute.size()) {
                const size_t position = mine.compute[mine.next];
                return format("rank %zu, instruction %zu (%s): deadlock, it never runs", r, position,
                              describe(at(int(r), position)).c_str());
            }
        for (const auto& [key, queue] : queues_)
            if (queue.next < queue.messages.size()) {
                const Message& m = queue.messages[queue.next];
                return format("rank %d, instruction %zu (%s): no one meets it", m.rank, m.position,
                              describe(at(m.rank, m.position)).c_str());
            }
        return "";
    }

    struct SlotKey {
        int rank, stage, slot;
        auto operator<=>(const SlotKey&) const = default;
    };
    const std::vector<RankProgram>& ranks_;
    bool one_lane_;
    std::vector<Rank> state_;
    std::map<QueueKey, Queue> queues_;
    std::map<SlotKey, int> user_;             // the micro-batch that a slot is in use by
    std::set<SlotKey> left_, gradient_gone_;  // by rank, stage and micro-batch
    std::string error_;
};

}  // namespace

std::string find_rendezvous_error(const std::vector<RankProgram>& ranks, bool one_lane) {
    return AllRanks(ranks, one_lane).run();
}

}  // namespace rz
