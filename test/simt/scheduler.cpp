// Launches, the threads of the resident blocks, and the seeded choice of who runs next.
#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <map>
#include <numeric>

#include "test/simt/fake_device.h"
#include "test/simt/runtime.h"

namespace simt {

Fiber* current = nullptr;
const uint3* current_thread_idx = nullptr;
Launch current_launch{dim3(), dim3(), 0, nullptr, Site()};
const RaceHooks* race = nullptr;

namespace {

// Splitmix64.
struct Rng {
    uint64_t state = 1;
    void seed(uint64_t x) { state = (x + 1) * 0x9E3779B97F4A7C15ull, next(), next(); }
    uint64_t next() {
        uint64_t z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t n) { return uint32_t((next() & 0xffffffff) * n >> 32); }
};

// Never destroyed: see stack.cpp.
auto& blocks = *new std::vector<Block>;
auto& fibers = *new std::vector<Fiber>;
auto& ready = *new std::vector<Fiber*>;  // a heap under the priority policies
struct InFlight {
    Block* block;  // of the thread that began it
    std::function<void()> operation;
};
auto& in_flight = *new std::vector<InFlight>;
auto& error = *new std::string;
size_t ready_head = 0;  // of the queue, under in_order
uint32_t n_blocks = 0, n_live = 0;
uint64_t spins = 0;
bool failed = false;
Policy policy;
Rng rng;
const std::function<void()>* body;
Stats counters{};

constexpr uint64_t kMaxSpins = 2'000'000;

bool by_priority() { return policy == Policy::thread_priority || policy == Policy::warp_priority; }
bool lower(const Fiber* a, const Fiber* b) { return a->priority < b->priority; }
size_t ready_count() { return ready.size() - ready_head; }

Fiber* pop_ready() {
    Fiber* f;
    if (policy == Policy::in_order) {
        f = ready[ready_head++];
        if (ready_head == ready.size()) ready.clear(), ready_head = 0;
    } else if (policy == Policy::reverse) {
        f = ready.back();
        ready.pop_back();
    } else if (by_priority()) {
        std::pop_heap(ready.begin(), ready.end(), lower);
        f = ready.back();
        ready.pop_back();
        if ((rng.next() & 63) == 0) f->priority = uint32_t(rng.next()) >> 1 | 1;
    } else {
        const size_t i = rng.below(uint32_t(ready.size()));
        f = ready[i];
        ready[i] = ready.back();
        ready.pop_back();
    }
    return f;
}

void run_one_async() {
    const size_t i = rng.below(uint32_t(in_flight.size()));
    const InFlight one = std::move(in_flight[i]);
    in_flight.erase(in_flight.begin() + long(i));
    if (n_blocks > 1) switch_static_shared(one.block);  // where its mbarrier may be
    one.operation();
}

std::string describe(const Fiber* f) {
    char text[160];
    snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", f->block->index.x, f->block->index.y,
             f->block->index.z, f->tid.x, f->tid.y, f->tid.z);
    return text;
}

std::string deadlock_report() {
    struct Waiting {
        int threads = 0;
        std::string examples;
    };
    std::map<std::string, Waiting> by_place;
    int returned = 0;
    for (const Fiber& f : fibers) {
        if (!f.block || f.block->slot >= n_blocks) continue;
        if (f.state == State::done) {
            returned++;
            continue;
        }
        Waiting& w = by_place[std::string(f.op) + " at " + where(f.at)];
        if (++w.threads <= 3) w.examples += (w.threads > 1 ? ", t" : "t") + std::to_string(f.linear);
        if (w.threads == 4) w.examples += ", ...";
    }
    std::string s = "deadlock, no thread can run:";
    for (const auto& [place, w] : by_place)
        s += "\n  " + std::to_string(w.threads) + " threads wait in " + place + " (" + w.examples + ")";
    if (returned) s += "\n  " + std::to_string(returned) + " threads have returned";
    return s;
}

Fiber* next_fiber() {
    if (failed) return nullptr;
    while (!in_flight.empty() && (ready_count() == 0 || (rng.next() & 15) == 0)) {
        run_one_async();
        if (failed) return nullptr;
    }
    if (ready_count()) return pop_ready();
    if (n_live) note_failure(deadlock_report());
    return nullptr;
}

void enter(Fiber* f) {
    current = f;
    current_thread_idx = &f->tid;
    f->state = State::running;
    if (n_blocks > 1) switch_static_shared(f->block);
}

void leave_to_main(Stack* from) {
    current = nullptr;
    switch_stack(from, main_stack());
    abort();  // a stack that was left this way is rebuilt, not continued
}

}  // namespace

Stats& stats() { return counters; }
const std::string& last_error() { return error; }
void clear_error() { error.clear(); }
std::vector<Block>& resident_blocks() { return blocks; }
uint32_t resident_count() { return n_blocks; }
uint32_t warps_per_block() {
    const dim3& b = current_launch.block;
    return (b.x * b.y * b.z + 31) / 32;
}
uint64_t random_bits() { return rng.next(); }
uint32_t random_below(uint32_t n) { return rng.below(n); }
bool land_late() {
    counters.async_ops++;
    return options().late_async && rng.next() >> 63;
}
void add_async(std::function<void()> operation) { in_flight.push_back({current->block, std::move(operation)}); }
void progress() { spins = 0; }
uint3 block_idx() { return current->block->index; }
unsigned char* dyn_smem() { return current->block->smem; }
uint32_t lane_id() { return current->lane; }

const char* name_of(Policy p) {
    constexpr const char* names[] = {"in-order", "reverse", "random", "thread-priority", "warp-priority", "mix"};
    return names[int(p)];
}

Options& options() {
    static Options o = [] {
        Options x;
        if (const char* s = getenv("SIMT_SEED")) x.seed = strtoull(s, nullptr, 0);
        if (const char* s = getenv("SIMT_POLICY")) {
            int i = 0;
            while (i < 6 && strcmp(s, name_of(Policy(i)))) i++;
            if (i == 6) fprintf(stderr, "simt: SIMT_POLICY=%s is not a policy (see test/simt/control.h)\n", s), exit(2);
            x.policy = Policy(i);
        }
        return x;
    }();
    return o;
}

std::string where(Site at) {
    const char* slash = strrchr(at.file_name(), '/');
    return std::string(slash ? slash + 1 : at.file_name()) + ":" + std::to_string(at.line());
}

void note_failure(const std::string& text) {
    if (failed) return;
    failed = true;
    error = kernel_name(current_launch.kernel) + ": " + text + " [launched at " + where(current_launch.at) + ", seed " +
            std::to_string(options().seed) + ", policy " + name_of(policy) + "]";
}

void fail(const char* fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!current) fprintf(stderr, "simt: %s (outside a kernel)\n", text), abort();
    note_failure(describe(current) + ": " + text);
    leave_to_main(current->stack);
    abort();
}

void make_ready(Fiber* f) {
    f->state = State::ready;
    ready.push_back(f);
    if (by_priority()) std::push_heap(ready.begin(), ready.end(), lower);
}

void reschedule() {
    Fiber* const f = current;
    Stack* const from = f->stack;
    Fiber* const next = next_fiber();
    if (!next) leave_to_main(from);
    if (!next->stack) next->stack = take_stack();
    enter(next);
    if (next != f) switch_stack(from, next->stack);
}

void spin(Site at) {
    if (++spins > kMaxSpins) fail("livelock: the loop around %s makes no progress", where(at).c_str());
    Fiber* f = current;
    f->op = "spin loop", f->at = at;
    f->priority = 0;  // and below, last out: or it would keep the others from running
    f->state = State::ready;
    if (policy == Policy::reverse)
        ready.insert(ready.begin(), f);
    else
        make_ready(f);
    reschedule();
}

// A finished thread starts the next one on its own stack, so kernels without barriers switch no stacks.
void fiber_main(Stack* s) {
    for (;;) {
        current->stack = s;
        (*body)();
        current->state = State::done;
        n_live--;
        progress();
        check_exit(current);
        Fiber* next = next_fiber();
        if (next) enter(next);
        if (next && !next->stack) continue;
        return_stack(s);
        if (!next) current = nullptr;
        switch_stack(s, next ? next->stack : main_stack());
        // continued: someone took this stack for a thread that had not started
    }
}

namespace {

void init_fiber(Fiber& f, Block& b, uint32_t t, uint32_t warp_priority) {
    const dim3& d = current_launch.block;
    f.tid = d.y == 1 && d.z == 1 ? uint3{t, 0, 0} : uint3{t % d.x, t / d.x % d.y, t / (d.x * d.y)};
    f.lane = t & 31, f.linear = t;
    f.warp = &b.warps[t >> 5], f.block = &b, f.stack = nullptr;
    f.warp->lane[f.lane] = &f;
    f.warp->live |= 1u << f.lane;
    f.priority =
        policy == Policy::warp_priority ? warp_priority | uint32_t(rng.next() & 1023) : uint32_t(rng.next()) >> 1 | 1;
    f.op = "a thread that has not started", f.at = current_launch.at;
    f.copies = {};
}

void init_block(Block& b, uint3 index, uint32_t slot, uint32_t n_threads, int poison_kind) {
    b.index = index, b.slot = slot;
    b.threads = b.live = n_threads;
    for (Barrier& z : b.barriers) z.waiters.clear(), z.arrived = z.expected = 0;
    b.mbar_waiters.clear(), b.wgmma.clear(), b.warpgroups.clear();
    allocate_smem(b, current_launch.smem);
    poison(b.smem, b.smem_bytes, poison_kind);
    b.warps.resize(warps_per_block());
    for (uint32_t w = 0; w < b.warps.size(); w++)
        b.warps[w].waiting = b.warps[w].live = 0, b.warps[w].id = w, b.warps[w].block = &b;
    uint32_t warp_priority = 0;
    for (uint32_t t = 0; t < n_threads; t++) {
        if (t % 32 == 0) warp_priority = uint32_t(rng.next()) >> 11 << 10;
        init_fiber(fibers[size_t(slot) * n_threads + t], b, t, warp_priority);
    }
}

// Runs one block, or several together: as many as options().resident says.
void run_group(const uint3* indices, uint32_t count) {
    const dim3& d = current_launch.block;
    const uint32_t n_threads = d.x * d.y * d.z;
    n_blocks = count;
    if (blocks.size() < count) blocks.resize(count);
    if (fibers.size() < size_t(count) * n_threads) fibers.resize(size_t(count) * n_threads);
    ready.clear(), ready_head = 0, in_flight.clear();
    policy = options().policy == Policy::mix ? Policy(rng.below(5)) : options().policy;
    const int poison_kind = int(rng.next() & 1);
    n_live = count * n_threads;
    for (uint32_t b = 0; b < count; b++) init_block(blocks[b], indices[b], b, n_threads, poison_kind);
    for (size_t i = size_t(count) * n_threads; i < fibers.size(); i++) fibers[i].block = nullptr;
    if (count > 1)
        prepare_resident_shared(poison_kind);
    else
        poison_static_shared(poison_kind);
    for (uint32_t i = 0; i < n_live; i++) make_ready(&fibers[i]);
    counters.blocks += count;
    counters.threads += n_live;
    if (race) race->begin_group();

    Fiber* first = next_fiber();
    first->stack = take_stack();
    enter(first);
    switch_stack(main_stack(), first->stack);
    current = nullptr;
    for (uint32_t b = 0; b < count && !failed; b++) check_warpgroups(blocks[b]);
    while (!failed && !in_flight.empty()) run_one_async();  // stores that the last thread left
    if (failed) rebuild_stacks();
}

cudaError_t run(const Launch& l, const std::function<void()>& thread_body) {
    const auto start = std::chrono::steady_clock::now();
    failed = false;
    spins = 0;
    current_launch = l;
    body = &thread_body;
    rng.seed(options().seed * 1'000'003 + counters.launches++);
    count_launch(l);
    save_static_shared();
    if (race) race->begin_launch();

    std::vector<uint3> indices;
    indices.reserve(size_t(l.grid.x) * l.grid.y * l.grid.z);
    for (uint32_t z = 0; z < l.grid.z; z++)
        for (uint32_t y = 0; y < l.grid.y; y++)
            for (uint32_t x = 0; x < l.grid.x; x++) indices.push_back({x, y, z});
    std::vector<uint32_t> order(indices.size());
    std::iota(order.begin(), order.end(), 0);
    if (options().policy != Policy::in_order)
        for (uint32_t i = uint32_t(order.size()); i > 1; i--) std::swap(order[i - 1], order[rng.below(i)]);
    const size_t together = std::max(1u, options().resident);
    std::vector<uint3> group;
    for (size_t first = 0; first < order.size() && !failed; first += together) {
        group.clear();
        for (size_t i = first; i < std::min(order.size(), first + together); i++) group.push_back(indices[order[i]]);
        run_group(group.data(), uint32_t(group.size()));
    }

    restore_static_shared();
    counters.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!failed) return cudaSuccess;
    fprintf(stderr, "simt: %s\n", error.c_str());
    return cudaErrorLaunchFailure;
}

}  // namespace

// fake_cudart.cpp
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
bool is_of_current_device(cudaStream_t stream);
void first_use(const void* kernel);

cudaError_t launch(cudaStream_t stream, const Launch& l, std::function<void()> thread_body) {
    int most_smem = 0;  // what a launch may ask for
    cudaDeviceGetAttribute(&most_smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device());
    const uint64_t threads = uint64_t(l.block.x) * l.block.y * l.block.z;
    const bool valid = threads >= 1 && threads <= 1024 && l.block.z <= 64 && l.grid.x >= 1 && l.grid.y >= 1 &&
                       l.grid.z >= 1 && l.grid.x <= 0x7fffffff && l.grid.y <= 65535 && l.grid.z <= 65535 &&
                       l.smem <= size_t(most_smem);
    if (!valid) return cudaErrorInvalidConfiguration;
    if (!is_of_current_device(stream)) return cudaErrorInvalidResourceHandle;
    first_use(l.kernel);
    return enqueue(stream, [l, body = std::move(thread_body)] { return run(l, body); });
}

}  // namespace simt

#if defined(__SANITIZE_ADDRESS__)
// Names the CUDA thread under every ASan report.
extern "C" void __asan_on_error() {
    using namespace simt;
    if (current)
        fprintf(stderr, "simt: in %s, %s, launched at %s, seed %llu\n", kernel_name(current_launch.kernel).c_str(),
                describe(current).c_str(), where(current_launch.at).c_str(), (unsigned long long)options().seed);
}
#endif
