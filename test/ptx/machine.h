// A launch while it runs: blocks, warps, groups of lanes, and who goes next.
#pragma once

#include <cstring>
#include <type_traits>

#include "test/ptx/memory.h"
#include "test/ptx/module.h"
#include "test/simt/models.h"

namespace ptx {

struct Machine;
struct Block;
class OrderCheck;
class Counts;

struct Dim {
    uint32_t x = 1, y = 1, z = 1;
    uint64_t count() const { return uint64_t(x) * y * z; }
};
struct Launch {
    Dim grid, block;
    uint32_t dynamic_shared = 0, cluster = 1;
    uint32_t resident = 1;  // blocks at a time, a multiple of the cluster
    uint64_t seed = 0;      // 0: in order, and asynchronous work at once
    bool check_order = false;
};

// Lanes of a warp that a branch has parted meet again at `pc`.
struct Join {
    uint32_t pc, members, waiting;
    int parent;
    bool used;
};
// Lanes that run together. A parked group waits at an instruction of several lanes or warps.
struct Group {
    uint32_t lanes, pc;
    int join;
    bool parked;
};

struct Warp {
    Machine* machine = nullptr;
    Block* block = nullptr;
    uint32_t id = 0, live = 0;
    uint32_t here = 0;                   // the running instruction
    bool parks = false, yields = false;  // what a step asks for: wait here; let others run
    bool again = false;                  // and comes back to the same instruction
    std::vector<Group> groups;
    std::vector<Join> joins;
    std::vector<uint64_t> rows;
    uint64_t* base[2] = {};  // of rows, and of the kernel's constants
    std::vector<unsigned char> local[32];
    models::Groups copies[32], stores[32], wgmma;  // cp.async, bulk stores; wgmma: what ends when this warp has waited
    std::vector<std::pair<uint64_t, std::function<void()>>> products;  // of wgmma, to be computed: group, and how
    uint64_t cluster_phase[32] = {};                                   // that a lane has arrived for

    uint64_t* row(uint32_t slot) const { return base[slot >> 24] + size_t(slot & (kConstant - 1)) * 32; }
    // Arrives with these lanes at an instruction that `members` execute together. Returns all of them once they are
    // there;
    // before that 0, and the group is parked.
    uint32_t meet(uint32_t lanes, uint32_t members);
    // The bytes of an access, checked.
    unsigned char* at(Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write);
    void release(uint32_t lanes);  // those parked continue after their instruction
};

struct Barrier {
    uint32_t arrived = 0, expected = 0;
    bool counted = false;  // expected was given, and is not all threads
    std::vector<std::pair<Warp*, uint32_t>> waiting;
};

struct Block {
    Dim index;
    uint32_t rank = 0, threads = 0, slot = 0;  // rank in the cluster; place among the resident blocks
    std::vector<unsigned char> shared;
    std::vector<Warp> warps;
    std::vector<models::WarpgroupOrder> warpgroups;
    Barrier barrier[16];
    uint32_t cluster_arrived = 0;  // of the cluster's first block: threads, and complete phases
    uint64_t cluster_phases = 0;
    uint32_t live_threads() const;
};

struct Machine {
    const Launch launch;
    Kernel& kernel;
    std::vector<unsigned char> params;
    std::vector<Block> blocks;  // the resident ones
    std::vector<std::function<void()>> in_flight;
    uint64_t idle = 0;  // failed waits since something happened
    uint64_t warp_insts = 0, lane_insts = 0;
    std::unique_ptr<OrderCheck> order;  // null: not asked for
    Counts* counts = nullptr;

    Machine(Kernel& k, const Launch& l, std::vector<unsigned char> parameters);
    ~Machine();
    void run();
    uint64_t random();
    bool late() { return launch.seed && random() % 4 != 0; }
    void land(std::function<void()> f) { late() ? in_flight.push_back(std::move(f)) : f(); }
    void release(Barrier& b);
    Block& in_cluster(const Block& b, uint32_t rank) { return blocks[b.slot - b.rank + rank]; }
    // A 32-bit shared address of any block of b's cluster
    unsigned char* shared_at(const Block& b, uint32_t address, uint64_t bytes, const char* what);

   private:
    uint64_t rng_;
    void start(Block& b, uint64_t linear, uint32_t slot);
    void start(Warp& w, uint32_t dynamic_at);
    void run_group(uint64_t first, uint32_t n);
    bool slice(Warp& w, uint64_t budget);
    bool step(Warp& w, size_t group);
    bool join(Warp& w, size_t group);
    void branch(Warp& w, size_t group, const Inst& i, uint32_t taken);
    void split(Warp& w, size_t group, uint32_t away, uint32_t away_pc, uint32_t meet_at);
    void leave(Warp& w, size_t group, uint32_t lanes);
    void drop_empty(Warp& w);
    void land_some(bool all_wait);
    [[noreturn]] void deadlock();
};

// Place where an instruction failed, for messages. Null: none is running.
struct Running {
    const Machine* machine;
    const Inst* inst;
    const Warp* warp;
};
extern Running running;

template <class F>
inline void each(uint32_t lanes, F f) {
    if (lanes == ~0u)
        for (uint32_t l = 0; l < 32; l++) f(l);
    else
        for (; lanes; lanes &= lanes - 1) f(uint32_t(__builtin_ctz(lanes)));
}
inline uint32_t first_lane(uint32_t lanes) { return uint32_t(__builtin_ctz(lanes)); }
inline uint32_t count_lanes(uint32_t lanes) { return uint32_t(__builtin_popcount(lanes)); }

// A lane's 64 bits as a value of a type, and back.
template <class T>
inline T get(uint64_t x) {
    T v;
    memcpy(&v, &x, sizeof v);
    return v;
}
template <class T>
inline uint64_t put(T v) {
    uint64_t x = 0;
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
        x = uint64_t(int64_t(v));
    else
        memcpy(&x, &v, sizeof v);
    return x;
}

}  // namespace ptx
