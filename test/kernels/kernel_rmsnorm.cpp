// RMSNorm: CUDA kernels against the CPU op.
#include "kernels/runtime/context.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

using Case = ops::NormCase;
class Rmsnorm : public testing::TestWithParam<Case> {};

void check_forward(Case c, bool in_place) {
    if (c.C > 50000 && runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
    c.in_place = in_place;
    compare_on_devices([&](KernelRun& run) { rmsnorm_forward(run.stream(), c.forward(run)); });
}

TEST_P(Rmsnorm, ForwardMatchesCpu) { check_forward(GetParam(), false); }

TEST_P(Rmsnorm, ForwardInPlaceMatchesCpu) {
    if (GetParam().residual) check_forward(GetParam(), true);
}

void check_backward(const Case& c, bool apart = false, RankContext* context = nullptr) {
    if (c.C > 50000) return;  // for the loops of the forward pass; scratch would be 100 MB
    compare_on_devices([&](KernelRun& run) { rmsnorm_backward(run.stream(), c.backward(run, apart)); }, {}, context);
}

TEST_P(Rmsnorm, BackwardMatchesCpu) {
    Case c = GetParam();
    c.in_place = true;
    check_backward(c);
}

// The sum of dw, left for who adds it later; by a kernel that leaves multiprocessors to communication.
TEST_P(Rmsnorm, BackwardLeavesTheSumOfDw) {
    Case c = GetParam();
    c.residual = false;
    RankContext context;
    context.beside.reserved_sms = 3;
    check_backward(c, true, &context);
}

// As many parts of dw as a GPU's multiprocessors make: the loop that adds them is unrolled by eight.
TEST(RmsnormParts, DwOfManyMatchesCpu) {
    struct Multiprocessors {  // the emulator's; a real device has what it has
        Multiprocessors() { setenv("SIMT_MULTIPROCESSORS", "32", 1); }
        ~Multiprocessors() { unsetenv("SIMT_MULTIPROCESSORS"); }
    } const many;
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) check_backward({600, 40, t, t});
}
#ifdef SIMT_EMU
// The emulated GPU has four multiprocessors: each works on 16 parts at a time, four in a block.
TEST(RmsnormBesideCommunication, TakesTheOtherMultiprocessors) {
    const auto blocks = [](int reserved_sms) {
        RankContext context;
        context.beside.reserved_sms = reserved_sms;
        const uint64_t before = simt::stats().blocks;
        run_on(Device{DeviceKind::cuda, 0, &context}, [](KernelRun& run) {
            rmsnorm_backward(run.stream(), Case{300, 64, DType::f32}.backward(run, /*apart=*/true));
        });
        return int(simt::stats().blocks - before);
    };
    const int all = blocks(0);
    for (const int reserved_sms : {1, 2, 3}) EXPECT_EQ(all - blocks(reserved_sms), 4 * reserved_sms);
    EXPECT_EQ(blocks(4), blocks(3)) << "at least one";
}
#endif

constexpr auto f32 = DType::f32, bf16_ = DType::bf16, f16_ = DType::f16;
INSTANTIATE_TEST_SUITE_P(Shapes, Rmsnorm,
                         testing::Values(Case{1, 8, bf16_, f32, false},       // one row, one vector
                                         Case{3, 1, f32, f32, true},          // one column
                                         Case{5, 6, bf16_, bf16_, true},      // no vectors
                                         Case{7, 576, bf16_, f32, true},      // a warp per row, ragged last block
                                         Case{2, 577, f32, f32, false},       // odd width: scalars, several warps
                                         Case{300, 64, bf16_, bf16_, false},  // more rows than parts of dw
                                         Case{41, 2048, bf16_, bf16_, true},  //
                                         Case{129, 96, f32, f32, true},       //
                                         Case{3, 4096, bf16_, bf16_, true},   // a block per row
                                         Case{2, 4104, f16_, f32, true},      //
                                         Case{5, 6, f16_, f16_, true},        //
                                         Case{3, 8200, f16_, f16_, true},     //
                                         Case{9, 4100, f32, f32, true},  // backward: beyond the registers, read again
                                         Case{10, 8200, bf16_, f32, false},   //
                                         Case{5, 33288, bf16_, bf16_, true},  // forward too
                                         Case{5, 33288, f16_, f16_, true}, Case{2, 16648, f32, f32, true},
                                         Case{2, 4099, bf16_, f32, true},  // the same with scalars
                                         Case{2, 4099, f16_, f16_, true}, Case{2, 5701, f32, f32, true},
                                         // twice what such loops take where they are unrolled by four
                                         Case{1, 106504, bf16_, bf16_, true}, Case{1, 106504, f16_, f32, true},
                                         Case{1, 53252, f32, f32, true}, Case{1, 106504, bf16_, f32, false},
                                         Case{1, 106504, f16_, f16_, false}, Case{1, 53252, f32, f32, false},
                                         Case{1, 13319, bf16_, f32, true}, Case{1, 13319, f16_, f16_, true},
                                         Case{1, 13319, f32, f32, true}, Case{1, 13319, bf16_, f32, false},
                                         Case{1, 13319, f16_, f16_, false}, Case{1, 13319, f32, f32, false},
                                         // more rows than parts
                                         Case{130, 5, f16_, f16_, true}, Case{130, 16, f16_, f32, false},
                                         Case{130, 5, f32, f32, false}));

}  // namespace
}  // namespace rz::test
