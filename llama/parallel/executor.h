#pragma once
// Runs a rank's program: training, validation and generation, one stage or a pipeline. Everything is enqueued, nothing
// waits on the host. Compute is on one stream, each lane on its own (or all on one), and events order them:
//
//   recv      waits until the slot's last user is done with it, and until its gradient was carried away
//   forward   waits for its input's recv, or copies the output of the rank's own stage below
//   backward, input_grad
//             wait for the recv of the output's gradient, and for the send of the gradient that the slot held before;
//             the input's gradient goes to the rank's own stage below by a copy
//   send      waits for the instruction that wrote the tensor, whatever was enqueued since
//
// A program without messages needs no events. What an instruction computes is the host's business: a model, or a test
// that only counts.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "kernels/runtime/graph.h"
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
    // Address of a slot's tensor now; `bytes` are those of the micro-batch. A host that swaps memory between slots
    // does so in compute(). Only for programs with more than one stage.
    virtual void* boundary(Boundary, int stage, int slot);
    virtual int64_t boundary_bytes(int micro_batch);
    // Called as a message is enqueued, before and after it, with the lane's stream.
    virtual void before_message(const Instr&, Stream&) {}
    virtual void after_message(const Instr&, Stream&) {}
    // Values that a CUDA graph of the whole micro-batch records. Only if the executor replays micro-batches.
    virtual GraphSet::Key graph_key(int micro_batch);
};

// State from one run to the next: when the slots are free, times, graphs.
class Executor {
   public:
    // `mesh` may be nullptr where no program has messages. All references outlive this.
    explicit Executor(Stream& compute, Mesh* mesh = nullptr) : compute_(compute), mesh_(mesh) {}

    // Runs a checked program from its first instruction to its last.
    void run(const RankProgram&, ProgramHost&);

    // Keeps the times of each run that trains from now on; those of the latest one, to be read when its work is done.
    void keep_times() { keeps_times_ = true; }
    StepEvents take_times() { return std::exchange(times_, {}); }
    // From now on each micro-batch of a program that trains is one CUDA graph; nothing in it may communicate.
    void replay_micro_batches() { replays_ = true; }
    const GraphSet& graphs() const { return graphs_; }

   private:
    friend class ProgramRun;
    struct SlotEvents {
        Event free;           // its last user's input gradient is done
        Event output_sent;    // of the latest user
        Event gradient_sent;  // of the latest user
    };
    SlotEvents& events(int stage, int slot) { return events_[{stage, slot}]; }

    Stream& compute_;
    Mesh* mesh_;
    std::map<std::pair<int, int>, SlotEvents> events_;  // by stage and slot
    bool keeps_times_ = false, replays_ = false;
    StepEvents times_;
    GraphSet graphs_;
};

// One run of a program. next() hands out the instructions in order, and each is enqueued by the function of its kind
// before the next one is asked for:
//
//   ProgramRun run(executor, program, host);
//   while (const Instr* i = run.next()) run.enqueue(*i);
class ProgramRun {
   public:
    // The executor and the program outlive this.
    ProgramRun(Executor&, const RankProgram&, ProgramHost&);
    ProgramRun(Executor&, const RankProgram&, std::unique_ptr<ProgramHost>);
    ~ProgramRun();
    ProgramRun(const ProgramRun&) = delete;
    ProgramRun& operator=(const ProgramRun&) = delete;

    // nullptr: the program is done. Micro-batches that a CUDA graph replays are passed over.
    const Instr* next();

    void gather(const Instr& i) { host_.gather(i); }
    void recv(const Instr&);
    void forward(const Instr&);
    void backward(const Instr& i) { input_half(i); }
    void input_grad(const Instr& i) { input_half(i); }
    void weight_grad(const Instr&);
    void send(const Instr&);
    void reduce(const Instr& i) { host_.reduce(i); }
    void release(const Instr& i) { host_.release(i); }
    // By the instruction's kind.
    void enqueue(const Instr&);

   private:
    // State of a micro-batch: its slot of a stage, and what has come for it.
    struct MicroBatchState {
        int slot = -1;
        Event input_here, gradient_here;
        Event output_written, gradient_written;
    };

    MicroBatchState& passage(int stage, int micro_batch) { return passages_[{stage, micro_batch}]; }
    void input_half(const Instr&);
    void compute(const Instr&, bool begins, bool ends);
    void begin_forward(const Instr&, const StageUnits&);
    void end_backward(const Instr&, const StageUnits&);

    Executor& executor_;
    const StepShape& shape_;
    const std::vector<Instr>& code_;
    std::unique_ptr<ProgramHost> own_;
    ProgramHost& host_;
    Stream& compute_;
    bool talks_;  // has messages
    bool times_;  // keeps the times of its tasks
    size_t at_ = 0;
    bool in_graph_ = false;                                    // between begin() and end() of a micro-batch
    std::map<std::pair<int, int>, MicroBatchState> passages_;  // by stage and micro-batch
};

}  // namespace rz
