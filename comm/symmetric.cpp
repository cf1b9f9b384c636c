// Collectives over memory that all ranks of the group map: no messages, and no copy but the one that moves the data.
//
//   all_gather      every rank copies the others' slices out of their memory
//   reduce_scatter  every rank loads its slice from all, in ascending rank order, adds in fp32 and rounds once: the
//   bits
//                   of `direct` exactly
//
// Where the buffer of a call lies in memory that Collectives::allocate gave, ranks read it where it is. Any other goes
// through a staging area in two halves, a piece at a time, so that a piece is still in cache when it is read.
//
// Each rank counts phases in shared memory: it publishes that its values are there, then that it has read those of the
// others, and waits for the same numbers of all. Numbers only grow, so no flag is ever reset. Waits yield the core and
// end at the deadline.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <new>

#include "comm/collectives.h"
#include "comm/deadline.h"
#include "comm/host.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"

namespace rz {

namespace {

constexpr int64_t kLine = 128;  // two cache lines: neighbours are fetched together

class Symmetric : public Collectives {
   public:
    Symmetric(Transport& transport, const CollectiveOptions& options) : Collectives(transport, options) {
        // Both halves of all ranks, so that they stay in a shared cache.
        half_ = round_up(std::max<int64_t>(64 << 10, std::min<int64_t>(options.chunk_bytes, 1 << 20)), 4096);
        control_ = transport_.share(kLine, Shares::each);
        staging_ = transport_.share(2 * half_, Shares::each);
    }
    const char* name() const override { return "symmetric"; }

    SharedMemory* allocate(int64_t bytes, Shares how) override {
        windows_.push_back(transport_.share(bytes, how));
        return windows_.back().get();
    }

   protected:
    bool uses_transport() const override { return false; }
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;
    void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override;

   private:
    std::atomic<uint64_t>& phase(int r) const {
        return *std::launder(reinterpret_cast<std::atomic<uint64_t>*>(control_->part(r)));
    }
    // In stream order: this rank has come to phase `n`; all others have.
    void publish(Stream& stream, uint64_t n);
    void await(Stream& stream, uint64_t n);
    void wait_for(int r, uint64_t n, uint64_t seq) const;

    // The memory from allocate() that holds data[0..bytes), or nullptr.
    const SharedMemory* window_of(const void* data, int64_t bytes) const;
    static char* at(const SharedMemory& window, int r, const void* own, int rank) {
        return window.part(r) + (static_cast<const char*>(own) - window.part(rank));
    }

    void reduce(Stream& stream, const ReduceScatter& a);
    void reduce_in_place(Stream& stream, const ReduceScatter& a, const SharedMemory& window);
    void reduce_staged(Stream& stream, const ReduceScatter& a);
    void gather(Stream& stream, void* out, Offsets offsets, int64_t element);

    int64_t half_;
    std::unique_ptr<SharedMemory> control_, staging_;
    std::vector<std::unique_ptr<SharedMemory>> windows_;
    uint64_t issued_ = 0;  // phases that the calls so far take
};

void Symmetric::wait_for(int r, uint64_t n, uint64_t seq) const {
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
            format("waited %.1f s (the deadline) in operation #%llu of group %s for rank %d in shared memory", waited,
                   (unsigned long long)seq, transport_.group().c_str(), transport_.world_rank(r));
        if (!transport_.watch()) throw DeadlineError(what);
        transport_.watch()->expired(what);
    }
}

void Symmetric::publish(Stream& stream, uint64_t n) {
    stream.enqueue_host([this, n] { phase(rank()).store(n, std::memory_order_release); });
}

void Symmetric::await(Stream& stream, uint64_t n) {
    stream.enqueue_host([this, n, seq = hop().seq] {
        for (int d = 1; d < size(); ++d) wait_for(wrap(rank() + d), n, seq);
    });
}

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
    const int64_t wire = size_of(a.wire);
    int64_t longest = 0;
    for (int r = 0; r < size(); ++r) longest = std::max(longest, count(a.offsets, r));
    const int64_t piece = std::max<int64_t>(64, half_ / (size() * wire) / 64 * 64);
    require(piece * wire * size() <= half_, "symmetric collectives of %d ranks: their staging has %lld bytes", size(),
            (long long)half_);
    const int64_t pieces = std::max<int64_t>(1, ceil_div(longest, piece));
    const auto part = [&](int64_t c, int r) {
        const int64_t end = offset(a.offsets, r + 1), begin = std::min(offset(a.offsets, r) + c * piece, end);
        return std::pair(begin, std::min(piece, end - begin));
    };
    for (int64_t c = 0; c < pieces; ++c) {
        char* half = staging_->part(rank()) + (c % 2) * half_;
        if (c >= 2) await(stream, issued_ + 2 * uint64_t(c - 1));
        for (int r = 0; r < size(); ++r) {
            const auto [begin, n] = part(c, r);
            scale_into(stream, half + r * piece * wire, a.wire,
                       static_cast<const char*>(a.in) + begin * size_of(a.dtype), a.dtype, n, 1);
        }
        publish(stream, issued_ + 2 * uint64_t(c) + 1);
        await(stream, issued_ + 2 * uint64_t(c) + 1);
        const auto [begin, n] = part(c, rank());
        sum_rows(stream, {.out = static_cast<char*>(a.out) + (begin - offset(a.offsets, rank())) * size_of(a.out_dtype),
                          .x = staging_->part(0) + (c % 2) * half_ + rank() * piece * wire,
                          .rows = size(),
                          .n = n,
                          .stride = staging_->stride() / wire,
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
    mark_done(stream);
}

// ---- all-gather -----------------------------------------------------------------------------------------------------

// This rank's slice lies in place.
void Symmetric::gather(Stream& stream, void* out, Offsets offsets, int64_t element) {
    if (const SharedMemory* window = window_of(out, offsets.back() * element)) {
        publish(stream, issued_ + 1);
        for (int d = 1; d < size(); ++d) {  // rank + d: no two ranks read from the same one at once
            const int from = wrap(rank() + d);
            char* to = static_cast<char*>(out) + offset(offsets, from) * element;
            stream.enqueue_host([this, from, n = issued_ + 1, seq = hop().seq] { wait_for(from, n, seq); });
            if (window->stride() != 0)  // else the owner's bytes are this rank's
                stream.copy(to, at(*window, from, to, rank()), count(offsets, from) * element);
        }
        publish(stream, issued_ += 2);
        return;
    }
    int64_t longest = 0;
    for (int r = 0; r < size(); ++r) longest = std::max(longest, count(offsets, r));
    const int64_t piece = half_ / element, pieces = std::max<int64_t>(1, ceil_div(longest, piece));
    const auto part = [&](int64_t c, int r) {
        const int64_t end = offset(offsets, r + 1), begin = std::min(offset(offsets, r) + c * piece, end);
        return std::pair(begin, std::min(piece, end - begin));
    };
    for (int64_t c = 0; c < pieces; ++c) {
        if (c >= 2) await(stream, issued_ + 2 * uint64_t(c - 1));
        const auto [begin, n] = part(c, rank());
        stream.copy(staging_->part(rank()) + (c % 2) * half_, static_cast<char*>(out) + begin * element, n * element);
        publish(stream, issued_ + 2 * uint64_t(c) + 1);
        for (int d = 1; d < size(); ++d) {
            const int from = wrap(rank() + d);
            const auto [begin, n] = part(c, from);
            stream.enqueue_host(
                [this, from, at = issued_ + 2 * uint64_t(c) + 1, seq = hop().seq] { wait_for(from, at, seq); });
            stream.copy(static_cast<char*>(out) + begin * element, staging_->part(from) + (c % 2) * half_, n * element);
        }
        publish(stream, issued_ + 2 * uint64_t(c) + 2);
    }
    issued_ += 2 * uint64_t(pieces);
}

void Symmetric::do_all_gather(Stream& stream, const AllGather& a) {
    await(stream, issued_);
    gather(stream, a.out, a.offsets, size_of(a.dtype));
    await(stream, issued_);
    mark_done(stream);
}

// A slice may be gathered from a rank as soon as that rank has summed it: it has then read this rank's values of it.
void Symmetric::do_all_reduce(Stream& stream, const AllReduce& a) {
    reduce(stream, first_half(a));
    await(stream, issued_);
    gather(stream, a.out, a.offsets, size_of(a.dtype));
    await(stream, issued_);
    mark_done(stream);
}

void Symmetric::do_broadcast(Stream& stream, void* data, int64_t bytes, int root) {
    std::vector<int64_t> offsets(size_t(size()) + 1, 0);  // all of it is the root's slice
    for (int r = root; r < size(); ++r) offsets[size_t(r) + 1] = bytes;
    await(stream, issued_);
    gather(stream, data, offsets, 1);
    await(stream, issued_);
    mark_done(stream);
}

}  // namespace

std::unique_ptr<Collectives> make_symmetric(Transport& transport, const CollectiveOptions& options) {
    require(!transport.device().is_cuda(),
            "--collectives symmetric: the memory of GPUs is not mapped\n  nearest: --collectives library or direct");
    require(transport.maps_memory(),
            "--collectives symmetric: ranks over %s do not map each other's memory\n  nearest: ring or direct",
            transport.name());
    return std::make_unique<Symmetric>(transport, options);
}

}  // namespace rz
