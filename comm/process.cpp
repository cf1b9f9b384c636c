#include "comm/process.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "comm/deadline.h"
#include "comm/host.h"
#include "comm/launch.h"
#include "comm/loopback.h"
#include "comm/mpi_transport.h"
#include "comm/nccl_transport.h"
#include "comm/placement.h"
#include "comm/ranks.h"
#include "comm/tcp_net.h"
#include "comm/watch.h"
#include "kernels/runtime/request.h"

namespace rz {

ExitCode exit_code_of(const std::exception& error) {
    if (dynamic_cast<const DeadlineError*>(&error)) return kExitDeadline;
    return dynamic_cast<const RequestError*>(&error) ? kExitRequest : kExitError;
}

namespace {

std::atomic<Process*> the_process = nullptr;  // of ranks in one process, none

// exit() in the middle of a job would be taken for success by some launchers and hang others. OpenMP calls it where it
// gets no thread.
void leaving_early() {
    Process* const process = the_process;
    if (process && process->leaving())
        for (;;) pause();  // MPI gave up where it hung; Process::finish ends with the job's code
    if (process) process->abort(kExitError, "a library called exit() before the job had finished");
}

constexpr char kNotUp[] = "not all ranks came up, or they cannot reach each other";

void write_file(const std::string& path, const std::string& text, int flags) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    if (fd < 0) return;
    if (write(fd, text.data(), text.size()) < 0) std::perror(path.c_str());
    close(fd);
}

std::string temporary_folders() {
    const char* tmp = std::getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

// Shared by the processes of a job on this host. The file stays open: the kernel lets it go however the process ends.
void lock_while_alive(const std::string& folder) {
    const int fd = open((folder + "/alive").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0) std::perror("flock");
}

// Removes the run directories that jobs of this user left on this host when they were killed; those with a reason after
// a day, in which it can be read.
void remove_left_directories() {
    namespace fs = std::filesystem;
    std::error_code error;
    const auto older_than = [](const std::string& path, int64_t seconds) {
        struct stat st;
        return stat(path.c_str(), &st) == 0 && st.st_uid == getuid() && time(nullptr) - st.st_mtime > seconds;
    };
    for (fs::directory_iterator at(temporary_folders(), error), end; !error && at != end; at.increment(error)) {
        const std::string path = at->path(), name = at->path().filename(), alive = path + "/alive";
        if (name.size() != 15 || name.rfind("ringzero-", 0) != 0 || !older_than(path, 60)) continue;
        const int fd = open(alive.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        const bool dead = fd >= 0 && older_than(alive, 60) && flock(fd, LOCK_EX | LOCK_NB) == 0;
        struct stat st;
        const auto unread = [&](const char* name) {
            const std::string text = path + name;
            return stat(text.c_str(), &st) == 0 && !older_than(text, 86400);
        };
        std::error_code ignored;
        if (dead && !unread("/failure.txt") && !unread("/flight")) fs::remove_all(path, ignored);
        if (fd >= 0) close(fd);
    }
}

}  // namespace

Process::Process(const ProcessOptions& options)
    : finalize_s_(options.finalize_s), run_directory_(options.run_directory) {
    require(the_process == nullptr, "a second Process in one program");
    require(options.timeout_s > 0, "a deadline of %g s", options.timeout_s);
    bring_up(options);
    static const bool registered = std::atexit(leaving_early) == 0;
    (void)registered;
    the_process = this;
}

Process::Process(LoopbackHub& hub, int rank, const std::string& run_directory)
    : hub_(&hub),
      rank_(rank),
      size_(hub.size()),
      local_rank_(rank),
      local_size_(hub.size()),
      run_directory_(run_directory),
      watch_(hub.watch(rank)),
      control_(hub.control(rank)) {
    const bool on_gpu = hub.device(rank).is_cuda();
    require(!on_gpu || !run_directory_.empty(), "a rank that is a thread on a GPU needs a run directory");
    if (run_directory_.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(run_directory_, error);
    if (is_root()) clear_run_directory();
    if (!on_gpu) return;
    // The watchdog's thread looks at what NCCL does; the hub's watches do not have one.
    Watch::Options watch;
    watch.rank = rank_;
    watch.size = size_;
    watch.timeout_s = watch.disk_timeout_s = watch_->timeout_s();
    watch.directory = run_directory_;
    watch.on_failure = [this](const std::string& reason) {
        call_hook(kExitDeadline, reason + watch_->job_report());
        _exit(kExitDeadline);
    };
    watch.on_fault = [this](const std::string& reason) { fail_in_process(kExitError, reason); };
    watch_ = std::make_shared<Watch>(watch);
    if (is_root()) lock_while_alive(run_directory_);
}

void Process::bring_up(const ProcessOptions& options) {
    Watch::install_dump_signal();
    const Launch launch = find_launch(environment, mpi_library());
    if (launch.how == Launch::How::alone) {
        if (run_directory_.empty()) return;
        std::error_code error;
        std::filesystem::create_directories(run_directory_, error);
        clear_run_directory();
        return;
    }
    // Until the watch is there; a rank that is stopped here, or whose files hang, would let the others wait.
    started_by_ = launch.by;
    starter_ = launch.starter;
    if (starter_ >= 0) fcntl(starter_, F_SETFD, FD_CLOEXEC);
    const bool mpi = launch.how == Launch::How::mpi;
    const double deadline_s = std::max(options.timeout_s, options.start_s);
    auto alarm = std::make_unique<Alarm>(deadline_s + (mpi ? 0 : 5), mpi ? "MPI's start-up" : "the start", kNotUp);
    mpi ? meet_by_mpi(launch.size) : meet_by_tcp(launch, deadline_s);
    agree_on_run_directory();
    watch_ = make_watch(options);
    control_ = mpi ? make_mpi_transport(0, rank_, "control", Device{}, watch_) : tcp_control(watch_);
    if (net_) watch_->add_poll([net = net_] { net->check_peers(); });
    alarm.reset();
    if (own_directory_ && local_rank_ == 0) remove_left_directories();
}

void Process::meet_by_mpi(int launched) {
    const MpiWorld world = mpi_init();
    uses_mpi_ = true;
    rank_ = world.rank;
    size_ = world.size;
    local_rank_ = world.local_rank;
    local_size_ = world.local_size;
    first_on_host_ = world.first_on_host;
    require(size_ == launched || size_ > 1,
            "the launcher started %d processes, and MPI finds this one alone: the launcher is another MPI's\n"
            "  this program's is %s\n"
            "  use its own mpirun (ldd train_llama names the library, mpirun --version the launcher), "
            "srun --mpi=pmi2 or --mpi=none, or set MASTER_ADDR to rank 0's host%s",
            launched, world.library.c_str(),
            world.library.find(" 4.2.0") == world.library.npos
                ? ""
                : "\n  Ubuntu 24.04's MPICH 4.2.0 does not know its own mpirun (bugs.launchpad.net/bugs/2072338): "
                  "apt install openmpi-bin, and start with mpirun.openmpi");
    control_ = make_mpi_transport(0, rank_, "control", Device{}, nullptr);
}

void Process::meet_by_tcp(const Launch& launch, double deadline_s) {
    rank_ = launch.rank;
    size_ = launch.size;
    if (launch.secret_is_open && is_root())
        std::fprintf(stderr,
                     "train_llama: warning: no RINGZERO_TOKEN is set, so whoever reaches port %d of %s and guesses the "
                     "job's number can join it\n",
                     launch.port, launch.one_host ? "this host's loopback" : host_name().c_str());
    net_ = TcpNet::join(launch, deadline_s);
    control_ = tcp_control(nullptr);
    std::vector<TcpAddress>& table = net_->table();
    broadcast(table.data(), int64_t(table.size() * sizeof table[0]), 0);
    net_->table_is_there();
    const std::vector<std::string> hosts = all_gather_text(host_id());
    first_on_host_ = int(std::find(hosts.begin(), hosts.end(), hosts[size_t(rank_)]) - hosts.begin());
    local_rank_ = int(std::count(hosts.begin(), hosts.begin() + rank_, hosts[size_t(rank_)]));
    local_size_ = int(std::count(hosts.begin(), hosts.end(), hosts[size_t(rank_)]));
}

std::unique_ptr<HostTransport> Process::tcp_control(std::shared_ptr<Watch> watch) {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    return net_->transport(all, "control", uint64_t(groups_made_++), Device{}, std::move(watch));
}

// The job's other ranks are ended by the launcher, or find that this one's connections end.
void Process::end_job(int code) {
    if (uses_mpi_) mpi_abort(code);
    _exit(code);
}

// Rank 0's choice.
void Process::agree_on_run_directory() {
    char name[1024] = {};
    if (is_root()) {
        if (run_directory_.empty()) {
            std::snprintf(name, sizeof name, "%s/ringzero-XXXXXX", temporary_folders().c_str());
            if (!mkdtemp(name))
                abort(kExitError, format("cannot create the run directory %s: %s", name, std::strerror(errno)));
        } else {
            std::snprintf(name, sizeof name, "%s", run_directory_.c_str());
        }
    }
    broadcast(name, sizeof name, 0);
    own_directory_ = run_directory_.empty();
    run_directory_ = name;
    std::error_code error;
    std::filesystem::create_directories(run_directory_, error);
    if (own_directory_) lock_while_alive(run_directory_);
    if (is_root()) clear_run_directory();
    barrier();
}

std::shared_ptr<Watch> Process::make_watch(const ProcessOptions& options) {
    Watch::Options watch;
    watch.rank = rank_;
    watch.size = size_;
    watch.timeout_s = options.timeout_s;
    watch.disk_timeout_s = options.disk_timeout_s;
    watch.directory = run_directory_;
    watch.on_failure = [this](const std::string& reason) {
        if (starter_ >= 0) return net_->give_up(), void(gives_up());
        call_hook(kExitDeadline, watch_ ? reason + watch_->job_report() : reason);
        end_job(kExitDeadline);
    };
    watch.on_fault = [this](const std::string& reason) {
        if (!gives_up()) abort(kExitError, reason);
    };
    try {
        return std::make_shared<Watch>(watch);
    } catch (const Error& e) {
        abort(kExitError, e.what());
    }
}

void Process::clear_run_directory() {
    std::error_code error;
    std::filesystem::remove_all(run_directory_ + "/flight", error);
    for (const char* file : {"/failure.txt", "/flight.txt"}) unlink((run_directory_ + file).c_str());
    for (int n = 1; unlink((run_directory_ + "/dump-" + std::to_string(n)).c_str()) == 0;) ++n;
}

Process::~Process() {
    if (hub_) {
        if (!finished_) fail_in_process(kExitError, "left without finishing");
        return;
    }
    if (!finished_ && size_ > 1) abort(kExitError, "left without finishing");
    if (!finished_) finish(0);
}

// The allocator's own words are "std::bad_alloc".
static std::string in_words(const std::string& reason) {
    return reason != std::bad_alloc().what()
               ? reason
               : "out of memory: an allocation of the host failed\n  raise the memory limit, or try a smaller --batch";
}

int Process::run(const std::function<int()>& body) {
    int code = kExitError;
    try {
        code = body();
        if (hub_) barrier();
    } catch (const std::exception& error) {
        const std::string reason = in_words(error.what());
        const int failed = exit_code_of(error);
        if (hub_) {
            fail_in_process(failed, reason);
            return hub_->exit_code();
        }
        if (rejoins()) {
            rejoin();
            return kRejoins;
        }
        if (size_ > 1) abort(failed, reason);
        report(failed, reason);
        finish(failed);
        return failed;
    }
    finish(code);
    return code;
}

// After the barrier all ranks have done what they had to do. An MPI_Finalize that hangs then changes no result: with
// UCX over TCP one rank may wait forever to close an endpoint of which the others let no more progress come (MPICH
// 4.0.2 with UCX 1.13; openucx/ucx, issue 8738). Each rank then leaves on its own.
void Process::finish(int code) {
    if (net_) net_->leave();
    if (uses_mpi_ || net_) barrier();
    control_.reset();
    watch_.reset();
    net_.reset();
    if (uses_mpi_) {
        const Alarm alarm(finalize_s_, "MPI_Finalize",
                          format("all ranks are done; ends without it, exit code %d", code), nullptr, [this, code] {
                              clean_up();
                              std::fflush(stdout);
                              leaving_ = true;
                              mpi_leave();
                              // Connections stay until all have left: else Hydra may fail at a rank that continues.
                              std::this_thread::sleep_for(std::chrono::seconds(3));
                              _exit(code);
                          });
        mpi_finalize();
    }
    finished_ = true;
    if (!hub_) the_process = nullptr;
    clean_up();
}

// True: another rank has gone. From any thread. NCCL may find that before this rank's connection has been gone for long
// enough.
bool Process::gives_up() {
    if (starter_ < 0 || !net_) return false;
    for (int tenths = 0; gpu_ >= 0 && tenths < 10 && !net_->given_up(); ++tenths) try {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            net_->check_peers();
        } catch (const Error&) {  // it has gone
        }
    if (!net_->given_up()) return false;
    if (!context_.given_up.exchange(true)) announce_restart(starter_);
    return true;
}

bool Process::rejoins() {
    if (!gives_up()) return false;
    watch_->abandon();
    return true;
}

void Process::rejoin() {
    on_failure(nullptr);  // what it holds is the next one's
    control_.reset();
    watch_.reset();
    net_.reset();
    std::error_code error;
    if (own_directory_) std::filesystem::remove_all(run_directory_, error);
    finished_ = true;
    the_process = nullptr;
    // Throws after a fault, which stays with the process: this rank ends, and starts anew.
    if (gpu_ >= 0) Stream(Device{DeviceKind::cuda, gpu_}, "another job").synchronize();
    await_restart(starter_);
}

void Process::clean_up() {
    std::error_code error;
    if (!shared_records_.empty()) std::filesystem::remove_all(shared_records_, error);
    const auto has = [&](const char* what) { return std::filesystem::exists(run_directory_ + what, error); };
    if (is_root() && own_directory_ && !has("/failure.txt") && !has("/flight"))
        std::filesystem::remove_all(run_directory_, error);
}

// The first rank that fails says why; the others end for its sake, with its exit code.
void Process::fail_in_process(int code, const std::string& reason) {
    leave_to_root(code);
    finished_ = true;
    if (!hub_->fail(rank_, reason, code)) return;
    report(code, reason);
    if (!hub_->device(rank_).is_cuda()) return;
    std::fflush(stdout);
    _exit(code);
}

// All ranks find most refusals, and rank 0 prints them. A rank that has found one alone prints it after this wait.
void Process::leave_to_root(int code) const {
    if (code != kExitRequest || is_root()) return;
    for (int tenths = 0; tenths < 20 && !(hub_ && hub_->exit_code() != 0); ++tenths)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

void Process::on_failure(std::function<void(int, const std::string&)> hook) {
    std::lock_guard lock(hook_mutex_);
    failure_hook_ = std::move(hook);
}

void Process::call_hook(int code, const std::string& reason) {
    std::lock_guard lock(hook_mutex_);
    if (failure_hook_) failure_hook_(code, reason);
}

void Process::report(int code, const std::string& reason) {
    call_hook(code, reason);
    const std::string text = size_ > 1 ? format("rank %d of %d: %s\n", rank_, size_, reason.c_str()) : reason + "\n";
    const bool speaks = size_ == 1 || hub_ || first_to_say(reason);
    if (speaks) std::fprintf(stderr, "train_llama: %s", text.c_str());
    // A refusal is printed and that is all: the watchdogs add their flight records to what stands in failure.txt.
    if (run_directory_.empty() || code == kExitRequest) return;
    write_file(run_directory_ + "/failure.txt", format("exit code %d\n", code) + text, O_APPEND);
    if (size_ > 1 && speaks && !own_directory_)
        std::fprintf(stderr, "(this stands in %s/failure.txt)\n", run_directory_.c_str());
}

void Process::abort(int code, const std::string& given) {
    const std::string reason = in_words(given);
    if (hub_) {
        fail_in_process(code, reason);
        throw Error(reason);
    }
    leave_to_root(code);
    the_process = nullptr;
    report(code, reason);
    if (code == kExitRequest) clean_up();
    std::fflush(stdout);  // not of all files: one may be on a file system that hangs
    // The launcher kills at once, and with it goes what it has not read of the reason.
    if (uses_mpi_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::error_code error;
    if (own_directory_) std::filesystem::remove_all(run_directory_, error);  // the reason is printed
    end_job(code);
}

void Process::share_records(const std::string& folder) {
    if (hub_ || alone() || max(int64_t(first_on_host_)) == 0) return;
    std::error_code error;
    if (is_root()) {
        std::filesystem::remove_all(folder, error);
        std::filesystem::create_directories(folder, error);
        shared_records_ = folder;
    }
    barrier();
    watch_->share(folder);
}

Process::DiskWork::DiskWork(Process& process) : process_(process) {
    if (process_.watch_) process_.watch_->begin_disk_work();
}

Process::DiskWork::~DiskWork() {
    if (process_.watch_) process_.watch_->end_disk_work();
}

void Process::set_step(int64_t step) {
    if (watch_) watch_->set_step(step);
}

// ---- devices and groups ---------------------------------------------------------------------------------------------

Device Process::choose_device(DeviceChoice choice, TransportKind transport, std::string* note) {
    if (hub_) {
        const Device device = hub_->device(rank_);
        require_request((choice != DeviceChoice::cuda && transport == TransportKind::automatic) || device.is_cuda(),
                        "ranks that are threads of one process are on the CPU and send through its memory\n"
                        "  nearest: device cpu, transport auto");
        require_request(transport == TransportKind::automatic || transport == TransportKind::nccl,
                        "ranks that are threads of one process, on GPUs, send over NCCL\n  nearest: transport auto");
        std::string why;
        if (const int gpus = cuda_device_count(&why); note && choice == DeviceChoice::automatic && !device.is_cuda())
            *note = gpus == 0 ? "no GPU is used: " + why
                              : format("no GPU is used: %d ranks as threads need one each, there are %d", size_, gpus);
        return device;
    }
    Device device = pick_device(choice, local_rank_, note);
    device.context = &context_;
    const std::vector<std::string> kinds = all_gather_text(device.is_cuda() ? "cuda" : "cpu");
    for (int r = 0; r < size_; ++r)
        require_request(kinds[size_t(r)] == kinds[0],
                        "rank 0 runs on %s and rank %d on %s: choose device cpu or cuda for all", kinds[0].c_str(), r,
                        kinds[size_t(r)].c_str());
    if (device.is_cuda() && size_ > 1) share_out_gpus(device, transport, note);
    if (device.is_cuda() && !uses_nccl(transport, device)) starter_ = -1;  // an error in a host function ends a process
    if (device.is_cuda() && starter_ >= 0) gpu_ = device.index;
    settle_on_cores(device, note);
    return device;
}

// Each rank's GPU, by the bus ids that the ranks of a host see.
void Process::share_out_gpus(Device& device, TransportKind transport, std::string* note) {
    std::string seen = host_id();
    for (int i = 0; i < cuda_device_count(); ++i) seen += " " + gpu_bus_id({DeviceKind::cuda, i});
    std::vector<int> local;  // ranks of this host
    std::vector<std::vector<std::string>> visible;
    const std::vector<std::string> all = all_gather_text(seen);
    for (int r = 0; r < size_; ++r) {
        std::istringstream words(all[size_t(r)]);
        std::string host, id;
        words >> host;
        if (all[size_t(rank_)].compare(0, host.size() + 1, host + " ") != 0) continue;
        local.push_back(r);
        visible.emplace_back();
        while (words >> id) visible.back().push_back(id);
    }
    const size_t place = size_t(std::find(local.begin(), local.end(), rank_) - local.begin());
    device.index = assign_gpus(visible)[place];
    const std::vector<std::string> used = all_gather_text(host_id() + " " + gpu_bus_id(device));
    const auto sharing = std::count(used.begin(), used.end(), used[size_t(rank_)]);
    for (const std::string& one : used) shares_gpu_ = shares_gpu_ || std::count(used.begin(), used.end(), one) > 1;
    if (sharing > 1) {
        std::set<std::string> gpus;
        for (const auto& list : visible) gpus.insert(list.begin(), list.end());
        const auto first = std::find(used.begin(), used.end(), used[size_t(rank_)]) - used.begin();
        require_request(over_host_memory(transport) || transport == TransportKind::nccl_shared,
                        "%zu ranks on host %s, but %zu GPUs are visible: ranks %td and others share one\n"
                        "  start %zu ranks per host, or share the GPU on purpose (slow) with transport %s",
                        local.size(), host_name().c_str(), gpus.size(), first, gpus.size(), net_ ? "tcp" : "mpi");
    }
    if (transport == TransportKind::nccl_shared && shares_gpu_) nccl_allow_shared_gpu(rank_);
    if (note && sharing > 1) *note = format("%td ranks share this GPU: bandwidth figures mean nothing", sharing);
}

// Threads and pinned memory on the GPU's side of the machine, where nobody else has chosen cores; and a line where
// there are too few.
void Process::settle_on_cores(Device device, std::string* note) {
    const int machine = int(std::thread::hardware_concurrency()), online = int(sysconf(_SC_NPROCESSORS_ONLN));
    if (device.is_cuda() && int(allowed_cores().size()) >= online)
        if (const std::vector<int> near = cores_near(gpu_bus_id(device)); !near.empty()) stay_on(near);
    const std::string few = too_few_cores(int(allowed_cores().size()), std::max(machine, online), local_size_,
                                          device.is_cuda(), std::getenv("SLURM_PROCID") != nullptr);
    if (note && !few.empty()) *note += (note->empty() ? "" : "\n") + few;
}

bool Process::uses_nccl(TransportKind kind, Device device) const {
    if (kind == TransportKind::automatic) return device.is_cuda() && built_with_nccl() && !shares_gpu_;
    return kind == TransportKind::nccl || kind == TransportKind::nccl_shared;
}

std::unique_ptr<Transport> Process::make_transport(TransportKind kind, Device device, int color, int key,
                                                   const std::string& group) {
    struct Place {
        int32_t color, key, rank;
    };
    std::vector<Place> all = all_gather(Place{color, key, rank_});
    std::erase_if(all, [&](const Place& p) { return p.color != color || color < 0; });
    std::stable_sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.key < b.key; });
    std::vector<int> members;
    int place = 0;
    for (const Place& p : all) {
        if (p.rank == rank_) place = int(members.size());
        members.push_back(p.rank);
    }

    const int64_t number = groups_made_++;  // the same on all ranks
    if (hub_ && !device.is_cuda()) {
        if (color < 0) return nullptr;
        if (members.size() == 1) return std::make_unique<SelfTransport>(device, group, watch_, rank_);
        return hub_->subgroup(rank_, members, group,
                              format("%s %d, group %lld", group.c_str(), color, (long long)number));
    }
    const bool nccl = uses_nccl(kind, device);
    require_request(!nccl || device.is_cuda(),
                    "transport nccl moves memory of CUDA devices; use device cuda or transport mpi");
    require_request(!over_host_memory(kind) || size_ == 1 || (kind == TransportKind::tcp) == bool(net_),
                    "--transport %s: this job's ranks %s\n  nearest: --transport auto, or %s", name_of(kind),
                    net_ ? "were started without MPI" : "find each other by MPI", net_ ? "tcp" : "mpi");
    const bool alone = max(int64_t(members.size())) <= 1;  // every group has one member, so none needs a library
    if (alone && color < 0) return nullptr;
    if (alone && !(nccl && kind != TransportKind::automatic))
        return std::make_unique<SelfTransport>(device, group, watch_, rank_);
    if (nccl) {
        const std::vector<std::string> ids = all_gather_text(color >= 0 && place == 0 ? nccl_unique_id() : "");
        if (color < 0) return nullptr;
        return make_nccl_transport(ids[size_t(members[0])], place, members, group, device, watch_);
    }
    if (net_ && color < 0) return nullptr;
    if (net_ && members.size() == 1) return std::make_unique<SelfTransport>(device, group, watch_, rank_);
    if (net_) return net_->transport(members, group, uint64_t(number), device, watch_);
    Alarm alarm(bring_up_s(watch_->timeout_s()), "MPI_Comm_split", kNotUp, watch_);
    return make_mpi_transport(color, key, group, device, watch_);
}

}  // namespace rz
