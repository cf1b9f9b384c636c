#include <bit>
#include <cstdint>
#include <vector>

#include "dev/learn/lesson.h"
#include "kernels/fp8/quantise.h"

using namespace learn;

uint8_t to_e4m3(float x);
float from_e4m3(uint8_t code);
float scale_of(const float* x, int n);
void quantise(uint8_t* code, float* inverse, const float* x, int n, int block);

// torch 2.15.0+cu132: for each code from 0 the bits of the largest bf16 number up to 448 that becomes it by
// x.to(torch.float8_e4m3fn).
constexpr uint16_t kTorch[127] = {
    0x3a80, 0x3b3f, 0x3ba0, 0x3bdf, 0x3c10, 0x3c2f, 0x3c50, 0x3c6f, 0x3c88, 0x3c97, 0x3ca8, 0x3cb7, 0x3cc8,
    0x3cd7, 0x3ce8, 0x3cf7, 0x3d08, 0x3d17, 0x3d28, 0x3d37, 0x3d48, 0x3d57, 0x3d68, 0x3d77, 0x3d88, 0x3d97,
    0x3da8, 0x3db7, 0x3dc8, 0x3dd7, 0x3de8, 0x3df7, 0x3e08, 0x3e17, 0x3e28, 0x3e37, 0x3e48, 0x3e57, 0x3e68,
    0x3e77, 0x3e88, 0x3e97, 0x3ea8, 0x3eb7, 0x3ec8, 0x3ed7, 0x3ee8, 0x3ef7, 0x3f08, 0x3f17, 0x3f28, 0x3f37,
    0x3f48, 0x3f57, 0x3f68, 0x3f77, 0x3f88, 0x3f97, 0x3fa8, 0x3fb7, 0x3fc8, 0x3fd7, 0x3fe8, 0x3ff7, 0x4008,
    0x4017, 0x4028, 0x4037, 0x4048, 0x4057, 0x4068, 0x4077, 0x4088, 0x4097, 0x40a8, 0x40b7, 0x40c8, 0x40d7,
    0x40e8, 0x40f7, 0x4108, 0x4117, 0x4128, 0x4137, 0x4148, 0x4157, 0x4168, 0x4177, 0x4188, 0x4197, 0x41a8,
    0x41b7, 0x41c8, 0x41d7, 0x41e8, 0x41f7, 0x4208, 0x4217, 0x4228, 0x4237, 0x4248, 0x4257, 0x4268, 0x4277,
    0x4288, 0x4297, 0x42a8, 0x42b7, 0x42c8, 0x42d7, 0x42e8, 0x42f7, 0x4308, 0x4317, 0x4328, 0x4337, 0x4348,
    0x4357, 0x4368, 0x4377, 0x4388, 0x4397, 0x43a8, 0x43b7, 0x43c8, 0x43d7, 0x43e0,
};

static float of_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// All 34,754 bf16 numbers from -448 to 448.
static void check_codes() {
    int wrong = 0, wrong_negative = 0;
    uint32_t code = 0;
    for (uint32_t bits = 0; bits <= kTorch[126]; ++bits) {
        code += bits > kTorch[code];
        wrong += to_e4m3(of_bf16(bits)) != code;
        wrong_negative += to_e4m3(-of_bf16(bits)) != (code | 0x80);
    }
    expect(wrong == 0 && wrong_negative == 0, "bf16 numbers whose codes are not torch's: %d positive, %d negative",
           wrong, wrong_negative);
    close("1e6 saturates", from_e4m3(to_e4m3(1e6f)), 448, 0);
    close("17 lies between 16 and 18, and the even code is 16's", from_e4m3(to_e4m3(17)), 16, 0);
    int back = 0;
    for (int c = 0; c < 256; ++c)
        if ((c & 0x7f) != 0x7f) back += to_e4m3(from_e4m3(uint8_t(c))) != c;
    expect(back == 0, "%d of 254 codes that do not come back as themselves", back);
}

// Root of the mean square error beside the root of the mean square.
static double relative_error(const std::vector<float>& x, int block) {
    std::vector<uint8_t> code(x.size());
    std::vector<float> inverse(x.size() / size_t(block));
    quantise(code.data(), inverse.data(), x.data(), int(x.size()), block);
    double error = 0, square = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double e = double(from_e4m3(code[i])) * inverse[i / size_t(block)] - x[i];
        error += e * e, square += double(x[i]) * x[i];
    }
    return std::sqrt(error / square);
}

static void check_scales() {
    const float x[4] = {0.5f, -3, 1, 2};
    close("scale of {0.5, -3, 1, 2} is 448 / 3", scale_of(x, 4), 448 / 3.0, 1e-4);
    const float zeros[2] = {};
    close("scale of zeros", scale_of(zeros, 2), 1, 0);

    // Gradients of 1e-6: without a scale all of them are below the smallest number, 2^-9.
    constexpr int n = 4096, kBlock = 128;
    const std::vector<float> small = noises(n, 0, 1e-6);
    int zero = 0;
    for (const float v : small) zero += from_e4m3(to_e4m3(v)) == 0;
    expect(zero == n, "gradients of 1e-6 without a scale: %d of %d become 0", zero, n);
    // 3 fraction bits: an error of at most 1/16, and 1/43 on the average of values that are even over a power of two
    const double whole = relative_error(small, n);
    expect(whole < 0.03, "with one scale their error is %.4f, below 0.03", whole);

    // One value of 1 among them takes the scale for itself; with a scale for each 128 only its block is lost.
    std::vector<float> outlier = small;
    outlier[1000] = 1;
    std::vector<uint8_t> code(n);
    std::vector<float> inverse(n / kBlock);
    const auto lost = [&](int block) {
        quantise(code.data(), inverse.data(), outlier.data(), n, block);
        int zeros_now = 0;
        for (const uint8_t c : code) zeros_now += (c & 0x7f) == 0;
        return zeros_now;
    };
    expect(lost(n) == n - 1, "an outlier, one scale: %d of %d become 0", lost(n), n);
    expect(lost(kBlock) < kBlock + 20, "an outlier, a scale for each %d: %d become 0", kBlock, lost(kBlock));
}

// The program's codes of one scale: scale by the largest magnitude, then codes.
static void check_against_program() {
    constexpr int n = 4096;
    std::vector<float> x(n), inverse(1);
    for (unsigned i = 0; i < n; ++i) x[i] = float(50 * noise(i) * noise(9000 + i));
    std::vector<uint8_t> mine(n), theirs(n);
    quantise(mine.data(), inverse.data(), x.data(), n, n);
    rz::Fp8Scale scale{};
    rz::abs_max_cpu({.scale = &scale, .x = x.data(), .n = n, .dtype = rz::DType::f32});
    rz::quantise_cpu({.y = theirs.data(),
                      .scale = &scale,
                      .x = x.data(),
                      .rows = 64,
                      .columns = 64,
                      .type = rz::Fp8::e4m3,
                      .dtype = rz::DType::f32});
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += mine[size_t(i)] != theirs[size_t(i)];
    expect(wrong == 0, "%d of %d codes differ from rz::quantise's", wrong, n);
    close("inverse of the scale", inverse[0], scale.inverse, 0);
}

int main() {
    check_codes();
    check_scales();
    check_against_program();
    return verdict(
        "eight bits have digits for a factor of 2^18 at best: a scale moves the values there, block by block");
}
