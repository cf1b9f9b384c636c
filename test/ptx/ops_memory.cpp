// Loads, stores, atomics, cp.async, and the instructions that only order or hint.
#include <algorithm>

#include "test/ptx/counts.h"
#include "test/ptx/ops.h"

namespace ptx {
namespace {

Space space_of(const Inst& i, const Operand& o) {
    for (size_t p = 1; p < i.part.size(); p++) {
        const std::string& s = i.part[p];
        if (s == "global") return Space::global;
        if (s == "shared" || s == "shared::cta" || s == "shared::cluster") return Space::shared;
        if (s == "local") return Space::local;
        if (s == "param" || s == "param::entry" || s == "param::func")
            return o.space == Space::local ? Space::local : Space::param;
        if (s == "const") return Space::constant;
    }
    return Space::generic;
}

u64 in_space(u64 address, Space s) { return s == Space::shared ? u32(address) : address; }

// Effect of an instruction's qualifiers on flags that other threads read
struct Ordering {
    bool strong, acquire, release;
    explicit Ordering(const Inst& i, bool atomic = false)
        : strong(atomic || i.has("relaxed") || i.has("volatile") || i.has("acquire") || i.has("release") ||
                 i.has("acq_rel")),
          acquire(i.has("acquire") || i.has("acq_rel")),
          release(i.has("release") || i.has("acq_rel")) {}
    void before(Warp& w, const void* p, u32 lane, bool writes) const {
        OrderCheck* const order = w.machine->order.get();
        if (!order || !strong || !writes) return;
        release ? order->release(p, w, 1u << lane) : order->strong_write(p, w);
    }
    void after(Warp& w, const void* p, bool reads) const {
        OrderCheck* const order = w.machine->order.get();
        if (!order || !strong || !reads) return;
        acquire ? order->acquire(p, w) : order->strong_read(p, w);
    }
};

Step load_store(const Inst& i) {
    const bool load = i.part[0] != "st";
    const Operand &a = i.operand.at(load ? 1 : 0), &r = i.operand.at(load ? 0 : 1);
    const std::vector<u32> rows = r.kind == Operand::vector ? r.rows : std::vector<u32>{r.slot};
    const Space space = space_of(i, a);
    const Inst* const inst = &i;
    const Ordering ordering(i);
    const Access kind =
        ordering.strong ? (load ? Access::strong_read : Access::strong_write) : (load ? Access::read : Access::write);
    Step s;
    with_type(i.part.back(), [&]<class T>() {
        if constexpr (!is_pair<T>)
            s = [=, base = a.slot, offset = u64(a.offset)](Warp& w, u32 lanes) {
                const u64* A = w.row(base);
                const u32 bytes = u32(rows.size() * sizeof(T));
                OrderCheck* const order = w.machine->order.get();
                if (w.machine->counts) w.machine->counts->access(w, *inst, space, A, offset, bytes, lanes, load);
                each(lanes, [&](u32 l) {
                    unsigned char* p = w.at(space, in_space(A[l] + offset, space), bytes, l, !load);
                    if (order && space != Space::local && space != Space::param) {
                        order->access(w, p, bytes, l, kind);
                        ordering.before(w, p, l, !load), ordering.after(w, p, load);
                    }
                    for (size_t e = 0; e < rows.size(); e++) {
                        T v;
                        if (load) {
                            memcpy(&v, p + e * sizeof(T), sizeof(T));
                            w.row(rows[e])[l] = put<T>(v);
                        } else {
                            v = get<T>(w.row(rows[e])[l]);
                            memcpy(p + e * sizeof(T), &v, sizeof(T));
                        }
                    }
                });
            };
    });
    return s;
}

// ---- atom and red

enum class Atomic { add, min, max, bit_and, bit_or, bit_xor, exch, cas, inc, dec };

template <class T>
T combine(Atomic op, T old, T b, T c) {
    switch (op) {
        case Atomic::add:
            return T(u64(old) + u64(b));
        case Atomic::min:
            return std::min(old, b);
        case Atomic::max:
            return std::max(old, b);
        case Atomic::bit_and:
            return T(old & b);
        case Atomic::bit_or:
            return T(old | b);
        case Atomic::bit_xor:
            return T(old ^ b);
        case Atomic::cas:
            return old == b ? c : old;
        case Atomic::inc:
            return old >= b ? T(0) : T(old + 1);
        case Atomic::dec:
            return old == T(0) || old > b ? b : T(old - 1);
        case Atomic::exch:
            return b;
    }
    return old;
}
template <class T>
T combine_float(Atomic op, T old, T b) {
    if constexpr (is_pair<T>) {
        return {combine_float(op, old.low, b.low), combine_float(op, old.high, b.high)};
    } else {
        const auto x = wide(old), y = wide(b);
        return op == Atomic::add ? narrow<T>(double(x + y)) : op == Atomic::min ? (y < x ? b : old) : (y > x ? b : old);
    }
}

Step atomic(const Inst& i) {
    const bool red = i.part[0] == "red";
    const Operand& a = i.operand.at(red ? 0 : 1);
    const Space space = space_of(i, a);
    static const char* const names[] = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};
    size_t found = 10;
    for (size_t n = 0; n < 10; n++)
        if (i.has(names[n])) found = n;
    if (found == 10) return {};
    const auto op = Atomic(found);
    const Operand& source = i.operand.at(red ? 1 : 2);
    const std::vector<u32> b = source.kind == Operand::vector ? source.rows : std::vector<u32>{source.slot};
    const Operand& result = i.operand[0];
    const std::vector<u32> d = red                              ? std::vector<u32>(b.size(), 0u)
                               : result.kind == Operand::vector ? result.rows
                                                                : std::vector<u32>{result.slot};
    const u32 c = op == Atomic::cas ? i.operand.at(3).slot : 0;
    const Ordering ordering(i, true);
    Step s;
    with_type(i.part.back(), [&]<class T>() {
        constexpr bool floating = is_float<T> || is_pair<T>;
        if (floating && op != Atomic::add && op != Atomic::min && op != Atomic::max) return;
        s = [=, base = a.slot, offset = u64(a.offset)](Warp& w, u32 lanes) {
            w.machine->idle = 0;
            each(lanes, [&](u32 l) {
                for (size_t e = 0; e < b.size(); e++) {
                    const u64 address = w.row(base)[l] + offset + e * sizeof(T);
                    unsigned char* p = w.at(space, in_space(address, space), sizeof(T), l, true);
                    if (w.machine->order) w.machine->order->access(w, p, sizeof(T), l, Access::atomic);
                    ordering.before(w, p, l, true), ordering.after(w, p, true);
                    T old, r;
                    memcpy(&old, p, sizeof old);
                    if constexpr (floating)
                        r = combine_float(op, old, get<T>(w.row(b[e])[l]));
                    else
                        r = combine(op, old, get<T>(w.row(b[e])[l]), get<T>(w.row(c)[l]));
                    memcpy(p, &r, sizeof r);
                    if (!red) w.row(d[e])[l] = put<T>(old);
                }
            });
        };
    });
    return s;
}

// ---- cp.async: lands when its thread waits, or at once

Step cp_async(const Inst& i) {
    if (i.has("commit_group")) return [](Warp& w, u32 lanes) { each(lanes, [&](u32 l) { w.copies[l].commit(); }); };
    if (i.has("wait_group"))
        return [n = size_t(i.operand.at(0).offset)](Warp& w, u32 lanes) {
            each(lanes, [&](u32 l) { w.copies[l].wait(n); });
        };
    if (i.has("wait_all")) return [](Warp& w, u32 lanes) { each(lanes, [&](u32 l) { w.copies[l].wait_all(); }); };
    if (i.has("mbarrier")) return {};
    const Inst* const inst = &i;
    const bool counted = i.operand.size() > 3 && i.operand[3].kind == Operand::row;
    const u32 count_row = counted ? i.operand[3].slot : i.operand.at(2).slot;
    return [inst, count_row, d = i.operand[0], a = i.operand[1], size = u32(i.operand[2].offset)](Warp& w, u32 lanes) {
        if (w.machine->counts)
            w.machine->counts->access(w, *inst, Space::global, w.row(a.slot), u64(a.offset), size, lanes, true);
        each(lanes, [&](u32 l) {
            const u32 n = u32(w.row(count_row)[l]);
            if (n > size) fail("lane %u: cp.async reads %u of %u bytes", l, n, size);
            unsigned char* to = w.at(Space::shared, shared_address(w, d, l), size, l, true);
            const u64 from_address = address(w, a, l);
            if (from_address % size)
                fail("lane %u: address %#llx is not aligned to %u bytes", l, (unsigned long long)from_address, size);
            if (n) check_global(from_address & ~kWindow, n, l);
            const auto* from = reinterpret_cast<const unsigned char*>(from_address);
            Warp* const warp = &w;
            OrderCheck* const order = w.machine->order.get();
            if (order) order->copy_begins(w, to, size, l);
            w.copies[l].ops.push_back([=] {
                if (order) order->copy_ends(*warp, to, size, l);
                if (n) memcpy(to, from, n);
                memset(to + n, 0, size - n);
            });
        });
    };
}

Step fence(const Inst& i) {
    if (i.has("mbarrier_init"))
        return [](Warp& w, u32) {
            if (w.machine->order) w.machine->order->fence_mbar_init(w);
        };
    if (i.has("proxy") && (i.has("async") || i.has("async::generic")))
        return [](Warp& w, u32 lanes) {
            if (w.machine->order) w.machine->order->fence_proxy(w, lanes);
        };
    if (i.has("proxy")) return i.has("alias") || i.has("tensormap::generic") ? Step([](Warp&, u32) {}) : Step();
    return [](Warp& w, u32 lanes) {  // fence.sc, fence.acq_rel, membar
        if (w.machine->order) w.machine->order->fence(w, lanes);
    };
}

}  // namespace

Step bind_memory(const Inst& i) {
    const std::string& op = i.part[0];
    if (op == "ld" || op == "st" || op == "ldu") return load_store(i);
    if (op == "atom" || op == "red") return atomic(i);
    if (op == "cp" && i.has("async") && !i.has("bulk")) return cp_async(i);
    if (op == "fence" || op == "membar") return fence(i);
    if (op == "prefetch" || op == "prefetchu" || op == "applypriority" || op == "discard") return [](Warp&, u32) {};
    return {};
}

}  // namespace ptx
