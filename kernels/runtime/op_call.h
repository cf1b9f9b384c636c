#pragma once
// A stream's request, as timers and planners of ops see it, and virtual time.

#include <cstdint>
#include <string>
#include <typeinfo>

namespace rz {

using Ticks = int64_t;  // picoseconds
constexpr int64_t kTicksPerSecond = 1'000'000'000'000;
constexpr double kSecondsPerTick = 1e-12;

// A stream's request, as a cost function sees it.
struct OpCall {
    const char* label = nullptr;           // "copy", "zero", or what the op calls itself; nullptr: nothing
    const std::type_info* type = nullptr;  // of an op's arguments; nullptr: a copy or a fill
    const void* args = nullptr;
    int64_t bytes = 0;  // of a copy or a fill

    // The arguments, if it is this op: if (const Gemm* g = op.as<Gemm>()) ...
    template <class Args>
    const Args* as() const {
        return type && *type == typeid(Args) ? static_cast<const Args*>(args) : nullptr;
    }
    std::string name() const;  // as op timers name it
};

}  // namespace rz
