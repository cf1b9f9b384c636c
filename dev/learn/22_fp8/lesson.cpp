// FP8: the codes of e4m3 (1 sign, 4 exponent, 3 fraction bits; largest 448, no infinity), and scales.
#include <cmath>
#include <cstdint>

// The code of the nearest number that e4m3 has, the even one of two that are equally near; beyond 448 it is 448.
uint8_t to_e4m3(float x) {
    const int sign = std::signbit(x) ? 0x80 : 0;
    const float a = std::fmin(std::fabs(x), 448);
    int exponent = -6;  // of the power of two at or below a; below 2^-6 numbers are evenly spaced
    if (a >= 0x1p-6f) exponent = std::ilogb(a);
    const float step = std::ldexp(1.0f, exponent - 3);  // between neighbours there: 3 fraction bits
    // >>> hole 1: std::nearbyint rounds to the nearest whole number, ties to the even one
#ifdef HOLE
    const int steps = int(a / step);
#else
    const int steps = int(std::nearbyint(a / step));
#endif
    // <<<
    // 8 steps make a power of two: what is rounded up to 16 carries into the exponent by itself.
    return uint8_t(sign | (8 * (exponent + 6) + steps));
}

float from_e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float a = exponent == 0 ? std::ldexp(float(fraction), -9) : std::ldexp(float(8 + fraction), exponent - 10);
    return code & 0x80 ? -a : a;
}

// Factor of n values before they become codes: the largest of them must become the largest code. 1 if all
// are 0.
float scale_of(const float* x, int n) {
    float largest = 0;
    for (int i = 0; i < n; ++i) {
        largest = std::fmax(largest, std::fabs(x[i]));
    }
    // >>> hole 2
#ifdef HOLE
    return largest > 0 ? 1 / largest : 1;
#else
    return largest > 0 ? 448 / largest : 1;
#endif
    // <<<
}

// code (n) and inverse (n / block): each run of `block` values has a scale of its own, and x ~ from_e4m3(code) *
// inverse.
void quantise(uint8_t* code, float* inverse, const float* x, int n, int block) {
    for (int first = 0; first < n; first += block) {
        // >>> hole 3: of the values of this block alone
#ifdef HOLE
        const float scale = scale_of(x, n);
#else
        const float scale = scale_of(x + first, block);
#endif
        // <<<
        inverse[first / block] = 1 / scale;
        for (int i = first; i < first + block; ++i) code[i] = to_e4m3(x[i] * scale);
    }
}
