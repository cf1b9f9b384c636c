#include "comm/mpi_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "comm/library.h"

namespace rz {

static std::atomic<bool> mpi_began = false;

void mpi_end_before_start() {
    const char* name = std::getenv("PMI_FD");
    if (!name || mpi_began) return;
    constexpr char kInit[] = "cmd=init pmi_version=1 pmi_subversion=1\n";
    if (send(std::atoi(name), kInit, sizeof kInit - 1, MSG_NOSIGNAL) > 0) poll(nullptr, 0, 100);
}

}  // namespace rz

#ifdef RZ_HAVE_MPI

#include <mpi.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "comm/deadline.h"
#include "comm/pinned_memory.h"
#include "kernels/elementwise.h"
#include "kernels/runtime/request.h"

namespace rz {

namespace {

std::mutex mpi_mutex;

// Call with mpi_mutex held.
void check(int status, const char* what) {
    if (status == MPI_SUCCESS) [[likely]]
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    fail("%s: %.*s", what, length, text);
}

// One communicator; freed with its last user.
struct Comm {
    MPI_Comm comm = MPI_COMM_NULL;
    ~Comm() {
        int finalized = 0;
        MPI_Finalized(&finalized);
        std::lock_guard lock(mpi_mutex);
        if (!finalized && comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
    }
};

class MpiBatch;

// Streams wait on threads of their own. One of those that wait makes progress for all: it alone asks MPI; the others
// sleep until their messages are complete or the turn is theirs. Under mpi_mutex.
struct Waiting {
    std::vector<MpiBatch*> batches;
    const MpiBatch* asks = nullptr;
    std::condition_variable changed;
};
Waiting waiting;

class MpiBatch : public Wire::Batch {
   public:
    std::vector<MPI_Request> requests;
    std::vector<int> message;   // of each request
    std::vector<int> expected;  // bytes of each request, -1 if it is no receive

    MpiBatch() = default;
    MpiBatch(const MpiBatch&) = delete;
    ~MpiBatch() override {
        std::lock_guard lock(mpi_mutex);
        leave();
    }

    bool test() override {
        std::lock_guard lock(mpi_mutex);
        if (!waits_ || !waiting.asks || waiting.asks == this) ask();
        if (!done_) return false;
        leave();
        if (error_) std::rethrow_exception(error_);
        return true;
    }

    void pause() override {
        std::unique_lock lock(mpi_mutex);
        if (!waits_) waiting.batches.push_back(this), waits_ = true, since_ = Clock::now();
        if (!waiting.asks) waiting.asks = this;
        if (waiting.asks != this) {  // for a time, so that the deadline is looked at
            waiting.changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return done_ || !waiting.asks; });
            return;
        }
        bool found = false;
        for (MpiBatch* b : waiting.batches)
            if (b != this) found |= b->ask();
        lock.unlock();
        if (found) waiting.changed.notify_all();
        // A pipeline posts receives long before they are met. sched_yield() gives way only within the rank (each of
        // mpirun's is a scheduling group of its own), and a thread that asks all the while counts as work: two ranks
        // then compute on one core beside another that only asks. So it sleeps between looks once its core was taken.
        if (!wanted_ && Clock::now() - since_ > std::chrono::microseconds(200)) {
            const long before = std::exchange(switches_, switches());
            wanted_ = before >= 0 && before != switches_;
        }
        if (wanted_)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        else
            sched_yield();
    }

    std::vector<int> pending() override {
        std::lock_guard lock(mpi_mutex);
        std::vector<int> list;
        for (size_t i = 0; i < requests.size(); ++i) {
            int done = 1;
            MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE);
            if (!done && (list.empty() || list.back() != message[i])) list.push_back(message[i]);
        }
        return list;
    }

   private:
    using Clock = std::chrono::steady_clock;

    // How often this thread's core was given to another while it wanted to go on.
    static long switches() {
        rusage usage{};
        getrusage(RUSAGE_THREAD, &usage);
        return usage.ru_nivcsw;
    }
    // With mpi_mutex held. An error is the waiting thread's to throw.
    bool ask() try {
        if (done_) return true;
        int done = 0;
        statuses_.resize(requests.size());
        check(MPI_Testall(int(requests.size()), requests.data(), &done, statuses_.data()), "MPI_Testall");
        for (size_t i = 0; done && i < expected.size(); ++i) {  // a longer message is MPI's error, a shorter one is not
            int bytes = 0;
            if (expected[i] < 0) continue;
            MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
            require(bytes == expected[i],
                    "a message of %d bytes came where %d were expected: the ranks do not agree on what "
                    "they are doing",
                    bytes, expected[i]);
        }
        return done_ = done != 0;
    } catch (...) {
        error_ = std::current_exception();
        return done_ = true;
    }
    void leave() {
        if (!std::exchange(waits_, false)) return;
        std::erase(waiting.batches, this);
        if (waiting.asks != this) return;
        waiting.asks = nullptr;
        waiting.changed.notify_all();
    }

    std::vector<MPI_Status> statuses_;
    bool waits_ = false, done_ = false, wanted_ = false;  // wanted: its core, by another
    Clock::time_point since_;
    long switches_ = -1;
    std::exception_ptr error_;
};

// Names two members that do not see the same memory.
void require_one_host(MPI_Comm comm, int rank, int size) {
    MPI_Comm local;
    check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local), "MPI_Comm_split_type");
    int first = rank;
    check(MPI_Bcast(&first, 1, MPI_INT, 0, local), "MPI_Bcast");
    MPI_Comm_free(&local);
    std::vector<int> firsts(static_cast<size_t>(size));
    check(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, comm), "MPI_Allgather");
    for (int r = 0; r < size; ++r)
        require_request(firsts[size_t(r)] == firsts[0],
                        "ranks 0 and %d of the group are on different hosts and can't map each other's memory\n"
                        "  nearest: --shard-size %td, or --collectives ring",
                        r, std::count(firsts.begin(), firsts.end(), firsts[0]));
}

// Collective calls of MPI block, so all streams of the group are idle when memory is made. Ours and not a window of
// MPI's, which takes no room in advance: a full /dev/shm would be SIGBUS.
std::unique_ptr<SharedMemory> share_by_name(MPI_Comm comm, int64_t bytes, Alloc how) {
    const Alarm alarm(60, "mapping memory that ranks share", "not all members of the group have come to it");
    std::lock_guard lock(mpi_mutex);
    int rank = 0, size = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    require_one_host(comm, rank, size);
    std::random_device random;
    uint32_t id[2] = {random(), random()};
    check(MPI_Bcast(id, sizeof id, MPI_BYTE, 0, comm), "MPI_Bcast");
    return map_by_name(format("/ringzero-%08x%08x", id[0], id[1]), rank, size, bytes, how,
                       [&] { check(MPI_Barrier(comm), "MPI_Barrier"); });
}

class MpiWire : public Wire {
   public:
    explicit MpiWire(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

    std::unique_ptr<Batch> post(const std::vector<Message>& messages) override {
        auto batch = std::make_unique<MpiBatch>();
        std::lock_guard lock(mpi_mutex);
        for (bool sends : {false, true})  // receives first, so that no message arrives unexpected
            for (size_t i = 0; i < messages.size(); ++i)
                if (messages[i].is_send == sends) post_one(*batch, messages[i], int(i));
        return batch;
    }

    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override {
        return share_by_name(comm_->comm, bytes, how);
    }

    const std::shared_ptr<Comm>& comm() const { return comm_; }

   private:
    // MPI counts are 32-bit: longer messages go in parts, in order.
    void post_one(MpiBatch& batch, const Message& m, int index) {
        constexpr int64_t kPart = int64_t(1) << 30;
        for (int64_t at = 0; at < m.bytes; at += kPart) {
            void* data = static_cast<char*>(m.data) + at;
            const int n = int(std::min(kPart, m.bytes - at));
            MPI_Request request;
            if (m.is_send)
                check(MPI_Isend(data, n, MPI_BYTE, m.peer, 0, comm_->comm, &request), "MPI_Isend");
            else
                check(MPI_Irecv(data, n, MPI_BYTE, m.peer, 0, comm_->comm, &request), "MPI_Irecv");
            batch.requests.push_back(request);
            batch.message.push_back(index);
            batch.expected.push_back(m.is_send ? -1 : n);
        }
    }

    std::shared_ptr<Comm> comm_;
};

// ---- MPI's own collectives ------------------------------------------------------------------------------------------

template <class T>
void add_16bit(void* in, void* inout, int* n, MPI_Datatype*) {
    const T* x = static_cast<const T*>(in);
    T* y = static_cast<T*>(inout);
    for (int i = 0; i < *n; ++i) y[i] = T(float(x[i]) + float(y[i]));
}

struct ElementType {
    MPI_Datatype type;
    MPI_Op add;
};

// bf16 and fp16 are unknown to MPI: they travel as 16-bit words with a sum of ours.
ElementType element_type(DType t) {
    static const MPI_Op add_bf16 = [] {
        std::lock_guard lock(mpi_mutex);
        MPI_Op op;
        MPI_Op_create(add_16bit<bf16>, /*commute=*/1, &op);
        return op;
    }();
    static const MPI_Op add_f16 = [] {
        std::lock_guard lock(mpi_mutex);
        MPI_Op op;
        MPI_Op_create(add_16bit<f16>, 1, &op);
        return op;
    }();
    const MPI_Op add[] = {MPI_SUM, add_bf16, add_f16};  // in the table's order
    static_assert(std::size(add) == std::size(kDTypes));
    switch (t) {
#define RZ_ROW(type, cpp, name, safetensors, config_json, nccl, mpi, dnnl, cublas) \
    case DType::type:                                                              \
        return {mpi, add[int(t)]};
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
}

class MpiCollectives : public HostLibrary {
   public:
    MpiCollectives(HostTransport& transport, const CollectiveOptions& options, std::shared_ptr<Comm> comm)
        : HostLibrary(transport, options, transport.device().is_cuda()), host_(transport), comm_(std::move(comm)) {}

   protected:
    void sum(Stream& stream, const void* values, char* sums, int64_t n, DType wire) override {
        const auto [type, add] = element_type(wire);
        const int elements = int_count(n);
        const void* from = values ? values : MPI_IN_PLACE;
        enqueue(stream, [=, type = type, add = add, comm = comm_->comm](MPI_Request* request) {
            return MPI_Iallreduce(from, sums, elements, type, add, comm, request);
        });
    }

    void sum_slices(Stream& stream, const char* values, char* sums, Offsets offsets, DType wire) override {
        const auto [type, add] = element_type(wire);
        const void* from = values ? values : MPI_IN_PLACE;
        if (const int64_t each = equal_slices(offsets))
            return enqueue(
                stream, [=, type = type, add = add, each = int_count(each), comm = comm_->comm](MPI_Request* request) {
                    return MPI_Ireduce_scatter_block(from, sums, each, type, add, comm, request);
                });
        enqueue(stream,
                [=, type = type, add = add, counts = counts(offsets), comm = comm_->comm](MPI_Request* request) {
                    return MPI_Ireduce_scatter(from, sums, counts.data(), type, add, comm, request);
                });
    }

    void gather_slices(Stream& stream, char* values, Offsets offsets, DType dtype) override {
        if (const int64_t each = equal_slices(offsets))
            return enqueue(stream, [type = element_type(dtype).type, each = int_count(each), comm = comm_->comm,
                                    first = values + offsets.front() * size_of(dtype)](MPI_Request* request) {
                return MPI_Iallgather(MPI_IN_PLACE, 0, type, first, each, type, comm, request);
            });
        enqueue(stream, [=, this, type = element_type(dtype).type, counts = counts(offsets),
                         starts = starts(offsets)](MPI_Request* request) {
            return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, values, counts.data(), starts.data(), type, comm_->comm,
                                   request);
        });
    }

    void spread(Stream& stream, void* values, int64_t bytes, int root) override {
        const int n = int_count(bytes);
        enqueue(stream, [=, comm = comm_->comm](MPI_Request* request) {
            return MPI_Ibcast(values, n, MPI_BYTE, root, comm, request);
        });
    }

   private:
    static int int_count(int64_t n) {
        require_request(
            n <= INT32_MAX,
            "library collectives over MPI: %lld elements exceed its 32-bit counts\n  use ring or direct collectives",
            (long long)n);
        return int(n);
    }
    std::vector<int> counts(Offsets offsets) const {
        int_count(offsets.back());
        std::vector<int> list;
        for (int r = 0; r < size(); ++r) list.push_back(int(count(offsets, r)));
        return list;
    }
    std::vector<int> starts(Offsets offsets) const { return {offsets.begin(), offsets.end() - 1}; }

    // Starts a nonblocking collective and waits for it, in stream order.
    template <class Start>
    void enqueue(Stream& stream, Start start) {
        stream.enqueue_host([this, start] {
            MpiBatch batch;
            batch.requests.resize(1);
            batch.message = {0};
            {
                std::lock_guard lock(mpi_mutex);
                check(start(batch.requests.data()), "MPI collective");
            }
            host_.wait(batch, {{nullptr, 0, rank(), true}}, 0);
        });
    }

    HostTransport& host_;
    std::shared_ptr<Comm> comm_;
};

class MpiTransport : public HostTransport {
   public:
    MpiTransport(std::shared_ptr<Comm> comm, const std::string& group, int rank, std::vector<int> world_ranks,
                 Device device, std::shared_ptr<Watch> watch)
        : HostTransport("mpi", std::make_unique<MpiWire>(comm), group, rank, std::move(world_ranks), device,
                        std::move(watch)),
          comm_(std::move(comm)) {}

    std::unique_ptr<Collectives> library_collectives(const CollectiveOptions& options) override {
        return std::make_unique<MpiCollectives>(*this, options, comm_);
    }

   private:
    std::shared_ptr<Comm> comm_;
};

}  // namespace

bool built_with_mpi() { return true; }

std::string mpi_library() {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(version, &length);
    return {version, std::find(version, version + length, '\n')};
}

// UCX sends long messages by rendezvous. Over TCP the receiver's "ready" then waits in the same socket behind the data
// that it sends itself, so two ranks that exchange chunks take turns: half the rate of the link. Where TCP is all there
// is, send eagerly: the receives are posted before the data comes.
static void tune_ucx() {
    const char* transports = std::getenv("UCX_TLS");
    if (!transports) return;
    const std::string tls = transports;
    if (tls == "tcp" || tls == "tcp,self" || tls == "self,tcp") setenv("UCX_RNDV_THRESH", "inf", /*overwrite=*/0);
}

MpiWorld mpi_init() {
    tune_ucx();
    std::lock_guard lock(mpi_mutex);
    MpiWorld world;
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    mpi_began = true;
    require(provided >= MPI_THREAD_SERIALIZED,
            "this MPI library was built without thread support; MPICH and Open MPI as "
            "packaged by Debian have it");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    MPI_Comm local;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &local),
          "MPI_Comm_split_type");
    MPI_Comm_rank(local, &world.local_rank);
    MPI_Comm_size(local, &world.local_size);
    world.first_on_host = world.rank;
    check(MPI_Bcast(&world.first_on_host, 1, MPI_INT, 0, local), "MPI_Bcast");
    MPI_Comm_free(&local);
    world.library = mpi_library();
    return world;
}

void mpi_finalize() {
    std::lock_guard lock(mpi_mutex);
    MPI_Finalize();
}

void mpi_leave() {
    const char* name = std::getenv("PMI_FD");
    if (!name) return;
    // The thread that hangs in MPI_Finalize may get an answer that it does not know, and crash (MPICH of Debian 13).
    // All ranks are done: it stays where it is, until this one ends the process. This one never does: a crash of its
    // own ends it at once, and a signal to the process goes to another thread.
    struct sigaction stay = {};
    stay.sa_handler = [](int) {
        for (;;) pause();
    };
    sigset_t crashes;
    sigemptyset(&crashes);
    for (const int crash : {SIGSEGV, SIGBUS, SIGABRT}) sigaction(crash, &stay, nullptr), sigaddset(&crashes, crash);
    pthread_sigmask(SIG_BLOCK, &crashes, nullptr);
    // A thread that waits in PMI's barrier may read the answer, take it for an error and tell the launcher to end the
    // job: what it writes goes nowhere from here on.
    const int own = std::atoi(name);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pollfd launcher{dup(own), POLLIN, 0};
    if (launcher.fd < 0 || nowhere < 0 || dup2(nowhere, own) < 0) return;
    constexpr char kFinalize[] = "cmd=finalize\n";
    if (write(launcher.fd, kFinalize, sizeof kFinalize - 1) < 0) return;
    char answer[256];
    if (poll(&launcher, 1, 1000) > 0 && read(launcher.fd, answer, sizeof answer) < 0) std::perror("PMI_FD");
}

void mpi_abort(int code) {
    // Other threads hold the lock for single calls only; should one be stuck in MPI, continue without it.
    for (int i = 0; i < 100 && !mpi_mutex.try_lock(); ++i) usleep(10000);
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

std::unique_ptr<HostTransport> make_mpi_transport(int color, int key, const std::string& group, Device device,
                                                  std::shared_ptr<Watch> watch) {
    auto comm = std::make_shared<Comm>();
    int rank = 0, size = 0;
    std::vector<int> world_ranks;
    {
        std::lock_guard lock(mpi_mutex);
        check(MPI_Comm_split(MPI_COMM_WORLD, color < 0 ? MPI_UNDEFINED : color, key, &comm->comm), "MPI_Comm_split");
        if (comm->comm == MPI_COMM_NULL) return nullptr;
        MPI_Comm_set_errhandler(comm->comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(comm->comm, &rank);
        MPI_Comm_size(comm->comm, &size);
        MPI_Group members, world;
        MPI_Comm_group(comm->comm, &members);
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        std::vector<int> places(static_cast<size_t>(size));
        std::iota(places.begin(), places.end(), 0);
        world_ranks.resize(places.size());
        MPI_Group_translate_ranks(members, size, places.data(), world, world_ranks.data());
        MPI_Group_free(&members);
        MPI_Group_free(&world);
    }
    return std::make_unique<MpiTransport>(std::move(comm), group, rank, std::move(world_ranks), device,
                                          std::move(watch));
}

}  // namespace rz

#else  // no MPI

namespace rz {

static constexpr char kNoMpi[] = "this program was built without MPI";  // and find_launch() never chooses it

bool built_with_mpi() { return false; }
std::string mpi_library() { return ""; }
MpiWorld mpi_init() { fail("%s", kNoMpi); }
void mpi_finalize() {}
void mpi_leave() {}
void mpi_abort(int code) { _exit(code); }
std::unique_ptr<HostTransport> make_mpi_transport(int, int, const std::string&, Device, std::shared_ptr<Watch>) {
    fail("%s", kNoMpi);
}

}  // namespace rz

#endif
