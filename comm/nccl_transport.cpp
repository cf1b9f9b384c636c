#include "comm/nccl_transport.h"

#include "comm/host.h"
#include "comm/collectives.h"
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

}  // namespace rz

#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)

#include <nccl.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>

namespace rz {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

void check(ncclResult_t status, const char* call) {
    if (status != ncclSuccess && status != ncclInProgress)
        fail("%s: %s (%s)", call, ncclGetErrorString(status), ncclGetLastError(nullptr));
}
#define NCCL_CHECK(call) check((call), #call)

class NcclTransport : public Transport {
   public:
    NcclTransport(const std::string& id, int rank, std::vector<int> world_ranks, const std::string& group,
                  Device device, std::shared_ptr<Watch> watch);
    ~NcclTransport() override;
    const char* name() const override { return "nccl"; }
    // A launch costs as much as moving some MiB over NVLink; two lanes hide the addition behind the transfer.
    int64_t good_chunk_bytes() const override { return kNcclChunkBytes; }
    int good_lanes() const override { return 2; }
    std::unique_ptr<Collectives> library_collectives(const CollectiveOptions& options) override;

    // Waits until the calls just made are accepted: non-blocking communicators return before that.
    void settle(const char* call);
    void in_flight(uint64_t seq, bool is_last, Event done);
    ncclComm_t comm() const { return comm_; }

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override;
    void do_finish(Stream& stream, const Transfer& transfer) override;

   private:
    void poll();  // from the watchdog thread

    struct InFlight {
        uint64_t seq;
        bool is_last;
        Event done;
    };
    ncclComm_t comm_ = nullptr;
    Stream moves_;
    int poll_id_ = 0;
    std::mutex mutex_;
    std::deque<InFlight> in_flight_;
    Clock::time_point progress_ = Clock::now();  // when the oldest entry became the oldest
};

NcclTransport::NcclTransport(const std::string& id, int rank, std::vector<int> world_ranks, const std::string& group,
                             Device device, std::shared_ptr<Watch> watch)
    : Transport(group, rank, std::move(world_ranks), device, std::move(watch)), moves_(device, "nccl", true) {
    ncclUniqueId unique;
    require(id.size() == sizeof unique.internal, "an NCCL id of %zu bytes", id.size());
    std::copy(id.begin(), id.end(), unique.internal);
    device.make_current();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    NCCL_CHECK(ncclCommInitRankConfig(&comm_, size(), unique, rank, &config));
    settle("ncclCommInitRankConfig");
    if (this->watch()) poll_id_ = this->watch()->add_poll([this] { poll(); });
}

NcclTransport::~NcclTransport() {
    if (poll_id_) watch()->remove_poll(poll_id_);
    if (!comm_) return;
    // Unfinished work here means that an error is on its way out: don't wait for peers.
    bool idle = true;
    for (const InFlight& f : in_flight_) idle = idle && f.done.done();
    if (!idle) {
        ncclCommAbort(comm_);
        return;
    }
    if (ncclCommFinalize(comm_) == ncclInProgress) try {
            settle("ncclCommFinalize");
        } catch (const Error&) {
            ncclCommAbort(comm_);
            return;
        }
    ncclCommDestroy(comm_);
}

void NcclTransport::settle(const char* call) {
    const auto began = Clock::now();
    const double timeout = watch() ? watch()->timeout_s() : 600;
    for (;;) {
        ncclResult_t state = ncclSuccess;
        NCCL_CHECK(ncclCommGetAsyncError(comm_, &state));
        if (state == ncclSuccess) return;
        check(state, call);
        if (seconds_since(began) > timeout) {
            const std::string what =
                format("waited %.1f s (the deadline) for %s in group %s", timeout, call, group().c_str());
            if (watch()) watch()->expired(what);
            throw DeadlineError(what);
        }
        sched_yield();
    }
}

void NcclTransport::in_flight(uint64_t seq, bool is_last, Event done) {
    std::lock_guard lock(mutex_);
    while (!in_flight_.empty() && in_flight_.front().done.done()) {  // bounds the queue between two polls
        if (watch() && in_flight_.front().is_last) watch()->done(in_flight_.front().seq);
        in_flight_.pop_front();
        progress_ = Clock::now();
    }
    if (in_flight_.empty()) progress_ = Clock::now();
    in_flight_.push_back({seq, is_last, std::move(done)});
}

// A group may wait behind compute on the caller's stream, so its age is counted from the last group that finished.
void NcclTransport::poll() {
    device().make_current();  // or this thread's first CUDA call would make a context on GPU 0 as well
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(ncclCommGetAsyncError(comm_, &state));
    check(state, "NCCL, asynchronously");
    std::lock_guard lock(mutex_);
    while (!in_flight_.empty() && in_flight_.front().done.done()) {
        if (in_flight_.front().is_last) watch()->done(in_flight_.front().seq);
        in_flight_.pop_front();
        progress_ = Clock::now();
    }
    if (in_flight_.empty() || seconds_since(progress_) < watch()->timeout_s()) return;
    const uint64_t seq = in_flight_.front().seq;
    in_flight_.clear();
    fail("waited %.1f s (the deadline) for operation #%llu of group %s over NCCL", seconds_since(progress_),
         (unsigned long long)seq, group().c_str());
}

Transfer NcclTransport::do_start(Stream& stream, const MessageGroup& group) {
    if (watch() && group.seq) {
        int to = -1, from = -1;
        for (const Message& m : group.messages) (m.is_send ? to : from) = world_rank(m.peer);
        watch()->running(group.seq, to, from);
    }
    moves_.wait(stream.record());
    if (!group.empty()) {
        device().make_current();
        NCCL_CHECK(ncclGroupStart());
        for (const Message& m : group.messages) {
            if (m.is_send)
                NCCL_CHECK(ncclSend(m.data, size_t(m.bytes), ncclInt8, m.peer, comm_, moves_.cuda()));
            else
                NCCL_CHECK(ncclRecv(m.data, size_t(m.bytes), ncclInt8, m.peer, comm_, moves_.cuda()));
        }
        NCCL_CHECK(ncclGroupEnd());
        settle("ncclGroupEnd");
    }
    auto done = std::make_shared<Event>(moves_.record());
    in_flight(group.seq, group.is_last, *done);
    return {done};
}

void NcclTransport::do_finish(Stream& stream, const Transfer& transfer) {
    stream.wait(*std::static_pointer_cast<Event>(transfer.state));
}

// ---- NCCL's own collectives -----------------------------------------------------------------------------------------

ncclDataType_t nccl_type(DType t) {
    switch (t) {
#define RZ_ROW(type, cpp, name, safetensors, config_json, nccl, mpi, dnnl, cublas) \
    case DType::type:                                                              \
        return nccl;
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
}

class NcclCollectives : public Collectives {
   public:
    NcclCollectives(NcclTransport& transport, const CollectiveOptions& options)
        : Collectives(transport, options), nccl_(transport) {}
    const char* name() const override { return "library"; }

   protected:
    bool uses_transport() const override { return false; }
    void do_all_reduce(Stream& stream, const AllReduce& a) override {
        const int64_t first = a.offsets.front(), n = a.offsets.back() - first;
        const char* in = static_cast<const char*>(a.in) + first * size_of(a.dtype);
        char* out = static_cast<char*>(a.out) + first * size_of(a.dtype);
        const void* values = as_wire(stream, in, a.dtype, a.wire, n);
        char* sums = a.wire == a.dtype ? out : static_cast<char*>(const_cast<void*>(values));
        NCCL_CHECK(ncclAllReduce(values, sums, size_t(n), nccl_type(a.wire), ncclSum, nccl_.comm(), stream.cuda()));
        nccl_.settle("ncclAllReduce");
        scale_into(stream, out, a.dtype, sums, a.wire, n, a.scale);
        mark_done(stream);
    }

    // NCCL scatters equal parts only; unequal slices are one reduction to each owner, launched together.
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override {
        const int64_t wire = size_of(a.wire), first = a.offsets.front(), n = a.offsets.back() - first;
        const int64_t own = count(a.offsets, rank());
        const int64_t converted = a.wire == a.dtype ? 0 : round_up(n * wire, 256);
        char* memory = static_cast<char*>(scratch(stream, converted + own * wire));
        const char* values = static_cast<const char*>(a.in) + first * size_of(a.dtype);
        if (converted) {
            scale_into(stream, memory, a.wire, values, a.dtype, n, 1);
            values = memory;
        }
        char* sums = memory + converted;
        NCCL_CHECK(ncclGroupStart());
        for (int r = 0; r < size(); ++r)
            if (count(a.offsets, r) > 0)
                NCCL_CHECK(ncclReduce(values + (offset(a.offsets, r) - first) * wire, r == rank() ? sums : nullptr,
                                      size_t(count(a.offsets, r)), nccl_type(a.wire), ncclSum, r, nccl_.comm(),
                                      stream.cuda()));
        NCCL_CHECK(ncclGroupEnd());
        nccl_.settle("ncclReduce");
        scale_into(stream, a.out, a.out_dtype, sums, a.wire, own, a.scale);
        mark_done(stream);
    }

    void do_all_gather(Stream& stream, const AllGather& a) override {
        NCCL_CHECK(ncclGroupStart());
        for (int r = 0; r < size(); ++r) {
            char* slice = static_cast<char*>(a.out) + offset(a.offsets, r) * size_of(a.dtype);
            if (count(a.offsets, r) > 0)
                NCCL_CHECK(ncclBroadcast(slice, slice, size_t(count(a.offsets, r)), nccl_type(a.dtype), r, nccl_.comm(),
                                         stream.cuda()));
        }
        NCCL_CHECK(ncclGroupEnd());
        nccl_.settle("ncclBroadcast");
        mark_done(stream);
    }

    void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override {
        NCCL_CHECK(ncclBroadcast(data, data, size_t(bytes), ncclInt8, root, nccl_.comm(), stream.cuda()));
        nccl_.settle("ncclBroadcast");
        mark_done(stream);
    }

   private:
    const void* as_wire(Stream& stream, const void* in, DType dtype, DType wire, int64_t n) {
        if (wire == dtype) return in;
        void* converted = scratch(stream, n * size_of(wire));
        scale_into(stream, converted, wire, in, dtype, n, 1);
        return converted;
    }

    NcclTransport& nccl_;
};

std::unique_ptr<Collectives> NcclTransport::library_collectives(const CollectiveOptions& options) {
    return std::make_unique<NcclCollectives>(*this, options);
}

}  // namespace

bool built_with_nccl() { return true; }

std::string nccl_unique_id() {
    ncclUniqueId id;
    NCCL_CHECK(ncclGetUniqueId(&id));
    return std::string(id.internal, sizeof id.internal);
}

void nccl_allow_shared_gpu(int rank) {
    int version = 0;
    NCCL_CHECK(ncclGetVersion(&version));
    if (version >= 23000) {
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
                                               const std::string& group, Device device, std::shared_ptr<Watch> watch) {
    return std::make_unique<NcclTransport>(id, rank, std::move(world_ranks), group, device, std::move(watch));
}

}  // namespace rz

#else  // no NCCL

namespace rz {

static constexpr char kNoNccl[] =
    "the NCCL transport is not in this program: it was built without CUDA or without NCCL\n"
    "  use transport mpi, or run make where nvcc and nccl.h are installed";

bool built_with_nccl() { return false; }
std::string nccl_unique_id() { fail("%s", kNoNccl); }
void nccl_allow_shared_gpu(int) { fail("%s", kNoNccl); }
std::unique_ptr<Transport> make_nccl_transport(const std::string&, int, std::vector<int>, const std::string&, Device,
                                               std::shared_ptr<Watch>) {
    fail("%s", kNoNccl);
}

}  // namespace rz

#endif
