// Block, named and warp barriers, and what is wrong with how a thread meets or misses them.
#include <cstring>

#include "test/simt/runtime.h"

namespace simt {
namespace {

bool same_place(Site a, Site b) { return a.line() == b.line() && !strcmp(a.file_name(), b.file_name()); }

void release(Barrier& z) {
    stats().barriers++;
    progress();
    if (race) race->barrier(&z, z.waiters.data(), z.waiters.size());
    for (Fiber* f : z.waiters) make_ready(f);
    z.waiters.clear();
    z.arrived = z.expected = 0;
}

}  // namespace

// Strict where CUDA promises nothing, even where hardware goes ahead: a barrier that some threads left for good,
// or that they meet in two places.
void block_barrier(const char* op, Site at) {
    Fiber* f = current;
    Block* b = f->block;
    Barrier& z = b->barriers[0];
    f->op = op, f->at = at;
    if (b->live < b->threads)
        fail("%s at %s, but %u threads of the block have already returned", op, where(at).c_str(),
             b->threads - b->live);
    if (!z.waiters.empty() && !same_place(z.waiters[0]->at, at))
        fail("divergent barrier: %s at %s, while thread %u waits in %s at %s", op, where(at).c_str(),
             z.waiters[0]->linear, z.waiters[0]->op, where(z.waiters[0]->at).c_str());
    z.waiters.push_back(f);
    f->state = State::barrier;
    if (++z.arrived == b->threads) release(z);
    reschedule();
}

void named_barrier(int id, int threads, bool wait, Site at) {
    Fiber* f = current;
    f->op = wait ? "bar.sync" : "bar.arrive", f->at = at;
    if (id < 1 || id > 15) fail("%s at %s: barrier %d, not 1 to 15", f->op, where(at).c_str(), id);
    if (threads % 32 || threads < 32 || uint32_t(threads) > f->block->threads)
        fail("%s at %s: %d threads, not a multiple of 32 within the block", f->op, where(at).c_str(), threads);
    Barrier& z = f->block->barriers[id];
    if (z.expected && z.expected != uint32_t(threads))
        fail("%s at %s: barrier %d with %d threads, earlier arrivals said %u", f->op, where(at).c_str(), id, threads,
             z.expected);
    z.expected = uint32_t(threads);
    if (race && !wait) race->release(&z);
    if (wait) {
        f->state = State::barrier;
        z.waiters.push_back(f);
    }
    if (++z.arrived == z.expected) release(z);
    if (wait) reschedule();
}

void check_exit(Fiber* f) {
    Block* b = f->block;
    Warp* w = f->warp;
    w->live &= ~(1u << f->lane);
    b->live--;
    const auto left = [b, f](const std::string& how) {
        note_failure("block (" + std::to_string(b->index.x) + "," + std::to_string(b->index.y) + "," +
                     std::to_string(b->index.z) + ") thread " + std::to_string(f->linear) + " returned " + how);
    };
    if (!f->copies.ops.empty()) return left("with cp.async copies in flight");
    if (!w->live && b->wgmma.size() > w->id && !b->wgmma[w->id].ops.empty())
        return left("with wgmma operations in flight");
    for (uint32_t m = w->waiting; m; m &= m - 1) {
        const Fiber* o = w->lane[__builtin_ctz(m)];
        if (o->mask >> f->lane & 1)
            return left("while lane " + std::to_string(o->lane) + " waits for it in " + o->op + " at " + where(o->at));
    }
    const Barrier& z = b->barriers[0];
    if (!z.waiters.empty())
        left("while " + std::to_string(z.waiters.size()) + " threads of the block wait in " + z.waiters[0]->op +
             " at " + where(z.waiters[0]->at));
}

}  // namespace simt
