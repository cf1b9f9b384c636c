// The emulator's knobs and counters, for tests. Environment: SIMT_SEED (a number), SIMT_POLICY (a name below),
// SIMT_STREAMS=now (run stream work at once), SIMT_COVERAGE (file that launch counts are appended to), SIMT_NCCL_CALLS
// (file that the numbers of NCCL's calls are appended to).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

// Which runnable thread continues. thread_priority and warp_priority let one thread or warp run far ahead of the rest.
enum class Policy { in_order, reverse, random, thread_priority, warp_priority, mix };
const char* name_of(Policy p);

struct Options {
    uint64_t seed = 1;            // fixes everything: thread order, block order, late or early, stream order
    Policy policy = Policy::mix;  // mix: every group of blocks draws one of the others
    bool late_async = true;       // asynchronous operations land at once or as late as allowed, by coin; false: at once
    bool race_check = true;       // race build only
    uint32_t resident = 1;        // blocks that run at a time; the next ones when all of these have ended
};
Options& options();

struct Stats {
    uint64_t launches, blocks, threads, switches, collectives, barriers, async_ops, accesses;
    double seconds;  // spent running kernels
};
Stats& stats();

// Text of the last failed kernel; empty if none failed since the last clear.
const std::string& last_error();
void clear_error();
// Restarts the stream generator, so that a test can try many interleavings.
void seed_streams(uint64_t seed);

// How often this process has enqueued an operation of the model of NCCL: "ncclAllGather".
int nccl_calls(const std::string& name);

// Which build this is: "plain", "asan" or "race".
const char* build_name();

}  // namespace simt
