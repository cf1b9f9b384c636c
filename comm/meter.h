#pragma once
// The cost of communication: a timer, bytes and seconds per operation, and how much of that time compute had to wait.
//
//   overlap efficiency = hidden / busy, in [0, 1]
//   total    time that collectives took on their streams, between the events around each
//   busy     time in which at least one of them ran
//   hidden   the part of it in which the compute stream did not stand still
//   exposed  time that the compute stream stood still in CommMeter::wait, for late ranks too: it may exceed the total
//
// Times come from events, so on CUDA nothing is synchronised until take() (whose events are then long complete).

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

// Wall clock of the calling thread: seconds since construction.
class Timer {
   public:
    double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

   private:
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began_ = Clock::now();
};

struct OpTotals {
    int64_t calls = 0, bytes_sent = 0;
    double seconds = 0;
};

struct CommTotals {
    std::map<std::string, OpTotals> ops;  // by name: "all_reduce", "all_gather", ...
    std::map<std::string, double> axes;   // seconds by axis: "tp", "data", ...
    int64_t bytes_sent = 0;
    double total_s = 0, busy_s = 0, hidden_s = 0, exposed_s = 0;
    double overlap_efficiency() const { return busy_s > 0 ? hidden_s / busy_s : 1; }
    std::string table() const;
};

// Collectives report to it (CollectiveOptions::meter); the trainer waits through it and takes the totals once a step.
class CommMeter {
   public:
    // compute.wait(event), counting how long the stream stands still for it: since `before`, an event of compute's that
    // what it waits for began after, or, without one, since it comes to the wait.
    void wait(Stream& compute, const Event& event, Event before = {});

    struct Span {
        std::string op;
        int64_t bytes_sent;
        Event began, ended;
        std::string axis = {};
    };
    // Operations enqueued between two cuts: those of a step, to be added up when it is done.
    struct Batch {
        std::vector<Span> spans;
        std::vector<std::pair<Event, Event>> waits;
    };

    // Totals since the last take. Blocks until what was measured is complete.
    CommTotals take();
    // Takes the operations enqueued since the last cut or take.
    Batch cut();
    // Totals of what is complete of it; the rest goes back and is counted with the next cut. Blocks for nothing, so
    // that a step's last gathers continue while the next step begins.
    CommTotals take_complete(Batch batch);

    void add(const char* op, int64_t bytes_sent, Event began, Event ended, const char* axis = "");

    // From now on also keeps a copy of every span, and of every wait under the name "wait", for a trace; take_trace()
    // ends that and blocks until they are complete.
    void begin_trace();
    std::vector<Span> take_trace();

   private:
    static CommTotals add_up(const Batch& batch);

    std::mutex mutex_;
    Batch open_;
    bool tracing_ = false;
    std::vector<Span> trace_;
};

}  // namespace rz
