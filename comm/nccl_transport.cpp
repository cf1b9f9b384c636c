#include "comm/nccl_transport.h"

#include "comm/host.h"
#include "comm/library.h"
#include "comm/watch.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

std::string gpu_bus_id(Device device) {
    if (!device.is_cuda()) return "";
#ifdef RZ_CUDA
    char id[32] = {};
    CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device.index));
    return id;
#else
    fail("a CUDA device in a program built without CUDA");
#endif
}

int gpu_multiprocessors([[maybe_unused]] Device device) {
    int count = 0;
#ifdef RZ_CUDA
    if (device.is_cuda()) CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index));
#endif
    return count;
}

}  // namespace rz

#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)

#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "comm/nccl_comm.h"
#include "comm/pinned_memory.h"
#include "kernels/runtime/context.h"

namespace rz {

namespace {

class NcclTransport : public Transport {
   public:
    NcclTransport(const std::string& id, int rank, std::vector<int> world_ranks, const std::string& group,
                  Device device, std::shared_ptr<Watch> watch, NcclChannels channels);
    ~NcclTransport() override;
    const char* name() const override { return "nccl"; }
    // A launch costs as much as moving some MiB over NVLink; two lanes hide the addition behind the transfer.
    int64_t good_chunk_bytes() const override { return kNcclChunkBytes; }
    int good_lanes() const override { return 2; }
    bool levels_apart() const override { return true; }
    std::unique_ptr<Collectives> library_collectives(const CollectiveOptions& options) override;

    Mapping mapping() override { return mapping_note().empty() ? Mapping::own : Mapping::pinned; }
    std::string mapping_note() override;
    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override;

    struct InFlight {
        uint64_t seq;
        bool is_last;
        Event ready, done;  // what it waits for on the caller's stream; itself
        int to = -1, from = -1;
        bool told = false;  // the recorder that it runs
    };
    void in_flight(InFlight work);
    NcclComm& comm() { return comm_; }

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override;
    void do_finish(Stream& stream, const Transfer& transfer) override;

   private:
    void poll();      // from the watchdog thread
    void pop_done();  // with mutex_ held
    void meet();      // blocks until all members have come here

    NcclComm comm_;
    std::string name_;  // that no other group has
    int64_t shared_ = 0;
    std::optional<std::string> mapping_note_;
    Stream moves_;
    int poll_id_ = 0;
    std::mutex mutex_;
    std::deque<InFlight> in_flight_;
    WaitClock since_progress_;  // since the oldest entry became the oldest
};

NcclTransport::NcclTransport(const std::string& id, int rank, std::vector<int> world_ranks, const std::string& group,
                             Device device, std::shared_ptr<Watch> watch, NcclChannels channels)
    : Transport(group, rank, std::move(world_ranks), device, watch),
      comm_(id, rank, size(), device, {.group = group, .watch = watch, .channels = channels}),
      name_(format("/ringzero-%016zx", std::hash<std::string>()(id))),
      moves_(device, "nccl", true) {
    if (this->watch()) poll_id_ = this->watch()->add_poll([this] { poll(); }, [this] { comm_.abort(); });
}

NcclTransport::~NcclTransport() {
    if (poll_id_) watch()->remove_poll(poll_id_);
    // Unfinished work here means that an error is on its way out: don't wait for peers.
    bool idle = !device().context || !device().context->given_up;
    try {
        for (const InFlight& f : in_flight_) idle = idle && f.done.done();
    } catch (const Error&) {  // a CUDA fault, which is on its way out too
        idle = false;
    }
    if (!idle) comm_.abort();
}

void NcclTransport::pop_done() {
    while (!in_flight_.empty()) {
        InFlight& f = in_flight_.front();  // the ones before it are done, so it runs where its stream has come to it
        const bool done = f.done.done();
        if (watch() && f.seq && !f.told && (done || f.ready.done())) {
            watch()->running(f.seq, f.to, f.from);
            f.told = true;
        }
        if (!done) return;
        if (watch() && f.is_last) watch()->done(f.seq);
        in_flight_.pop_front();
        since_progress_.restart();
    }
}

void NcclTransport::in_flight(InFlight work) {
    std::lock_guard lock(mutex_);
    pop_done();  // bounds the queue between two polls
    if (in_flight_.empty()) since_progress_.restart();
    in_flight_.push_back(std::move(work));
}

// A group may wait behind compute on the caller's stream, so its age is counted from the last group that finished.
void NcclTransport::poll() {
    comm_.poll();             // first: it makes no CUDA call where a thread hangs in NCCL
    device().make_current();  // or this thread's first CUDA call would make a context on GPU 0 as well
    std::lock_guard lock(mutex_);
    pop_done();
    const double waited = since_progress_.look();
    if (in_flight_.empty() || waited < watch()->timeout_s()) return;
    const uint64_t seq = in_flight_.front().seq;
    in_flight_.clear();
    throw DeadlineError(
        format("waited %.1f s (the deadline) for %s over NCCL", waited, watch()->name_of(seq, group()).c_str()));
}

Transfer NcclTransport::do_start(Stream& stream, const MessageGroup& group) {
    InFlight work{.seq = group.seq, .is_last = group.is_last, .ready = stream.record(), .done = {}};
    for (const Message& m : group.messages) (m.is_send ? work.to : work.from) = world_rank(m.peer);
    moves_.wait(work.ready);
    if (!group.empty()) {
        NcclComm::Group calls(comm_, moves_);
        for (const Message& m : group.messages)
            m.is_send ? calls.send(m.data, m.bytes, m.peer) : calls.recv(m.data, m.bytes, m.peer);
        calls.end();
    }
    auto done = std::make_shared<Event>(moves_.record());
    work.done = *done;
    in_flight(std::move(work));
    return {done};
}

void NcclTransport::do_finish(Stream& stream, const Transfer& transfer) {
    stream.wait(*std::static_pointer_cast<Event>(transfer.state));
}

// ---- memory that the members map ------------------------------------------------------------------------------------

// The first one who asks, and so all members together, ask NCCL.
std::string NcclTransport::mapping_note() {
    if (!mapping_note_) {
        mapping_note_ = comm_.why_no_windows();
        const std::string out_of_reach = unreachable_gpus(device());
        if (!mapping_note_->empty() && !out_of_reach.empty()) *mapping_note_ = out_of_reach + ": " + *mapping_note_;
    }
    return *mapping_note_;
}

std::unique_ptr<SharedMemory> NcclTransport::share(int64_t bytes, Alloc how) {
    require(how == Alloc::per_rank, "memory of GPUs that all members have in common: each has its own");
    if (mapping() == Mapping::own) return comm_.window(bytes);
    const std::string name = name_ + format("-%lld", (long long)shared_++);
    return pin(map_by_name(name, rank(), size(), bytes, how, [this] { meet(); }), size(), device());
}

void NcclTransport::meet() {
    Buffer word(device(), 4, MemKind::comm, "meeting");
    moves_.zero(word.data(), word.bytes());
    NcclComm::Group calls(comm_, moves_);
    calls.all_reduce(word.data(), word.data(), 1, DType::f32);
    calls.end();
    in_flight({.seq = 0, .is_last = false, .ready = {}, .done = moves_.record()});
    moves_.synchronize();
}

// ---- NCCL's own collectives -----------------------------------------------------------------------------------------

class NcclCollectives : public DeviceLibrary {
   public:
    NcclCollectives(NcclTransport& transport, const CollectiveOptions& options)
        : DeviceLibrary(transport, options), nccl_(transport) {}

   protected:
    void sum(Stream& stream, const void* values, char* sums, int64_t n, DType wire) override {
        launch(stream, [&](NcclComm::Group& calls) { calls.all_reduce(values, sums, n, wire); });
    }

    // NCCL scatters and gathers equal parts only; of unequal slices each is one reduction to, or one broadcast from,
    // its owner, launched together.
    void sum_slices(Stream& stream, const char* values, char* sums, Offsets offsets, DType wire) override {
        launch(stream, [&](NcclComm::Group& calls) {
            if (const int64_t each = equal_slices(offsets)) return calls.reduce_scatter(values, sums, each, wire);
            for (int r = 0; r < size(); ++r)
                if (count(offsets, r) > 0)
                    calls.reduce(values + (offset(offsets, r) - offsets.front()) * size_of(wire),
                                 r == rank() ? sums : nullptr, count(offsets, r), wire, r);
        });
    }

    void gather_slices(Stream& stream, char* values, Offsets offsets, DType dtype) override {
        const auto at = [&](int r) { return values + offset(offsets, r) * size_of(dtype); };
        launch(stream, [&](NcclComm::Group& calls) {
            if (const int64_t each = equal_slices(offsets)) return calls.all_gather(at(rank()), at(0), each, dtype);
            for (int r = 0; r < size(); ++r)
                if (count(offsets, r) > 0) calls.broadcast(at(r), count(offsets, r), dtype, r);
        });
    }

    void spread(Stream& stream, void* values, int64_t bytes, int root) override {
        launch(stream, [&](NcclComm::Group& calls) { calls.broadcast_bytes(values, bytes, root); });
    }

    SharedMemory* allocate(int64_t bytes, Alloc) override {
        if (auto memory = nccl_.comm().registered(bytes)) return registered_.emplace_back(std::move(memory)).get();
        return nullptr;
    }
    int shared_rank() const override { return 0; }  // it has one part, this rank's
    std::string through() const override {
        return format("summed in NCCL's order, %s registered with it", registered_.empty() ? "no buffers" : "buffers");
    }

   private:
    template <class Calls>
    void launch(Stream& stream, Calls&& make_calls) {
        if (Watch* watch = nccl_.watch()) watch->running(hop().seq, -1, -1);
        NcclComm::Group calls(nccl_.comm(), stream);
        make_calls(calls);
        calls.end();
    }

    NcclTransport& nccl_;
    std::vector<std::unique_ptr<SharedMemory>> registered_;
};

std::unique_ptr<Collectives> NcclTransport::library_collectives(const CollectiveOptions& options) {
    return std::make_unique<NcclCollectives>(*this, options);
}

}  // namespace

bool built_with_nccl() { return true; }

std::string nccl_unique_id() { return NcclComm::unique_id(); }
std::string nccl_launch_order() { return NcclComm::launch_order(); }

void nccl_allow_shared_gpu(int rank) {
    if (NcclComm::version() >= 23000) {
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
        setenv("NCCL_MAX_CTAS", "8", 0);
    } else {
        setenv("NCCL_HOSTID", (host_name() + "-r" + std::to_string(rank)).c_str(), 0);
        setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        setenv("NCCL_IB_DISABLE", "1", 0);
        setenv("NCCL_MNNVL_ENABLE", "0", 0);
    }
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

std::unique_ptr<Transport> make_nccl_transport(const std::string& id, int rank, std::vector<int> world_ranks,
                                               const std::string& group, Device device, std::shared_ptr<Watch> watch,
                                               NcclChannels channels) {
    return std::make_unique<NcclTransport>(id, rank, std::move(world_ranks), group, device, std::move(watch), channels);
}

}  // namespace rz

#else  // no NCCL

namespace rz {

static constexpr char kNoNccl[] =
    "the NCCL transport is not in this program: it was built without CUDA or without NCCL\n"
    "  use transport mpi, or run make where nvcc and nccl.h are installed";

bool built_with_nccl() { return false; }
std::string nccl_unique_id() { fail("%s", kNoNccl); }
std::string nccl_launch_order() { fail("%s", kNoNccl); }
void nccl_allow_shared_gpu(int) { fail("%s", kNoNccl); }
std::unique_ptr<Transport> make_nccl_transport(const std::string&, int, std::vector<int>, const std::string&, Device,
                                               std::shared_ptr<Watch>, NcclChannels) {
    fail("%s", kNoNccl);
}

}  // namespace rz

#endif
