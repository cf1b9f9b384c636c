// The race build: kernels are compiled with -fsanitize=thread but not linked with it; the hooks that the compiler calls
// at every access are defined here, with CUDA's ordering rules. A happens-before check (as in FastTrack) on shared and
// global memory that does not depend on the schedule, and a check for reads of memory that was never written.
//
// Ordering comes from: block and named barriers, __syncwarp with the full mask, mbarrier arrive and wait, a
// __threadfence before an atomic that another block then performs. Shuffles and votes order nothing. Each warp has a
// clock that advances at each of these; row w, column x of `known` says which accesses of warp x come before whatever
// warp w does next. A copy that reports to an mbarrier has a column of its own.
#include <algorithm>
#include <map>
#include <unordered_map>

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/simt/runtime.h"

namespace simt {
namespace {

constexpr size_t kCellBytes = 2;             // two threads may write neighbouring bf16 values, not neighbouring bytes
constexpr uint32_t kAsyncColumns = 16;       // per block, dealt to its mbarriers
constexpr uint32_t kIdsPerBlock = 2048;      // 1024 threads, then the asynchronous columns
constexpr uint32_t kInFlight = 0xffffffffu;  // a clock that comes before nothing

template <class T>
T& forever() {
    return *new T;  // never destroyed: see stack.cpp
}

// Accesses up to clock `full` by all lanes, and up to `part` by those in `lanes`.
struct Known {
    uint32_t full = 0, part = 0, lanes = 0;
    bool covers(uint32_t clock, uint32_t lane) const {
        return clock <= full || (clock <= part && (lanes >> (lane & 31) & 1));
    }
    void join(const Known& o) {
        if (o.full > full) full = o.full;
        if (o.lanes) part = std::max(part, o.part), lanes |= o.lanes;
        if (part <= full) part = lanes = 0;
    }
};
using Row = std::vector<Known>;
void join(Row& to, const Row& from) {
    if (to.empty()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) to[i].join(from[i]);
}

struct Stamp {                              // who accessed, when, from where
    uint32_t who : 31 = 0, atomic : 1 = 0;  // who: 0 none, else index() + 1
    uint32_t index() const { return uint32_t(who) - 1; }
    uint32_t clock = 0, pc = 0;
};
// The state of kCellBytes bytes, or of an aligned run of 8, 4 or 2 such pieces that have always been accessed together:
// the run's first cell then stands for all. `split` says how long the run is: 8 >> split.
struct Cell {
    uint32_t epoch = 0;  // of the launch (global memory) or the group of blocks (shared memory)
    uint8_t split = 0;
    bool written = false;
    Stamp write, read, foreign_read;  // the foreign one by a block of an earlier group
    uint32_t readers = 0;             // concurrent readers: reader_sets[readers - 1], else just `read`
};
struct Readers {  // lanes of one warp that read at one clock
    Stamp first;
    uint32_t lanes;
};
struct Region {
    const char* begin;  // aligned to 16
    size_t bytes;
    bool shared;
    Cell* cells;
    size_t mapped;
};
struct SyncVariable {
    Row arrived, complete;
};
struct ThreadState {
    Row acquired;  // not yet shared with the rest of its warp
    bool fenced = false;
};

auto& global_regions = forever<std::map<const char*, Region*>>();
auto& smem_regions = forever<std::vector<Region>>();
auto& static_regions = forever<std::vector<Region>>();  // one address range, a shadow per resident block
Region* recent[4] = {};
auto& reader_sets = forever<std::vector<std::vector<Readers>>>();  // the first reader_sets_used are of this group
uint32_t reader_sets_used = 0;
auto& known = forever<std::vector<Row>>();
auto& clocks = forever<std::vector<uint32_t>>();  // by column
auto& variables = forever<std::unordered_map<const void*, SyncVariable>>();
auto& async_columns = forever<std::unordered_map<const void*, uint32_t>>();
auto& thread_states = forever<std::vector<ThreadState>>();
auto& published = forever<std::unordered_map<const void*, std::map<uint32_t, Row>>>();  // by atomics, per block
auto& block_acquired = forever<std::vector<std::map<uint32_t, Row>>>();                 // per resident block
uint32_t launch_epoch = 0, group_epoch = 0, first_serial = 0, next_serial = 0;
uintptr_t load_address = 0;

// Sizes of the launch that runs.
uint32_t n_warps = 0, n_resident = 0, stride = 0;
bool enabled = true;

uint32_t column_of(const Fiber* f) { return f->block->slot * stride + f->warp->id; }
uint32_t id_of(const Fiber* f) { return (first_serial + f->block->slot) * kIdsPerBlock + f->linear + 1; }
ThreadState& state_of(const Fiber* f) { return thread_states[f->block->slot * 1024 + f->linear]; }

// ---- places

auto& sites = forever<std::vector<Site>>();
uint32_t site_id(Site at) {
    static auto& ids = forever<std::map<std::pair<const char*, uint32_t>, uint32_t>>();
    auto [it, is_new] = ids.try_emplace({at.file_name(), at.line()}, uint32_t(sites.size()));
    if (is_new) sites.push_back(at);
    return 0x80000000u | it->second;
}
std::string place(uint32_t pc) {
    if (pc >> 31) return where(sites[pc & 0x7fffffff]);
    char command[160], line[512] = "?";
    snprintf(command, sizeof command, "addr2line -s -e /proc/%d/exe %#x", int(getpid()), pc - 1);
    if (FILE* f = popen(command, "r")) {
        if (fgets(line, sizeof line, f))
            if (char* end = strpbrk(line, "\n ("); end) *end = 0;
        pclose(f);
    }
    return line;
}

// ---- ordering

struct Me {
    const Fiber* f;
    uint32_t who, serial, column, first_column;
    const Known* row;
    explicit Me(const Fiber* f)
        : f(f),
          who(id_of(f)),
          serial(first_serial + f->block->slot),
          column(column_of(f)),
          first_column(f->block->slot * stride),
          row(known[column].data()) {}
    bool ordered_slowly(const Stamp& s) const;
    bool ordered(const Stamp& s) const {
        const uint32_t id = s.index() % kIdsPerBlock;
        if (s.index() / kIdsPerBlock == serial && id < 1024 && s.clock <= row[first_column + id / 32].full) return true;
        return ordered_slowly(s);
    }
};
bool Me::ordered_slowly(const Stamp& s) const {
    if (s.clock == kInFlight) return false;
    if (s.who == who) return true;
    const uint32_t from = s.index() / kIdsPerBlock, id = s.index() % kIdsPerBlock;
    const uint32_t local = id < 1024 ? id / 32 : n_warps + id - 1024;
    if (from >= first_serial && from < first_serial + n_resident) {
        const uint32_t c = (from - first_serial) * stride + local;
        if (row[c].covers(s.clock, id)) return true;
        const Row& mine = state_of(f).acquired;
        if (!mine.empty() && mine[c].covers(s.clock, id)) return true;
    }
    const auto& blocks = block_acquired[f->block->slot];
    const auto it = blocks.find(from);
    return it != blocks.end() && it->second[local].covers(s.clock, id);
}

[[noreturn]] void report(const char* kind, const Region& r, const void* p, const Stamp& other, uint32_t pc) {
    const uint32_t serial = other.index() / kIdsPerBlock, id = other.index() % kIdsPerBlock;
    const std::string who = id < 1024 ? "thread " + std::to_string(id) : std::string("an asynchronous copy");
    fail("race (%s) in %s memory, offset %td: this access is at %s, the other at %s by %s of %s block%s", kind,
         r.shared ? "shared" : "global", static_cast<const char*>(p) - r.begin, place(pc).c_str(),
         place(other.pc).c_str(), who.c_str(), serial == first_serial + current->block->slot ? "this" : "another",
         other.clock == kInFlight ? ", still in flight" : "");
}

// ---- regions

Region* find(const void* q) {
    const char* p = static_cast<const char*>(q);
    const auto inside = [p](const Region& r) { return p >= r.begin && p < r.begin + r.bytes; };
    for (uint32_t i = 0; i < n_resident; i++)
        if (inside(smem_regions[i])) return &smem_regions[i];
    if (!static_regions.empty() && inside(static_regions[0]))
        return &static_regions[current ? current->block->slot : 0];
    for (int i = 0; i < 4; i++)
        if (recent[i] && inside(*recent[i])) {
            if (i) std::swap(recent[i], recent[i - 1]);
            return recent[i ? i - 1 : 0];
        }
    auto it = global_regions.upper_bound(p);
    if (it == global_regions.begin()) return nullptr;
    Region* r = std::prev(it)->second;
    if (!inside(*r)) return nullptr;
    return recent[3] = r;
}

// Zero pages until touched, so that a large allocation of which little is used costs little.
void map_cells(Region& r) {
    const size_t bytes = (r.bytes + 15) / 16 * (16 / kCellBytes) * sizeof(Cell);
    if (r.cells && r.mapped >= bytes) return;
    if (r.cells) munmap(r.cells, r.mapped);
    void* m = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        fprintf(stderr, "simt: no memory for the race check's shadow of %zu bytes\n", r.bytes), abort();
    r.cells = static_cast<Cell*>(m);
    r.mapped = bytes;
}

// ---- runs of cells

// The first cell of the run that holds cell i.
size_t run_of(const Region& r, size_t i) {
    for (uint32_t split = 0; split < 3; split++) {
        const size_t first = i & ~size_t((8 >> split) - 1);
        if (r.cells[first].split == split) return first;
    }
    return i;
}
void halve(Region& r, size_t first) {
    Cell& a = r.cells[first];
    Cell& b = r.cells[first + (8 >> ++a.split)];
    b = a;
    if (!a.readers) return;
    if (reader_sets_used == reader_sets.size()) reader_sets.emplace_back();
    reader_sets[reader_sets_used] = reader_sets[a.readers - 1];
    b.readers = ++reader_sets_used;
}
// After a write all cells of a range are alike.
void merge(Region& r, size_t i, size_t end) {
    while (i < end) {
        uint8_t split = 0;
        while (i % size_t(8 >> split) || size_t(8 >> split) > end - i) split++;
        r.cells[i].split = split;
        i += 8 >> split;
    }
}
// Calls f(cell, its address) for runs that make up the bytes.
template <class F>
void each_run(Region& r, const void* q, size_t bytes, bool write, F f) {
    const size_t offset = size_t(static_cast<const char*>(q) - r.begin);
    const size_t begin = offset / kCellBytes, end = (std::min(offset + bytes, r.bytes) + kCellBytes - 1) / kCellBytes;
    const uint32_t epoch = r.shared ? group_epoch : launch_epoch;
    for (size_t i = begin; i < end;) {
        size_t first = run_of(r, i);
        while (first != i || size_t(8 >> r.cells[first].split) > end - i) {
            if (r.cells[first].epoch != epoch) r.cells[first].readers = 0;
            halve(r, first);
            first = run_of(r, i);
        }
        Cell& c = r.cells[i];
        if (c.epoch != epoch) {
            const bool keep = !r.shared && c.written;
            const uint8_t split = c.split;
            c = Cell{};
            c.epoch = epoch, c.written = keep, c.split = split;
        }
        f(c, r.begin + i * kCellBytes);
        i += 8 >> c.split;
    }
    if (write && end - begin > 1) merge(r, begin, end);
}

// ---- one access to one run

struct Accessor {
    const Region& region;
    const Me& me;
    Stamp stamp;

    void check_against_write(const Cell& c, const char* kind, const char* p) const {
        if (c.write.who && !me.ordered(c.write) && !(stamp.atomic && c.write.atomic))
            report(kind, region, p, c.write, stamp.pc);
    }
    void check_against_read(const Stamp& r, const char* p) const {
        if (r.who && !me.ordered(r) && !(stamp.atomic && r.atomic)) report("write after read", region, p, r, stamp.pc);
    }
    void write(Cell& c, const char* p) const {
        check_against_write(c, "write after write", p);
        check_against_read(c.read, p);
        check_against_read(c.foreign_read, p);
        if (c.readers && this_group(c.read))
            for (const Readers& r : reader_sets[c.readers - 1]) {
                if (known_to_all(r)) continue;
                Stamp s = r.first;
                for (uint32_t m = r.lanes; m; m &= m - 1) {
                    s.who = r.first.index() / 32 * 32 + uint32_t(__builtin_ctz(m)) + 1;
                    check_against_read(s, p);
                }
            }
        c.write = stamp;
        c.written = true;
        c.read = c.foreign_read = Stamp{};
        c.readers = 0;
    }
    void read(Cell& c, const char* p) const {
        if (c.read.who == stamp.who && c.read.clock == stamp.clock && stamp.clock != kInFlight) return;  // nothing new
        if (!c.written)
            fail("read of %s memory that nobody wrote, offset %td, at %s", region.shared ? "shared" : "global",
                 p - region.begin, place(stamp.pc).c_str());
        check_against_write(c, "read after write", p);
        if (c.read.who && !this_group(c.read)) c.foreign_read = c.read, c.read = Stamp{}, c.readers = 0;
        if (!c.readers && (!c.read.who || me.ordered(c.read))) {
            c.read = stamp;
            return;
        }
        if (!c.readers) {
            if (reader_sets_used == reader_sets.size()) reader_sets.emplace_back();
            reader_sets[reader_sets_used].assign(1, {c.read, 1u << (c.read.index() & 31)});
            c.readers = ++reader_sets_used;
        }
        auto& set = reader_sets[c.readers - 1];
        const uint32_t lane = 1u << (stamp.index() & 31);
        c.read = stamp;
        for (Readers& r : set)
            if (r.first.index() / 32 == stamp.index() / 32 && r.first.clock == stamp.clock) {
                r.lanes |= lane;
                return;
            }
        std::erase_if(set, [&](const Readers& r) { return known_to_all(r); });
        set.push_back({stamp, lane});
    }
    static bool this_group(const Stamp& s) { return s.index() / kIdsPerBlock >= first_serial; }
    bool known_to_all(const Readers& r) const {  // for all lanes: a barrier lies between
        const uint32_t serial = r.first.index() / kIdsPerBlock, id = r.first.index() % kIdsPerBlock;
        return r.first.clock <= me.row[(serial - first_serial) * stride + id / 32].full;
    }
};

bool on_stack(const void* p) {
    const Stack* s = current->stack;
    return p >= s->base && p < s->base + s->size;
}

void check(const void* q, size_t bytes, Access kind, uint32_t pc, bool in_flight = false) {
    if (!current || !enabled || on_stack(q)) return;
    Region* r = find(q);
    if (!r) return;
    static uint64_t& accesses = stats().accesses;
    accesses++;
    const Me me(current);
    Stamp stamp;
    stamp.who = me.who, stamp.atomic = kind == Access::atomic, stamp.pc = pc;
    stamp.clock = in_flight ? kInFlight : kind == Access::warp_read ? me.row[me.column].full : clocks[me.column];
    const Accessor a{*r, me, stamp};
    if (kind == Access::read || kind == Access::warp_read)
        each_run(*r, q, bytes, false, [&](Cell& c, const char* p) { a.read(c, p); });
    else
        each_run(*r, q, bytes, true, [&](Cell& c, const char* p) { a.write(c, p); });
}

// ---- the hooks that the emulator calls

void access(const void* p, size_t bytes, Access kind, Site at) { check(p, bytes, kind, site_id(at)); }

void in_flight(const void* p, size_t bytes, Access kind, bool done, Site at) {
    if (!done) return check(p, bytes, kind, site_id(at), true);
    if (!current || !enabled) return;
    Region* r = find(p);
    if (!r) return;
    // Complete: from here on it counts as an access at this point, a read as one of the whole warp.
    const Fiber* f = current;
    const uint32_t column = column_of(f), pc = site_id(at),
                   clock = kind == Access::write ? clocks[column] : known[column][column].full;
    each_run(*r, p, bytes, false, [&](Cell& c, const char*) {
        const auto land = [&](Stamp& s) {
            if (s.clock == kInFlight && s.pc == pc && s.index() / 32 == (id_of(f) - 1) / 32) s.clock = clock;
        };
        if (kind == Access::write) return land(c.write);
        land(c.read);
        if (c.readers && Accessor::this_group(c.read))
            for (Readers& r : reader_sets[c.readers - 1]) land(r.first);
    });
}

// A static mbarrier has one address in all blocks that run together.
const void* in_its_block(const void* mbar) {
    const Block* owner = n_resident > 1 ? owner_of_shared(mbar) : nullptr;
    return static_cast<const char*>(mbar) + (owner ? uintptr_t(owner->slot) << 48 : 0);
}

void async_write(const void* p, size_t bytes, const void* mbar, Site at) {
    if (!enabled) return;
    Region* r = find(p);
    if (!r) return;
    const Block* owner = owner_of_shared(mbar);
    const uint32_t next = uint32_t(async_columns.size()) % kAsyncColumns;
    const uint32_t slot = async_columns.try_emplace(in_its_block(mbar), next).first->second;
    const uint32_t column = owner->slot * stride + n_warps + slot;
    clocks[column]++;
    const Me me(current);
    Stamp issued, copy;  // issued by this thread, but not performed by it
    issued.who = me.who, copy.who = ((first_serial + owner->slot) * kIdsPerBlock + 1024 + slot + 1) & 0x7fffffffu;
    copy.clock = clocks[column], issued.pc = copy.pc = site_id(at);
    const Accessor a{*r, me, issued};
    each_run(*r, p, bytes, true, [&](Cell& c, const char* q) { a.write(c, q), c.write = copy; });
}

// The warp's accesses so far become known to all its lanes.
void advance(uint32_t column) { known[column][column] = {clocks[column]++, 0, 0}; }

void take_acquired(Fiber* f) {
    Row& mine = state_of(f).acquired;
    if (mine.empty()) return;
    join(known[column_of(f)], mine);
    mine.clear();
}

void warp_sync(Warp* w, uint32_t mask) {
    if (mask != w->live) return;  // part of a warp: left unordered
    for (uint32_t m = mask; m; m &= m - 1) take_acquired(w->lane[__builtin_ctz(m)]);
    advance(column_of(w->lane[__builtin_ctz(mask)]));
}

void release(const void* mbar) {
    const Fiber* f = current;
    const uint32_t column = column_of(f);
    Row& to = variables[in_its_block(mbar)].arrived;
    join(to, known[column]);
    if (const Row& mine = state_of(f).acquired; !mine.empty()) join(to, mine);
    to[column].join({0, clocks[column]++, 1u << f->lane});
}

void phase(const void* mbar) {
    SyncVariable& v = variables[in_its_block(mbar)];
    if (!v.arrived.empty()) join(v.complete, v.arrived);
    v.arrived.clear();
    if (v.complete.empty()) v.complete.resize(known[0].size());
    if (const auto it = async_columns.find(in_its_block(mbar)); it != async_columns.end()) {
        const uint32_t column = owner_of_shared(mbar)->slot * stride + n_warps + it->second;
        v.complete[column].full = clocks[column];
    }
}

void acquire(const void* mbar) {
    const SyncVariable& v = variables[in_its_block(mbar)];
    if (!v.complete.empty()) join(state_of(current).acquired, v.complete);
}

void barrier(const void* object, Fiber* const* waiters, size_t n) {
    static auto& lanes = forever<std::vector<uint32_t>>();  // by column
    lanes.assign(clocks.size(), 0);
    for (size_t i = 0; i < n; i++) lanes[column_of(waiters[i])] |= 1u << waiters[i]->lane, take_acquired(waiters[i]);
    Row& all = variables[object].arrived;
    for (size_t i = 0; i < n; i++) {
        const uint32_t column = column_of(waiters[i]), mask = lanes[column];
        if (!(mask & (1u << waiters[i]->lane)) || (mask & ((1u << waiters[i]->lane) - 1))) continue;  // once per warp
        if (mask == waiters[i]->warp->live) known[column][column] = {clocks[column], 0, 0};
        join(all, known[column]);
        all[column].join({0, clocks[column], mask});
    }
    for (uint32_t column = 0; column < lanes.size(); column++)
        if (lanes[column]) join(known[column], all), clocks[column]++;
    variables.erase(object);
}

// Between blocks: a fence and then an atomic publish what the thread knows; an atomic takes what others published.
void fence() { state_of(current).fenced = true; }

void atomic(const void* p, size_t bytes, void* return_address) {
    check(p, bytes, Access::atomic, uint32_t(uintptr_t(return_address) - load_address));
    if (!current || !enabled) return;
    const Fiber* f = current;
    auto& blocks = published[p];
    for (const auto& [serial, row] : blocks) join(block_acquired[f->block->slot][serial], row);
    if (!state_of(f).fenced) return;
    const uint32_t column = column_of(f), first = f->block->slot * stride;
    Row mine(known[column].begin() + first, known[column].begin() + first + stride);
    mine[column - first].join({0, clocks[column]++, 1u << f->lane});
    join(blocks[first_serial + f->block->slot], mine);
    for (const auto& [serial, row] : block_acquired[f->block->slot]) join(blocks[serial], row);
}

void begin_launch() {
    launch_epoch++;
    first_serial = next_serial = 0;
    published.clear();
}

void begin_group() {
    group_epoch++;
    reader_sets_used = 0;
    n_warps = warps_per_block(), n_resident = resident_count(), stride = n_warps + kAsyncColumns;
    enabled = options().race_check;
    const uint32_t n = n_resident, columns = n * stride;
    first_serial = next_serial;
    next_serial += n;
    if (next_serial >= (1u << 20)) fail("the race check counts a million blocks per launch");
    Row zero(columns);
    known.assign(columns, zero);
    clocks.assign(columns, 2);
    for (uint32_t c = 0; c < columns; c++) known[c][c].full = 1;
    variables.clear();
    async_columns.clear();
    thread_states.resize(std::max<size_t>(thread_states.size(), n * 1024));
    for (ThreadState& t : thread_states) t.acquired.clear(), t.fenced = false;
    block_acquired.assign(n, {});
    smem_regions.resize(std::max<size_t>(smem_regions.size(), n), Region{nullptr, 0, true, nullptr, 0});
    static_regions.resize(std::max<size_t>(static_regions.size(), n), Region{nullptr, 0, true, nullptr, 0});
    for (uint32_t i = 0; i < n; i++) {
        const Block& b = resident_blocks()[i];
        smem_regions[i].begin = reinterpret_cast<const char*>(b.smem), smem_regions[i].bytes = b.smem_bytes;
        Region& st = static_regions[i];
        static_shared_range(&st.begin, &st.bytes);
        st.bytes += uintptr_t(st.begin) % 16, st.begin -= uintptr_t(st.begin) % 16;
        map_cells(smem_regions[i]);
        map_cells(static_regions[i]);
    }
}

void allocated(const void* p, size_t bytes) {
    auto* r = new Region{static_cast<const char*>(p), bytes, false, nullptr, 0};
    map_cells(*r);
    global_regions[r->begin] = r;
}
void freed(const void* p) {
    const auto it = global_regions.find(static_cast<const char*>(p));
    if (it == global_regions.end()) return;
    for (Region*& r : recent)
        if (r == it->second) r = nullptr;
    munmap(it->second->cells, it->second->mapped);
    delete it->second;
    global_regions.erase(it);
}
void written(const void* p, size_t bytes) {
    if (Region* r = find(p)) each_run(*r, p, bytes, false, [](Cell& c, const char*) { c.written = true; });
}

constexpr RaceHooks hooks{access,  atomic, in_flight,    async_write, warp_sync, barrier, release, phase,
                          acquire, fence,  begin_launch, begin_group, allocated, freed,   written};

[[maybe_unused]] const bool installed = [] {
    dl_iterate_phdr([](dl_phdr_info* i, size_t, void*) { return load_address = i->dlpi_addr, 1; }, nullptr);
    race = &hooks;
    return true;
}();

inline void from_compiler(const void* p, size_t bytes, Access kind, void* return_address) {
    if (current) check(p, bytes, kind, uint32_t(uintptr_t(return_address) - load_address));
}

}  // namespace

}  // namespace simt

// ---- the hooks that the compiler calls

#define SIMT_PC __builtin_return_address(0)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define SIMT_HOOK(N)                                                                                     \
    void __tsan_read##N(void* p) { simt::from_compiler(p, N, simt::Access::read, SIMT_PC); }             \
    void __tsan_write##N(void* p) { simt::from_compiler(p, N, simt::Access::write, SIMT_PC); }           \
    void __tsan_unaligned_read##N(void* p) { simt::from_compiler(p, N, simt::Access::read, SIMT_PC); }   \
    void __tsan_unaligned_write##N(void* p) { simt::from_compiler(p, N, simt::Access::write, SIMT_PC); } \
    void __tsan_volatile_read##N(void* p) { simt::from_compiler(p, N, simt::Access::read, SIMT_PC); }    \
    void __tsan_volatile_write##N(void* p) { simt::from_compiler(p, N, simt::Access::write, SIMT_PC); }
SIMT_HOOK(1) SIMT_HOOK(2) SIMT_HOOK(4) SIMT_HOOK(8) SIMT_HOOK(16) void __tsan_read_range(void* p, unsigned long n) {
    simt::from_compiler(p, n, simt::Access::read, SIMT_PC);
}
void __tsan_write_range(void* p, unsigned long n) { simt::from_compiler(p, n, simt::Access::write, SIMT_PC); }
// Guards of host statics in a kernel file.
char __tsan_atomic8_load(const volatile char* p, int order) { return __atomic_load_n(p, order); }
int __tsan_atomic32_fetch_add(volatile int* p, int x, int) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
}
