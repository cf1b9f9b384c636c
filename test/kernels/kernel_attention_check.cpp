// The check at a run's start (kernels/attention/attention_check.h): right kernels pass, wrong numbers and devices
// that the program has no code for are refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kernels/attention/attention_check.h"
#include "kernels/runtime/load.h"
#include "test/checks.h"

namespace rz {
namespace {

const Device kGpu{DeviceKind::cuda, 0};

TEST(AttentionCheck, RightKernelsPass) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        for (const bool documents : {false, true}) check_attention(kGpu, {96, 2, 1, 64, dtype, documents});
    check_attention(kGpu, {33, 1, 1, 18, DType::bf16, false});
}

template <class Spoil>
std::string refusal(DType dtype, Spoil spoil) {
    const AttentionSample sample{24, 2, 1, 16, dtype, false};
    const AttentionNumbers cpu = attention_numbers(Device{}, sample);
    AttentionNumbers found = cpu;
    spoil(found);
    return error_of([&] { require_attention(found, cpu, sample, "a card"); });
}

TEST(AttentionCheck, WrongNumbersAreRefused) {
    EXPECT_EQ(refusal(DType::bf16, [](AttentionNumbers&) {}), "");
    EXPECT_EQ(refusal(DType::bf16, [](AttentionNumbers& n) { n.dv[3] += 0.01f; }), "");  // a rounding
    EXPECT_TRUE(says(refusal(DType::f32, [](AttentionNumbers& n) { n.dv[3] += 0.01f; }), "a card: dv differs"));
    EXPECT_TRUE(says(refusal(DType::bf16, [](AttentionNumbers& n) { n.o[5] = NAN; }), "o differs"));
    EXPECT_TRUE(says(refusal(DType::bf16, [](AttentionNumbers& n) { n.lse[5] += 1; }), "log-sum-exp"));
    EXPECT_TRUE(says(refusal(DType::bf16, [](AttentionNumbers& n) { n.dq.assign(n.dq.size(), 0); }), "dq"));
    EXPECT_TRUE(says(refusal(DType::bf16, [](AttentionNumbers& n) { n.dk[0] = INFINITY; }), "dk"));
}

#ifdef SIMT_EMU
void expect_no_code(const char* words) {
    setenv("SIMT_NO_CODE", "1", 1);
    EXPECT_TRUE(says(error_of([] { load_kernels(kGpu); }), words));
    unsetenv("SIMT_NO_CODE");
}
TEST(AttentionCheck, ADeviceWithoutCodeIsRefused) { expect_no_code("has no code for it\n  build it with: make SM="); }
TEST(AttentionCheck, ADeviceBeforeTuringIsRefused) {
    const char* const set = getenv("SIMT_ARCH");
    const std::string before = set ? set : "";
    setenv("SIMT_ARCH", "70", 1);
    expect_no_code("has compute capability 7.0, and the kernels need 7.5 (Turing) or newer");
    before.empty() ? unsetenv("SIMT_ARCH") : setenv("SIMT_ARCH", before.c_str(), 1);
}
#endif

}  // namespace
}  // namespace rz
