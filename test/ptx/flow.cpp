// The control flow of a kernel: where lanes that a branch parts meet again, and which registers can share a row.
#include <algorithm>
#include <cstring>
#include <set>

#include "test/ptx/module.h"

namespace ptx {
namespace {

constexpr int kNone = -1;

struct Block {
    uint32_t begin, end;  // instructions
    std::vector<int> next;
};

struct Flow {
    std::vector<Block> blocks;  // the last one is the exit: empty, and after the code
    std::vector<int> block_of;  // of an instruction
};

bool jumps(const Inst& i) { return i.part[0] == "bra"; }
bool leaves(const Inst& i) { return i.part[0] == "ret" || i.part[0] == "exit"; }

Flow find_blocks(const Kernel& k) {
    const auto n = uint32_t(k.code.size());
    std::set<uint32_t> begins{0, n};
    for (uint32_t i = 0; i < n; i++) {
        if (jumps(k.code[i])) begins.insert(k.code[i].target);
        if (jumps(k.code[i]) || leaves(k.code[i])) begins.insert(i + 1);
    }
    Flow f;
    f.block_of.resize(n + 1);
    for (auto b = begins.begin(); b != begins.end(); ++b) {
        const uint32_t end = std::next(b) == begins.end() ? *b : *std::next(b);
        for (uint32_t i = *b; i < std::max(end, *b + 1) && i <= n; i++) f.block_of[i] = int(f.blocks.size());
        f.blocks.push_back({*b, end, {}});
    }
    const int exit = int(f.blocks.size()) - 1;
    for (int b = 0; b < exit; b++) {
        const Inst& last = k.code[f.blocks[size_t(b)].end - 1];
        auto& next = f.blocks[size_t(b)].next;
        if (jumps(last)) next.push_back(f.block_of[last.target]);
        if (leaves(last)) next.push_back(exit);
        if (!(jumps(last) || leaves(last)) || last.guard >= 0) next.push_back(b + 1);
    }
    return f;
}

// Immediate post-dominators (Cooper, Harvey, Kennedy: "A simple, fast dominance algorithm", on the reversed graph).
std::vector<int> post_dominators(const Flow& f) {
    const int n = int(f.blocks.size()), exit = n - 1;
    std::vector<std::vector<int>> before(static_cast<size_t>(n));
    for (int b = 0; b < n; b++)
        for (int s : f.blocks[size_t(b)].next) before[size_t(s)].push_back(b);
    std::vector<int> order, number(size_t(n), kNone);  // from the exit, in post-order
    std::vector<std::pair<int, size_t>> stack{{exit, 0}};
    std::vector<bool> seen(static_cast<size_t>(n));
    seen[size_t(exit)] = true;
    while (!stack.empty()) {
        auto& [b, i] = stack.back();
        if (i < before[size_t(b)].size()) {
            const int next = before[size_t(b)][i++];
            if (!seen[size_t(next)]) seen[size_t(next)] = true, stack.push_back({next, 0});
            continue;
        }
        number[size_t(b)] = int(order.size()), order.push_back(b), stack.pop_back();
    }
    std::vector<int> idom(size_t(n), kNone);
    idom[size_t(exit)] = exit;
    for (bool changed = true; changed;) {
        changed = false;
        for (auto it = order.rbegin(); it != order.rend(); ++it) {
            if (*it == exit) continue;
            int best = kNone;
            for (int s : f.blocks[size_t(*it)].next) {
                if (idom[size_t(s)] == kNone) continue;
                int a = s, b = best;
                if (b == kNone) {
                    best = s;
                    continue;
                }
                while (a != b)
                    (number[size_t(a)] < number[size_t(b)] ? a : b) =
                        idom[size_t(number[size_t(a)] < number[size_t(b)] ? a : b)];
                best = a;
            }
            if (best != idom[size_t(*it)]) idom[size_t(*it)] = best, changed = true;
        }
    }
    return idom;
}

void mark_reconvergence(Kernel& k, const Flow& f) {
    const std::vector<int> idom = post_dominators(f);
    const auto n = uint32_t(k.code.size());
    for (Inst& i : k.code) {
        if (!jumps(i)) continue;
        const int d = idom[size_t(f.block_of[size_t(&i - k.code.data())])];
        i.reconverge = d == kNone ? n : f.blocks[size_t(d)].begin;  // a loop without an end meets nowhere
        if (i.reconverge < n) k.code[i.reconverge].joins = true;
    }
}

// ---- registers and rows

bool is(const Inst& i, std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* s) { return i.part[0] == s; });
}

// How many leading operands are written
size_t results(const Inst& i) {
    if (i.operand.empty()) return 0;
    if (is(i, {"st",    "red",    "bra",       "brx",      "bar",           "barrier",        "cp",
               "fence", "membar", "stmatrix",  "prefetch", "prefetchu",     "setmaxnreg",     "ret",
               "exit",  "trap",   "nanosleep", "discard",  "applypriority", "griddepcontrol", "multimem"}))
        return i.has("red") && is(i, {"bar", "barrier"}) ? 1 : 0;
    if (is(i, {"mbarrier"})) return i.has("try_wait") || i.has("test_wait") || i.operand[0].kind != Operand::address;
    if (is(i, {"wgmma"})) return i.has("mma_async");
    return 1;
}

struct Touched {
    std::vector<uint32_t> reads, writes;
};
Touched touched(const Inst& i) {
    Touched t;
    const size_t n = results(i);
    const bool updates = i.part[0] == "wgmma" || i.guard >= 0 || i.part[0] == "call";
    for (size_t j = 0; j < i.operand.size(); j++) {
        const Operand& o = i.operand[j];
        auto& to = j < n ? t.writes : t.reads;
        if (o.kind == Operand::row || o.kind == Operand::address)
            (o.kind == Operand::address ? t.reads : to).push_back(o.slot);
        to.insert(to.end(), o.rows.begin(), o.rows.end());
    }
    if (updates) t.reads.insert(t.reads.end(), t.writes.begin(), t.writes.end());
    if (i.guard >= 0) t.reads.push_back(uint32_t(i.guard));
    return t;
}

// From the first to the last instruction at which a register's value may be needed
struct Range {
    uint32_t begin = UINT32_MAX, end = 0;
    void add(uint32_t i) { begin = std::min(begin, i), end = std::max(end, i); }
};

// Most registers are written and read in one block. The others may be needed anywhere.
std::vector<Range> ranges(const Kernel& k, const Flow& f) {
    std::vector<Range> range(k.slots);
    std::vector<int> block(k.slots, kNone);
    for (uint32_t i = 0; i < k.code.size(); i++) {
        const auto touch = [&](uint32_t r, bool reads) {
            if (r >= kConstant) return;
            if (block[r] == kNone ? reads : block[r] != f.block_of[i])
                range[r].add(0), range[r].add(uint32_t(k.code.size()));
            block[r] = f.block_of[i];
            range[r].add(i);
        };
        const Touched t = touched(k.code[i]);
        for (uint32_t r : t.reads) touch(r, true);
        for (uint32_t r : t.writes) touch(r, false);
    }
    return range;
}

// Each register gets a row for its whole range. Special registers, and what wgmma touches later, have one of their own.
void share_rows(Kernel& k, const Flow& f) {
    std::vector<Range> range = ranges(k, f);
    const auto pin = [&](uint32_t slot) {
        if (slot < kConstant) range[slot] = {0, uint32_t(k.code.size())};
    };
    pin(0);
    for (const Fill& x : k.fills) pin(x.slot);
    for (const Inst& i : k.code)
        if (i.part[0] == "wgmma")
            for (const Operand& o : i.operand)
                for (uint32_t r : o.rows) pin(r);
    std::vector<uint32_t> order;
    for (uint32_t r = 0; r < k.slots; r++) order.push_back(r);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return range[a].begin < range[b].begin; });
    std::vector<uint32_t> row(k.slots, 0), free;
    std::multimap<uint32_t, uint32_t> busy;  // until when
    uint32_t rows = 0;
    for (uint32_t r : order) {
        if (range[r].begin == UINT32_MAX) continue;  // never used
        while (!busy.empty() && busy.begin()->first < range[r].begin)
            free.push_back(busy.begin()->second), busy.erase(busy.begin());
        if (free.empty()) free.push_back(rows++);
        row[r] = free.back(), free.pop_back();
        busy.emplace(range[r].end, row[r]);
    }
    const auto rename = [&](uint32_t& slot) {
        if (slot < kConstant) slot = row[slot];
    };
    for (Inst& i : k.code) {
        if (i.guard >= 0 && uint32_t(i.guard) < kConstant) i.guard = int(row[size_t(i.guard)]);
        for (Operand& o : i.operand) {
            if (o.kind == Operand::row || o.kind == Operand::address) rename(o.slot);
            for (uint32_t& r : o.rows) rename(r);
        }
    }
    for (Fill& x : k.fills) rename(x.slot);
    k.slots = rows;
}

}  // namespace

void analyse_flow(Kernel& k) {
    const Flow f = find_blocks(k);
    mark_reconvergence(k, f);
    share_rows(k, f);
}

}  // namespace ptx
