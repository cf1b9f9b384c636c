// mbarrier, TMA tiles, bulk copies and wgmma (sm_90a).
#include <algorithm>
#include <memory>

#include "test/simt/models.h"
#include "test/simt/runtime.h"

namespace simt {
namespace {

using models::MBarrier;
using models::TensorMap;

// ---- mbarrier

MBarrier* checked(uint64_t* bar, const char* op, Site at) {
    auto* m = reinterpret_cast<MBarrier*>(bar);
    if (uintptr_t(bar) & 7) fail("%s at %s: mbarrier %p is not 8-byte aligned", op, where(at).c_str(), (void*)bar);
    if (m->valid != models::kMBarrierValid)
        fail("%s at %s: mbarrier %p is not initialised", op, where(at).c_str(), (void*)bar);
    return m;
}

void complete_phase(MBarrier* m) {
    if (!models::complete_phase(*m)) return;
    progress();
    if (race) race->phase(m);
    const Block* owner = owner_of_shared(m);
    for (uint32_t i = 0; i < resident_count(); i++) {
        auto& waiters = resident_blocks()[i].mbar_waiters;
        const auto released = [m, owner](const Fiber* f) {
            return f->wait_object == m && f->block == owner && f->wait_parity != m->phase;
        };
        for (Fiber* f : waiters)
            if (released(f)) make_ready(f);
        std::erase_if(waiters, [](const Fiber* f) { return f->state != State::mbarrier; });
    }
}

void complete_tx(uint64_t* bar, uint32_t bytes) {
    auto* m = reinterpret_cast<MBarrier*>(bar);
    if (!models::add_tx(*m, -int64_t(bytes)))
        fail("an asynchronous copy of %u bytes: mbarrier %p's transaction count leaves 20 bits", bytes, (void*)bar);
    complete_phase(m);
}

constexpr uint32_t kSmemBase = 1024;  // where dynamic shared memory starts, as a 32-bit shared address

const unsigned char* from_address(uint32_t a, size_t bytes, const char* op) {
    const Block* b = current->block;
    if (a < kSmemBase || a - kSmemBase + bytes > b->smem_bytes)
        fail("%s: shared address %#x is outside the block's %zu bytes of dynamic shared memory", op, a, b->smem_bytes);
    return b->smem + (a - kSmemBase);
}

const TensorMap& checked_map(const void* map, int rank, const char* op, Site at) {
    const auto& m = *static_cast<const TensorMap*>(map);
    if (m.magic != TensorMap::kMagic) fail("%s at %s: not a tensor map", op, where(at).c_str());
    if (int(m.rank) != rank) fail("%s at %s: the tensor map has rank %u, not %d", op, where(at).c_str(), m.rank, rank);
    return m;
}

void load_tile_into(const TensorMap& m, unsigned char* dst, uint64_t* bar, const models::Coordinates& c, Site at) {
    const uint32_t bytes = models::tile_bytes(m), address = kSmemBase + uint32_t(dst - owner_of_shared(dst)->smem);
    if (race) {
        race->async_write(dst, bytes, bar, at);
        models::for_each_run(m, address, c.x, [&](const char* global, uint32_t, uint32_t n, bool inside) {
            if (inside) race->access(global, n, Access::read, at);
        });
    }
    auto land = [=] {
        models::for_each_run(m, address, c.x, [&](const char* global, uint32_t to, uint32_t n, bool inside) {
            if (inside)
                memcpy(dst + to, global, n);
            else
                memset(dst + to, 0, n);
        });
        complete_tx(bar, bytes);
    };
    if (land_late())
        add_async(land);
    else
        land();
}

}  // namespace

void mbar_init(uint64_t* bar, uint32_t count, Site at) {
    if (uintptr_t(bar) & 7) fail("mbarrier.init at %s: %p is not 8-byte aligned", where(at).c_str(), (void*)bar);
    if (count < 1 || count > 4095) fail("mbarrier.init at %s: count %u", where(at).c_str(), count);
    if (race) race->access(bar, 8, Access::write, at);
    auto* m = reinterpret_cast<MBarrier*>(bar);
    *m = models::new_mbarrier(count);
}

void mbar_arrive(uint64_t* bar, uint32_t tx_bytes, Site at) {
    MBarrier* m = checked(bar, "mbarrier.arrive", at);
    if (race) race->access(bar, 8, Access::atomic, at), race->release(bar);
    if (!m->pending)
        fail("mbarrier.arrive at %s: more arrivals than the %u it expects", where(at).c_str(), m->expected);
    if (!models::add_tx(*m, tx_bytes))
        fail("mbarrier.arrive at %s: %u more bytes, and its transaction count leaves 20 bits", where(at).c_str(),
             tx_bytes);
    m->pending = (m->pending - 1) & 0xfff;
    complete_phase(m);
}

void mbar_wait(uint64_t* bar, uint32_t parity, Site at) {
    MBarrier* m = checked(bar, "mbarrier wait", at);
    if (race) race->access(bar, 8, Access::atomic, at);
    if (m->phase == (parity & 1)) {
        Fiber* f = current;
        f->op = "mbarrier wait", f->at = at, f->state = State::mbarrier;
        f->wait_object = m, f->wait_parity = parity & 1;
        f->block->mbar_waiters.push_back(f);
        reschedule();
    }
    if (race) race->acquire(bar);
}

void tma_load(void* dst, const void* map, uint64_t* bar, const int* coords, int rank, Site at) {
    const TensorMap& m = checked_map(map, rank, "TMA load", at);
    checked(bar, "TMA load", at);
    const Block* b = current->block;
    auto* to = static_cast<unsigned char*>(dst);
    if (to < b->smem || to + models::tile_bytes(m) > b->smem + b->smem_bytes)
        fail("TMA load at %s: the %u bytes at %p are not within the dynamic shared memory", where(at).c_str(),
             models::tile_bytes(m), dst);
    if ((to - b->smem) % models::tile_alignment(m))
        fail("TMA load at %s: shared offset %td is not %u-byte aligned", where(at).c_str(), to - b->smem,
             models::tile_alignment(m));
    models::Coordinates c{};
    std::copy_n(coords, rank, c.x);
    load_tile_into(m, to, bar, c, at);
}

void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, Site at) {
    checked(bar, "bulk load", at);
    if ((uintptr_t(dst) | uintptr_t(src) | bytes) & 15)
        fail("bulk load at %s: %p <- %p, %u bytes: not 16-byte aligned", where(at).c_str(), dst, src, bytes);
    if (!owner_of_shared(dst)) fail("bulk load at %s: %p is not in shared memory", where(at).c_str(), dst);
    if (race) race->access(src, bytes, Access::read, at), race->async_write(dst, bytes, bar, at);
    auto land = [=] { memcpy(dst, src, bytes), complete_tx(bar, bytes); };
    if (land_late())
        add_async(land);
    else
        land();
}

uint32_t shared_address(const void* p) {
    const Block* b = current->block;
    const auto* c = static_cast<const unsigned char*>(p);
    if (c < b->smem || c >= b->smem + b->smem_bytes) fail("%p is not in the block's dynamic shared memory", p);
    return kSmemBase + uint32_t(c - b->smem);
}

// ---- wgmma: each warp of the warpgroup computes its own 16 rows; queued per warp until it waits

namespace {

struct WgmmaPart {
    float* d;
    const uint32_t* a_regs;
    uint64_t desc_a, desc_b;
    int n;
    bool accumulate, trans_a, trans_b;
    Half type;
    Site at;
};

struct WgmmaOp {
    WgmmaPart part;
    float* d[32];
    const uint32_t* a_regs[32];
    uint32_t a[32][4];  // what they held when the operation was enqueued
    uint32_t warp;
};

// Registers that are operands may not be written before the wait, nor go out of scope.
void check_registers(const WgmmaOp& op) {
    for (int l = 0; l < 32 && op.part.a_regs; l++)
        if (memcmp(op.a_regs[l], op.a[l], sizeof op.a[l]) != 0)
            fail("wgmma at %s: its A registers were changed before it was waited for", where(op.part.at).c_str());
}

// Calls f(mn, k, pointer to 8 elements): along k if K-major, along mn if not.
template <class F>
void for_each_chunk(uint64_t descriptor, int mn_begin, int mn_count, bool trans, F f) {
    models::for_each_chunk(descriptor, mn_begin, mn_count, trans,
                           [&](int mn, int k, uint32_t address) { f(mn, k, from_address(address, 16, "wgmma")); });
}

// In flight until the wait: a write to an operand meanwhile is a race.
void mark_operands(const WgmmaOp& op, bool done) {
    if (!race) return;
    const auto mark = [&](int, int, const unsigned char* p) { race->in_flight(p, 16, Access::read, done, op.part.at); };
    if (!op.part.a_regs) for_each_chunk(op.part.desc_a, int(op.warp % 4 * 16), 16, op.part.trans_a, mark);
    for_each_chunk(op.part.desc_b, 0, op.part.n, op.part.trans_b, mark);
}

void compute(const WgmmaOp& op) {
    static float a[16][16], b[16 * 256], c[16 * 256];
    const WgmmaPart& p = op.part;
    const auto value = [&](const unsigned char* q, int i) {
        uint16_t bits;
        memcpy(&bits, q + 2 * i, 2);
        return models::half_to_float(bits, p.type == Half::bf16);
    };
    if (p.a_regs) {
        for (int l = 0; l < 32; l++)
            for (int r = 0; r < 4; r++)
                for (int h = 0; h < 2; h++)
                    a[models::a_row(l, r)][models::a_column(l, r, h)] =
                        models::half_to_float(uint16_t(op.a[l][r] >> 16 * h), p.type == Half::bf16);
    } else {
        for_each_chunk(p.desc_a, int(op.warp % 4 * 16), 16, p.trans_a, [&](int m, int k, const unsigned char* q) {
            for (int i = 0; i < 8; i++) (p.trans_a ? a[m + i][k] : a[m][k + i]) = value(q, i);
        });
    }
    for_each_chunk(p.desc_b, 0, p.n, p.trans_b, [&](int n, int k, const unsigned char* q) {
        for (int i = 0; i < 8; i++) (p.trans_b ? b[k * p.n + n + i] : b[(k + i) * p.n + n]) = value(q, i);
    });
    const auto place = [&](int l, int i) { return models::d_row(l, i) * p.n + models::d_column(l, i); };
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < p.n / 2; i++) c[place(l, i)] = p.accumulate ? op.d[l][i] : 0.0f;
    models::multiply(c, a[0], b, p.n);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < p.n / 2; i++) op.d[l][i] = c[place(l, i)];
    mark_operands(op, true);
}

models::Groups& queue_of(const Fiber* f) {
    auto& queues = f->block->wgmma;
    if (queues.empty()) queues.resize(f->block->warps.size());
    return queues[f->warp->id];
}

void in_order(const Fiber* f, const models::WarpgroupOrder::Step& step, Site at) {
    auto& groups = f->block->warpgroups;
    if (groups.empty()) groups.resize((f->block->warps.size() + 3) / 4);
    if (const char* wrong = groups[f->warp->id / 4].next(f->warp->id % 4, step))
        fail("wgmma at %s: %s", where(at).c_str(), wrong);
}

void complete_wgmma(Fiber* const* lanes, uint32_t) {
    auto op = std::make_shared<WgmmaOp>();
    op->part = *static_cast<WgmmaPart*>(lanes[0]->payload);
    op->warp = lanes[0]->warp->id;
    for (int l = 0; l < 32; l++) {
        const auto& p = *static_cast<WgmmaPart*>(lanes[l]->payload);
        if (p.desc_a != op->part.desc_a || p.desc_b != op->part.desc_b)
            fail("wgmma at %s: the lanes disagree on a descriptor", where(p.at).c_str());
        if (p.accumulate != op->part.accumulate)
            fail("wgmma at %s: the lanes disagree on whether to accumulate", where(p.at).c_str());
        op->d[l] = p.d;
        op->a_regs[l] = p.a_regs;
        if (p.a_regs) memcpy(op->a[l], p.a_regs, sizeof op->a[l]);
    }
    const WgmmaPart& p = op->part;
    for (const uint64_t d : {p.a_regs ? 0 : p.desc_a, p.desc_b})
        if (const char* wrong = models::wrong_descriptor(d)) fail("wgmma at %s: %s", where(p.at).c_str(), wrong);
    in_order(lanes[0],
             {p.a_regs ? 0 : p.desc_a, p.desc_b, p.n, p.accumulate, p.trans_a, p.trans_b, p.type == Half::bf16}, p.at);
    mark_operands(*op, false);
    queue_of(lanes[0]).ops.push_back([op] {
        check_registers(*op);
        compute(*op);
    });
}

}  // namespace

void wgmma(float* d, int n, const uint32_t* a_regs, uint64_t desc_a, uint64_t desc_b, bool accumulate, bool trans_a,
           bool trans_b, Half type, Site at) {
    if ((current->warp->id / 4 + 1) * 128 > current->block->threads)
        fail("wgmma at %s: the four warps of this warpgroup do not all exist", where(at).c_str());
    WgmmaPart p{d, a_regs, desc_a, desc_b, n, accumulate, trans_a, trans_b, type, at};
    warp_collective(~0u, &p, complete_wgmma, "wgmma", at);
}

// Landing at once happens here and not in wgmma(): operations without commit are never complete. The race build always
// lands late, since its marks must last until the wait.
void wgmma_commit(Site at) {
    warp_collective(
        ~0u, &at,
        [](Fiber* const* lanes, uint32_t) {
            in_order(lanes[0], {}, *static_cast<Site*>(lanes[0]->payload));
            queue_of(lanes[0]).commit();
            if (!land_late() && !race) queue_of(lanes[0]).wait(0);
        },
        "wgmma.commit_group", at);
}

void wgmma_wait(int groups, Site at) {
    warp_collective(
        ~0u, &groups,
        [](Fiber* const* lanes, uint32_t) { queue_of(lanes[0]).wait(size_t(*static_cast<int*>(lanes[0]->payload))); },
        "wgmma.wait_group", at);
}

void check_warpgroups(const Block& b) {
    for (const models::WarpgroupOrder& g : b.warpgroups)
        if (!g.level())
            note_failure("a block has ended, and the warps of a warpgroup have executed different numbers of wgmma");
}

}  // namespace simt
