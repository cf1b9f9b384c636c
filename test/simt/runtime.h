// Private to the emulator: its threads, warps, blocks and scheduler.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/runtime/call_stack.h"
#include "test/simt/control.h"
#include "test/simt/models.h"
#include "test/simt/simt.h"

namespace simt {

// ---- stacks (stack.cpp)

using Stack = rz::CallStack;
Stack* take_stack();
void return_stack(Stack* s);
void rebuild_stacks();  // after a failure: every stack is abandoned as it stands, none may be running
void switch_stack(Stack* from, Stack* to);
Stack* main_stack();                     // of the thread that calls, which is the one that launches
[[noreturn]] void fiber_main(Stack* s);  // scheduler.cpp; runs on a new stack

// ---- threads

struct Fiber;
enum class State : uint8_t { ready, running, warp, barrier, mbarrier, done };
struct Warp;
struct Block;
using Complete = void (*)(Fiber* const* lanes, uint32_t mask);

struct Fiber {
    uint3 tid;
    uint32_t lane, linear;  // lane in the warp, index in the block
    Warp* warp;
    Block* block;
    Stack* stack;  // null until it first runs
    uint32_t priority;
    State state;
    const char* op;  // what it waits in, and where
    Site at;
    void* payload;  // its part of a warp collective
    Complete complete;
    uint32_t mask;
    const void* wait_object;  // mbarrier
    uint32_t wait_parity;
    models::Groups copies;  // of cp.async, in flight
};

struct Warp {
    Fiber* lane[32];
    uint32_t waiting, live, id;
    Block* block;
};

struct Barrier {
    std::vector<Fiber*> waiters;
    uint32_t arrived = 0, expected = 0;
};

struct Block {
    uint3 index;
    uint32_t slot, threads, live;  // place in the group of resident blocks
    std::vector<Warp> warps;
    unsigned char* smem = nullptr;
    size_t smem_bytes = 0;
    Barrier barriers[16];
    std::vector<Fiber*> mbar_waiters;
    std::vector<models::Groups> wgmma;  // per warp
    std::vector<models::WarpgroupOrder> warpgroups;
    std::vector<char> static_shared;  // while another block is running
};

extern Fiber* current;
std::vector<Block>& resident_blocks();  // those that run together; the first resident_count() are valid
uint32_t resident_count();
uint32_t warps_per_block();

void make_ready(Fiber* f);
void reschedule();  // parks the current fiber, which has already said what it waits for, and continues another
void progress();    // something happened: resets the livelock counter
uint64_t random_bits();
uint32_t random_below(uint32_t n);
bool land_late();                                 // the coin for an asynchronous operation
void add_async(std::function<void()> operation);  // runs when drawn, or when nothing else can run
void note_failure(const std::string& text);       // fails the launch without leaving the caller
std::string where(Site at);                       // "file.cu:12"

void check_warpgroups(const Block& b);  // hopper.cpp; all of b's threads have returned
void check_exit(Fiber* f);              // barrier.cpp; f has just returned
void warp_collective(uint32_t mask, void* payload, Complete complete, const char* op, Site at);

// ---- shared memory (shared.cpp)

void save_static_shared();  // before a launch: the host's values
void restore_static_shared();
void poison_static_shared(int kind);
void prepare_resident_shared(int kind);  // each resident block has its own copy
void switch_static_shared(Block* to);
void poison(void* p, size_t bytes, int kind);
void allocate_smem(Block& b, size_t bytes);
// The block whose shared memory holds p, or null; a static variable belongs to the current block.
Block* owner_of_shared(const void* p);
void static_shared_range(const char** begin, size_t* bytes);  // thread-local builds

// ---- kernel names and counts (coverage.cpp)

std::string kernel_name(const void* kernel);
void count_launch(const Launch& l);

// ---- the race check (race.cpp); null in the other builds

// warp_read: all lanes take part at one point, as in ldmatrix.
enum class Access { read, warp_read, write, atomic };
struct RaceHooks {
    void (*access)(const void* p, size_t bytes, Access kind, Site at);
    void (*atomic)(const void* p, size_t bytes, void* return_address);
    // An access of the current thread that is under way until the same call with done = true.
    void (*in_flight)(const void* p, size_t bytes, Access kind, bool done, Site at);
    // A copy into shared memory that reports to an mbarrier: complete with the barrier's phase.
    void (*async_write)(const void* p, size_t bytes, const void* mbar, Site at);
    void (*warp_sync)(Warp* w, uint32_t mask);
    void (*barrier)(const void* object, Fiber* const* waiters, size_t n);
    void (*release)(const void* object);  // the current thread arrives at an mbarrier or a named barrier
    void (*phase)(const void* mbar);      // all have arrived
    void (*acquire)(const void* mbar);    // the current thread has waited for a phase
    void (*fence)();
    void (*begin_launch)();
    void (*begin_group)();
    void (*allocated)(const void* p, size_t bytes);
    void (*freed)(const void* p);
    void (*written)(const void* p, size_t bytes);  // by the host or by a modelled library
};
extern const RaceHooks* race;

}  // namespace simt
