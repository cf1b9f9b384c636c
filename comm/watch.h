#pragma once
// Nothing waits forever, and whoever gives up says why.
//
// Every rank keeps a status page: who it is, the training step, and its last operations with sequence numbers (a flight
// recorder). The members of a group issue the same sequence of operations in it, so that equal numbers in a group mean
// the same operation and the members with more of them wait for those with fewer: the rank to look at waits for none
// itself. Stages of a pipeline are members of different groups, so their totals may differ. The pages are small files
// in a run directory, mapped into memory: writing one costs a store, and it can be read by the other ranks of the host
// (of all hosts, if they share the directory) and after the process was killed or stopped.
//
// When a wait passes its deadline the rank writes `failure.txt` in the run directory and lets the others see it; each
// adds its own report, then the first one adds a table of all ranks and ends the job through `on_failure` (MPI_Abort).
//
// Ranks of several hosts that have a folder in common hand their records to each other there (share()): when one gives
// up, its host's pages and the news go there, the others find them, add their own and give up too. A thread of its own
// does that, the courier: where the folder's file system hangs, nobody else does.
//
// While ranks work with files a wait may last for hours. A rank of the same host whose process does not move then, for
// as long as the deadline of other waits, is not at work but stopped, and ends the job as well.
//
// Two threads look on. The watchdog looks every 0.1 s at what the transports have under way (add_poll); it may call
// CUDA and NCCL, and so may hang in them. The guard calls neither: it looks whether the watchdog still moves, and ends
// the job where it does not.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/deadline.h"
#include "kernels/runtime/check.h"

namespace rz {

constexpr int kKeptOps = 16;

struct DeadlineError : Error {
    using Error::Error;
};

enum class OpState : int32_t { none = 0, queued = 1, running = 2, done = 3 };

struct OpRecord {
    uint64_t seq = 0;      // of this rank, from 1; 0: unused
    uint64_t number = 0;   // in its group, from 1
    int32_t channel = -1;  // of the page: its group
    int64_t step = 0, bytes = 0;
    double when = 0;  // seconds since the epoch, of the last change
    OpState state = OpState::none;
    int32_t hop = 0;             // messages groups started so far
    int32_t to = -1, from = -1;  // world ranks of the latest hop
    char op[20] = {}, group[12] = {};
};

// A group that the rank is a member of. Its name and its first member, a rank of the job, tell it from other groups.
struct Channel {
    char group[12] = {};
    int32_t first = -1;
    uint64_t issued = 0;
};
constexpr int kChannels = 32;

struct StatusPage {
    uint64_t magic = 0;
    int32_t rank = 0, size = 0, pid = 0, unused = 0;
    char host[64] = {};
    double heartbeat = 0;  // seconds since the epoch; a stopped or dead process leaves it behind. Of a page that was
                           // brought from another host, below zero: seconds ago
    int64_t step = -1;
    uint64_t last_seq = 0, last_done = 0;
    OpRecord ops[kKeptOps];  // record of seq s at [s % kKeptOps]
    int32_t channels_used = 0;
    Channel channels[kChannels];
};

class Watch {
   public:
    struct Options {
        int rank = 0, size = 1;
        double timeout_s = 600;
        double disk_timeout_s = 0;  // of every wait while ranks work with files; less than timeout_s: that
        double grace_s = 1.0;       // how long the first rank that gives up waits for the reports of the others
        std::string directory;      // "": pages are private, and expired() only throws
        // Ends the job; called once the reports are written. If it is empty or returns, DeadlineError is thrown.
        std::function<void(const std::string& reason)> on_failure;
        // Ends the job for what a poll has thrown that is no DeadlineError: a fault of CUDA or NCCL.
        std::function<void(const std::string& reason)> on_fault;
    };

    explicit Watch(Options options);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // The deadline of a wait at this moment: waits ask again and again.
    double timeout_s() const;
    // Between the two, which all ranks call together, a rank may wait until another has finished with its files.
    void begin_disk_work() { ++disk_work_; }
    void end_disk_work() { --disk_work_; }
    int rank() const { return options_.rank; }

    // Shown in every report and in the records made from now on.
    void set_step(int64_t step);

    // This rank is a member of a group, whether or not it issues anything in it.
    void join(const char* group, int first);

    // From now on records are handed over in `directory`, which all hosts see; it exists. Once.
    void share(const std::string& directory);

    // The flight recorder. `queue` is called where an operation is enqueued, the others where it runs.
    uint64_t queue(const char* op, const char* group, int first, int64_t bytes);
    void running(uint64_t seq, int to, int from);
    void done(uint64_t seq);
    // As long as it is one of the latest; else an empty one.
    OpRecord record(uint64_t seq) const;

    // Ends the job for an error that nobody is there to catch (a CUDA host function's); returns where on_fault does, or
    // there is none.
    void fault(const std::string& reason) {
        if (options_.on_fault) options_.on_fault(reason);
    }

    // Gives up: `waiting_for` says for what and how long. Reports, ends the job or throws DeadlineError.
    [[noreturn]] void expired(const std::string& waiting_for);

    // What this rank knows of itself, a few lines; and one line per rank with a verdict on who is behind.
    std::string own_report(const std::string& waiting_for) const;
    std::string job_report() const;

    // `poll` is called every 0.1 s from the watchdog thread. It may throw: the job then ends, by DeadlineError with
    // kExitDeadline, else with kExitError.
    int add_poll(std::function<void()> poll);
    void remove_poll(int id);

    // A page as another rank left it, or as the courier has brought it; false if it can't be seen from here.
    bool read_page(int rank, StatusPage* page) const;

   private:
    struct Courier;
    int channel(const char* group, int first);  // with the mutex held; -1: there are too many
    void loop();
    void guard();
    void run_polls();
    void look_for_stopped();
    bool stopping() const;
    void append_report(const std::string& text) const;
    std::string failure_path() const { return options_.directory + "/failure.txt"; }
    std::string page_path(int rank) const;

    Options options_;
    std::atomic<double> grace_s_ = 1;  // share() makes it longer while the threads run
    mutable std::mutex mutex_;
    StatusPage* page_ = nullptr;
    bool mapped_ = false;
    bool reported_ = false;  // this rank's report stands in failure.txt
    bool stop_ = false;
    std::atomic<int> disk_work_ = 0;
    std::atomic<uint64_t> beats_ = 0;  // of the watchdog
    struct Neighbour {
        double heartbeat = 0;
        WaitClock since;
    };
    std::map<int, Neighbour> neighbours_;  // of the watchdog's thread
    std::mutex polls_mutex_;
    std::vector<std::pair<int, std::function<void()>>> polls_;
    int next_poll_ = 1;
    std::thread thread_, guard_;        // only with a directory
    std::shared_ptr<Courier> courier_;  // with share(), until the end
};

// "all_reduce #57 (step 12, 4.00 MiB, group world): running, hop 3, to rank 2, from rank 0"
std::string describe(const OpRecord& record);

}  // namespace rz
