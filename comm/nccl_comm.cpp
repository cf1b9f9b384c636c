#include "comm/nccl_comm.h"

#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)

#include <algorithm>
#include <cstdlib>

#include "comm/nccl_window.h"
#include "comm/watch.h"
#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/memory.h"

#ifdef RZ_NCCL_DEVICE_API
#include <nccl_device.h>
#endif

namespace rz {

namespace {

void check(ncclResult_t status, const char* call) {
    if (status != ncclSuccess) fail("%s: %s (%s)", call, ncclGetErrorString(status), ncclGetLastError(nullptr));
}

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

// Says what NCCL was told, and what to try: the first exchange of two ranks connects them, and hangs where a link that
// NCCL believes in does not work.
std::string what_to_try() {
    std::string set;
    for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_IB_HCA",
                             "NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_ALGO", "NCCL_PROTO"})
        if (const char* value = std::getenv(name)) set += format(" %s=%s", name, value);
    return format(
        "\n  NCCL %d; set in the environment:%s\n"
        "  NCCL_DEBUG=INFO prints the transport of every pair (P2P, SHM, NET/IB, NET/Socket)\n"
        "  inside a host: NCCL_P2P_DISABLE=1 (a board without working P2P: IOMMU or ACS on); then NCCL_SHM_DISABLE=1\n"
        "  between hosts: NCCL_SOCKET_IFNAME=the network's interface; then NCCL_IB_DISABLE=1\n"
        "  build/dev/sanity --links tries every pair by itself",
        NcclComm::version(), set.empty() ? " nothing" : set.c_str());
}

}  // namespace

std::string NcclComm::unique_id() {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return std::string(id.internal, sizeof id.internal);
}

int NcclComm::version() {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return version;
}

std::string NcclComm::launch_order() {
    static const std::string text = [] {
        constexpr const char* kName = "NCCL_LAUNCH_ORDER_IMPLICIT";
        int driver = 0, runtime = 0;
        CUDA_CHECK(cudaDriverGetVersion(&driver));
        CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
        const int nccl = version();
        if (nccl >= 22600 && std::min(driver, runtime) >= 12030) setenv(kName, "1", /*overwrite=*/0);
        const char* set = std::getenv(kName);
        return format("NCCL %d.%d.%d, %s=%s", nccl / 10000, nccl / 100 % 100, nccl % 100, kName, set ? set : "0");
    }();
    return text;
}

NcclComm::NcclComm(const std::string& id, int rank, int size, Device device, Options options)
    : options_(std::move(options)), rank_(rank), size_(size), device_(device) {
    ncclUniqueId unique;
    require(id.size() == sizeof unique.internal, "an NCCL id of %zu bytes", id.size());
    std::copy(id.begin(), id.end(), unique.internal);
    device_.make_current();
    launch_order();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (options_.channels.max_ctas > 0) config.maxCTAs = options_.channels.max_ctas;
#if NCCL_VERSION_CODE >= 22800
    if (options_.channels.net_peer > 0) config.nChannelsPerNetPeer = options_.channels.net_peer;
#endif
    const Alarm alarm(bring_up_s(options_.watch ? options_.watch->timeout_s() : 600),
                      "ncclCommInitRankConfig of group " + options_.group,
                      "a member is missing, or they cannot reach each other" + what_to_try(), options_.watch);
    check(ncclCommInitRankConfig(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig");
}

NcclComm::~NcclComm() {
    if (!comm_) return;
    const Alarm alarm(30, "ncclCommDestroy of group " + options_.group, "a peer is gone");
    std::lock_guard lock(mutex_);
    if (ncclCommFinalize(comm_) != ncclSuccess) {
        ncclCommAbort(comm_);
        return;
    }
    ncclCommDestroy(comm_);
}

void NcclComm::abort() noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !comm_) return;
    ncclCommAbort(comm_);
    comm_ = nullptr;
}

// With the mutex held.
void NcclComm::check_open() const {
    require(comm_, "group %s: its NCCL communicator was aborted", options_.group.c_str());
}

void NcclComm::poll() {
    const uint64_t calls = calls_;
    if (const char* name = calling_.load(); name && calls == seen_) {
        const double waited = in_call_.look(), deadline = options_.watch ? options_.watch->timeout_s() : 600;
        if (waited >= deadline)
            throw DeadlineError(format("waited %.1f s (the deadline) in %s of group %s, which has not returned", waited,
                                       name, options_.group.c_str()) +
                                what_to_try());
    } else {
        seen_ = calls;
        in_call_.restart();
    }
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !comm_) return;  // in use, so in no need of a look
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    check(state, "NCCL, asynchronously");
}

// ---- windows --------------------------------------------------------------------------------------------------------

#if NCCL_VERSION_CODE >= 22700

constexpr int64_t kWindowAlignment = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT, from 2.28 on

class NcclComm::Window : public SharedMemory {
   public:
    Window(NcclComm& comm, int64_t bytes);
    ~Window() override;
    void find_parts();  // of the others

   private:
    void give_back() noexcept;

    NcclComm& comm_;
    void* memory_ = nullptr;
    ncclWindow_t window_ = nullptr;
};

NcclComm::Window::Window(NcclComm& comm, int64_t bytes) : comm_(comm) {
    const std::string group = " of group " + comm_.options_.group;
    const size_t all = size_t(round_up(std::max<int64_t>(bytes, 1), kWindowAlignment));
    comm_.device_.make_current();
    bytes_ = bytes;
    const ncclResult_t status = ncclMemAlloc(&memory_, all);
    require(status == ncclSuccess, "out of memory: %s for a window%s (ncclMemAlloc: %s), %s free on %s",
            human_bytes(int64_t(all)).c_str(), group.c_str(), ncclGetErrorString(status),
            human_bytes(comm_.device_.free_bytes()).c_str(), comm_.device_.name().c_str());
    try {
        CUDA_CHECK(cudaMemset(memory_, 0, all));
        CUDA_CHECK(cudaDeviceSynchronize());  // all are zero when the call below has returned
        {
            const Alarm alarm(bring_up_s(comm_.options_.watch ? comm_.options_.watch->timeout_s() : 600),
                              "ncclCommWindowRegister" + group, "a member has not come to it", comm_.options_.watch);
            const std::lock_guard lock(comm_.mutex_);
            comm_.check_open();
            ++comm_.calls_;
            const InCall in_call(comm_, "ncclCommWindowRegister");
            check(ncclCommWindowRegister(comm_.comm_, memory_, all, &window_, NCCL_WIN_COLL_SYMMETRIC),
                  "ncclCommWindowRegister");
        }
        base_ = static_cast<char*>(memory_);
        stride_ = int64_t(all);
    } catch (...) {
        give_back();
        throw;
    }
}

NcclComm::Window::~Window() { give_back(); }

// Peers that still read this part keep its memory: each has mapped it for itself.
void NcclComm::Window::give_back() noexcept {
    if (cudaSetDevice(comm_.device_.index) != cudaSuccess) return;  // a CUDA fault is on its way out
    cudaDeviceSynchronize();                                        // what is queued may use the window
    if (window_) {
        const std::lock_guard lock(comm_.mutex_);
        if (comm_.comm_) ncclCommWindowDeregister(comm_.comm_, window_);
    }
    ncclMemFree(memory_);
}

std::unique_ptr<SharedMemory> NcclComm::registered(int64_t bytes) { return std::make_unique<Window>(*this, bytes); }

#else

std::unique_ptr<SharedMemory> NcclComm::registered(int64_t) { return nullptr; }

#endif

#ifdef RZ_NCCL_DEVICE_API

void NcclComm::Window::find_parts() {
    std::vector<char*> parts(size_t(comm_.size_));
    Stream stream(comm_.device_, "windows");
    const Buffer found(comm_.device_, int64_t(parts.size() * sizeof(char*)), MemKind::comm, "addresses of a window");
    nccl_window_parts(found.as<char*>(), window_, comm_.size_, stream.cuda());
    stream.copy(parts.data(), found.data(), found.bytes());
    stream.synchronize();
    base_ = parts.front();
    stride_ = comm_.size_ > 1 ? parts[1] - parts[0] : stride_;
    for (int r = 0; r < comm_.size_; ++r)
        require(stride_ > 0 && parts[size_t(r)] == part(r),
                "NCCL maps a window of group %s at uneven distances (rank %d of %d)\n  nearest: --collectives direct",
                comm_.options_.group.c_str(), r, comm_.size_);
}

// A communicator without symmetric memory takes ncclCommWindowRegister for ncclCommRegister and reports success, and
// the handle is no window then. ncclDevCommCreate does say so.
std::string NcclComm::why_no_windows() {
    if (version() != NCCL_VERSION_CODE)
        return format("this program was built with NCCL %d, whose windows it knows, and NCCL %d runs",
                      NCCL_VERSION_CODE, version());
    device_.make_current();
    const Alarm alarm(bring_up_s(options_.watch ? options_.watch->timeout_s() : 600),
                      "ncclDevCommCreate of group " + options_.group, "a member has not come to it", options_.watch);
    const std::lock_guard lock(mutex_);
    check_open();
    ++calls_;
    const InCall in_call(*this, "ncclDevCommCreate");
    if (const int reached = ncclTeamLsa(comm_).nRanks; reached != size_)
        return format("NCCL maps memory of %d of the %d ranks", reached, size_);
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER  // 2.29 on
    ncclDevCommRequirements nothing = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements nothing = {};
#endif
    ncclDevComm made = {};
    const ncclResult_t status = ncclDevCommCreate(comm_, &nothing, &made);
    if (status == ncclInvalidUsage)
        return "NCCL has no symmetric memory here (a pair of GPUs without P2P; NCCL_P2P_DISABLE, NCCL_CUMEM_ENABLE or "
               "NCCL_WIN_ENABLE)";
    check(status, "ncclDevCommCreate");
    check(ncclDevCommDestroy(comm_, &made), "ncclDevCommDestroy");
    return "";
}

std::unique_ptr<SharedMemory> NcclComm::window(int64_t bytes) {
    auto window = std::make_unique<Window>(*this, bytes);
    window->find_parts();
    return window;
}

#else

std::string NcclComm::why_no_windows() {
    return format("this program was built with NCCL %d, and kernels find windows from 2.28 on", NCCL_VERSION_CODE);
}

std::unique_ptr<SharedMemory> NcclComm::window(int64_t) { fail("%s", why_no_windows().c_str()); }

#endif

// ---- groups ---------------------------------------------------------------------------------------------------------

NcclComm::Group::Group(NcclComm& comm, Stream& stream) : comm_(comm), stream_(stream.cuda()), lock_(comm.mutex_) {
    comm_.check_open();
    comm_.device_.make_current();
    ++comm_.calls_;
    check(ncclGroupStart(), "ncclGroupStart");
    open_ = true;
}

// Left by an exception: what was called so far must not stay in an open group. NCCL drops it if one of the calls has
// failed, else launches it: the job ends for the exception all the same.
NcclComm::Group::~Group() {
    if (!open_) return;
    const InCall call(comm_, "ncclGroupEnd");
    ncclGroupEnd();
}

void NcclComm::Group::end() {
    open_ = false;
    ++comm_.calls_;
    const InCall in_call(comm_, "ncclGroupEnd");
    check(ncclGroupEnd(), "ncclGroupEnd");
    lock_.unlock();
}

void NcclComm::Group::call(int status, const char* name) { check(ncclResult_t(status), name); }

void NcclComm::Group::send(const void* data, int64_t bytes, int to) {
    call(ncclSend(data, size_t(bytes), ncclInt8, to, comm_.comm_, stream_), "ncclSend");
}

void NcclComm::Group::recv(void* data, int64_t bytes, int from) {
    call(ncclRecv(data, size_t(bytes), ncclInt8, from, comm_.comm_, stream_), "ncclRecv");
}

void NcclComm::Group::all_reduce(const void* in, void* out, int64_t n, DType dtype) {
    call(ncclAllReduce(in, out, size_t(n), nccl_type(dtype), ncclSum, comm_.comm_, stream_), "ncclAllReduce");
}

void NcclComm::Group::reduce(const void* in, void* out, int64_t n, DType dtype, int root) {
    call(ncclReduce(in, out, size_t(n), nccl_type(dtype), ncclSum, root, comm_.comm_, stream_), "ncclReduce");
}

void NcclComm::Group::broadcast(void* data, int64_t n, DType dtype, int root) {
    call(ncclBroadcast(data, data, size_t(n), nccl_type(dtype), root, comm_.comm_, stream_), "ncclBroadcast");
}

void NcclComm::Group::broadcast_bytes(void* data, int64_t bytes, int root) {
    call(ncclBroadcast(data, data, size_t(bytes), ncclInt8, root, comm_.comm_, stream_), "ncclBroadcast");
}

void NcclComm::Group::reduce_scatter(const void* in, void* out, int64_t n_of_each, DType dtype) {
    call(ncclReduceScatter(in, out, size_t(n_of_each), nccl_type(dtype), ncclSum, comm_.comm_, stream_),
         "ncclReduceScatter");
}

void NcclComm::Group::all_gather(const void* in, void* out, int64_t n_of_each, DType dtype) {
    call(ncclAllGather(in, out, size_t(n_of_each), nccl_type(dtype), comm_.comm_, stream_), "ncclAllGather");
}

}  // namespace rz

#endif
