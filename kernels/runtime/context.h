#pragma once
// State of one rank of a job. Several ranks may live in one process, as threads in tests: nothing below main is
// process-wide, and whatever a rank counts or chooses is found through the context that its Device carries. Process
// (comm/process.h) and LoopbackHub (comm/loopback.h) own the contexts of their ranks.

#include <atomic>
#include <memory>
#include <mutex>

#include "kernels/runtime/sm_budget.h"
#include "kernels/runtime/memory.h"
#include "kernels/runtime/planned.h"

namespace rz {

struct GemmTuning;
class GemmPlans;
class Fp8GemmPlans;

class Stream;

// Outlives every stream, buffer and event of its rank.
struct RankContext {
    RankContext() = default;
    RankContext(const RankContext&) = delete;
    RankContext& operator=(const RankContext&) = delete;

    MemoryLedger memory;
    PlannedMachine planned;   // what its planned device is
    bool one_memory = false;  // its host memory is the device's, as on a CPU: counted there
    // Another rank has gone, and what waited for it on a GPU was aborted: waits for streams and events throw, since
    // what lies in memory is not what was meant.
    std::atomic<bool> given_up = false;
    SmBudget beside;
    const Stream* draws = nullptr;  // the stream whose kernels use beside.next_tile: two kernels at a time must not

    // State of kernels/gemm and kernels/fp8, which make it at the first use, under `gemm_mutex`.
    std::mutex gemm_mutex;
    std::shared_ptr<GemmTuning> gemm_tuning;
    std::shared_ptr<GemmPlans> gemm_plans;
    std::shared_ptr<Fp8GemmPlans> fp8_gemm_plans;
};

}  // namespace rz
