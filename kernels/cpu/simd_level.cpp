#include "kernels/cpu/simd_level.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "kernels/runtime/check.h"

namespace rz {

static SimdLevel best_level() {
#ifdef RZ_SIMD_PASSES
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("movbe");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    if (v4 && __builtin_cpu_supports("avx512bf16")) return SimdLevel::avx512_bf16;
    return v4 ? SimdLevel::avx512 : v3 ? SimdLevel::avx2 : SimdLevel::baseline;
#else
    return SimdLevel::baseline;
#endif
}

const char* name_of(SimdLevel level) {
    if (level == SimdLevel::avx512_bf16) return "avx512_bf16";
    return level == SimdLevel::avx512 ? "avx512" : level == SimdLevel::avx2 ? "avx2" : "baseline";
}

static SimdLevel chosen_level() {
    const SimdLevel best = best_level();
    const char* asked = std::getenv("RZ_SIMD");
    if (!asked || !*asked) return best;
    for (SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::avx512_bf16})
        if (std::string(asked) == name_of(level)) {
            require(level <= best, "RZ_SIMD=%s: this CPU has %s; ask for that or less, or unset it", asked,
                    name_of(best));
            return level;
        }
    fail("RZ_SIMD=%s: it must be baseline, avx2, avx512 or avx512_bf16 (this CPU: %s)", asked, name_of(best));
}

static std::atomic<SimdLevel>& current() {
    static std::atomic<SimdLevel> level{chosen_level()};
    return level;
}

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

bool set_simd_level(SimdLevel level) {
    if (level > best_level()) return false;
    current().store(level);
    return true;
}

}  // namespace rz
