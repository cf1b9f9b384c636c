#pragma once
// One rank of a job: bring-up, the control plane, and the one way out.
//
//   int main(...) {
//       Process process({.timeout_s = 600});
//       return process.run([&] { ...train...; return 0; });
//   }
//
// Under an MPI launcher (mpirun, srun --mpi=pmi2 or pmix) rank and size come from MPI; under others, and --ranks, from
// the environment (launch.h), and the ranks find each other over TCP (tcp_net.h). Started plainly, it is a job of one
// process and neither is used.
//
// Exit codes: exit_codes.h. What body() returned is the program's.
//
// Ranks may also be threads of one process, over a LoopbackHub: tests and experiments then run what mpirun runs. Such a
// rank has no launcher. On the CPU it never ends the program: after an error its run() returns 70, and others' waits
// throw the reason. On GPUs, one for each rank, they may wait where nothing reaches them: an error ends the program.
//
// Ranks of --ranks with --max-restarts outlive each other on CPUs and over NCCL: where one has gone, the waits of the
// others throw, on GPUs once communicators are aborted, run() returns kRejoins when all that body() had is destroyed,
// and the next Process is of the new job.
//
// The control plane's calls block the calling thread, in the same order on all ranks, up to the deadline; they are for
// small things (agreeing on a decision, gathering a few numbers), not for training data.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/exit_codes.h"
#include "comm/transport.h"
#include "kernels/runtime/context.h"

namespace rz {

// For a rank that fails before it has a Process: the others don't wait for it (mpi_transport.h).
void mpi_end_before_start();

class HostTransport;
class LoopbackHub;
class TcpNet;
struct Launch;

struct ProcessOptions {
    double timeout_s = 600;        // of every wait
    double disk_timeout_s = 7200;  // of every wait inside a DiskWork
    double start_s = 60;           // at the least, until all ranks are there: they may start minutes apart
    double finalize_s = 30;        // of MPI_Finalize
    // For status pages and failure.txt; "": a temporary one, removed after success. Ranks of other hosts are
    // seen in reports only if it is on a shared file system.
    std::string run_directory = {};
};

class Process {
   public:
    explicit Process(const ProcessOptions& options = {});
    // A rank that is a thread of this process; made, used and destroyed by that thread. Deadlines are the hub's, which
    // outlives this. `run_directory` may be empty for ranks on the CPU.
    Process(LoopbackHub& hub, int rank, const std::string& run_directory = {});
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return local_rank_; }
    int local_size() const { return local_size_; }
    bool leaving() const { return leaving_; }
    // For each rank, the first rank of the host that it is on. Collective.
    std::vector<int> nodes() { return all_gather(first_on_host_); }
    bool is_root() const { return rank_ == 0; }
    bool alone() const { return size_ == 1; }
    bool uses_mpi() const { return uses_mpi_; }
    const std::string& started_by() const { return started_by_; }  // Launch::by
    const std::string& run_directory() const { return run_directory_; }
    const std::shared_ptr<Watch>& watch() const { return watch_; }
    void set_step(int64_t step);  // named in every report

    // Runs body, then ends the job together with all other ranks. An error on one rank ends all
    // (exit_code_of()). kRejoins: see above.
    static constexpr int kRejoins = -1;
    int run(const std::function<int()>& body);
    // True: an error is another rank's end, and run() will return kRejoins.
    bool rejoins();

    // `hook` is called with exit code and reason before the job ends for an error or a deadline, on the rank that ends
    // it, from any thread. It must not throw and not wait. nullptr: none.
    void on_failure(std::function<void(int code, const std::string& reason)> hook);

    // Ranks of several hosts hand reports and flight records to each other in this folder, which they all see; it is
    // removed at the end of a good run. On one host nothing: the run directory serves. Collective.
    void share_records(const std::string& folder);

    // Ends the whole job at once; the reason goes to stderr and failure.txt. Of a rank that is a thread: throws it.
    [[noreturn]] void abort(int code, const std::string& reason);

    // The device that this rank uses, with its context. Refuses more ranks on a host than GPUs are visible (or two
    // ranks on one GPU), unless the MPI transport was asked for, which can share one. `note` may receive a line for the
    // user. Collective.
    Device choose_device(DeviceChoice choice, TransportKind transport, std::string* note);

    // True: groups of ranks talk over NCCL. Known once the device is chosen.
    bool uses_nccl(TransportKind kind, Device device) const;

    // A group of the ranks that pass the same color, ordered by key, then rank; color -1: this rank is in none and gets
    // nullptr. Collective over all ranks.
    std::unique_ptr<Transport> make_transport(TransportKind kind, Device device, int color, int key,
                                              const std::string& group);

    // While it lives, a rank may work with files and the others wait for it: every wait has the deadline of disk work.
    // All ranks make one together and join() at its end, or an exception ends the job.
    class DiskWork {
       public:
        explicit DiskWork(Process& process);
        ~DiskWork();
        DiskWork(const DiskWork&) = delete;
        DiskWork& operator=(const DiskWork&) = delete;
        void join() { process_.barrier(); }

       private:
        Process& process_;
    };

    // Control plane (control_plane.cpp): ceil(log2 N) rounds of one message for a call.
    void barrier();
    void broadcast(void* data, int64_t bytes, int root);
    std::string broadcast_text(const std::string& text, int root);
    void all_gather(const void* own, int64_t bytes, void* all);  // `bytes` from each, in rank order
    template <class T>
    std::vector<T> all_gather(const T& own) {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> all(static_cast<size_t>(size_));
        all_gather(&own, sizeof own, all.data());
        return all;
    }
    // Element by element over the ranks, which pass equally many; modulo 2^64.
    std::vector<uint64_t> sums(const std::vector<uint64_t>& own);
    double sum(double x);  // in rank order: the same bits everywhere
    int64_t max(int64_t x);
    std::vector<std::string> all_gather_text(const std::string& own);
    std::vector<std::string> gather_text(const std::string& own);   // to rank 0, the others get none
    int64_t control_messages() const { return control_messages_; }  // sent by this rank

   private:
    void bring_up(const ProcessOptions& options);
    void meet_by_mpi(int launched);
    void meet_by_tcp(const Launch& launch, double deadline_s);
    std::unique_ptr<HostTransport> tcp_control(std::shared_ptr<Watch> watch);
    [[noreturn]] void end_job(int code);
    void agree_on_run_directory();
    std::shared_ptr<Watch> make_watch(const ProcessOptions& options);
    void clear_run_directory();
    void share_out_gpus(Device& device, TransportKind transport, std::string* note);
    void settle_on_cores(Device device, std::string* note);
    void report(int code, const std::string& reason);
    void call_hook(int code, const std::string& reason);
    void finish(int code);
    void clean_up();
    bool gives_up();
    void rejoin();
    void fail_in_process(int code, const std::string& reason);
    void leave_to_root(int code) const;
    void send_recv(std::vector<Message> messages);
    void all_gather_parts(const std::vector<int64_t>& lengths, std::string& in_turn);

    LoopbackHub* hub_ = nullptr;   // where ranks are threads
    std::shared_ptr<TcpNet> net_;  // where they find each other over TCP
    int64_t groups_made_ = 0, control_messages_ = 0;
    RankContext context_;
    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1, first_on_host_ = 0;
    int starter_ = -1;  // where the ranks rejoin: Launch's
    double finalize_s_ = 30;
    bool uses_mpi_ = false, finished_ = false, shares_gpu_ = false, own_directory_ = false;
    std::atomic<bool> leaving_{false};  // all ranks are done, and MPI_Finalize hangs
    std::string run_directory_, shared_records_, started_by_;
    std::mutex hook_mutex_;
    std::function<void(int, const std::string&)> failure_hook_;
    std::shared_ptr<Watch> watch_;
    std::unique_ptr<HostTransport> control_;
    std::atomic<int> gpu_ = -1;  // that NCCL's kernels of this rank are on, where the ranks rejoin
};

}  // namespace rz
