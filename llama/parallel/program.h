#pragma once
// A step is a program: the list of what one rank enqueues, made before the step from shape and sharding policy, checked
// before it runs, executed in order by one loop. Nothing about order is decided while it runs.
//
//   gather       starts to collect the whole parameters of one unit: an all-gather on the communication stream.
//                Returns at once; the compute stream waits where a compute instruction first reads the
//                unit.
//   recv, send   one tensor of N x C between two units that lie on different ranks, on `lane`
//   forward      units first_unit..last_unit, ascending, of one micro-batch, into activation slot `slot`
//   backward     input and weight gradient of units last_unit..first_unit, descending, unit by unit
//   input_grad   only what the unit below waits for; moves into weight slot `w_slot` what weight_grad reads
//   weight_grad  only what is added to gradients, from `w_slot` alone; reads no parameters
//   release      the compute work enqueued so far was the last to read the unit until its next gather
//   reduce       the compute work enqueued so far has completed the unit's gradients: of this micro-batch, or, where
//                gradients are kept whole, of all. `last`: of the step, so sums across replicas follow.
//
// Compute instructions name units inside their stage. One instruction covers the units between two points where
// something else must be enqueued: one unit each where units are gathered or reduced one by one, the whole stage else.
// An executor loops over the range and needs no other case.
//
// Units: 0 the embedding, 1..L blocks, L+1 the final norm with the head; tied, the head's matrix is in unit 0. What
// reads parameters and what writes gradients is said once, by reads() and writes():
//
//   training   forward of unit L+1 is the final norm; backward (or input_grad) of it is the head (logits, loss, dX and
//              the head's dW, since logits are not kept), then the norm's backward. The head's unit is released after
//              it. Backward of unit 0 reads no parameters.
//   otherwise  forward of unit L+1 is the final norm and the head (loss, logits, or the next token's)
//
// With whole parameters (ZeRO 0 to 2) there is no gather and no release; the first read of a unit in a step waits for
// the update's all-gather of it.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/runtime/names.h"

namespace rz {

enum class Do : uint8_t { gather, recv, forward, backward, input_grad, weight_grad, send, reduce, release };
template <>
inline constexpr auto kNames<Do> = std::to_array<Named<Do>>({{Do::gather, "gather"},
                                                             {Do::recv, "recv"},
                                                             {Do::forward, "forward"},
                                                             {Do::backward, "backward"},
                                                             {Do::input_grad, "input_grad"},
                                                             {Do::weight_grad, "weight_grad"},
                                                             {Do::send, "send"},
                                                             {Do::reduce, "reduce"},
                                                             {Do::release, "release"}});

struct Instr {
    Do what;
    int stage = 0;                      // of this rank that it belongs to
    int first_unit = 0, last_unit = 0;  // send and recv: the unit that the tensor leaves, the unit that it enters
    int micro_batch = 0;
    int slot = -1, w_slot = -1;  // activations, pending weight gradients; -1: not used
    int lane = -1;               // send, recv: the link's other end, a rank of the pp axis
    bool last = false;           // reduce: completes the step

    bool operator==(const Instr&) const = default;
    bool is_message() const { return what == Do::send || what == Do::recv; }
    bool computes() const {
        return what == Do::forward || what == Do::backward || what == Do::input_grad || what == Do::weight_grad;
    }
};

// An instruction about a unit, for the one that uses it.
inline Instr about(Do what, int unit, const Instr& user) {
    return {.what = what, .stage = user.stage, .first_unit = unit, .last_unit = unit, .micro_batch = user.micro_batch};
}

struct StageUnits {
    int stage, first_unit, last_unit;
    // The step's micro-batches that pass the stage on this rank; -1: all. DualPipe's ranks see half of them.
    int first_micro_batch = 0, micro_batches = -1;
    bool passed_by(int micro_batch) const {
        return micro_batches < 0 ||
               (first_micro_batch <= micro_batch && micro_batch < first_micro_batch + micro_batches);
    }
    bool operator==(const StageUnits&) const = default;
};

// How many micro-batches of a stage are in memory at once.
struct StageSlots {
    int stage, forward, weight;
    bool operator==(const StageSlots&) const = default;
};

struct Program {
    std::vector<Instr> code;
    std::vector<StageSlots> slots;  // one for each stage of the rank
    bool operator==(const Program&) const = default;
};

// ZeRO, as far as the order of a step depends on it.
struct ShardPolicy {
    bool sharded_parameters = false;  // stage 3: gather and release
    bool reduce_each = false;         // gradients are reduced after each micro-batch, not once at the end of the step
    int prefetch = 0;                 // gathers ahead of use; 0 where compute waits for each collective
    bool prefetch_next_micro_batch = false;  // whether they may belong to a later micro-batch
    int whole_units = 0;                     // of one size, whole at once; 0: 1 + prefetch
};

// A rank's program is made from this and checked against it.
struct StepShape {
    std::vector<StageUnits> stages = {};   // of this rank, ascending
    std::vector<int64_t> unit_bytes = {};  // whole parameters, of all units of the model: a memory slot serves one size
    bool tied = false;
    bool trains = true;  // false: forward only
    int micro_batches = 1;
    ShardPolicy shard = {};
    std::vector<int> shared = {};  // units that another pp rank holds too and adds to: reduced when all else is done

    int units() const { return int(unit_bytes.size()); }
    const StageUnits& stage(int number) const;  // throws if it is on another rank
    // The stage of this rank that the micro-batch comes from or goes to next; nullptr: it is on another rank, or none.
    const StageUnits* below(const StageUnits&, int micro_batch) const;
    const StageUnits* above(const StageUnits&, int micro_batch) const;
    int last_unit() const { return units() - 1; }
    int head_unit() const { return tied ? 0 : last_unit(); }
    // One stage of all units, each used by itself: the first and the last share a slot (zero/unit_pool.h).
    bool in_turn() const;
    // True: a slot is free for the unit: those of its size can be whole at once as often as the policy says, and in
    // turn no more of any size. `gathered`: by unit.
    bool has_room(int unit, const std::vector<bool>& gathered) const;
};

// An executor's input: a program, and the shape that it was made from and checked against.
struct RankProgram {
    StepShape shape = {};
    Program program = {};
};

// Units whose parameters the instruction reads, in the order in which it first does; each at most once.
std::vector<int> reads(const Instr&, const StepShape&);
// Units whose gradients it adds to.
std::vector<int> writes(const Instr&, const StepShape&);

// The step of one rank that holds the whole model: for each micro-batch all forwards, then all backwards.
// `shape.stages` must be one stage of all units. With `trains` off: the forward pass of each micro-batch (validation,
// samples, export).
Program single_stage_program(const StepShape& shape);

// Adds gather and release to code without them. A unit is released after each use unless the next compute instruction
// reads it too, so the last unit stays whole between forward and backward. A gather stands before the first read of
// the unit, followed by the gathers of the next `prefetch` units that will be read, as far as memory slots are free.
// The list ends where a unit comes again that is released before, and, unless the policy says otherwise, at the end of
// the micro-batch.
std::vector<Instr> place_gathers(const std::vector<Instr>& code, const StepShape& shape);

// Adds the reduces to code without them: of each unit after the last instruction that adds to its gradients, in each
// micro-batch or in the step; of a shared unit at the end of the step, since the reduce waits for the other holder.
// If the head's dW comes long before the rest of its unit's gradients, several
// micro-batches are reduced together.
std::vector<Instr> place_reduces(const std::vector<Instr>& code, const StepShape& shape);

// Empty if the program may run, else what is wrong: rank, position, instruction, reason. Checks that
//   - each micro-batch passes each unit of each stage once forward and once backward, in ascending order of
//   micro-batches
//   - parameters are whole when read, gathered once, never more at once than memory slots, released in the end
//   - no slot is taken while it is in use, and all are free in the end
//   - a tensor is received before the stage reads it, and sent after the stage wrote it
//   - gradients of a unit are reduced once for each micro-batch (or once), after all that adds to them and, where they
//     could be, before the next micro-batch adds; `last` stands at the last one and nowhere else
std::string find_program_error(const Program&, const StepShape&, int rank);
void check_program(const Program&, const StepShape&, int rank);  // throws it

std::string task_name(const Instr&);  // "backward 1 of stage 0", in traces and profilers
std::string describe(const Instr&);   // "backward of unit 3, stage 0, micro-batch 1, slot 0"
std::string text_of(const Program&);  // one line for each instruction

}  // namespace rz
