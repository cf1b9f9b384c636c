// Warp collectives: each lane leaves its part and waits; the last to arrive checks that all lanes of the mask mean the
// same operation and completes it for the whole warp. Disjoint masks may be open at once.
#include <cstring>

#include "test/simt/runtime.h"

namespace simt {

void warp_collective(uint32_t mask, void* payload, Complete complete, const char* op, Site at) {
    Fiber* f = current;
    Warp* w = f->warp;
    if (!(mask >> f->lane & 1)) fail("%s at %s: lane %u is not in its mask %#x", op, where(at).c_str(), f->lane, mask);
    if (mask & ~w->live)
        fail("%s at %s: mask %#x names lanes that have returned or do not exist (live: %#x)", op, where(at).c_str(),
             mask, w->live);
    f->payload = payload, f->complete = complete, f->mask = mask, f->op = op, f->at = at;
    f->state = State::warp;
    w->waiting |= 1u << f->lane;
    if ((w->waiting & mask) == mask) {
        for (uint32_t m = mask; m; m &= m - 1) {
            const Fiber* o = w->lane[__builtin_ctz(m)];
            if (o->complete != complete || o->mask != mask || (o->op != op && strcmp(o->op, op)))
                fail("divergent warp collective: lane %u is in %s (mask %#x) at %s, lane %u in %s (mask %#x) at %s",
                     f->lane, op, mask, where(at).c_str(), o->lane, o->op, o->mask, where(o->at).c_str());
        }
        w->waiting &= ~mask;
        if (complete) complete(w->lane, mask);
        stats().collectives++;
        progress();
        for (uint32_t m = mask; m; m &= m - 1) make_ready(w->lane[__builtin_ctz(m)]);
    }
    reschedule();
}

namespace {

template <class F>
void each_lane(uint32_t mask, F f) {
    for (; mask; mask &= mask - 1) f(uint32_t(__builtin_ctz(mask)));
}

struct ShufflePart {
    uint64_t in, out;
    uint32_t source;
};
struct VotePart {
    bool in;
    uint32_t out;
};
template <class Part>
Part& part(Fiber* const* lanes, uint32_t i) {
    return *static_cast<Part*>(lanes[i]->payload);
}

void complete_shuffle(Fiber* const* lanes, uint32_t mask) {
    each_lane(mask, [&](uint32_t i) {
        auto& p = part<ShufflePart>(lanes, i);
        if (!(mask >> p.source & 1))
            fail("%s at %s: lane %u reads lane %u, which is not in the mask %#x", lanes[i]->op,
                 where(lanes[i]->at).c_str(), i, p.source, mask);
        p.out = part<ShufflePart>(lanes, p.source).in;
    });
}

void complete_ballot(Fiber* const* lanes, uint32_t mask) {
    uint32_t votes = 0;
    each_lane(mask, [&](uint32_t i) { votes |= uint32_t(part<VotePart>(lanes, i).in) << i; });
    each_lane(mask, [&](uint32_t i) { part<VotePart>(lanes, i).out = votes; });
}

// Orders the warp's memory accesses; shuffles and votes do not.
void complete_barrier(Fiber* const* lanes, uint32_t mask) {
    if (race) race->warp_sync(lanes[__builtin_ctz(mask)]->warp, mask);
}

}  // namespace

void warp_barrier(uint32_t mask, Site at) {
    // CUDA lets __syncwarp() name lanes that do not exist in a short last warp.
    const uint32_t rest = current->block->threads - current->warp->id * 32;
    if (rest < 32) mask &= (1u << rest) - 1;
    warp_collective(mask, nullptr, complete_barrier, "__syncwarp", at);
}
uint64_t shuffle(uint32_t mask, uint64_t value, uint32_t source, const char* op, Site at) {
    ShufflePart p{value, 0, source & 31};
    warp_collective(mask, &p, complete_shuffle, op, at);
    return p.out;
}
uint32_t ballot(uint32_t mask, bool predicate, const char* op, Site at) {
    VotePart p{predicate, 0};
    warp_collective(mask, &p, complete_ballot, op, at);
    return p.out;
}
void atomic_access(const void* p, size_t bytes) {
    if (race) race->atomic(p, bytes, __builtin_return_address(0));
}
void thread_fence() {
    if (race) race->fence();
}

}  // namespace simt
