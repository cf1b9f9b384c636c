// fp8 products: cuBLASLt (its stand-in, in the emulator, which refuses what the library does) against the CPU op.
#include "kernels/fp8/fp8_gemm.h"

#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "test/checks.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t M, N, K;
    Fp8 a_type, b_type;
    float beta;
    DType c_dtype;
};

std::vector<uint8_t> random_codes(int64_t n, Fp8 type, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> codes;
    while (int64_t(codes.size()) < n)
        if (const uint8_t code = uint8_t(random()); std::abs(fp8_values(type)[code]) <= 2) codes.push_back(code);
    return codes;
}

Op product(const Case& c, bool fast = false, float a_inverse = 0.25f, float b_inverse = 3.0f) {
    return [=](KernelRun& run) {
        Fp8Gemm g;
        g.c = run.inout("c", c.M * c.N, c.c_dtype, 3);
        g.a = run.values(random_codes(c.M * c.K, c.a_type, 1));
        g.b = run.values(random_codes(c.N * c.K, c.b_type, 2));
        g.a_scale = run.values<Fp8Scale>({{a_inverse, 0, {0, 0}}});
        g.b_scale = run.values<Fp8Scale>({{b_inverse, 0, {0, 0}}});
        g.M = c.M, g.N = c.N, g.K = c.K, g.beta = c.beta, g.a_type = c.a_type, g.b_type = c.b_type;
        g.c_dtype = c.c_dtype, g.fast_accumulation = fast;
        fp8_gemm(run.stream(), g);
    };
}

// cuBLASLt multiplies fp8 from compute capability 8.9 on.
bool device_has_products() { return compute_capability() >= 89; }

class Fp8GemmTest : public testing::TestWithParam<Case> {};

// As kernel_gemm.cpp counts: sums of K products below 4 in another order, times both scales; then one rounding to C.
TEST_P(Fp8GemmTest, MatchesCpu) {
    if (!device_has_products()) GTEST_SKIP() << "no CUDA device with fp8 products (8.9)";
    const Case c = GetParam();
    compare_on_devices(product(c), {{"c", {ulp(c.c_dtype), fp8_sum_error(c.K, 4 * 0.75)}}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8GemmTest,
                         testing::Values(Case{16, 16, 16, Fp8::e4m3, Fp8::e4m3, 0, DType::bf16},
                                         Case{48, 160, 272, Fp8::e4m3, Fp8::e4m3, 0, DType::bf16},
                                         Case{64, 32, 144, Fp8::e5m2, Fp8::e4m3, 0, DType::bf16},
                                         Case{32, 64, 80, Fp8::e5m2, Fp8::e4m3, 1, DType::f32},
                                         Case{80, 48, 96, Fp8::e5m2, Fp8::e4m3, 1, DType::bf16},
                                         Case{16, 32, 48, Fp8::e4m3, Fp8::e5m2, 0, DType::f32}));

// Sums that are cut off are further from the exact ones: a flag that is set where it must not be shows.
TEST(Fp8Gemm, FastAccumulationLosesBitsAndIsOffUnlessAskedFor) {
    if (!device_has_products()) GTEST_SKIP() << "no CUDA device with fp8 products (8.9)";
    const Case c{64, 64, 512, Fp8::e4m3, Fp8::e4m3, 0, DType::f32};
    const auto want = run_on(kCpu, product(c)).at("c").values;
    const auto worst = [&](bool fast) {
        const auto got = run_on(kGpu, product(c, fast)).at("c").values;
        double most = 0;
        for (size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(got[i] - want[i]));
        return most;
    };
    EXPECT_LT(worst(false), fp8_sum_error(c.K, 4 * 0.75));
    EXPECT_GT(worst(true), worst(false));
}

// --gemm-tune and its cache file are for products in fp8 too: another type, scale or flag is another line.
TEST(Fp8Gemm, AlgorithmsAreMeasuredWrittenAndRead) {
    if (!device_has_products()) GTEST_SKIP() << "no CUDA device with fp8 products (8.9)";
    const TempFolder folder;
    const auto check = [&](const Case& c, bool fast, bool measure, int64_t measured, int64_t read) {
        RankContext context;
        gemm_tuning(context) = {.tune = measure ? GemmTune::on : GemmTune::off, .cache_file = folder / "cache"};
        if (fast)  // whose sums are cut off
            run_on(Device{DeviceKind::cuda, 0, &context}, product(c, true));
        else
            compare_on_devices(product(c), {{"c", {ulp(c.c_dtype), fp8_sum_error(c.K, 4 * 0.75)}}}, &context);
        EXPECT_EQ(gemm_tuning(context).measured, measured);
        EXPECT_EQ(gemm_tuning(context).read, read);
    };
    const Case plain{32, 64, 80, Fp8::e4m3, Fp8::e4m3, 0, DType::f32};
    Case gradient = plain;
    gradient.a_type = Fp8::e5m2;
    check(plain, false, true, 1, 0);
    check(plain, false, false, 0, 1);
    check(gradient, false, false, 0, 0);
    check(plain, true, false, 0, 0);
    check(gradient, false, true, 1, 0);
    check(gradient, false, false, 0, 1);
}

// quantise leaves this where the tensor was not finite.
TEST(Fp8Gemm, AnInverseThatIsNoNumberReachesEveryElement) {
    const Case c{16, 16, 32, Fp8::e5m2, Fp8::e4m3, 0, DType::bf16};
    for (const Device device : {kCpu, kGpu}) {
        if (device.is_cuda() && !device_has_products()) continue;
        const auto got = run_on(device, product(c, false, float(NAN)));
        for (const double v : got.at("c").values) ASSERT_TRUE(std::isnan(v)) << v << " on " << device.name();
    }
}

// One scale for a tensor needs nothing that cuBLASLt has not had since 12.0; tiles of scales are refused before their
// version. The emulator's library plays any; a real one multiplies, whatever the variable says.
TEST(Fp8Gemm, AnOlderLibraryHasTheTensorRecipeOnly) {
    if (!device_has_products()) GTEST_SKIP() << "no CUDA device with fp8 products (8.9)";
    const bool emulated = kGpu.name().find("SIMT") != std::string::npos, mx = compute_capability() >= 100;
    const int since = mx ? 8 : 9;
    for (const int minor : {0, 4, since - 1, since}) {
        setenv("SIMT_CUBLASLT", std::to_string(120000 + 100 * minor).c_str(), 1);
        const auto got = run_on(kGpu, product({16, 16, 16, Fp8::e4m3, Fp8::e4m3, 0, DType::bf16}));
        EXPECT_FALSE(std::isnan(got.at("c").values.at(0))) << "12." << minor;
        if (!emulated || (compute_capability() < 90)) continue;
        EXPECT_EQ(
            mx ? fp8_mx_missing(kGpu) : fp8_blocks_missing(kGpu),
            minor >= since ? "" : format("needs cuBLASLt 12.%d or newer; the cuBLASLt found is 12.%d", since, minor));
    }
    unsetenv("SIMT_CUBLASLT");
}

std::string refusal(const std::function<void(Fp8Gemm&)>& change) {
    Stream stream(kCpu, "test");
    alignas(16) static float memory[64];
    Fp8Gemm g;
    g.c = memory, g.a = g.b = reinterpret_cast<uint8_t*>(memory);
    g.a_scale = g.b_scale = reinterpret_cast<Fp8Scale*>(memory);
    g.M = g.N = g.K = 0, g.c_dtype = DType::f32;
    change(g);
    return error_of([&] { fp8_gemm(stream, g); });
}

TEST(Fp8Gemm, RefusesWhatTheLibraryWould) {
    EXPECT_EQ(refusal([](Fp8Gemm&) {}), "");
    EXPECT_EQ(refusal([](Fp8Gemm& g) { g.K = 24; }), "fp8_gemm: K is 24; fp8 products need a multiple of 16");
    EXPECT_TRUE(says(refusal([](Fp8Gemm& g) { g.a_type = g.b_type = Fp8::e5m2; }), "both operands are e5m2"));
    EXPECT_TRUE(says(refusal([](Fp8Gemm& g) {
                         g.M = g.N = g.K = 16;
                         g.a_scale = reinterpret_cast<const Fp8Scale*>(reinterpret_cast<const char*>(g.a_scale) + 4);
                     }),
                     "a_scale is at"));
    EXPECT_TRUE(says(refusal([](Fp8Gemm& g) { g.c_dtype = DType::f16; }), "C is fp16"));
}

}  // namespace
}  // namespace rz::test
