// Shuffles, votes and barriers.
#include <algorithm>

#include "test/ptx/ops.h"

namespace ptx {
namespace {

u32 mask_of(const Warp& w, const Operand& o, u32 lanes) { return u32(w.row(o.slot)[first_lane(lanes)]); }

Step shuffle(const Inst& i) {
    const std::string mode = i.part.at(2);
    if (i.part[1] != "sync" || (mode != "up" && mode != "down" && mode != "bfly" && mode != "idx")) return {};
    return [mode, o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(4), lanes));
        u64 out[32];
        bool valid[32];
        each(all, [&](u32 l) {
            const u32 b = u32(w.row(o[2].slot)[l]) & 31, c = u32(w.row(o[3].slot)[l]), segment = c >> 8 & 31,
                      clamp = c & 31;
            const int max = int((l & segment) | (clamp & ~segment)), min = int(l & segment);
            int j = int(l);
            if (mode == "up") j = int(l) - int(b);
            if (mode == "down") j = int(l + b);
            if (mode == "bfly") j = int(l ^ b);
            if (mode == "idx") j = min | int(b & ~segment);
            valid[l] = mode == "up" ? j >= max : j <= max;
            if (!valid[l]) j = int(l);
            if (!(all >> j & 1)) fail("shfl: lane %u reads lane %d, which is not in the mask %#x", l, j, all);
            out[l] = u32(w.row(o[1].slot)[j]);
        });
        each(all, [&](u32 l) {
            w.row(o[0].slot)[l] = out[l];
            if (!o[0].rows.empty()) w.row(o[0].rows[0])[l] = valid[l];
        });
    };
}

Step elect(const Inst& i) {
    return [o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(1), lanes));
        if (!all) return;
        const u32 leader = first_lane(all);
        each(all, [&](u32 l) { w.row(o[0].slot)[l] = leader, w.row(o[0].rows.at(0))[l] = l == leader; });
    };
}

Step vote(const Inst& i) {
    const bool ballot = i.has("ballot"), any = i.has("any"), every = i.has("all");
    if (!ballot && !any && !every && !i.has("uni")) return {};
    return [=, o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(2), lanes));
        u32 votes = 0;
        each(all, [&](u32 l) { votes |= u32((w.row(o[1].slot)[l] & 1) ^ u64(o[1].negated)) << l; });
        const u64 r = ballot ? votes : any ? votes != 0 : every ? votes == all : votes == all || votes == 0;
        each(all, [&](u32 l) { w.row(o[0].slot)[l] = r; });
    };
}

Step match(const Inst& i) {
    if (!i.has("any")) return {};
    const u64 bits = i.part.back() == "b64" ? ~0ull : 0xffffffffull;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(2), lanes));
        u64 in[32];
        each(all, [&](u32 l) { in[l] = w.row(o[1].slot)[l] & bits; });
        each(all, [&](u32 l) {
            u32 same = 0;
            each(all, [&](u32 k) { same |= u32(in[k] == in[l]) << k; });
            w.row(o[0].slot)[l] = same;
        });
    };
}

Step reduce(const Inst& i) {  // redux.sync
    const std::string op = i.part.at(2);
    const bool is_signed = i.part.back() == "s32";
    if (i.part.back() == "f32") return {};
    return [=, o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(2), lanes));
        s64 r = 0;
        bool first = true;
        each(all, [&](u32 l) {
            const u32 bits = u32(w.row(o[1].slot)[l]);
            const s64 x = is_signed ? s64(s32(bits)) : s64(bits);
            r = first         ? x
                : op == "add" ? r + x
                : op == "min" ? std::min(r, x)
                : op == "max" ? std::max(r, x)
                : op == "and" ? r & x
                : op == "or"  ? r | x
                              : r ^ x;
            first = false;
        });
        each(all, [&](u32 l) { w.row(o[0].slot)[l] = u32(r); });
    };
}

// bar.warp.sync
Step warp_barrier(const Inst& i) {
    return [o = i.operand](Warp& w, u32 lanes) {
        const u32 all = w.meet(lanes, mask_of(w, o.at(0), lanes));
        if (all && w.machine->order) w.machine->order->warp_sync(w, all);
    };
}

// bar[rier][.cta].sync and .arrive: id, and threads if not all
Step block_barrier(const Inst& i) {
    if (i.has("warp")) return warp_barrier(i);
    if (i.has("red") || (!i.has("sync") && !i.has("arrive"))) return {};
    const bool arrive = i.has("arrive"), counted = i.operand.size() > 1;
    return [=, o = i.operand](Warp& w, u32 lanes) {
        const u32 first = first_lane(lanes), id = u32(w.row(o.at(0).slot)[first]);
        if (id > 15) fail("there is no barrier %u", id);
        Barrier& b = w.block->barrier[id];
        const u32 expected = counted ? u32(w.row(o[1].slot)[first]) : w.block->live_threads();
        if (counted && (expected == 0 || expected % 32))
            fail("barrier %u: %u threads is no multiple of 32", id, expected);
        if (b.arrived && counted != b.counted) fail("barrier %u: some name a count, some do not", id);
        if (b.arrived && counted && b.expected != expected)
            fail("barrier %u: %u threads here, %u there", id, expected, b.expected);
        b.expected = expected, b.counted = counted, b.arrived += count_lanes(lanes);
        if (b.arrived > expected) fail("barrier %u: %u threads arrive where %u are expected", id, b.arrived, expected);
        if (OrderCheck* order = w.machine->order.get()) order->release(&b, w, lanes);
        if (!arrive) b.waiting.push_back({&w, lanes});
        if (b.arrived < expected) {
            w.parks = !arrive;
            return;
        }
        if (!arrive) b.waiting.pop_back();
        if (OrderCheck* order = w.machine->order.get()) {
            if (!arrive) b.waiting.push_back({&w, lanes});
            for (auto& [other, who] : b.waiting) order->acquire(&b, *other), order->warp_sync(*other, who);
            if (!arrive) b.waiting.pop_back();
        }
        w.machine->release(b);
    };
}

}  // namespace

Step bind_warp(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "shfl") return shuffle(i);
    if (op == "vote") return vote(i);
    if (op == "match") return match(i);
    if (op == "redux") return reduce(i);
    if (op == "elect") return elect(i);
    if (op == "activemask")
        return [d = i.operand.at(0).slot](Warp& w, u32 m) { each(m, [&](u32 l) { w.row(d)[l] = m; }); };
    if (op == "bar" || (op == "barrier" && !i.has("cluster"))) return block_barrier(i);
    if (op == "trap") return [](Warp&, u32) { fail("trap"); };
    if (op == "brkpt" || op == "nanosleep" || op == "griddepcontrol") return [](Warp&, u32) {};
    return {};
}

}  // namespace ptx
