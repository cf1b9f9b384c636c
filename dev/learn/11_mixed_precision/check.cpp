#include <bit>
#include <cstdint>

#include "dev/learn/lesson.h"
#include "kernels/runtime/dtype.h"

using namespace learn;

uint16_t to_bf16(float x);
struct LossScaler {
    double scale = 65536;
    int good_steps = 0;
};
bool update_scale(LossScaler& s, bool gradients_are_finite, int growth_interval);

static float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

static void check_rounding() {
    close("1 + 2^-8 is a tie: to the even neighbour, 1", from_bf16(to_bf16(1 + 0x1p-8f)), 1, 0);
    close("1 + 3 * 2^-8 is a tie: to the even neighbour", from_bf16(to_bf16(1 + 3 * 0x1p-8f)), 1 + 0x1p-6, 0);
    close("just above a tie goes up", from_bf16(to_bf16(1 + 0x1p-8f + 0x1p-20f)), 1 + 0x1p-7, 0);
    int different = 0;
    for (unsigned i = 0; i < 200000; ++i) {
        const float x = float(noise(i) * std::ldexp(1.0, int(i % 60) - 30));
        different += to_bf16(x) != rz::bf16(x).bits;
    }
    expect(different == 0, "%d of 200000 values differ from rz::bf16", different);
}

// Why weights are kept in fp32 as well: an update below half a unit in the last place never happens.
static void check_lost_updates() {
    float narrow = 1, master = 1;
    for (int step = 0; step < 1000; ++step) {
        narrow = from_bf16(to_bf16(narrow + 0x1p-9f));
        master += 0x1p-9f;
    }
    close("1000 updates of 2^-9 to a bf16 weight", narrow, 1, 0);
    close("the same to its fp32 master", from_bf16(to_bf16(master)), 2.953125, 0);
}

static void check_scaling() {
    // fp16's smallest value is 2^-24: a gradient of 2^-26 is lost, and with the loss times 2^16 it is not.
    const double gradient = std::ldexp(1.0, -26);
    close("2^-26 in fp16", float(rz::f16(float(gradient))), 0, 0);
    close("scaled by 65536 and back", double(float(rz::f16(float(gradient * 65536)))) / 65536, gradient, 0);
    LossScaler s;
    const bool first = update_scale(s, false, 3);
    expect(!first && s.scale == 32768, "overflow: no update, the scale is %g, 32768 expected", s.scale);
    bool all = true;
    for (int i = 0; i < 3; ++i) all &= update_scale(s, true, 3);
    expect(all && s.scale == 65536, "three good steps: the scale is %g, 65536 expected", s.scale);
    update_scale(s, true, 3);
    update_scale(s, true, 3);
    update_scale(s, false, 3);
    update_scale(s, true, 3);
    expect(s.scale == 32768 && s.good_steps == 1, "an overflow starts the count again: %g after %d", s.scale,
           s.good_steps);
}

int main() {
    check_rounding();
    check_lost_updates();
    check_scaling();
    return verdict("bf16 has fp32's range and 8 bits: it needs masters, not scaling; fp16 needs both");
}
