#include "comm/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <thread>

#include "comm/host.h"
#include "comm/loopback.h"
#include "comm/mpi_transport.h"
#include "comm/nccl_transport.h"
#include "comm/watch.h"

namespace rz {

namespace {

Process* active = nullptr;

// exit() in the middle of a job would be taken for success by some launchers and hang others.
void leaving_early() {
    if (active && active->size() > 1)
        active->abort(kExitError, "the process called exit() before the job had finished");
}

// The number of ranks that a launcher started, or 0 if none did.
int launched_ranks() {
    for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"})
        if (const char* value = std::getenv(name)) return std::atoi(value);
    if (std::getenv("PMIX_RANK")) {
        const char* tasks = std::getenv("SLURM_NTASKS");
        return tasks ? std::atoi(tasks) : 1;
    }
    // srun without an MPI plugin would start N jobs of one process each.
    const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
    if (tasks && std::getenv("SLURM_PROCID") && std::atoi(tasks) > 1)
        fail(
            "Slurm started %s tasks without an MPI plugin, so they cannot find each other\n"
            "  use srun --mpi=pmi2 (srun --mpi=list shows what there is), or mpirun inside the allocation",
            tasks);
    return 0;
}

// Ranks may start minutes apart on a busy cluster, whatever the deadline in training is.
double bring_up_s(double timeout_s) { return std::max(timeout_s, 60.0); }

// Bring-up calls of MPI block; this ends the process if they take too long.
class Alarm {
   public:
    Alarm(double seconds, const char* what)
        : thread_([=, this] {
              std::unique_lock lock(mutex_);
              if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) {
                  std::fprintf(stderr,
                               "%s did not end within %.0f s: not all ranks came up, or they cannot reach each other\n",
                               what, seconds);
                  _exit(kExitDeadline);
              }
          }) {}
    ~Alarm() {
        {
            std::lock_guard lock(mutex_);
            done_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::thread thread_;
};

void write_file(const std::string& path, const std::string& text, int flags) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    if (fd < 0) return;
    if (write(fd, text.data(), text.size()) < 0) std::perror(path.c_str());
    close(fd);
}

}  // namespace

Process::Process(const ProcessOptions& options) : run_directory_(options.run_directory) {
    require(active == nullptr, "a second Process in one program");
    require(options.timeout_s > 0, "a deadline of %g s", options.timeout_s);
    bring_up(options);
    static const bool registered = std::atexit(leaving_early) == 0;
    (void)registered;
    active = this;
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
    if (run_directory_.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(run_directory_, error);
    if (is_root()) clear_run_directory();
}

void Process::bring_up(const ProcessOptions& options) {
    const int launched = launched_ranks();
    if (launched == 0 || (launched == 1 && !built_with_mpi())) {
        if (run_directory_.empty()) return;
        std::error_code error;
        std::filesystem::create_directories(run_directory_, error);
        clear_run_directory();
        return;
    }
    MpiWorld world;
    {
        Alarm alarm(bring_up_s(options.timeout_s), "MPI's start-up");
        world = mpi_init();
        uses_mpi_ = true;
        rank_ = world.rank;
        size_ = world.size;
        local_rank_ = world.local_rank;
        local_size_ = world.local_size;
        first_on_host_ = world.first_on_host;
        control_ = make_mpi_transport(0, rank_, "control", Device{}, nullptr);
    }
    // The run directory: rank 0's choice.
    char name[1024] = {};
    if (is_root()) {
        if (run_directory_.empty()) {
            const char* tmp = std::getenv("TMPDIR");
            std::snprintf(name, sizeof name, "%s/ringzero-XXXXXX", tmp ? tmp : "/tmp");
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
    if (is_root()) clear_run_directory();
    barrier();

    Watch::Options watch;
    watch.rank = rank_;
    watch.size = size_;
    watch.timeout_s = options.timeout_s;
    watch.directory = run_directory_;
    watch.on_failure = [this](const std::string& reason) {
        call_hook(kExitDeadline, watch_ ? reason + watch_->job_report() : reason);
        mpi_abort(kExitDeadline);
    };
    try {
        watch_ = std::make_shared<Watch>(watch);
    } catch (const Error& e) {
        abort(kExitError, e.what());
    }
    {
        Alarm alarm(bring_up_s(options.timeout_s), "MPI's start-up");
        control_ = make_mpi_transport(0, rank_, "control", Device{}, watch_);
    }
}

void Process::clear_run_directory() { unlink((run_directory_ + "/failure.txt").c_str()); }

Process::~Process() {
    if (hub_) {
        if (!finished_) fail_in_process("left without finishing");
        return;
    }
    if (!finished_ && size_ > 1) abort(kExitError, "left without finishing");
    if (!finished_) finish();
}

int Process::run(const std::function<int()>& body) {
    int code = kExitError;
    try {
        code = body();
        if (hub_) barrier();
    } catch (const std::exception& error) {
        // The allocator's own words are "std::bad_alloc".
        const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        const std::string reason =
            memory
                ? "out of memory: an allocation of the host failed\n  raise the memory limit, or try a smaller --batch"
                : error.what();
        if (hub_) {
            fail_in_process(reason);
            return kExitError;
        }
        if (size_ > 1) abort(kExitError, reason);
        report(kExitError, reason);
        finish();
        return kExitError;
    }
    finish();
    return code;
}

void Process::finish() {
    if (uses_mpi_) barrier();
    control_.reset();
    watch_.reset();
    if (uses_mpi_) {
        Alarm alarm(30, "MPI_Finalize");
        mpi_finalize();
    }
    finished_ = true;
    active = nullptr;
    std::error_code error;
    if (is_root() && own_directory_ && !std::filesystem::exists(run_directory_ + "/failure.txt", error))
        std::filesystem::remove_all(run_directory_, error);
}

// The first rank that fails says why; the others end for its sake.
void Process::fail_in_process(const std::string& reason) {
    finished_ = true;
    if (hub_->fail(rank_, reason)) report(kExitError, reason);
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
    if (run_directory_.empty()) return;
    write_file(run_directory_ + "/failure.txt", format("exit code %d\n", code) + text, O_APPEND);
    if (size_ > 1 && speaks) std::fprintf(stderr, "(this stands in %s/failure.txt)\n", run_directory_.c_str());
}

void Process::abort(int code, const std::string& reason) {
    if (hub_) {
        fail_in_process(reason);
        throw Error(reason);
    }
    active = nullptr;
    report(code, reason);
    std::fflush(nullptr);
    // The launcher kills at once, and with it goes what it has not read of the reason.
    if (uses_mpi_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (uses_mpi_) mpi_abort(code);
    _exit(code);
}

void Process::set_step(int64_t step) {
    if (watch_) watch_->set_step(step);
}

// ---- devices and groups ---------------------------------------------------------------------------------------------

Device Process::choose_device(DeviceChoice choice, TransportKind transport, std::string* note) {
    if (hub_) {
        require(choice != DeviceChoice::cuda && transport == TransportKind::automatic,
                "ranks that are threads of one process are on the CPU and send through its memory\n"
                "  nearest: device cpu, transport auto");
        return hub_->device(rank_);
    }
    Device device = pick_device(choice, local_rank_, note);
    device.context = &context_;
    const std::vector<std::string> kinds = all_gather_text(device.is_cuda() ? "cuda" : "cpu");
    for (int r = 0; r < size_; ++r)
        require(kinds[size_t(r)] == kinds[0], "rank 0 runs on %s and rank %d on %s: choose device cpu or cuda for all",
                kinds[0].c_str(), r, kinds[size_t(r)].c_str());
    if (!device.is_cuda() || size_ == 1) return device;

    const std::string host = host_name();
    const std::vector<std::string> places = all_gather_text(host + " " + gpu_bus_id(device));
    int sharing = 0, first = -1;
    bool anyone_shares = false;
    for (int r = 0; r < size_; ++r) {
        const auto same = std::count(places.begin(), places.end(), places[size_t(r)]);
        anyone_shares = anyone_shares || same > 1;
        if (places[size_t(r)] != places[size_t(rank_)]) continue;
        if (first < 0) first = r;
        ++sharing;
    }
    shares_gpu_ = anyone_shares;
    if (sharing > 1)
        require(transport == TransportKind::mpi || transport == TransportKind::nccl_shared,
                "%d ranks on host %s, but %d GPUs are visible: ranks %d and others share one\n"
                "  start %d ranks per host, or share the GPU on purpose (slow) with transport mpi",
                local_size_, host.c_str(), cuda_device_count(), first, cuda_device_count());
    if (transport == TransportKind::nccl_shared && shares_gpu_) nccl_allow_shared_gpu(rank_);
    if (note && sharing > 1) *note = format("%d ranks share this GPU: bandwidth figures mean nothing", sharing);
    return device;
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

    if (hub_) {
        const int64_t number = ++groups_made_;  // the same on all ranks
        if (color < 0) return nullptr;
        if (members.size() == 1) return std::make_unique<SelfTransport>(device, group, watch_, rank_);
        return hub_->subgroup(rank_, members, group,
                              format("%s %d, group %lld", group.c_str(), color, (long long)number));
    }
    bool nccl = kind == TransportKind::nccl || kind == TransportKind::nccl_shared;
    require(!nccl || device.is_cuda(), "transport nccl moves memory of CUDA devices; use device cuda or transport mpi");
    if (kind == TransportKind::automatic) nccl = device.is_cuda() && built_with_nccl() && !shares_gpu_;
    const bool alone = max(int64_t(members.size())) <= 1;  // every group has one member, so none needs a library
    if (alone && color < 0) return nullptr;
    if (alone && !(nccl && kind != TransportKind::automatic))
        return std::make_unique<SelfTransport>(device, group, watch_, rank_);
    if (nccl) {
        const std::vector<std::string> ids = all_gather_text(color >= 0 && place == 0 ? nccl_unique_id() : "");
        if (color < 0) return nullptr;
        return make_nccl_transport(ids[size_t(members[0])], place, members, group, device, watch_);
    }
    Alarm alarm(bring_up_s(watch_->timeout_s()), "MPI_Comm_split");
    return make_mpi_transport(color, key, group, device, watch_);
}

// ---- control plane --------------------------------------------------------------------------------------------------

void Process::send_recv(std::vector<Message> messages) {
    std::erase_if(messages, [](const Message& m) { return m.bytes == 0; });
    if (messages.empty()) return;
    const uint64_t seq = watch_ ? watch_->queue("control", "control", 0, messages[0].bytes) : 0;
    if (watch_) watch_->running(seq, -1, -1);
    auto batch = control_->wire().post(messages);
    control_->wait(*batch, messages, seq);
    if (watch_) watch_->done(seq);
}

void Process::barrier() {
    char out = 0, in = 0;
    for (int distance = 1; distance < size_; distance *= 2)
        send_recv({{&out, 1, (rank_ + distance) % size_, true}, {&in, 1, (rank_ - distance + size_) % size_, false}});
}

void Process::broadcast(void* data, int64_t bytes, int root) {
    std::vector<Message> messages;
    if (rank_ != root)
        messages.push_back({data, bytes, root, false});
    else
        for (int r = 0; r < size_; ++r)
            if (r != root) messages.push_back({data, bytes, r, true});
    send_recv(std::move(messages));
}

void Process::all_gather(const void* own, int64_t bytes, void* all) {
    std::vector<Message> messages;
    for (int d = 1; d < size_; ++d) {
        const int to = (rank_ + d) % size_, from = (rank_ - d + size_) % size_;
        messages.push_back({const_cast<void*>(own), bytes, to, true});
        messages.push_back({static_cast<char*>(all) + from * bytes, bytes, from, false});
    }
    if (bytes) std::memcpy(static_cast<char*>(all) + rank_ * bytes, own, size_t(bytes));
    send_recv(std::move(messages));
}

double Process::sum(double x) {
    double total = 0;
    for (double v : all_gather(x)) total += v;
    return total;
}

std::vector<uint64_t> Process::sums(const std::vector<uint64_t>& own) {
    std::vector<uint64_t> all(own.size() * size_t(size_)), total(own.size(), 0);
    all_gather(own.data(), int64_t(own.size()) * 8, all.data());
    for (size_t i = 0; i < all.size(); ++i) total[i % own.size()] += all[i];
    return total;
}

int64_t Process::max(int64_t x) {
    const std::vector<int64_t> all = all_gather(x);
    return *std::max_element(all.begin(), all.end());
}

std::vector<std::string> Process::all_gather_text(const std::string& own) {
    const int64_t width = max(int64_t(own.size()));
    std::string padded = own, all(size_t(width * size_), '\0');
    padded.resize(size_t(width));
    const std::vector<int64_t> lengths = all_gather(int64_t(own.size()));
    all_gather(padded.data(), width, all.data());
    std::vector<std::string> texts;
    for (int64_t r = 0; r < size_; ++r) texts.push_back(all.substr(size_t(r * width), size_t(lengths[size_t(r)])));
    return texts;
}

}  // namespace rz
