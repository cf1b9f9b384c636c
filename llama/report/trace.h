#pragma once
// A picture of a few steps: what ran when on the compute and the communication stream of every rank, as a file that
// ui.perfetto.dev and chrome://tracing show (the Trace Event Format, "X" events in microseconds), and of a pipeline the
// tasks, with an arrow for each message ("s" and "f" events). The events around each op slow a step down somewhat; the
// bits do not change.

#include <string>
#include <utility>
#include <vector>

#include "comm/meter.h"
#include "comm/process.h"
#include "kernels/runtime/memory_changes.h"
#include "kernels/runtime/op_timer.h"
#include "llama/report/memory_timeline.h"

namespace rz {

class Trace {
   public:
    // Steps [first, first + steps).
    Trace(Process& process, Stream& compute, CommMeter& meter, int64_t first, int64_t steps)
        : process_(process), compute_(compute), meter_(meter), first_(first), last_(first + steps - 1) {}

    // Around each step; both are collective at the first and the last one.
    void begin_step(int64_t step);
    bool covers(int64_t step) const { return step >= first_ && step <= last_; }
    // A pipeline's task. Messages have numbers that are the same on both sides and no other message of the run has: an
    // arrow goes from the task that made it to the one that reads it.
    struct Task {
        std::string name;
        Event start, end;
        std::vector<int64_t> made, read;
    };
    void add(Task task) { tasks_.push_back(std::move(task)); }
    // True when the file was written: after the last step.
    bool end_step(int64_t step, const std::string& path);
    // memory.svg of the traced steps, with the peak of the run so far: written again when the run ends.
    void write_memory() const;

   private:
    std::string events();  // of this rank

    Process& process_;
    Stream& compute_;
    CommMeter& meter_;
    int64_t first_, last_;
    OpTimer timer_;
    Event origin_;
    std::vector<std::pair<int64_t, Event>> steps_;  // where each begins
    std::vector<Task> tasks_;
    std::vector<MemoryChange> memory_;  // in these steps
    StepTimes times_;
    std::string memory_file_;  // of rank 0; empty before it is written
};

}  // namespace rz
