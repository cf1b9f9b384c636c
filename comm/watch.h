#pragma once
// Nothing waits forever, and whoever gives up says why.
//
// Every rank keeps a status page: who it is, the training step, and its operations (flight.h). The pages are files in a
// run directory, mapped into memory: writing one costs a store, and it can be read by the other ranks of the host (of
// all hosts, if they share the directory) and after the process was killed or stopped.
//
// When a wait passes its deadline the rank writes `failure.txt` in the run directory and lets the others see it; each
// adds its own report, then the first one adds a table of all ranks with a verdict and ends the job through
// `on_failure` (MPI_Abort). Beside the text, in flight/, each rank's records are left for torchfrtrace. SIGUSR2 to any
// rank brings table and records of a job that goes on: other ranks of the host see the request in the run directory,
// those of other hosts hear of it with the next step (dumps()).
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
#include "comm/flight.h"
#include "kernels/runtime/check.h"

namespace rz {

struct DeadlineError : Error {
    using Error::Error;
};

class Watch {
   public:
    struct Options {
        int rank = 0, size = 1;
        double timeout_s = 600;
        double disk_timeout_s = 0;  // of every wait while ranks work with files; less than timeout_s: that
        double grace_s = 1.0;       // how long the first rank that gives up waits for the reports of the others
        std::string directory;      // "": pages are private, and expired() only throws
        // Ends the job; called once the reports are written. If it is empty or returns, abandon() follows, and
        // DeadlineError is thrown.
        std::function<void(const std::string& reason)> on_failure;
        // Ends the job for what a poll has thrown that is no DeadlineError: a fault of CUDA or NCCL. If it returns,
        // abandon() follows.
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

    // This rank is a member of a group, whether or not it issues anything in it. `members`: ranks of the job.
    void join(const char* group, const std::vector<int>& members);

    // From now on records are handed over in `directory`, which all hosts see; it exists. Once.
    void share(const std::string& directory);

    // The flight recorder. `queue` is called where an operation is enqueued, and waits where too many are open; the
    // others where it runs.
    uint64_t queue(const char* op, const char* group, int first, int64_t bytes);
    void running(uint64_t seq, int to, int from);
    void done(uint64_t seq);
    // As long as it is kept; else an empty one.
    OpRecord record(uint64_t seq) const;
    // For messages: "[all_gather #57 of group data, unit 7 ...]", of another group than its own by number alone.
    std::string name_of(uint64_t seq, const std::string& group) const;
    // The control plane's messages, one after the other; returns its number.
    uint64_t begin_control(int64_t bytes, int to, int from);
    void end_control();

    // How many dumps this rank has made on request; and a request for the one of this number.
    int dumps() const { return dumps_; }
    void ask_for_dump(int number);
    // From now on SIGUSR2 asks this process for a dump.
    static void install_dump_signal();

    // Ends the job for an error that nobody is there to catch (a CUDA host function's); returns where on_fault does, or
    // there is none.
    void fault(const std::string& reason) {
        if (options_.on_fault) options_.on_fault(reason), abandon();
    }

    // Gives up: `waiting_for` says for what and how long. Reports, ends the job or throws DeadlineError.
    [[noreturn]] void fail_deadline(const std::string& waiting_for);

    // This rank's report on itself, a few lines; and one line per rank, what each group waits for, and why.
    std::string own_report(const std::string& waiting_for) const;
    std::string job_report(double stuck_s = 0) const;  // what is open for less is no reason
    // Leaves the records of all ranks that can be seen from here.
    void dump_all() const;

    // `poll` is called every 0.1 s from the watchdog thread. It may throw: the job then ends, by DeadlineError with
    // kExitDeadline, else with kExitError.
    int add_poll(std::function<void()> poll, std::function<void()> abandon = {});
    void remove_poll(int id);
    // Calls what was added with the polls: other ranks are not waited for any more, by nothing on a device either. From
    // any thread; does nothing while a poll runs, so it is called again and again.
    void abandon();

    // A rank's records as it left them, or as the courier has brought them; false if they can't be seen from here.
    bool flight_of(int rank, Flight* flight) const;

   private:
    struct HostSync;
    int channel(const char* group, int first);  // with the mutex held; -1: there are too many
    void loop();
    void guard();
    void run_polls();
    void look_for_stopped();
    void look_for_requests();
    void wait_for_room(std::unique_lock<std::mutex>&);
    void dump(int rank) const;
    bool make_dump_folder() const;
    std::string dump_folder() const { return options_.directory + "/flight"; }
    std::string request_path(int number) const;
    OpRecord& slot(uint64_t seq) const { return slots_[seq % kSlots]; }
    bool stopping() const;
    void append_report(const std::string& text) const;
    std::string failure_path() const { return options_.directory + "/failure.txt"; }
    std::string page_path(int rank) const;

    Options options_;
    std::atomic<double> grace_s_ = 1;  // share() makes it longer while the threads run
    mutable std::mutex mutex_;
    StatusPage* page_ = nullptr;
    OpRecord* slots_ = nullptr;  // after the page; the record of seq s at [s % kSlots]
    bool mapped_ = false;        // from a file
    std::atomic<int> dumps_ = 0;
    int signals_seen_ = 0;
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
    struct Poll {
        int id;
        std::function<void()> poll, abandon;
    };
    std::vector<Poll> polls_;
    int next_poll_ = 1;
    std::thread thread_, guard_;           // only with a directory
    std::shared_ptr<HostSync> host_sync_;  // with share(), until the end
};

}  // namespace rz
