// mbarriers, bulk copies, TMA, clusters, setmaxnreg.
#include "test/ptx/counts.h"
#include "test/ptx/ops.h"
#include "test/simt/models.h"

namespace ptx {
namespace {

using models::MBarrier;

// ---- mbarrier

MBarrier* mbarrier_at(Warp& w, u32 address, u32 lane, const char* what, bool async = false) {
    if (address & 7) fail("lane %u: mbarrier %#x is not aligned to 8 bytes", lane, address);
    auto* m = reinterpret_cast<MBarrier*>(w.machine->shared_at(*w.block, address, 8, what));
    if (m->valid != models::kMBarrierValid)
        fail("lane %u: %s on %#x, which is no mbarrier or not initialised", lane, what, address);
    if (w.machine->order) w.machine->order->mbar_use(m, w, async, what);
    return m;
}

void complete(Machine& machine, MBarrier* m) {
    if (!models::complete_phase(*m)) return;
    machine.idle = 0;
    if (machine.order) machine.order->phase(m);
}

void arrive_tx(Machine& machine, MBarrier* m, u32 bytes) {
    if (!models::add_tx(*m, -s64(bytes)))
        fail("a copy of %u bytes: an mbarrier's transaction count leaves 20 bits", bytes);
    complete(machine, m);
}

Step init(const Inst& i) {
    return [o = i.operand](Warp& w, u32 lanes) {
        each(lanes, [&](u32 l) {
            const u32 at = shared_address(w, o.at(0), l), count = u32(w.row(o.at(1).slot)[l]);
            if (at & 7) fail("lane %u: mbarrier %#x is not aligned to 8 bytes", l, at);
            if (count < 1 || count > 4095) fail("mbarrier.init: a count of %u", count);
            auto* m = reinterpret_cast<MBarrier*>(w.machine->shared_at(*w.block, at, 8, "mbarrier.init"));
            if (w.machine->order) w.machine->order->mbar_init(m, w, l);
            *m = models::new_mbarrier(count);
        });
    };
}

Step arrive(const Inst& i) {
    const bool expect = i.has("expect_tx"), drop = i.part[1] == "arrive_drop";
    const size_t at = i.operand.at(0).kind == Operand::address ? 0 : 1;
    if (drop || i.has("noComplete") || (at == 1 && i.operand[0].kind != Operand::ignored))
        return {};  // the state is not modelled
    const bool has_argument = i.operand.size() > at + 1;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        each(lanes, [&](u32 l) {
            MBarrier* m = mbarrier_at(w, shared_address(w, o[at], l), l, "mbarrier.arrive");
            const u32 argument = has_argument ? u32(w.row(o[at + 1].slot)[l]) : expect ? 0 : 1;
            const u32 arrivals = expect ? 1 : argument;
            if (m->pending < arrivals)
                fail("lane %u: more arrivals than the %u that the mbarrier expects", l, u32(m->expected));
            if (w.machine->order) w.machine->order->release(m, w, 1u << l);
            if (expect && !models::add_tx(*m, argument))
                fail("lane %u: %u more bytes, and the mbarrier's transaction count leaves 20 bits", l, argument);
            m->pending = (m->pending - arrivals) & 0xfff;
            complete(*w.machine, m);
        });
    };
}

Step try_wait(const Inst& i) {
    if (!i.has("parity")) return {};
    return [o = i.operand](Warp& w, u32 lanes) {
        each(lanes, [&](u32 l) {
            MBarrier* m = mbarrier_at(w, shared_address(w, o.at(1), l), l, "mbarrier.try_wait");
            const bool flipped = models::flip == models::Flip::parity;
            const bool done = m->phase != ((u32(w.row(o.at(2).slot)[l]) & 1) ^ flipped);
            w.row(o[0].slot)[l] = done;
            if (done && w.machine->order) w.machine->order->acquire(m, w);
            if (!done) w.yields = true, w.machine->idle++;
        });
    };
}

Step mbarrier(const Inst& i) {
    const std::string& op = i.part.at(1);
    if (op == "init") return init(i);
    if (op == "arrive" || op == "arrive_drop") return arrive(i);
    if (op == "try_wait" || op == "test_wait") return try_wait(i);
    if (op == "inval")
        return [o = i.operand](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) { mbarrier_at(w, shared_address(w, o.at(0), l), l, "mbarrier.inval")->valid = 0; });
        };
    if (op == "expect_tx")
        return [o = i.operand](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) {
                MBarrier* m = mbarrier_at(w, shared_address(w, o.at(0), l), l, "mbarrier.expect_tx");
                if (!models::add_tx(*m, u32(w.row(o.at(1).slot)[l])))
                    fail("lane %u: an mbarrier's transaction count leaves 20 bits", l);
            });
        };
    return {};
}

// ---- bulk copies

bool to_shared(const Inst& i) {
    size_t shared = i.part.size(), global = i.part.size();
    for (size_t p = i.part.size(); p-- > 0;) {
        if (i.part[p].rfind("shared", 0) == 0) shared = p;
        if (i.part[p] == "global") global = p;
    }
    return shared < global;
}

void order_shared(Warp& w, u32 lane, const unsigned char* p, u32 bytes, bool done) {
    if (w.machine->order) w.machine->order->async_read(w, p, bytes, lane, done);
}
void order_global(Warp& w, u32 lane, const void* p, u64 bytes, Access kind) {
    if (w.machine->order) w.machine->order->access(w, static_cast<const unsigned char*>(p), u32(bytes), lane, kind);
}

// Complete when the thread waits; with a seed perhaps already now.
void queue_store(Warp& w, u32 lane, std::function<void()> copy, std::function<void()> done) {
    const bool late = w.machine->launch.seed ? w.machine->late() : true;
    if (!late) copy();
    w.stores[lane].ops.push_back([=] {
        if (late) copy();
        done();
    });
}

// [dst], [src], bytes, [mbarrier]   or   [dst], [src], bytes
Step bulk_bytes(const Inst& i) {
    const bool load = to_shared(i);
    if (i.has("multicast::cluster") || i.has("cp_mask")) return {};
    const Inst* const inst = &i;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        Warp* const warp = &w;
        Machine* const machine = w.machine;
        each(lanes, [&](u32 l) {
            const u32 bytes = u32(w.row(o.at(2).slot)[l]);
            const u64 to = address(w, o[0], l), from = address(w, o.at(1), l), global = load ? from : to;
            if ((bytes | to | from) % 16) fail("lane %u: a bulk copy of %u bytes is not aligned to 16", l, bytes);
            if (machine->counts) machine->counts->bulk(*inst, bytes);
            check_global(global, bytes, l);
            unsigned char* at = machine->shared_at(*w.block, u32(load ? to : from), bytes, "bulk copy");
            order_global(w, l, reinterpret_cast<void*>(global), bytes, load ? Access::read : Access::write);
            if (load) {
                MBarrier* m = mbarrier_at(w, shared_address(w, o.at(3), l), l, "bulk copy", true);
                if (machine->order) machine->order->async_write(w, at, bytes, l, m);
                machine->land(
                    [=] { memcpy(at, reinterpret_cast<const void*>(from), bytes), arrive_tx(*machine, m, bytes); });
            } else {
                order_shared(w, l, at, bytes, false);
                queue_store(
                    w, l, [=] { memcpy(reinterpret_cast<void*>(to), at, bytes); },
                    [=] { order_shared(*warp, l, at, bytes, true); });
            }
        });
    };
}

void add_floats(void* to, const void* from, u32 bytes) {
    for (u32 b = 0; b < bytes; b += 4) {
        float sum, more;
        memcpy(&sum, static_cast<char*>(to) + b, 4), memcpy(&more, static_cast<const char*>(from) + b, 4);
        sum += more;
        memcpy(static_cast<char*>(to) + b, &sum, 4);
    }
}

// cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [dst], [src], bytes: atomic element by element
Step bulk_add(const Inst& i) {
    if (i.has("tensor") || !i.has("add") || i.part.back() != "f32" || to_shared(i)) return {};
    const Inst* const inst = &i;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        Warp* const warp = &w;
        each(lanes, [&](u32 l) {
            const u32 bytes = u32(w.row(o.at(2).slot)[l]);
            const u64 to = address(w, o[0], l), from = address(w, o.at(1), l);
            if ((bytes | to | from) % 16) fail("lane %u: a bulk reduction of %u bytes is not aligned to 16", l, bytes);
            if (w.machine->counts) w.machine->counts->bulk(*inst, bytes);
            check_global(to, bytes, l);
            unsigned char* at = w.machine->shared_at(*w.block, u32(from), bytes, "bulk reduction");
            order_global(w, l, reinterpret_cast<void*>(to), bytes, Access::atomic);
            order_shared(w, l, at, bytes, false);
            queue_store(
                w, l, [=] { add_floats(reinterpret_cast<void*>(to), at, bytes); },
                [=] { order_shared(*warp, l, at, bytes, true); });
        });
    };
}

// ---- TMA

struct Tile {
    models::TensorMap map;
    models::Coordinates at;
    u32 bytes;
};

Tile tile_of(Warp& w, const Operand& o, u32 lane) {
    Tile t{};
    const u64 a = address(w, o, lane);
    memcpy(&t.map, w.at(Space::generic, a, 64, lane, false), sizeof t.map);
    if (t.map.magic != models::TensorMap::kMagic || t.map.rank != o.rows.size())
        fail("lane %u: at %#llx is no tensor map of rank %zu", lane, (unsigned long long)a, o.rows.size());
    for (size_t d = 0; d < o.rows.size(); d++) t.at.x[d] = s32(u32(w.row(o.rows[d])[lane]));
    t.bytes = models::tile_bytes(t.map);
    return t;
}

void load_tile(Warp& w, u32 lane, const Tile& t, u32 to_address, u32 bar_address) {
    Machine* const machine = w.machine;
    unsigned char* to = machine->shared_at(*w.block, to_address, t.bytes, "TMA load");
    MBarrier* m = mbarrier_at(w, bar_address, lane, "TMA load", true);
    if (machine->order) {
        machine->order->async_write(w, to, t.bytes, lane, m);
        models::for_each_run(t.map, to_address & kOffsetMask, t.at.x, [&](const char* g, u32, u32 n, bool inside) {
            if (inside) order_global(w, lane, g, n, Access::read);
        });
    }
    machine->land([=] {
        models::for_each_run(t.map, to_address & kOffsetMask, t.at.x,
                             [&](const char* g, u32 offset, u32 n, bool inside) {
                                 if (inside)
                                     check_global(u64(g), n, lane), memcpy(to + offset, g, n);
                                 else
                                     memset(to + offset, models::flip == models::Flip::out_of_bounds ? 0x3f : 0, n);
                             });
        arrive_tx(*machine, m, models::flip == models::Flip::tx_bytes ? t.bytes - 16 : t.bytes);
    });
}

// [dst], [map, {x, y..}], [mbarrier] (, block mask)
Step tensor_load(const Inst& i) {
    const bool multicast = i.has("multicast::cluster");
    const Inst* const inst = &i;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        each(lanes, [&](u32 l) {
            const Tile t = tile_of(w, o.at(1), l);
            const u32 to = shared_address(w, o[0], l), bar = shared_address(w, o.at(2), l);
            if (to % models::tile_alignment(t.map))
                fail("lane %u: TMA into shared address %#x, which is not aligned to %u bytes", l, to,
                     models::tile_alignment(t.map));
            if (w.machine->counts) w.machine->counts->bulk(*inst, t.bytes);
            const u32 blocks = multicast ? u32(w.row(o.at(3).slot)[l]) & 0xffff : 0;
            if (!multicast) return load_tile(w, l, t, to, bar);
            if (blocks >> w.machine->launch.cluster)
                fail("TMA multicast to blocks %#x in a cluster of %u", blocks, w.machine->launch.cluster);
            for (u32 r = 0; r < w.machine->launch.cluster; r++)
                if (blocks >> r & 1 && !(models::flip == models::Flip::multicast && r != w.block->rank))
                    load_tile(w, l, t, (to & kOffsetMask) | r << kRankShift, (bar & kOffsetMask) | r << kRankShift);
        });
    };
}

// [map, {x, y..}], [src]; cp.reduce adds fp32 atomically
Step tensor_store(const Inst& i) {
    const Inst* const inst = &i;
    const bool add = i.part[1] == "reduce";
    if (add && !i.has("add")) return {};
    return [=, o = i.operand](Warp& w, u32 lanes) {
        Warp* const warp = &w;
        const bool together = lanes == w.live && count_lanes(lanes) > 1;  // CUTLASS's epilogue: the same tile 32 times
        each(lanes, [&, together](u32 l) {
            const Tile t = tile_of(w, o.at(0), l);
            if (add && t.map.element != 4) fail("a TMA reduction of elements that are no fp32");
            const u32 from_address = shared_address(w, o.at(1), l);
            if (from_address % models::tile_alignment(t.map))
                fail("lane %u: TMA from shared address %#x, which is not aligned to %u bytes", l, from_address,
                     models::tile_alignment(t.map));
            if (w.machine->counts) w.machine->counts->bulk(*inst, t.bytes);
            const unsigned char* from = w.machine->shared_at(*w.block, from_address, t.bytes, "TMA store");
            order_shared(w, l, from, t.bytes, false);
            const auto copy = [=] {
                models::for_each_run(
                    t.map, from_address & kOffsetMask, t.at.x, [&](char* g, u32 offset, u32 n, bool inside) {
                        if (!inside) return;
                        check_global(u64(g), n, l);
                        order_global(*warp, together ? kAllLanes : l, g, n, add ? Access::atomic : Access::write);
                        add ? add_floats(g, from + offset, n) : (void)memcpy(g, from + offset, n);
                    });
            };
            queue_store(w, l, copy, [=] { order_shared(*warp, l, from, t.bytes, true); });
        });
    };
}

Step bulk(const Inst& i) {
    if (i.has("commit_group")) return [](Warp& w, u32 lanes) { each(lanes, [&](u32 l) { w.stores[l].commit(); }); };
    if (i.has("wait_group"))
        return [n = size_t(i.operand.at(0).offset)](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) { w.stores[l].wait(n); });
        };
    if (i.has("prefetch")) return [](Warp&, u32) {};
    if (i.part[1] == "reduce" && !i.has("tensor")) return bulk_add(i);
    if (i.has("im2col") || i.has("tile::gather4")) return {};
    if (!i.has("tensor")) return bulk_bytes(i);
    return to_shared(i) ? tensor_load(i) : tensor_store(i);
}

// ---- clusters

void check_cluster(Machine& m, Block& first) {
    u32 live = 0;
    for (u32 r = 0; r < m.launch.cluster; r++) live += m.in_cluster(first, r).live_threads();
    if (first.cluster_arrived < live) return;
    first.cluster_arrived = 0, first.cluster_phases++, m.idle = 0;
}

// barrier.cluster.arrive and .wait
Step cluster_barrier(const Inst& i) {
    const bool relaxed = i.has("relaxed");
    if (i.part.at(2) == "arrive")
        return [relaxed](Warp& w, u32 lanes) {
            Block& first = w.machine->in_cluster(*w.block, 0);
            if (OrderCheck* order = w.machine->order.get())
                relaxed ? order->release_inits(&first.cluster_arrived, w)
                        : order->release(&first.cluster_arrived, w, lanes);
            each(lanes, [&](u32 l) { w.cluster_phase[l] = first.cluster_phases + 1; });
            first.cluster_arrived += count_lanes(lanes);
            check_cluster(*w.machine, first);
        };
    return [](Warp& w, u32 lanes) {
        Block& first = w.machine->in_cluster(*w.block, 0);
        check_cluster(*w.machine, first);  // others may have returned meanwhile
        bool done = true;
        each(lanes, [&](u32 l) { done &= first.cluster_phases >= w.cluster_phase[l]; });
        if (done && w.machine->order) w.machine->order->acquire(&first.cluster_arrived, w);
        if (done) return;
        w.yields = w.again = true, w.machine->idle++;
    };
}

Step map_rank(const Inst& i) {
    const bool generic = !i.has("shared::cluster");
    return [o = i.operand, generic](Warp& w, u32 lanes) {
        each(lanes, [&](u32 l) {
            const u32 rank = u32(w.row(o.at(2).slot)[l]);
            if (rank >= w.machine->launch.cluster)
                fail("mapa: there is no block %u in a cluster of %u", rank, w.machine->launch.cluster);
            const u32 to = (shared_address(w, o.at(1), l) & kOffsetMask) | rank << kRankShift;
            w.row(o[0].slot)[l] = generic ? kSharedWindow | to : to;
        });
    };
}

}  // namespace

Step bind_hopper(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "mbarrier") return mbarrier(i);
    if (op == "cp" && i.has("bulk")) return bulk(i);
    if (op == "barrier" && i.has("cluster")) return cluster_barrier(i);
    if (op == "mapa") return map_rank(i);
    if (op == "setmaxnreg")
        return [n = u32(i.operand.at(0).offset)](Warp& w, u32) {
            if (w.machine->order) w.machine->order->set_registers(w, n);
        };
    return {};
}

}  // namespace ptx
