// Blocks start, warps take turns, lanes part and meet again.
#include "test/ptx/machine.h"

#include <algorithm>
#include <cstdarg>
#include <stdexcept>

#include "test/ptx/order.h"

namespace ptx {

Running running{};

void fail(const char* format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    std::string where;
    if (running.inst) {
        const Module& m = *running.machine->kernel.module;
        const Dim& b = running.warp->block->index;
        const std::string& file = m.file(running.inst->source_file);
        where = "\n  block (" + std::to_string(b.x) + "," + std::to_string(b.y) + "," + std::to_string(b.z) +
                ") warp " + std::to_string(running.warp->id) + ", PTX line " + std::to_string(running.inst->line) +
                ": " + m.line_of_text(running.inst->line);
        if (!file.empty()) where += "\n  from " + file + ":" + std::to_string(running.inst->source_line);
        running = {};
    }
    throw std::runtime_error(text + where);
}

// ---- memory

unsigned char* Machine::shared_at(const Block& b, uint32_t address, uint64_t bytes, const char* what) {
    const uint32_t rank = address >> kRankShift;
    const int64_t offset = int64_t(address & kOffsetMask) - kSharedBase;
    const auto size = int64_t(b.shared.size());
    if (rank >= launch.cluster || offset < 0 || offset + int64_t(bytes) > size)
        fail("%s of %llu bytes at shared address %#x, offset %lld, which the block's %lld bytes don't hold", what,
             (unsigned long long)bytes, address, (long long)offset, (long long)size);
    return in_cluster(b, rank).shared.data() + offset;
}

unsigned char* Warp::at(Space space, uint64_t a, uint32_t bytes, uint32_t lane, bool write) {
    if (a & (bytes - 1)) fail("lane %u: address %#llx is not aligned to %u bytes", lane, (unsigned long long)a, bytes);
    if (space == Space::generic) {
        const uint64_t window = a & kWindow;
        space = window == kSharedWindow  ? Space::shared
                : window == kLocalWindow ? Space::local
                : window == kParamWindow ? Space::param
                                         : Space::global;
        if (space != Space::global) a &= ~kWindow;
    }
    switch (space) {
        case Space::shared:
            return machine->shared_at(*block, uint32_t(a), bytes, write ? "write" : "read");
        case Space::local:
            if (a + bytes > local[lane].size())
                fail("lane %u: local address %#llx, where %zu bytes are", lane, (unsigned long long)a,
                     local[lane].size());
            return local[lane].data() + a;
        case Space::param:
            if (write || a + bytes > machine->params.size())
                fail("lane %u: parameter address %#llx", lane, (unsigned long long)a);
            return machine->params.data() + a;
        default:
            check_global(a, bytes, lane);
            return reinterpret_cast<unsigned char*>(a);
    }
}

// ---- groups of lanes

uint32_t Warp::meet(uint32_t lanes, uint32_t members) {
    if (lanes & ~members) fail("lane %u is not in its own mask %#x", first_lane(lanes & ~members), members);
    members &= live;
    uint32_t all = lanes;
    for (const Group& g : groups)
        if (g.parked && g.pc == here && !(g.lanes & ~members)) all |= g.lanes;
    if (all != members) return parks = true, 0;
    release(all & ~lanes);
    return all;
}

void Warp::release(uint32_t lanes) {
    for (Group& g : groups)
        if (g.parked && g.lanes & lanes) g.parked = false, g.pc++;
}

uint32_t Block::live_threads() const {
    uint32_t n = 0;
    for (const Warp& w : warps) n += count_lanes(w.live);
    return n;
}

void Machine::release(Barrier& b) {
    const auto waiting = std::move(b.waiting);
    b = {};
    for (auto& [w, lanes] : waiting) w->release(lanes);
    idle = 0;
}

uint64_t Machine::random() {
    uint64_t z = rng_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// `away` of the group's lanes go to another pc; all meet again at meet_at, if that is an instruction.
void Machine::split(Warp& w, size_t group, uint32_t away, uint32_t away_pc, uint32_t meet_at) {
    int at = w.groups[group].join;
    const bool outer = at >= 0 && w.joins[size_t(at)].pc == meet_at;  // a loop's next round: they meet there anyway
    if (meet_at < kernel.code.size() && !outer) {
        size_t j = 0;
        while (j < w.joins.size() && w.joins[j].used) j++;
        if (j == w.joins.size()) w.joins.push_back({});
        w.joins[j] = {meet_at, w.groups[group].lanes, 0, at, true};
        at = int(j);
    }
    w.groups[group].lanes &= ~away, w.groups[group].join = at;
    w.groups.push_back({away, away_pc, at, false});
}

void Machine::branch(Warp& w, size_t group, const Inst& i, uint32_t taken) {
    Group& g = w.groups[group];
    const uint32_t rest = g.lanes & ~taken;
    g.pc = rest ? g.pc + 1 : i.target;
    if (rest && taken) split(w, group, taken, i.target, i.reconverge);
}

// At a point where lanes meet: true if the group is complete and continues.
bool Machine::join(Warp& w, size_t group) {
    Group& g = w.groups[group];
    while (g.join >= 0 && w.joins[size_t(g.join)].pc == g.pc) {
        Join& j = w.joins[size_t(g.join)];
        j.waiting |= g.lanes;
        if (j.waiting != j.members) {
            g.lanes = 0;
            return false;
        }
        g.lanes = j.members, g.join = j.parent, j.used = false;
    }
    return true;
}

void Machine::leave(Warp& w, size_t group, uint32_t lanes) {
    w.live &= ~lanes;
    w.groups[group].lanes &= ~lanes;
    if (w.groups[group].lanes) w.groups[group].pc++;
    for (size_t n = 0; n < w.joins.size(); n++) {
        Join& j = w.joins[n];
        if (!j.used) continue;
        j.members &= ~lanes;
        if (!j.members) {
            j.used = false;
        } else if (j.waiting == j.members) {
            j.used = false;
            w.groups.push_back({j.members, j.pc, j.parent, false});
        }
    }
    for (Barrier& b : w.block->barrier)
        if (!b.waiting.empty() && !b.counted && b.arrived == w.block->live_threads()) release(b);
}

void Machine::drop_empty(Warp& w) {
    std::erase_if(w.groups, [](const Group& g) { return !g.lanes; });
}

// One instruction of a group; false if it can't continue now.
bool Machine::step(Warp& w, size_t group) {
    Group* g = &w.groups[group];
    if (g->pc >= kernel.code.size()) return leave(w, group, g->lanes), false;
    Inst& i = kernel.code[g->pc];
    if (i.joins && g->join >= 0 && !join(w, group)) return false;
    running = {this, &i, &w};
    w.here = g->pc;
    uint32_t active = g->lanes;
    if (i.guard >= 0) {
        const uint64_t* p = w.row(uint32_t(i.guard));
        uint32_t set = 0;
        for (uint32_t l = 0; l < 32; l++) set |= uint32_t(p[l] & 1) << l;
        active &= i.guard_negated ? ~set : set;
    }
    warp_insts++, lane_insts += count_lanes(active);
    if (!active) return i.idle++, g->pc++, true;
    i.executed++, i.lanes += count_lanes(active);
    if (!i.step) {
        if (i.part[0] == "bra") return branch(w, group, i, active), true;
        if (i.part[0] == "ret" || i.part[0] == "exit") return leave(w, group, active), w.groups[group].lanes != 0;
        fail("the interpreter has no model of '%s'", i.opcode.c_str());
    }
    w.parks = w.yields = w.again = false;
    i.step(w, active);
    if (!w.parks) return w.groups[group].pc += !w.again, !w.yields;
    if (active != w.groups[group].lanes) split(w, group, w.groups[group].lanes & ~active, w.here + 1, i.reconverge);
    w.groups[group].parked = true;
    return false;
}

// Runs one group of a warp for up to `budget` instructions; false if none can run.
bool Machine::slice(Warp& w, uint64_t budget) {
    size_t ready = 0;
    for (const Group& g : w.groups) ready += !g.parked;
    if (!ready) return false;
    size_t n = ready == 1 ? 0 : random() % ready, group = 0;
    while (w.groups[group].parked || n--) group++;
    while (budget-- && step(w, group)) {
    }
    running = {};
    drop_empty(w);
    return true;
}

// ---- blocks

static uint64_t special(const std::string& s, const Machine& m, const Block& b, uint32_t thread, const Warp& w) {
    const auto dim = [&](const Dim& d) -> uint64_t { return s.back() == 'x' ? d.x : s.back() == 'y' ? d.y : d.z; };
    const auto starts = [&](const char* p) { return s.rfind(p, 0) == 0; };
    const Dim &n = m.launch.block, &g = m.launch.grid;
    const uint32_t lane = thread % 32, c = m.launch.cluster;
    if (starts("%tid.")) return dim({thread % n.x, thread / n.x % n.y, thread / (n.x * n.y)});
    if (starts("%ntid.")) return dim(n);
    if (starts("%ctaid.")) return dim(b.index);
    if (starts("%nctaid.")) return dim(g);
    if (s == "%laneid") return lane;
    if (s == "%warpid") return w.id;
    if (s == "%nwarpid") return b.warps.size();
    if (s == "%lanemask_lt") return (1u << lane) - 1;
    if (s == "%lanemask_le") return (2u << lane) - 1;
    if (s == "%lanemask_eq") return 1u << lane;
    if (s == "%lanemask_gt") return ~((2u << lane) - 1);
    if (s == "%lanemask_ge") return ~((1u << lane) - 1);
    if (s == "%cluster_ctarank") return b.rank;
    if (s == "%cluster_nctarank") return c;
    if (starts("%cluster_ctaid.")) return dim({b.rank, 0, 0});
    if (starts("%cluster_nctaid.")) return dim({c, 1, 1});
    if (starts("%clusterid.")) return dim({b.index.x / c, b.index.y, b.index.z});
    if (starts("%nclusterid.")) return dim({g.x / c, g.y, g.z});
    if (s == "%smid") return b.slot;
    if (s == "%nsmid") return m.blocks.size();
    if (s == "%dynamic_smem_size") return m.launch.dynamic_shared;
    if (s == "%total_smem_size") return b.shared.size();
    if (starts("%clock") || starts("%globaltimer")) return 0;  // mov reads the time itself
    fail("%s is neither declared nor a special register that the interpreter knows", s.c_str());
}

void Machine::start(Warp& w, uint32_t dynamic_at) {
    const Block& b = *w.block;
    w.machine = this;
    const uint32_t lanes = std::min(32u, b.threads - w.id * 32);
    w.live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w.groups = {{w.live, 0, -1, false}};
    w.rows.assign(size_t(kernel.slots) * 32, 0xdeadbeefdeadbeef);
    w.base[0] = w.rows.data(), w.base[1] = kernel.constants.data();
    for (auto& l : w.local) l.assign(kernel.local_bytes, 0xcd);
    for (const Fill& f : kernel.fills)
        for (uint32_t l = 0; l < 32; l++)
            w.row(f.slot)[l] = f.kind == Fill::static_shared    ? b.rank << kRankShift | uint32_t(kSharedBase + f.value)
                               : f.kind == Fill::dynamic_shared ? b.rank << kRankShift | (kSharedBase + dynamic_at)
                                                                : special(f.name, *this, b, w.id * 32 + l, w);
}

void Machine::start(Block& b, uint64_t linear, uint32_t slot) {
    b = Block();
    const Dim& g = launch.grid;
    b.index = {uint32_t(linear % g.x), uint32_t(linear / g.x % g.y), uint32_t(linear / (uint64_t(g.x) * g.y))};
    b.slot = slot, b.rank = slot % launch.cluster, b.threads = uint32_t(launch.block.count());
    const uint32_t dynamic_at =
        (kernel.static_shared + kernel.dynamic_align - 1) / kernel.dynamic_align * kernel.dynamic_align;
    b.shared.assign(dynamic_at + launch.dynamic_shared, 0xcd);
    b.warps.resize((b.threads + 31) / 32);
    for (uint32_t id = 0; id < b.warps.size(); id++) {
        b.warps[id].block = &b, b.warps[id].id = id;
        start(b.warps[id], dynamic_at);
    }
}

void Machine::land_some(bool all_wait) {
    while (!in_flight.empty() && (all_wait || idle > 100 || random() % 4 == 0)) {
        const size_t i = random() % in_flight.size();
        auto f = std::move(in_flight[i]);
        in_flight.erase(in_flight.begin() + long(i));
        f(), idle = 0, all_wait = false;
    }
}

void Machine::run_group(uint64_t first, uint32_t n) {
    constexpr uint64_t kLivelock = 3'000'000;
    for (uint32_t b = 0; b < n; b++) start(blocks[b], first + b, b);
    if (order) order->start(first, n);
    std::vector<Warp*> warps;
    for (uint32_t b = 0; b < n; b++)
        for (Warp& w : blocks[b].warps) warps.push_back(&w);
    while (!warps.empty()) {
        bool any = false;
        if (launch.seed) std::swap(warps.back(), warps[random() % warps.size()]);
        for (size_t i = warps.size(); i-- > 0;) {
            any |= slice(*warps[i], launch.seed ? 1 + random() % 200 : 100'000);
            if (!warps[i]->live) warps.erase(warps.begin() + long(i));
        }
        const bool landed = !in_flight.empty();
        land_some(!any);
        if (idle > kLivelock) throw std::runtime_error("livelock: waits fail and nothing else happens");
        if (!any && !landed && !warps.empty()) deadlock();
    }
    while (!in_flight.empty()) land_some(true);
    for (uint32_t b = 0; b < n; b++)
        for (Warp& w : blocks[b].warps)
            for (models::Groups& stores : w.stores)
                stores.wait_all();  // nobody waits for a block's last bulk stores: they arrive
    for (uint32_t b = 0; b < n; b++)
        for (const models::WarpgroupOrder& g : blocks[b].warpgroups)
            if (!g.level())
                fail("a block has ended, and the warps of a warpgroup have executed different numbers of wgmma");
    if (order) order->end();
}

void Machine::deadlock() {
    std::string text = "deadlock:";
    int left = 12;
    for (const Block& b : blocks)
        for (const Warp& w : b.warps)
            for (const Group& g : w.groups) {
                if (left-- <= 0) continue;
                const int line = g.pc < kernel.code.size() ? kernel.code[g.pc].line : 0;
                text += "\n  block " + std::to_string(b.index.x) + " warp " + std::to_string(w.id) + ": " +
                        std::to_string(count_lanes(g.lanes)) + " lanes wait at PTX line " + std::to_string(line) +
                        ": " + kernel.module->line_of_text(line);
            }
    throw std::runtime_error(text);
}

Machine::Machine(Kernel& k, const Launch& l, std::vector<unsigned char> parameters)
    : launch(l), kernel(k), params(std::move(parameters)), rng_(l.seed * 77 + 1) {
    params.resize(std::max<size_t>(params.size(), k.param_bytes));
    if (l.check_order) order = std::make_unique<OrderCheck>(*this);
}
Machine::~Machine() = default;

void Machine::run() {
    const uint64_t total = launch.grid.count();
    if (launch.cluster == 0 || launch.grid.x % launch.cluster)
        fail("a grid of %u blocks is no multiple of the cluster of %u", launch.grid.x, launch.cluster);
    if (launch.block.count() > kernel.max_threads)
        fail("a block of %llu threads, where the kernel is compiled for %u", (unsigned long long)launch.block.count(),
             kernel.max_threads);
    const auto at_once =
        uint32_t(std::min<uint64_t>(total, std::max(launch.resident / launch.cluster, 1u) * launch.cluster));
    blocks.resize(at_once);
    for (uint64_t first = 0; first < total; first += at_once)
        run_group(first, uint32_t(std::min<uint64_t>(at_once, total - first)));
}

}  // namespace ptx
