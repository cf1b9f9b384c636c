#pragma once
// Runs one rank's program: one switch over its instructions. Everything is enqueued, nothing waits on the host. Compute
// is on one stream, each lane on its own (or all on one), and events order them:
//
//   recv      waits until the slot's last user is done with it, and until its gradient was carried away
//   forward   waits for its input's recv, or copies the output of the rank's own stage below
//   backward, input_grad
//             wait for the recv of the output's gradient, and for the send of the gradient that the slot held before;
//             the input's gradient goes to the rank's own stage below by a copy
//   send      waits for the instruction that wrote the tensor, whatever was enqueued since
//
// What an instruction computes is the host's business: a model, or a test that only counts.

#include <map>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "llama/parallel/program.h"
#include "llama/parallel/telemetry.h"

namespace rz {

// The tensor that enters a stage, the one that leaves it, and the gradient of either.
enum class Boundary : uint8_t { input, output, gradient };

class ProgramHost {
   public:
    virtual ~ProgramHost() = default;
    // Enqueues forward, backward, input_grad or weight_grad of the instruction's units on the compute stream.
    virtual void compute(const Instr&) = 0;
    virtual void gather(const Instr&) {}
    virtual void release(const Instr&) {}
    virtual void reduce(const Instr&) {}
    // Where the tensor of a slot lies now; `bytes` are those of the micro-batch. A host that swaps memory between slots
    // does so in compute().
    virtual void* boundary(Boundary, int stage, int slot) = 0;
    virtual int64_t boundary_bytes(int micro_batch) = 0;
    // Called as a message is enqueued, before and after it, with the lane's stream.
    virtual void before_message(const Instr&, Stream&) {}
    virtual void after_message(const Instr&, Stream&) {}
};

class Executor {
   public:
    // `mesh` may be nullptr for a program without messages. All references outlive this; the program is checked.
    Executor(Program, StepShape, Stream& compute, Mesh* mesh);

    void run(ProgramHost&);
    // Keeps the times of each run from now on; those of the latest one, to be read when its work is done.
    void keep_times() { keeps_times_ = true; }
    StepEvents take_times() { return std::exchange(times_, {}); }
    const Program& program() const { return program_; }
    const StepShape& shape() const { return shape_; }

   private:
    struct SlotEvents {
        Event free;           // its last user's input gradient is done
        Event output_sent;    // of the latest user
        Event gradient_sent;  // of the latest user
    };
    // Where a micro-batch is: its slot of a stage, and what has come for it.
    struct Passage {
        int slot = -1;
        Event input_here, gradient_here;
        Event output_written, gradient_written;
    };

    Passage& passage(int stage, int micro_batch) { return passages_[{stage, micro_batch}]; }
    SlotEvents& events(int stage, int slot) { return events_[{stage, slot}]; }
    void compute(const Instr&, ProgramHost&);
    void begin_forward(const Instr&, const StageUnits&, ProgramHost&);
    void end_backward(const Instr&, const StageUnits&, ProgramHost&);
    void send(const Instr&, ProgramHost&);
    void recv(const Instr&, ProgramHost&);

    Program program_;
    StepShape shape_;
    Stream& compute_;
    Mesh* mesh_;
    std::map<std::pair<int, int>, Passage> passages_;   // by stage and micro-batch, of this run
    std::map<std::pair<int, int>, SlotEvents> events_;  // by stage and slot
    bool keeps_times_ = false;
    StepEvents times_;
};

}  // namespace rz
