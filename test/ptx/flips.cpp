#include "test/ptx/flips.h"

#include <stdexcept>

#include "test/simt/models.h"

namespace ptx {
namespace {

// In the order of models::Flip
constexpr const char* kNames[] = {"none",
                                  "A fragment: registers 1 and 2 swapped",
                                  "A fragment: halves of a register swapped",
                                  "B fragment: registers swapped",
                                  "accumulator: rows g and g + 8 swapped",
                                  "32-byte swizzle, TMA and wgmma",
                                  "64-byte swizzle, TMA and wgmma",
                                  "128-byte swizzle, TMA and wgmma",
                                  "leading and stride, MN-major",
                                  "leading and stride, K-major",
                                  "leading and stride, no swizzle",
                                  "transposition bit ignored",
                                  "phase parity inverted",
                                  "out-of-bounds fill not zero",
                                  "transaction bytes",
                                  "multicast reaches only its own block",
                                  "accumulate inverted",
                                  "ldmatrix.trans inverted",
                                  "32-byte swizzle, TMA alone",
                                  "64-byte swizzle, TMA alone",
                                  "128-byte swizzle, TMA alone",
                                  "wgmma's A in registers: row halves swapped",
                                  "wgmma's sign of B",
                                  "K-major: steps of 8 values too long"};
static_assert(std::size(kNames) == size_t(models::Flip::count));

}  // namespace

int flip_count() { return int(models::Flip::count); }
const char* flip_name(int flip) { return kNames[flip]; }
void set_flip(int flip) { models::flip = models::Flip(flip); }
void set_flip(const std::string& name) {
    for (int f = 0; f < flip_count(); f++)
        if (name == kNames[f]) return set_flip(f);
    std::string all;
    for (const char* n : kNames) all += std::string("\n  ") + n;
    throw std::runtime_error("PTX_FLIP=" + name + " is none of" + all);
}

}  // namespace ptx
