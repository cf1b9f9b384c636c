// GEMM: gemm.cu and gemm_lt.cu, which call cuBLASLt (its stand-in, in the emulator), against the CPU op.
#include <list>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"
#include "test/checks.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::GemmCase;
class GemmTest : public testing::TestWithParam<Case> {};

// A type of 16 bits that the device multiplies
DType half() { return has_products(compute_capability(), DType::bf16) ? DType::bf16 : DType::f16; }

TEST_P(GemmTest, MatchesCpu) {
    const Case c = GetParam();
    if (!has_products(compute_capability(), c.dtype)) GTEST_SKIP() << "a GPU before compute capability 8.0";
    compare_on_devices([&](KernelRun& run) { gemm(run.stream(), c.args(run)); });
}

// An added tensor gives the same bits in C and apart from it; neither changes.
TEST(GemmLimits, AddedApartItHasTheBitsOfC) {
    for (const DType t : {DType::f32, half()}) {
        const Case c{70, 90, 40, false, false, 2, -0.7f, t, t};
        const Data old = normal(70 * 90, t, 3);
        const auto op = [&](bool apart) {
            return [&, apart](KernelRun& run) {
                Gemm g = c.args(run);
                g.c = run.inout("added", old);
                if (apart) g.add = g.c, g.c = run.out("c", old.size(), t);
                gemm(run.stream(), g);
            };
        };
        for (const Device& device : both_devices()) {
            const auto in_place = run_on(device, op(false)), apart = run_on(device, op(true));
            EXPECT_EQ(apart.at("c").values, in_place.at("added").values) << device.name();
            EXPECT_NE(apart.at("c").values, apart.at("added").values);
            for (int64_t i = 0; i < old.size(); ++i) ASSERT_EQ(apart.at("added").values[size_t(i)], old.at(i)) << i;
        }
    }
}

// A choice is measured once, written, and read afterwards; damaged lines do no harm; the product stays right
// throughout.
TEST(GemmTuningTest, MeasuresWritesAndReads) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const TempFolder folder;
    const std::string path = folder / "cache", copy = folder / "cut";
    const Case c{24, 40, 16, false, true, 1, 1, half()};
    const auto op = [&](KernelRun& run) { gemm(run.stream(), c.args(run)); };
    const auto check = [&](GemmTuning tuning, int64_t measured, int64_t read) {
        RankContext context;
        gemm_tuning(context) = tuning;
        compare_on_devices(op, {}, &context);
        EXPECT_EQ(gemm_tuning(context).measured, measured);
        EXPECT_EQ(gemm_tuning(context).read, read);
    };
    write_text(path, "damaged\n\t\t\t\n");
    check({.tune = GemmTune::on, .cache_file = path}, 1, 0);
    check({.cache_file = path}, 0, 1);
    const std::string text = text_in(path);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;  // damaged lines went when it was written
    write_text(copy, text.substr(0, text.size() - 40));                // the algorithm is cut off
    check({.cache_file = copy}, 0, 0);
    check({.tune = GemmTune::on, .chosen = text}, 0, 1);  // a run's own
    check({.tune = GemmTune::on, .closed = true}, 0, 0);
    check({.tune = GemmTune::bits_free, .chosen = text}, 1, 0);  // others than those with the first one's bits
}

#ifdef SIMT_EMU
// The emulated library's first suggestion is made slow, so that each of the others is faster, and all of them sum in
// another order: "on" keeps the bits of a run that is not tuned, bits-free does not.
TEST(GemmTuningTest, KeepsTheBitsUnlessTheyAreFree) {
    const Case c{32, 32, 512, false, true, 1, 0, half()};
    const auto bits = [&](GemmTune tune) {
        RankContext context;
        gemm_tuning(context) = {.tune = tune};
        return run_on(Device{DeviceKind::cuda, 0, &context}, [&](KernelRun& run) { gemm(run.stream(), c.args(run)); })
            .at("c")
            .values;
    };
    setenv("SIMT_CUBLASLT_SLOW", "3000", 1);
    const auto plain = bits(GemmTune::off);
    EXPECT_EQ(bits(GemmTune::on), plain);
    EXPECT_NE(bits(GemmTune::bits_free), plain);
    unsetenv("SIMT_CUBLASLT_SLOW");
}
#endif

// 32 MiB from Hopper on, 4 MiB before; one per stream.
TEST(GemmWorkspace, DependsOnTheArchitecture) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    RankContext context;
    const Device device{DeviceKind::cuda, 0, &context};
    // A new stream may have the handle of one that is gone, and so its workspace: until one takes memory.
    std::list<Stream> streams;
    const auto taken = [&] {
        int64_t bytes = 0;
        for (int i = 0; i < 100 && bytes == 0; ++i) {
            Stream& stream = streams.emplace_back(device, "another");
            Buffer abc(device, 3 * 8 * 8 * 4, MemKind::data, "test");
            stream.zero(abc.data(), abc.bytes());
            const int64_t before = context.memory.now(DeviceKind::cuda, MemKind::workspace);
            gemm(stream, {.c = abc.data(),
                          .a = abc.bytes_at(256),
                          .b = abc.bytes_at(512),
                          .M = 8,
                          .N = 8,
                          .K = 8,
                          .dtype = DType::f32,
                          .c_dtype = DType::f32});
            stream.synchronize();
            bytes = context.memory.now(DeviceKind::cuda, MemKind::workspace) - before;
        }
        return bytes;
    };
#ifdef SIMT_EMU
    const char* const set = getenv("SIMT_ARCH");
    const std::string before = set ? set : "";
    setenv("SIMT_ARCH", "80", 1);
    EXPECT_EQ(taken(), int64_t(4) << 20);
    setenv("SIMT_ARCH", "90", 1);
    EXPECT_EQ(taken(), int64_t(32) << 20);
    before.empty() ? unsetenv("SIMT_ARCH") : setenv("SIMT_ARCH", before.c_str(), 1);
#else
    const int64_t bytes = taken();
    EXPECT_TRUE(bytes == int64_t(4) << 20 || bytes == int64_t(32) << 20) << bytes;
#endif
}

constexpr auto f32 = DType::f32, b16 = DType::bf16;
INSTANTIATE_TEST_SUITE_P(Shapes, GemmTest,
                         testing::Values(Case{1, 1, 1, false, false, 0.5f, 0, f32, f32},      //
                                         Case{17, 40, 24, false, true, 0.5f, 0, b16, b16},    // y = x w^T
                                         Case{17, 24, 40, false, false, 0.5f, 0, b16, b16},   // dx = dy w
                                         Case{40, 24, 17, true, false, 0.5f, 1, b16, f32},    // dw += dy^T x
                                         Case{40, 24, 17, true, false, 0.5f, 1, b16, b16},    //
                                         Case{33, 8, 16, true, true, 0.5f, 0.5f, f32, f32},   //
                                         Case{12, 16, 8, false, true, 0.5f, 1, f32, f32, 8},  // strided rows
                                         Case{33, 24, 16, true, false, 0.5f, 0.5f, b16, f32, 0, false, true},
                                         Case{12, 16, 8, false, true, 0.5f, -4.8f, b16, b16, 8, false, true},
                                         Case{65, 129, 127, false, true, 0.5f, 0, f32, f32},  //
                                         Case{8, 32003, 16, false, true, 0.5f, 0, b16, b16},  // a head
                                         Case{17, 40, 24, false, true, 1, 0, b16, b16, 0, true},
                                         Case{65, 129, 127, false, true, 1, 0, f32, f32, 3, true}));

}  // namespace
}  // namespace rz::test
