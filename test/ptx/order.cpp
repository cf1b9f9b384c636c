#include "test/ptx/order.h"

#include <algorithm>
#include <unordered_map>

#include "test/ptx/ops.h"

namespace ptx {
namespace {

constexpr u8 kNobody = 0xff;  // lane of a stamp
constexpr u8 kAsync = 0xff;   // warp of a stamp: of the async proxy; epoch: an mbarrier, tick: its phase; or
                              // epoch: the products of a warpgroup, tick: their group

struct Stamp {
    u32 block = 0, epoch = 0, tick = 0;
    u8 warp = 0, lane = kNobody, bytes = 0;  // bytes: which of the four
    bool atomic = false;
    bool empty() const { return lane == kNobody; }
};
// Four bytes of memory: who wrote them last (two writers, of different bytes), who has read them since
struct Cell {
    Stamp write[2], read[3];
    u8 async_reads = 0;                           // under way
    u8 copying_warp = 0, copying_lane = kNobody;  // a cp.async under way
};

// Up to where a warp is known: all before `epoch`, and of that epoch these lanes up to `tick`.
struct Seen {
    u32 epoch = 0, lanes = 0, tick = 0;
    bool covers(const Stamp& s) const {
        if (s.epoch != epoch) return s.epoch < epoch;
        if (s.tick > tick) return false;
        return s.lane == kAllLanes ? lanes != 0 : lanes >> s.lane & 1;
    }
    void join(const Seen& o) {
        if (o.epoch > epoch) {
            *this = o;
        } else if (o.epoch == epoch) {
            lanes |= o.lanes, tick = std::max(tick, o.tick);
        }
    }
};
struct Clock {
    std::vector<Seen> warps, proxied;
    std::vector<Seen> fenced;  // before a fence of its own or of a warp it has synchronised with
    std::vector<u32> phases;   // of the mbarriers
    std::vector<u8> inits;     // by fence.mbarrier_init
    static void join(std::vector<Seen>& to, const std::vector<Seen>& from) {
        to.resize(std::max(to.size(), from.size()));
        for (size_t i = 0; i < from.size(); i++) to[i].join(from[i]);
    }
    void join_inits(const Clock& o) {
        inits.resize(std::max(inits.size(), o.inits.size()));
        for (size_t i = 0; i < o.inits.size(); i++) inits[i] |= o.inits[i];
    }
    void join(const Clock& o) {
        join(warps, o.warps), join(proxied, o.proxied), join(fenced, o.fenced);
        phases.resize(std::max(phases.size(), o.phases.size()));
        for (size_t i = 0; i < o.phases.size(); i++) phases[i] = std::max(phases[i], o.phases[i]);
        join_inits(o);
    }
};

struct WarpState {
    u32 epoch = 1, tick = 1, registers = 0;
    Clock clock;
    std::vector<Seen> read_from_flags;   // acquired by the next fence
    std::vector<u8> touched, in_flight;  // rows of wgmma
};
struct Barrier64 {
    u32 id = 0, complete = 0;  // phases
    u32 init_id = 0;           // anew at each init
    Stamp init;
    bool fenced = false;
    Clock pending, published;
};
constexpr size_t kPage = 1024;  // cells
struct Page {
    Cell cell[kPage];
};

}  // namespace

struct OrderCheck::State {
    Machine& m;
    uint64_t first = 0;
    u32 blocks = 0, per_block = 1, barriers = 0, inits = 0;
    std::vector<WarpState> warps;
    std::vector<std::vector<Cell>> shared;
    std::unordered_map<uint64_t, std::unique_ptr<Page>> global;
    std::unordered_map<const void*, Clock> objects;
    std::unordered_map<const void*, Barrier64> mbars;
    std::vector<u32> warpgroups;  // numbers among the mbarriers' of each warpgroup's products; 0: none yet

    u32 index(const Warp& w) const { return w.block->slot * per_block + w.id; }
    WarpState& of(const Warp& w) { return warps[index(w)]; }
    u32 block_number(const Warp& w) const { return u32(first + w.block->slot); }

    Stamp stamp(const Warp& w, u32 lane, u8 bytes) {
        const WarpState& s = of(w);
        Stamp x;
        x.block = block_number(w), x.epoch = s.epoch, x.tick = s.tick, x.warp = u8(w.id), x.lane = u8(lane),
        x.bytes = bytes;
        return x;
    }
    // True: what the stamp tells of comes before what this lane does now
    bool ordered(const Stamp& s, const Warp& w, u32 lane) {
        const WarpState& me = of(w);
        if (s.warp == kAsync) return s.epoch < me.clock.phases.size() && me.clock.phases[s.epoch] >= s.tick;
        if (s.block < first || s.block >= first + blocks) return false;  // another block, not resident any more
        const u32 other = u32(s.block - first) * per_block + s.warp;
        if (other == index(w) && (s.lane == lane || s.lane == kAllLanes || lane == kAllLanes || s.epoch < me.epoch))
            return true;
        return other < me.clock.warps.size() && me.clock.warps[other].covers(s);
    }
    bool proxied(const Stamp& s, const Warp& w) {
        if (s.warp == kAsync) return true;
        const auto& p = of(w).clock.proxied;
        const u64 other = (s.block - first) * per_block + s.warp;
        return other < p.size() && p[other].covers(s);
    }

    // Calls f(cell, which of its bytes) for the cells of an access.
    template <class F>
    void cells(const Warp& w, const unsigned char* p, u32 bytes, F f) {
        for (u32 slot = 0; slot < blocks; slot++) {
            auto& memory = m.blocks[slot].shared;
            if (p < memory.data() || p >= memory.data() + memory.size()) continue;
            if (shared[slot].empty()) shared[slot].resize(memory.size() / 4 + 1);
            visit(
                u64(p - memory.data()), bytes, [&](u64 i) -> Cell& { return shared[slot][i]; }, f);
            return;
        }
        (void)w;
        visit(
            u64(p), bytes,
            [&](u64 i) -> Cell& {
                auto& page = global[i / kPage];
                if (!page) page = std::make_unique<Page>();
                return page->cell[i % kPage];
            },
            f);
    }
    template <class Find, class F>
    static void visit(u64 begin, u32 bytes, Find find, F f) {
        for (u64 a = begin & ~u64(3); a < begin + bytes; a += 4) {
            u8 mask = 0xf;
            if (a < begin) mask = u8(mask & 0xf << (begin - a));
            if (a + 4 > begin + bytes) mask = u8(mask & 0xf >> (a + 4 - begin - bytes));
            f(find(a / 4), mask);
        }
    }

    std::string describe(const Stamp& s) const {
        if (s.warp == kAsync) return "the async proxy, whose mbarrier phase or wgmma this warp has not waited for";
        std::string lane = s.lane == kAllLanes ? "all lanes" : "lane " + std::to_string(s.lane);
        return "block " + std::to_string(s.block) + " warp " + std::to_string(s.warp) + " " + lane;
    }
    void idle_memory(const Cell& c, const char* what) {
        if (c.copying_lane != kNobody)
            fail("%s of memory into which a cp.async of warp %u lane %u is still under way", what, c.copying_warp,
                 c.copying_lane);
    }
    void after_writes(const Cell& c, const Warp& w, u32 lane, u8 mask, const char* what, bool atomic) {
        idle_memory(c, what);
        for (const Stamp& s : c.write)
            if (s.bytes & mask && !(atomic && s.atomic) && !ordered(s, w, lane))
                fail("race: %s by lane %u without order after the write by %s", what, lane, describe(s).c_str());
    }
    void after_reads(const Cell& c, const Warp& w, u32 lane, u8 mask, const char* what, bool atomic) {
        if (c.async_reads) fail("%s by lane %u of memory that a bulk copy or wgmma is still reading", what, lane);
        for (const Stamp& r : c.read)
            if (!r.empty() && r.bytes & mask && !(atomic && r.atomic) && !ordered(r, w, lane))
                fail("race: %s by lane %u without order after the read by %s", what, lane, describe(r).c_str());
    }
    // Keeps the reads of different warps apart; one whose warp has moved on takes the place of its own older one.
    void add_read(Cell& c, const Stamp& s) {
        for (Stamp& r : c.read)
            if (r.empty() || (r.block == s.block && r.warp == s.warp && (s.warp != kAsync || r.epoch == s.epoch) &&
                              (r.lane == s.lane || s.lane == kAllLanes || r.epoch < s.epoch))) {
                r = s;
                return;
            }
        c.read[m.random() % 3] = s;
    }
    void written(Cell& c, const Stamp& s) {
        for (Stamp& old : c.write) old.bytes = u8(old.bytes & ~s.bytes);
        if (c.write[0].bytes) c.write[1] = c.write[0];  // a third writer's bytes are forgotten
        c.write[0] = s;
        for (Stamp& r : c.read) r.bytes = u8(r.bytes & ~s.bytes);
    }
    u32 products_of(const Warp& w) {
        u32& id = warpgroups[w.block->slot * ((per_block + 3) / 4) + w.id / 4];
        return id ? id : id = barriers++;
    }
    Barrier64& mbar(const void* p) {
        auto [it, fresh] = mbars.try_emplace(p);
        if (fresh) it->second.id = barriers++;
        return it->second;
    }
};

OrderCheck::OrderCheck(Machine& m) : s_(new State{m, 0, 0, 1, 0, 0, {}, {}, {}, {}, {}, {}}) {}
OrderCheck::~OrderCheck() = default;

void OrderCheck::start(uint64_t first_block, uint32_t blocks) {
    State& s = *s_;
    s.first = first_block, s.blocks = blocks, s.per_block = u32(s.m.blocks[0].warps.size());
    s.warps.assign(size_t(blocks) * s.per_block, {});
    s.shared.assign(blocks, {});
    s.objects.clear(), s.mbars.clear(), s.inits = 0;
    s.barriers = 1;  // number 0 is nobody's
    s.warpgroups.assign(size_t(blocks) * ((s.per_block + 3) / 4), 0);
    for (WarpState& w : s.warps) w.touched.resize(s.m.kernel.slots, 1), w.in_flight.resize(s.m.kernel.slots);
}

// setmaxnreg shares out what the block got at its launch: per thread at most what lets the block fit, in eights.
void OrderCheck::end() {
    State& s = *s_;
    const u32 threads = s.per_block * 32, at_launch = std::min(256u, 65536 / threads / 8 * 8);
    for (u32 b = 0; b < s.blocks; b++) {
        u64 registers = 0;
        bool asked = false;
        for (u32 w = 0; w < s.per_block; w++) {
            const u32 n = s.warps[b * s.per_block + w].registers;
            registers += u64(n ? n : at_launch) * 32, asked |= n != 0;
        }
        if (asked && registers > u64(at_launch) * threads)
            fail("setmaxnreg: the block's warps ask for %llu of %u registers", (unsigned long long)registers,
                 at_launch * threads);
    }
}

// ---- accesses

void OrderCheck::access(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, Access kind) {
    State& s = *s_;
    const bool read = kind == Access::read || kind == Access::strong_read;
    const bool strong = kind != Access::read && kind != Access::write;
    const char* what = read ? "a read" : kind == Access::atomic ? "an atomic" : "a write";
    s.cells(w, p, bytes, [&](Cell& c, u8 mask) {
        Stamp now = s.stamp(w, lane, mask);
        now.atomic = strong;
        s.after_writes(c, w, lane, mask, what, strong);
        if (read) return s.add_read(c, now);
        s.after_reads(c, w, lane, mask, what, strong);
        s.written(c, now);
    });
}

void OrderCheck::warp_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane) {
    State& s = *s_;
    s.cells(w, p, bytes, [&](Cell& c, u8 mask) {
        s.after_writes(c, w, lane, mask, "a read", false);
        s.add_read(c, s.stamp(w, kAllLanes, mask));
    });
}

void OrderCheck::copy_begins(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane) {
    State& s = *s_;
    s.cells(w, to, bytes, [&](Cell& c, u8 mask) {
        s.after_writes(c, w, lane, mask, "a cp.async", false);
        s.after_reads(c, w, lane, mask, "a cp.async", false);
        c.copying_warp = u8(w.id), c.copying_lane = u8(lane);
    });
}

void OrderCheck::copy_ends(Warp& w, const unsigned char* to, uint32_t bytes, uint32_t lane) {
    State& s = *s_;
    s.cells(w, to, bytes, [&](Cell& c, u8 mask) {
        c.copying_lane = kNobody;
        s.written(c, s.stamp(w, lane, mask));
    });
}

void OrderCheck::async_read(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, bool done) {
    State& s = *s_;
    s.cells(w, p, bytes, [&](Cell& c, u8 mask) {
        if (done) {
            c.async_reads--;
            return s.add_read(c, s.stamp(w, lane, mask));
        }
        s.after_writes(c, w, lane, mask, "a read by the async proxy", false);
        for (const Stamp& by : c.write)
            if (by.bytes & mask && !s.proxied(by, w))
                fail("no fence.proxy.async between the write by %s and this read by the async proxy",
                     s.describe(by).c_str());
        c.async_reads++;
    });
}

void OrderCheck::async_write(Warp& w, const unsigned char* p, uint32_t bytes, uint32_t lane, const void* mbar) {
    State& s = *s_;
    const Barrier64& b = s.mbar(mbar);
    s.cells(w, p, bytes, [&](Cell& c, u8 mask) {
        s.after_writes(c, w, lane, mask, "a copy into it", false);
        s.after_reads(c, w, lane, mask, "a copy into it", false);
        Stamp now = s.stamp(w, lane, mask);
        now.warp = kAsync, now.epoch = b.id, now.tick = b.complete + 1;
        s.written(c, now);
    });
}

// ---- synchronisation

void OrderCheck::warp_sync(Warp& w, uint32_t lanes) {
    if (lanes == w.live) s_->of(w).epoch++;
}

void OrderCheck::release(const void* object, Warp& w, uint32_t lanes) {
    State& s = *s_;
    WarpState& me = s.of(w);
    Clock now = me.clock;
    now.warps.resize(std::max<size_t>(now.warps.size(), s.warps.size()));
    now.warps[s.index(w)].join({me.epoch, lanes, me.tick});
    me.tick++;
    const auto it = s.mbars.find(object);
    (it != s.mbars.end() ? it->second.pending : s.objects[object]).join(now);
}

void OrderCheck::release_inits(const void* object, Warp& w) { s_->objects[object].join_inits(s_->of(w).clock); }

void OrderCheck::acquire(const void* object, Warp& w) {
    State& s = *s_;
    Clock& mine = s.of(w).clock;
    const auto it = s.mbars.find(object);
    if (it == s.mbars.end()) return mine.join(s.objects[object]);
    mine.join(it->second.published);
    mine.phases.resize(std::max<size_t>(mine.phases.size(), it->second.id + 1));
    mine.phases[it->second.id] = it->second.complete;
}

void OrderCheck::phase(const void* mbar) {
    Barrier64& b = s_->mbar(mbar);
    b.complete++;
    b.published.join(b.pending);
}

void OrderCheck::mbar_init(const void* mbar, Warp& w, uint32_t lane) {
    Barrier64& b = s_->mbar(mbar);
    b.init = s_->stamp(w, lane, 0xf), b.init_id = s_->inits++, b.fenced = false;
}

void OrderCheck::mbar_use(const void* mbar, Warp& w, bool by_async_proxy, const char* what) {
    State& s = *s_;
    const Barrier64& b = s.mbar(mbar);
    if (b.init.empty()) return;
    const bool own = b.init.block == s.block_number(w) && b.init.warp == w.id;
    const auto& inits = s.of(w).clock.inits;
    if (!own && !(b.init_id < inits.size() && inits[b.init_id]) && !s.ordered(b.init, w, kAllLanes))
        fail("%s: without order after the mbarrier's init by %s", what, s.describe(b.init).c_str());
    if (by_async_proxy && !b.fenced)
        fail("%s: no fence.mbarrier_init or fence.proxy.async since the mbarrier's init", what);
}

void OrderCheck::fence_mbar_init(Warp& w) {
    auto& inits = s_->of(w).clock.inits;
    inits.resize(s_->inits);
    for (auto& [p, b] : s_->mbars)
        if (b.init.block == s_->block_number(w) && b.init.warp == w.id && !b.init.empty())
            b.fenced = true, inits[b.init_id] = 1;
}

void OrderCheck::fence_proxy(Warp& w, uint32_t lanes) {
    State& s = *s_;
    WarpState& me = s.of(w);
    Clock& c = me.clock;
    c.proxied.resize(s.warps.size());
    for (size_t i = 0; i < c.warps.size(); i++) c.proxied[i].join(c.warps[i]);
    c.proxied[s.index(w)].join({me.epoch, lanes, me.tick});
    me.tick++;
    fence_mbar_init(w);
}

void OrderCheck::fence(Warp& w, uint32_t lanes) {
    State& s = *s_;
    WarpState& me = s.of(w);
    Clock::join(me.clock.warps, me.read_from_flags);
    me.clock.fenced = me.clock.warps;
    me.clock.fenced.resize(std::max(me.clock.fenced.size(), s.warps.size()));
    me.clock.fenced[s.index(w)].join({me.epoch, lanes, me.tick});
    me.tick++;
}
void OrderCheck::strong_write(const void* flag, Warp& w) {
    Clock::join(s_->objects[flag].warps, s_->of(w).clock.fenced);
}
void OrderCheck::strong_read(const void* flag, Warp& w) {
    Clock::join(s_->of(w).read_from_flags, s_->objects[flag].warps);
}

// ---- registers of wgmma

void OrderCheck::registers_touched(Warp& w, const std::vector<uint32_t>& rows) {
    WarpState& me = s_->of(w);
    for (u32 r : rows) {
        if (me.in_flight[r]) fail("a register of a wgmma that has not been waited for is touched");
        me.touched[r] = 1;
    }
}
void OrderCheck::wgmma_fence(Warp& w) { std::fill(s_->of(w).touched.begin(), s_->of(w).touched.end(), 0); }
void OrderCheck::wgmma_begins(Warp& w, const std::vector<uint32_t>& d, const std::vector<uint32_t>& a) {
    WarpState& me = s_->of(w);
    for (const auto* list : {&d, &a})
        for (u32 r : *list) {
            if (me.touched[r]) fail("no wgmma.fence since a register of this wgmma was touched by another instruction");
            me.in_flight[r]++;
        }
}
void OrderCheck::wgmma_has_read(Warp& w, const unsigned char* p, uint32_t bytes, uint64_t group) {
    State& s = *s_;
    s.cells(w, p, bytes, [&](Cell& c, u8 mask) {
        c.async_reads--;
        Stamp now = s.stamp(w, kAllLanes, mask);
        now.warp = kAsync, now.epoch = s.products_of(w), now.tick = u32(group);
        s.add_read(c, now);
    });
}
void OrderCheck::wgmma_waited(Warp& w, uint64_t group) {
    auto& phases = s_->of(w).clock.phases;
    const u32 id = s_->products_of(w);
    phases.resize(std::max<size_t>(phases.size(), id + 1));
    phases[id] = std::max(phases[id], u32(group));
}
void OrderCheck::wgmma_ends(Warp& w, const std::vector<uint32_t>& d, const std::vector<uint32_t>& a) {
    for (const auto* list : {&d, &a})
        for (u32 r : *list) s_->of(w).in_flight[r]--;
}
void OrderCheck::set_registers(Warp& w, uint32_t count) {
    if (count < 24 || count > 256 || count % 8) fail("setmaxnreg: %u is no multiple of 8 from 24 to 256", count);
    s_->of(w).registers = count;
}

Step watch_registers(const Inst& i, const std::vector<bool>& wgmma_rows) {
    if (i.part[0] == "wgmma" || !i.step) return i.step;
    std::vector<u32> rows;
    const auto add = [&](u32 r) {
        if (r < wgmma_rows.size() && wgmma_rows[r]) rows.push_back(r);
    };
    for (const Operand& o : i.operand) {
        if (o.kind == Operand::row || o.kind == Operand::address) add(o.slot);
        for (u32 r : o.rows) add(r);
    }
    if (i.guard >= 0) add(u32(i.guard));
    if (rows.empty()) return i.step;
    return [rows, step = i.step](Warp& w, u32 lanes) {
        if (w.machine->order) w.machine->order->registers_touched(w, rows);
        step(w, lanes);
    };
}

}  // namespace ptx
