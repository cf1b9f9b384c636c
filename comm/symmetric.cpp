// Collectives over memory that all ranks of the group map: no messages with values, and no copy but the one that moves
// the data.
//
//   all_gather      GPUs copy the others' slices out of their memory; a rank on the CPU writes its slice into the
//                   others', so that memory is read once
//   reduce_scatter  every rank loads its slice from all, in ascending rank order, adds in fp32 and rounds once: the
//                   bits of `direct` exactly
//
// If the buffer of a call lies in memory that Collectives::allocate gave, ranks read it there. Any other goes
// through a staging area in two halves, a piece at a time: on the CPU a piece is then still in cache when it is read.
// GPUs that do not map each other's memory all have a staging area in pinned memory of the host, to and from which
// their copy engines move every piece (Mapping::pinned).
//
// Each rank counts phases: it says that its values are there, then that it has read those of the others, and waits for
// the same numbers of all. Numbers only grow, so no flag is ever reset.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <new>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "comm/collectives.h"
#include "comm/deadline.h"
#include "comm/host.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"

namespace rz {

namespace {

constexpr int64_t kLine = 128;  // two cache lines: neighbours are fetched together

// In stream order: this rank has come to phase `n`; all others have; one has. `seq`: the operation that they are of.
class Phases {
   public:
    virtual ~Phases() = default;
    virtual void publish(Stream& stream, uint64_t n, uint64_t seq) = 0;
    virtual void await(Stream& stream, uint64_t n, uint64_t seq) = 0;
    virtual void await_one(Stream& stream, int r, uint64_t n, uint64_t seq) = 0;
};

// Numbers in memory that the hosts' threads see. Waits yield the core and end at the deadline.
class PhasesInMemory : public Phases {
   public:
    explicit PhasesInMemory(Transport& transport)
        : transport_(transport), control_(transport.share(kLine, Alloc::per_rank)) {}
    void publish(Stream& stream, uint64_t n, uint64_t) override {
        stream.enqueue_host([this, n] { phase(transport_.rank()).store(n, std::memory_order_release); });
    }
    void await(Stream& stream, uint64_t n, uint64_t seq) override {
        stream.enqueue_host([this, n, seq] {
            for (int d = 1; d < transport_.size(); ++d) wait_for((transport_.rank() + d) % transport_.size(), n, seq);
        });
    }
    void await_one(Stream& stream, int r, uint64_t n, uint64_t seq) override {
        stream.enqueue_host([this, r, n, seq] { wait_for(r, n, seq); });
    }

   private:
    std::atomic<uint64_t>& phase(int r) const {
        return *std::launder(reinterpret_cast<std::atomic<uint64_t>*>(control_->part(r)));
    }
    void wait_for(int r, uint64_t n, uint64_t seq) const;

    Transport& transport_;
    std::unique_ptr<SharedMemory> control_;
};

void PhasesInMemory::wait_for(int r, uint64_t n, uint64_t seq) const {
    if (phase(r).load(std::memory_order_acquire) >= n) return;
    if (Watch* watch = transport_.watch(); watch && seq) watch->running(seq, -1, transport_.world_rank(r));
    ask_for_short_slices();
    WaitClock clock;
    for (int polls = 1; phase(r).load(std::memory_order_acquire) < n; ++polls) {
        sched_yield();
        if (polls % 64 != 0) continue;
        transport_.check_peers();
        const double waited = clock.look();
        if (waited < (transport_.watch() ? transport_.watch()->timeout_s() : 600)) continue;
        const std::string what =
            format("waited %.1f s (the deadline) for rank %d in shared memory", waited, transport_.world_rank(r));
        Watch* watch = transport_.watch();
        if (!watch) throw DeadlineError(what);
        watch->fail_deadline(what + ", in " + watch->name_of(seq, transport_.group()));
    }
}

// A byte from each to each over the transport, for GPUs: in stream order, with no thread of the host and no kernel of
// ours that waits for a peer, and under the transport's deadline.
class PhasesByMessages : public Phases {
   public:
    explicit PhasesByMessages(Transport& transport)
        : transport_(transport),
          bytes_(transport.device(), transport.size(), MemKind::comm, "phases of symmetric collectives") {}
    void publish(Stream& stream, uint64_t n, uint64_t seq) override {
        if (n == 1) stream.zero(bytes_.data(), bytes_.bytes());
        const int rank = transport_.rank(), size = transport_.size();
        MessageGroup group;
        group.seq = seq;
        for (int d = 1; d < size; ++d) {
            const int to = (rank + d) % size, from = (rank - d + size) % size;
            group.send(bytes_.bytes_at(rank), 1, to);
            group.recv(bytes_.bytes_at(from), 1, from);
        }
        under_way_.push_back({n, transport_.start(stream, group)});
        transport_.count_sent(1 - size);  // no values
    }
    void await(Stream& stream, uint64_t n, uint64_t) override {
        for (; !under_way_.empty() && under_way_.front().n <= n; under_way_.pop_front())
            transport_.finish(stream, under_way_.front().transfer);
    }
    void await_one(Stream& stream, int, uint64_t n, uint64_t seq) override { await(stream, n, seq); }

   private:
    struct UnderWay {
        uint64_t n;
        Transfer transfer;
    };
    Transport& transport_;
    Buffer bytes_;
    std::deque<UnderWay> under_way_;
};

bool on_gpu(Device device) {
    return device.is_cuda() || (device.is_planned() && device.context && !device.context->one_memory);
}

// Size of a gather by the ranks of a host together from which on it goes past the caches.
constexpr int64_t kPastCaches = int64_t(32) << 20;
constexpr int64_t kPushPiece = int64_t(256) << 10;  // that a rank writes to all others while it has it in its cache

// A store to a line that is not in the cache reads it first, which is a third of a copy's traffic. memcpy() avoids that
// only above three quarters of what it takes for the cache, which in a virtual machine may be that of all sockets.
void copy_past_caches(char* to, const char* from, int64_t bytes) {
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
    const int64_t head = std::min(bytes, int64_t(-reinterpret_cast<uintptr_t>(to) & 63)), lines = (bytes - head) / 64;
    std::memcpy(to, from, size_t(head));
    to += head, from += head, bytes -= head + 64 * lines;
    for (int64_t i = 0; i < lines; ++i, to += 64, from += 64) {
        __m128i v[4];
        for (int k = 0; k < 4; ++k) v[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + k);
        for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + k, v[k]);
    }
    _mm_sfence();  // before this rank says that it is done
#endif
    std::memcpy(to, from, size_t(bytes));
}

void copy_piece(char* to, const char* from, int64_t bytes, bool past) {
    past ? copy_past_caches(to, from, bytes) : void(std::memcpy(to, from, size_t(bytes)));
}

// Bytes that no Buffer counts.
class Counted {
   public:
    Counted() = default;
    Counted(Device device, DeviceKind where, int64_t bytes) {
        if (!device.context) return;
        device.context->memory.add(where, MemKind::comm, bytes);
        counted_ = {device.context, [where, bytes](RankContext* c) { c->memory.remove(where, MemKind::comm, bytes); }};
    }

   private:
    std::shared_ptr<RankContext> counted_;
};

class Symmetric : public Collectives {
   public:
    Symmetric(Transport& transport, const CollectiveOptions& options, Mapping mapping)
        : Collectives(transport, options), pinned_(mapping == Mapping::pinned), gpu_(on_gpu(transport.device())) {
        // On the CPU both halves of all ranks, so that they stay in a shared cache; on a GPU so long that a piece takes
        // longer than the messages before and after it.
        const int64_t most = pinned_ ? kPinnedPiece : gpu_ ? kGpuPiece : int64_t(1) << 20;
        half_ = round_up(std::max<int64_t>(64 << 10, std::min<int64_t>(options.chunk_bytes, most)), 4096);
        if (gpu_ && !transport_.waits_on_host())
            phases_ = std::make_unique<PhasesByMessages>(transport_);
        else
            phases_ = std::make_unique<PhasesInMemory>(transport_);
        staging_ = transport_.share(2 * half_, Alloc::per_rank);
        if (gpu_) counted_ = {transport_.device(), pinned_ ? DeviceKind::cpu : transport_.device().kind, 2 * half_};
    }
    const char* name() const override { return "symmetric"; }
    std::string through() const override {
        if (pinned_) return "through pinned memory of the host: " + transport_.mapping_note();
        return gpu_ ? "by memory that all GPUs map" : "";
    }

    // GPUs read their parameters from memory of their own: what all had in common would cross a link at every use.
    SharedMemory* allocate(int64_t bytes, Alloc how) override {
        if (pinned_) return nullptr;
        windows_.push_back(transport_.share(bytes, gpu_ ? Alloc::per_rank : how));
        return windows_.back().get();
    }

   protected:
    bool uses_transport() const override { return false; }
    bool gather_moves(const void* out, int64_t bytes) const override {
        const SharedMemory* window = window_of(out, bytes);
        return !window || window->stride() != 0;
    }
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;
    void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override;
    bool brings_own_slice(const AllGather& a) const override {
        const SharedMemory* window = window_of(a.out, a.offsets.back() * size_of(a.dtype));
        return window && pushes(*window);
    }

   private:
    static constexpr int64_t kGpuPiece = int64_t(16) << 20, kPinnedPiece = int64_t(2) << 20;

    void publish(Stream& stream, uint64_t n) { phases_->publish(stream, n, hop().seq); }
    void await(Stream& stream, uint64_t n) { phases_->await(stream, n, hop().seq); }

    // The memory from allocate() that holds data[0..bytes), or nullptr.
    const SharedMemory* window_of(const void* data, int64_t bytes) const;
    static char* at(const SharedMemory& window, int r, const void* own, int rank) {
        return window.part(r) + (static_cast<const char*>(own) - window.part(rank));
    }

    void reduce(Stream& stream, const ReduceScatter& a);
    void reduce_in_place(Stream& stream, const ReduceScatter& a, const SharedMemory& window);
    void reduce_staged(Stream& stream, const ReduceScatter& a);
    void reduce_to_all(Stream& stream, const AllReduce& a, const SharedMemory& in, const SharedMemory& out);
    struct Gathered {  // of any type; this rank's slice comes from `in`
        void* out;
        const void* in;
        Offsets offsets;
        int64_t element;
    };
    // True: ranks write into each other's memory instead of reading from it: threads of the host do either.
    bool pushes(const SharedMemory& window) const {
        return transport_.device().kind == DeviceKind::cpu && window.stride() != 0;
    }
    void gather(Stream& stream, const Gathered& a);
    void push(Stream& stream, const Gathered& a, const SharedMemory& window);
    bool past_caches(int64_t whole) const { return whole * size() >= kPastCaches; }
    void place(Stream& stream, void* to, const void* from, int64_t bytes, int64_t whole) const;
    void gather_staged(Stream& stream, void* out, Offsets offsets, int64_t element);

    bool pinned_, gpu_;
    int64_t half_;
    std::unique_ptr<Phases> phases_;
    std::unique_ptr<SharedMemory> staging_;
    Counted counted_;
    std::vector<std::unique_ptr<SharedMemory>> windows_;
    uint64_t issued_ = 0;  // phases that the calls so far take
};

const SharedMemory* Symmetric::window_of(const void* data, int64_t bytes) const {
    const char* first = static_cast<const char*>(data);
    for (const auto& w : windows_)
        if (first >= w->part(rank()) && first + bytes <= w->part(rank()) + w->bytes()) return w.get();
    return nullptr;
}

// ---- reduce-scatter -------------------------------------------------------------------------------------------------

// Phase 1: the values are there. Phase 2: this rank's slice is summed, so the others' values may change.
void Symmetric::reduce_in_place(Stream& stream, const ReduceScatter& a, const SharedMemory& window) {
    const int64_t own = count(a.offsets, rank()), element = size_of(a.dtype);
    const char* values = static_cast<const char*>(a.in) + offset(a.offsets, rank()) * element;
    publish(stream, issued_ + 1);
    await(stream, issued_ + 1);
    for (int d = 1; d < size(); ++d) transport_.reads(stream, wrap(rank() + d), own * element);
    sum_rows(stream, {.out = a.out,
                      .x = at(window, 0, values, rank()),
                      .rows = size(),
                      .n = own,
                      .stride = window.stride() / element,
                      .scale = a.scale,
                      .out_dtype = a.out_dtype,
                      .dtype = a.dtype});
    publish(stream, issued_ += 2);
}

// A piece of every slice at a time, each rank's in its half; two phases a piece. Piece c may be written when all have
// read piece c - 2.
void Symmetric::reduce_staged(Stream& stream, const ReduceScatter& a) {
    const int64_t wire = size_of(a.wire), own = offset(a.offsets, rank());
    const int64_t piece = std::max<int64_t>(64, half_ / (size() * wire) / 64 * 64), row = piece * wire;
    require(row * size() <= half_, "symmetric collectives of %d ranks: their staging has %lld bytes", size(),
            (long long)half_);
    const int64_t pieces = std::max<int64_t>(1, ceil_div(longest(a.offsets), piece));
    char* rows = pinned_ ? static_cast<char*>(scratch(stream, half_)) : nullptr;
    for (int64_t c = 0; c < pieces; ++c) {
        const int64_t half = (c % 2) * half_;
        char* mine = staging_->part(rank()) + half;
        if (c >= 2) await(stream, issued_ + 2 * uint64_t(c - 1));
        for (int r = 0; r < size(); ++r) {
            const auto [begin, n] = part(a.offsets, piece, c, r);
            scale_into(stream, (pinned_ ? rows : mine) + r * row, a.wire,
                       static_cast<const char*>(a.in) + begin * size_of(a.dtype), a.dtype, n, 1);
            if (pinned_ && r != rank()) stream.copy(mine + r * row, rows + r * row, n * wire);
        }
        publish(stream, issued_ + 2 * uint64_t(c) + 1);
        await(stream, issued_ + 2 * uint64_t(c) + 1);
        const auto [begin, n] = part(a.offsets, piece, c, rank());
        for (int d = 1; d < size(); ++d) {
            const int from = wrap(rank() + d);
            transport_.reads(stream, from, n * wire);
            if (pinned_) stream.copy(rows + from * row, staging_->part(from) + half + rank() * row, n * wire);
        }
        sum_rows(stream, {.out = static_cast<char*>(a.out) + (begin - own) * size_of(a.out_dtype),
                          .x = pinned_ ? rows : staging_->part(0) + half + rank() * row,
                          .rows = size(),
                          .n = n,
                          .stride = pinned_ ? piece : staging_->stride() / wire,
                          .scale = a.scale,
                          .out_dtype = a.out_dtype,
                          .dtype = a.wire});
        publish(stream, issued_ + 2 * uint64_t(c) + 2);
    }
    issued_ += 2 * uint64_t(pieces);
}

void Symmetric::reduce(Stream& stream, const ReduceScatter& a) {
    await(stream, issued_);  // the memory of the call before is free
    const SharedMemory* window = a.wire == a.dtype ? window_of(a.in, a.offsets.back() * size_of(a.dtype)) : nullptr;
    window ? reduce_in_place(stream, a, *window) : reduce_staged(stream, a);
}

void Symmetric::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    reduce(stream, a);
    await(stream, issued_);  // nobody reads this rank's values any more
}

// ---- all-gather -----------------------------------------------------------------------------------------------------

// In stream order, to its place in a range of `whole` bytes.
void Symmetric::place(Stream& stream, void* to, const void* from, int64_t bytes, int64_t whole) const {
    if (!past_caches(whole) || stream.device().kind != DeviceKind::cpu) return stream.copy(to, from, bytes);
    stream.enqueue_host([=] { copy_past_caches(static_cast<char*>(to), static_cast<const char*>(from), bytes); });
}

// On the CPU: each rank puts its slice where every rank wants it, this one too, a piece at a time that stays in its
// cache. So memory is read once, and not by every rank.
void Symmetric::push(Stream& stream, const Gathered& a, const SharedMemory& window) {
    const int64_t bytes = count(a.offsets, rank()) * a.element;
    const char* in = static_cast<const char*>(a.in);
    char* out = static_cast<char*>(a.out) + offset(a.offsets, rank()) * a.element;
    publish(stream, issued_ + 1);
    await(stream, issued_ + 1);
    stream.enqueue_host([this, in, out, bytes, past = past_caches(a.offsets.back() * a.element), &window] {
        for (int64_t begin = 0; begin < bytes; begin += kPushPiece) {
            const int64_t n = std::min(kPushPiece, bytes - begin);
            for (int d = in == out; d < size(); ++d)
                copy_piece(at(window, wrap(rank() + d), out + begin, rank()), in + begin, n, past);
        }
    });
    publish(stream, issued_ += 2);
}

// The slice lies in place unless brings_own_slice().
void Symmetric::gather(Stream& stream, const Gathered& a) {
    const SharedMemory* window = window_of(a.out, a.offsets.back() * a.element);
    if (!window) return gather_staged(stream, a.out, a.offsets, a.element);
    if (pushes(*window)) return push(stream, a, *window);
    publish(stream, issued_ + 1);
    for (int d = 1; d < size(); ++d) {  // rank + d: no two ranks read from the same one at once
        const int from = wrap(rank() + d);
        const int64_t bytes = count(a.offsets, from) * a.element;
        char* to = static_cast<char*>(a.out) + offset(a.offsets, from) * a.element;
        phases_->await_one(stream, from, issued_ + 1, hop().seq);
        if (window->stride() == 0) continue;  // the owner's bytes are this rank's
        transport_.reads(stream, from, bytes);
        stream.copy(to, at(*window, from, to, rank()), bytes);
    }
    publish(stream, issued_ += 2);
}

void Symmetric::gather_staged(Stream& stream, void* out, Offsets offsets, int64_t element) {
    const int64_t piece = half_ / element, pieces = std::max<int64_t>(1, ceil_div(longest(offsets), piece));
    for (int64_t c = 0; c < pieces; ++c) {
        const int64_t half = (c % 2) * half_;
        if (c >= 2) await(stream, issued_ + 2 * uint64_t(c - 1));
        const auto [begin, n] = part(offsets, piece, c, rank());
        stream.copy(staging_->part(rank()) + half, static_cast<char*>(out) + begin * element, n * element);
        publish(stream, issued_ + 2 * uint64_t(c) + 1);
        for (int d = 1; d < size(); ++d) {
            const int from = wrap(rank() + d);
            const auto [begin, n] = part(offsets, piece, c, from);
            phases_->await_one(stream, from, issued_ + 2 * uint64_t(c) + 1, hop().seq);
            transport_.reads(stream, from, n * element);
            place(stream, static_cast<char*>(out) + begin * element, staging_->part(from) + half, n * element,
                  offsets.back() * element);
        }
        publish(stream, issued_ + 2 * uint64_t(c) + 2);
    }
    issued_ += 2 * uint64_t(pieces);
}

void Symmetric::do_all_gather(Stream& stream, const AllGather& a) {
    await(stream, issued_);
    gather(stream, {.out = a.out, .in = a.in, .offsets = a.offsets, .element = size_of(a.dtype)});
    await(stream, issued_);
}

// On the CPU, of buffers that all map: each rank puts the sums of its slice where every rank wants them, a piece at a
// time that is still in its cache. The others need not read them, and wait once less. Nobody else reads the values
// that they overwrite where the call is in place.
void Symmetric::reduce_to_all(Stream& stream, const AllReduce& a, const SharedMemory& in, const SharedMemory& out) {
    const int64_t element = size_of(a.dtype), first = offset(a.offsets, rank()) * element;
    SumRows sum{.out = static_cast<char*>(a.out) + first,
                .x = at(in, 0, static_cast<const char*>(a.in) + first, rank()),
                .rows = size(),
                .n = count(a.offsets, rank()),
                .stride = in.stride() / element,
                .scale = a.scale,
                .out_dtype = a.dtype,
                .dtype = a.dtype};
    // In place the lines that it writes are those that it has just read.
    const bool past = a.in != a.out && past_caches(a.offsets.back() * element);
    publish(stream, issued_ + 1);
    await(stream, issued_ + 1);
    stream.enqueue_host([this, sum, element, past, &out] {
        const int64_t piece = kPushPiece / element;
        for (int64_t begin = 0; begin < sum.n; begin += piece) {
            SumRows part = sum;
            part.n = std::min(piece, sum.n - begin);
            part.x = static_cast<const char*>(sum.x) + begin * element;
            char* own = static_cast<char*>(sum.out) + begin * element;
            part.out = own;
            sum_rows_cpu(part);
            for (int d = 1; d < size(); ++d)
                copy_piece(at(out, wrap(rank() + d), own, rank()), own, part.n * element, past);
        }
    });
    publish(stream, issued_ += 2);
}

// A slice may be gathered from a rank as soon as that rank has summed it: it has then read this rank's values of it.
void Symmetric::do_all_reduce(Stream& stream, const AllReduce& a) {
    const int64_t bytes = a.offsets.back() * size_of(a.dtype);
    const SharedMemory *in = window_of(a.in, bytes), *out = window_of(a.out, bytes);
    if (in && out && a.wire == a.dtype && pushes(*out)) {
        await(stream, issued_);
        reduce_to_all(stream, a, *in, *out);
        await(stream, issued_);
        return;
    }
    reduce(stream, first_half(a));
    await(stream, issued_);
    const char* sums = static_cast<char*>(a.out) + offset(a.offsets, rank()) * size_of(a.dtype);
    gather(stream, {.out = a.out, .in = sums, .offsets = a.offsets, .element = size_of(a.dtype)});
    await(stream, issued_);
}

void Symmetric::do_broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    std::vector<int64_t> offsets(size_t(size()) + 1, 0);  // all of it is the root's slice
    for (int r = root; r < size(); ++r) offsets[size_t(r) + 1] = bytes;
    await(stream, issued_);
    const char* own = static_cast<char*>(data) + offset(offsets, rank());
    gather(stream, {.out = data, .in = own, .offsets = offsets, .element = 1});
    await(stream, issued_);
}

}  // namespace

std::unique_ptr<Collectives> make_symmetric(Transport& transport, const CollectiveOptions& options) {
    const Mapping mapping = transport.mapping();
    require_request(mapping != Mapping::none,
                    "--collectives symmetric: ranks over %s do not map each other's memory\n  nearest: ring or direct",
                    transport.name());
    return std::make_unique<Symmetric>(transport, options, mapping);
}

}  // namespace rz
