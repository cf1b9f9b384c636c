// bf16 and fp16: rounding, what gets lost, and scaling the loss.
#include <bit>
#include <cstdint>

// The upper half of an fp32, rounded to nearest, ties to even. `x` is finite.
uint16_t to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    // >>> hole 1: half of the last kept bit is 0x8000; what decides a tie is the kept bit itself
#ifdef HOLE
    return uint16_t(bits >> 16);
#else
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    // <<<
}

// Dynamic loss scaling for fp16.
struct LossScaler {
    double scale = 65536;
    int good_steps = 0;  // in a row since the scale last changed
};

// After a backward pass with the loss times `scale`: whether the update may be made (with gradients / scale).
bool update_scale(LossScaler& s, bool gradients_are_finite, int growth_interval) {
    // >>> hole 2: halve and skip on overflow; double after growth_interval good steps
#ifdef HOLE
    return s.scale > 0;
#else
    if (!gradients_are_finite) {
        s.scale /= 2;
        s.good_steps = 0;
        return false;
    }
    if (++s.good_steps == growth_interval) {
        s.scale *= 2;
        s.good_steps = 0;
    }
    return true;
#endif
    // <<<
}
