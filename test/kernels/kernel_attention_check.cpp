// The check at a run's start (kernels/attention/attention_check.h): right kernels pass, wrong numbers and devices
// that the program has no code for are refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kernels/attention/attention_check.h"
#include "kernels/runtime/load.h"

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
    try {
        require_attention(found, cpu, sample, "a card");
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(AttentionCheck, WrongNumbersAreRefused) {
    EXPECT_EQ(refusal(DType::bf16, [](AttentionNumbers&) {}), "");
    EXPECT_EQ(refusal(DType::bf16, [](AttentionNumbers& n) { n.dv[3] += 0.01f; }), "");  // a rounding
    EXPECT_NE(refusal(DType::f32, [](AttentionNumbers& n) { n.dv[3] += 0.01f; }).find("a card: dv differs"),
              std::string::npos);
    EXPECT_NE(refusal(DType::bf16, [](AttentionNumbers& n) { n.o[5] = NAN; }).find("o differs"), std::string::npos);
    EXPECT_NE(refusal(DType::bf16, [](AttentionNumbers& n) { n.lse[5] += 1; }).find("log-sum-exp"), std::string::npos);
    EXPECT_NE(refusal(DType::bf16, [](AttentionNumbers& n) { n.dq.assign(n.dq.size(), 0); }).find("dq"),
              std::string::npos);
    EXPECT_NE(refusal(DType::bf16, [](AttentionNumbers& n) { n.dk[0] = INFINITY; }).find("dk"), std::string::npos);
}

#ifdef SIMT_EMU
void expect_no_code(const char* words) {
    setenv("SIMT_NO_CODE", "1", 1);
    try {
        load_kernels(kGpu);
        ADD_FAILURE() << "it was loaded";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
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
