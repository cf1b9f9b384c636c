// The interpreter itself, on kernels of a few lines: values, messages, lanes that part, memory order.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "test/ptx/machine.h"
#include "test/ptx/order.h"
#include "test/ptx/unpack.h"

namespace ptx {
namespace {

// A kernel k(out, in) of one or more warps; `body` may use %r0 = %tid.x, %rd1 = out, %rd2 = in, and what it declares.
std::string kernel_text(const std::string& body) {
    return R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
{
.reg .pred %p<9>;
.reg .b16 %h<9>;
.reg .b32 %r<40>;
.reg .f32 %f<40>;
.reg .b64 %rd<20>;
.shared .align 1024 .b8 smem[16384];
ld.param.u64 %rd1, [k_param_0];
ld.param.u64 %rd2, [k_param_1];
mov.u32 %r0, %tid.x;
)" + body + "\nret;\n}\n";
}

struct Trial {
    std::vector<uint32_t> out = std::vector<uint32_t>(1024), in = std::vector<uint32_t>(1024);
    std::string error;

    Trial() { std::iota(in.begin(), in.end(), 0u); }
    Trial& go(const std::string& body, uint32_t threads = 32, uint64_t seed = 0, uint32_t blocks = 1,
              uint32_t cluster = 1) {
        add_memory(out.data(), out.size() * 4, "out"), add_memory(in.data(), in.size() * 4, "in");
        try {
            Module m(kernel_text(body));
            std::vector<unsigned char> params(16);
            const void* p[2] = {out.data(), in.data()};
            memcpy(params.data(), p, 16);
            Launch l;
            l.grid.x = blocks, l.block.x = threads, l.seed = seed, l.resident = 2, l.cluster = cluster,
            l.check_order = true;
            Machine(m.kernel("k"), l, params).run();
        } catch (const std::exception& e) {
            error = e.what();
        }
        remove_memory(out.data()), remove_memory(in.data());
        return *this;
    }
};

const char* const kStore = R"(
mul.wide.u32 %rd8, %r0, 4;
add.s64 %rd9, %rd1, %rd8;
st.global.u32 [%rd9], %r9;
)";

void expect_error(const std::string& body, const std::string& part, uint32_t threads = 64, uint32_t blocks = 1) {
    const Trial r = Trial().go(body, threads, 0, blocks);
    EXPECT_NE(r.error.find(part), std::string::npos) << "the message is: " << r.error;
}
void expect_fine(const std::string& body, uint32_t threads = 64, uint32_t blocks = 1) {
    for (uint64_t seed : {0, 1, 2, 3}) EXPECT_EQ(Trial().go(body, threads, seed, blocks).error, "");
}

// ---- values

uint32_t value(const std::string& body) {
    const Trial r = Trial().go(body + kStore);
    EXPECT_EQ(r.error, "");
    return r.out[0];
}

TEST(Values, IntegerOpsGiveTheDefinedValues) {
    EXPECT_EQ(value("mov.u32 %r1, 0x80000001; mul.hi.u32 %r9, %r1, 6;"), 3u);
    EXPECT_EQ(value("mov.u32 %r1, -7; div.s32 %r9, %r1, 2;"), uint32_t(-3));
    EXPECT_EQ(value("mov.u32 %r1, 0x12345678; bfe.u32 %r9, %r1, 8, 12;"), 0x456u);
    EXPECT_EQ(value("mov.u32 %r1, 0x800; bfe.s32 %r9, %r1, 8, 4;"), 0xfffffff8u);
    EXPECT_EQ(value("mov.u32 %r1, 0xab; mov.u32 %r2, 0xffffffff; bfi.b32 %r9, %r1, %r2, 8, 8;"), 0xffffabffu);
    EXPECT_EQ(value("mov.u32 %r1, 0x33221100; mov.u32 %r2, 0x77665544; prmt.b32 %r9, %r1, %r2, 0x5410;"), 0x55441100u);
    EXPECT_EQ(value("mov.u32 %r1, 0xf0; mov.u32 %r2, 0xcc; mov.u32 %r3, 0xaa; lop3.b32 %r9, %r1, %r2, %r3, 0x96;"),
              0x96u);
    EXPECT_EQ(value("mov.u32 %r1, 0xf0000000; mov.u32 %r2, 1; shf.l.wrap.b32 %r9, %r1, %r2, 4;"), 0x1fu);
    EXPECT_EQ(value("mov.u32 %r1, 5; shl.b32 %r9, %r1, 32;"), 0u);
    EXPECT_EQ(value("mov.u32 %r1, 0xff020304; mov.u32 %r2, 0x02ff0101; dp4a.s32.u32 %r9, %r1, %r2, 5;"), 520u);
}

TEST(Values, RoundingsAreThoseOfTheOpsName) {
    EXPECT_EQ(value("mov.f32 %f1, 0f3F808000; cvt.rn.bf16.f32 %h1, %f1; mov.b32 %r9, {%h1, %h1};"), 0x3f803f80u)
        << "half way, to even";
    EXPECT_EQ(value("mov.f32 %f1, 0f3F818000; cvt.rn.bf16.f32 %h1, %f1; mov.b32 %r9, {%h1, %h1};"), 0x3f823f82u);
    EXPECT_EQ(value("mov.f32 %f1, 0f3F800001; mov.f32 %f2, 0f33800000; add.rz.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;"),
              0x3f800001u);
    EXPECT_EQ(value("mov.f32 %f1, 0f3F800001; mov.f32 %f2, 0f33800000; add.rn.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;"),
              0x3f800002u);
    EXPECT_EQ(value("mov.f32 %f1, 0f00000001; add.ftz.f32 %f3, %f1, %f1; mov.b32 %r9, %f3;"), 0u);
    EXPECT_EQ(value("mov.f32 %f1, 0fC0200000; cvt.rni.s32.f32 %r9, %f1;"), uint32_t(-2));
    EXPECT_EQ(value("mov.f32 %f1, 0f7FC00000; mov.f32 %f2, 0f40000000; max.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;"),
              0x40000000u);
}

// ---- lanes that part

TEST(Lanes, MeetAgainAfterABranchAndALoop) {
    const Trial r = Trial().go(std::string(R"(
mov.u32 %r9, 0;
mov.u32 %r1, 0;
LOOP:
add.u32 %r9, %r9, %r1;
add.u32 %r1, %r1, 1;
setp.le.u32 %p1, %r1, %r0;
@%p1 bra LOOP;
setp.lt.u32 %p2, %r0, 16;
@%p2 bra LOW;
add.u32 %r9, %r9, 1000;
bra MEET;
LOW:
add.u32 %r9, %r9, 2000;
MEET:
shfl.sync.bfly.b32 %r9, %r9, 31, 31, -1;
)") + kStore);
    EXPECT_EQ(r.error, "");
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t from = 31 - l;
        EXPECT_EQ(r.out[l], from * (from + 1) / 2 + (from < 16 ? 2000 : 1000)) << l;
    }
}

// One lane waits in a loop for what the other half stores: no order of the halves may starve it.
TEST(Lanes, NoGroupStarves) {
    const std::string body = R"(
mov.u32 %r2, smem;
setp.eq.u32 %p1, %r0, 0;
@%p1 st.shared.u32 [%r2], 0;
bar.warp.sync -1;
setp.lt.u32 %p2, %r0, 16;
@%p2 bra WAIT;
atom.shared.or.b32 %r3, [%r2], 1;
bra DONE;
WAIT:
atom.shared.or.b32 %r4, [%r2], 0;
setp.eq.u32 %p3, %r4, 0;
@%p3 bra WAIT;
DONE:
bar.warp.sync -1;
)";
    expect_fine(body, 32);
}

// ---- messages

TEST(Messages, AnUnknownOpcodeStopsWithLineAndText) {
    const Trial r = Trial().go("\nfrobnicate.f32 %f1, %f2;");
    EXPECT_NE(r.error.find("no model of 'frobnicate.f32'"), std::string::npos) << r.error;
    EXPECT_NE(r.error.find("PTX line 16: frobnicate.f32 %f1, %f2;"), std::string::npos) << r.error;
}
TEST(Messages, OneThatNoLaneReachesDoesNotStop) {
    EXPECT_EQ(Trial().go("setp.gt.u32 %p1, %r0, 99; @%p1 frobnicate.f32 %f1, %f2;").error, "");
}
TEST(Messages, AddressesOutsideAnyAllocationAreNamed) {
    expect_error("ld.global.u32 %r9, [%rd2+4096];", "offset 4096 of in, which has 4096 bytes");
    expect_error("ld.global.u32 %r9, [%rd2+2];", "not aligned to 4");
    expect_error("mov.u32 %r2, smem; st.shared.u32 [%r2+16384], %r0;", "the block's 16384 bytes");
}
TEST(Messages, BarriersThatDoNotFitAreNamed) {
    expect_error("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 96;", "deadlock");
    expect_error("bar.sync 1, 40;", "no multiple of 32");
}

// ---- memory order: each piece with what makes it right, and with that taken out

void with_and_without(const std::string& body, const std::string& needed, const std::string& message,
                      uint32_t threads = 64) {
    const size_t at = body.find(needed);
    ASSERT_NE(at, std::string::npos);
    expect_fine(body, threads);
    expect_error(body.substr(0, at) + body.substr(at + needed.size()), message, threads);
}

TEST(Order, AMissingBlockBarrierIsFound) {
    with_and_without(R"(
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r0, 4, %r2;
st.shared.u32 [%r3], %r0;
bar.sync 0;
xor.b32 %r4, %r0, 32;
mad.lo.u32 %r5, %r4, 4, %r2;
ld.shared.u32 %r6, [%r5];
)",
                     "bar.sync 0;", "race: a");
}
TEST(Order, AMissingWarpBarrierIsFound) {
    with_and_without(R"(
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r0, 4, %r2;
st.shared.u32 [%r3], %r0;
bar.warp.sync -1;
xor.b32 %r4, %r0, 1;
mad.lo.u32 %r5, %r4, 4, %r2;
ld.shared.u32 %r6, [%r5];
)",
                     "bar.warp.sync -1;", "race: a read");
}
TEST(Order, AWriteAfterAReadWithoutABarrierIsFound) {
    with_and_without(R"(
mov.u32 %r2, smem;
ld.shared.u32 %r6, [%r2];
bar.sync 0;
setp.eq.u32 %p1, %r0, 0;
@%p1 st.shared.u32 [%r2], %r0;
)",
                     "bar.sync 0;", "race: a write");
}
TEST(Order, TwoBlocksThatWriteOneAddressAreFound) {
    expect_fine(
        "mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 64, %r0; mul.wide.u32 %rd3, %r4, 4; add.s64 %rd4, %rd1, %rd3; "
        "st.global.u32 [%rd4], %r0;",
        64, 3);
    expect_error("mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r0;", "race: a write", 64,
                 3);
}
// Halves of one word: even threads are of warp 0 and odd ones of warp 1, as thread t writes half 2 (t % 32) + t / 32.
TEST(Order, NeighboursWhoWriteTheHalvesOfAWordAreNoRace) {
    const std::string halves =
        "mov.u32 %r2, smem; and.b32 %r3, %r0, 31; shr.u32 %r4, %r0, 5; mad.lo.u32 %r5, %r3, 2, %r4; "
        "mad.lo.u32 %r6, %r5, 2, %r2; st.shared.u16 [%r6], %r0; ld.shared.u16 %r7, [%r6];";
    expect_fine(halves, 64, 1);
    expect_error(halves + " xor.b32 %r8, %r6, 2; ld.shared.u16 %r7, [%r8];", "race: a", 64, 1);
}
// Block 0 writes 64 values and then a flag; block 1 waits for the flag and reads them.
std::string through_flag(const std::string& write, const std::string& read) {
    return R"(
mul.wide.u32 %rd8, %r0, 4;
add.s64 %rd9, %rd1, %rd8;
mov.u32 %r3, %ctaid.x;
setp.eq.u32 %p1, %r3, 1;
setp.ne.u32 %p2, %r0, 0;
@%p1 bra READER;
st.global.u32 [%rd9], %r0;
bar.sync 0;
@%p2 bra END;
)" + write +
           R"(
bra END;
READER:
@%p2 bra SEEN;
AGAIN:
)" + read + R"(
SEEN:
bar.sync 1;
ld.global.u32 %r4, [%rd9];
END:
)";
}
TEST(Order, FlagsOfOtherBlocksNeedReleaseAndAcquire) {
    const std::string poll = "%r5, [%rd1+2048];\nsetp.eq.u32 %p3, %r5, 0;\n@%p3 bra AGAIN;",
                      store = "st.release.gpu.global.u32 [%rd1+2048], 1;", load = "ld.acquire.gpu.global.u32 " + poll,
                      relaxed_store = "st.relaxed.gpu.global.u32 [%rd1+2048], 1;",
                      relaxed_load = "ld.relaxed.gpu.global.u32 " + poll,
                      add = "atom.global.add.u32 %r5, [%rd1+2048], 1;", fence = "fence.acq_rel.gpu;\n";
    const auto go = [](const std::string& body) { return Trial().go(body, 64, 0, 2).error; };
    EXPECT_EQ(go(through_flag(store, load)), "");
    EXPECT_EQ(go(through_flag(fence + relaxed_store, relaxed_load + fence)), "");
    EXPECT_EQ(go(through_flag(fence + add, load)), "");
    EXPECT_EQ(go(through_flag("red.release.gpu.global.add.u32 [%rd1+2048], 1;", relaxed_load + fence)), "");
    for (const std::string& body :
         {through_flag(relaxed_store, load), through_flag(store, relaxed_load), through_flag(add, load),
          through_flag(relaxed_store, relaxed_load + fence), through_flag(fence + relaxed_store, relaxed_load),
          through_flag("st.global.u32 [%rd1+2048], 1;", load)})
        EXPECT_NE(go(body).find("race: a "), std::string::npos) << body << go(body);
}
const char* const kCopy = R"(
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r0, 4, %r2;
ld.shared.u32 %r5, [%r2];
bar.sync 0;
cp.async.ca.shared.global [%r3], [%rd2], 4;
cp.async.commit_group;
cp.async.wait_group 0;
ld.shared.u32 %r6, [%r3];
)";
std::string replaced(std::string body, const std::string& old, const std::string& by) {
    const size_t at = body.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    return body.replace(at, old.size(), by);
}
TEST(Order, AReadOfACopyUnderWayIsFound) {
    with_and_without(kCopy, "cp.async.wait_group 0;", "a read of memory into which a cp.async");
    with_and_without(kCopy, "cp.async.commit_group;", "a read of memory into which a cp.async");
    expect_error(replaced(kCopy, "wait_group 0", "wait_group 1"), "a read of memory into which a cp.async");
}
TEST(Order, AWriteIntoACopyUnderWayIsFound) {
    const std::string body = replaced(kCopy, "ld.shared.u32 %r6, [%r3];", "st.shared.u32 [%r3], %r0;");
    with_and_without(body, "cp.async.wait_group 0;", "a write of memory into which a cp.async");
}
TEST(Order, ACopyOverWhatOthersReadIsFound) { with_and_without(kCopy, "bar.sync 0;", "race: a cp.async"); }
const char* const kBulkStore = R"(
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r0, 4, %r2;
st.shared.u32 [%r3], %r0;
fence.proxy.async.shared::cta;
bar.sync 0;
setp.eq.u32 %p1, %r0, 0;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
bar.sync 1;
st.shared.u32 [%r3], %r0;
)";
TEST(Order, AMissingProxyFenceIsFound) {
    with_and_without(kBulkStore, "fence.proxy.async.shared::cta;", "no fence.proxy.async");
}
TEST(Order, BulkStoreIsWaitedFor) {
    with_and_without(kBulkStore, "@%p1 cp.async.bulk.wait_group 0;", "still reading");
    with_and_without(kBulkStore, "@%p1 cp.async.bulk.commit_group;", "still reading");
    expect_error(replaced(kBulkStore, "wait_group 0", "wait_group.read 1"), "still reading");
    expect_fine(replaced(kBulkStore, "wait_group 0", "wait_group.read 0"));
}
const char* const kBulkLoad = R"(
mov.u32 %r2, smem;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r2+2048], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+2048], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 256, [%r2+2048];
AGAIN:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+2048], 0;
@!%p2 bra AGAIN;
mad.lo.u32 %r3, %r0, 4, %r2;
ld.shared.u32 %r9, [%r3];
)";
TEST(Order, AMissingFenceAfterMbarrierInitIsFound) {
    with_and_without(kBulkLoad, "@%p1 fence.mbarrier_init.release.cluster;", "no fence.mbarrier_init");
    with_and_without(kBulkLoad, "bar.sync 0;", "mbarrier");
}
// A relaxed arrival at a cluster's barrier passes on what fence.mbarrier_init covers, and nothing else.
TEST(Order, AnotherBlocksMbarrierNeedsItsFence) {
    const std::string fence = "@%p1 fence.mbarrier_init.release.cluster;", body = R"(
mov.u32 %r2, smem;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r2+2048], 2;
@%p1 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.acquire.aligned;
mapa.shared::cluster.u32 %r4, %r2, 0;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4+2048];
barrier.cluster.arrive.aligned;
barrier.cluster.wait.acquire.aligned;
)";
    EXPECT_EQ(Trial().go(body, 32, 1, 2, 2).error, "");
    std::string without = body;
    without.erase(without.find(fence), fence.size());
    const std::string error = Trial().go(without, 32, 1, 2, 2).error;
    EXPECT_NE(error.find("without order after the mbarrier's init"), std::string::npos) << error;
}
TEST(Order, BulkLoadIsWaitedFor) {
    const std::string body = kBulkLoad,
                      wait = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+2048], 0;\n@!%p2 bra AGAIN;";
    with_and_without(body, wait, "has not waited for");
    const Trial r = Trial().go(body + kStore, 64, 1);
    EXPECT_EQ(r.error, "");
    for (uint32_t i = 0; i < 64; i++) EXPECT_EQ(r.out[i], i);
}
const char* const kWgmma = R"(
mov.u32 %r2, smem;
shr.u32 %r3, %r2, 4;
cvt.u64.u32 %rd3, %r3;
or.b64 %rd4, %rd3, 4611686293305294848;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, %f1;
mov.f32 %f3, %f1;
mov.f32 %f4, %f1;
setp.eq.u32 %p1, 0, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %rd4, %rd4, %p1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
add.f32 %f5, %f1, %f2;
)";
TEST(Order, AMissingFenceCommitOrWaitOfWgmmaIsFound) {
    with_and_without(kWgmma, "wgmma.fence.sync.aligned;", "no wgmma.fence", 128);
    with_and_without(kWgmma, "wgmma.commit_group.sync.aligned;", "has not been waited for", 128);
    with_and_without(kWgmma, "wgmma.wait_group.sync.aligned 0;", "has not been waited for", 128);
}
TEST(Order, WgmmaIsCompleteForItsFourWarpsAtOnce) {
    std::string body = kWgmma;
    body.erase(body.find("add.f32"));
    body += "mad.lo.u32 %r4, %r0, 4, %r2;\nst.shared.u32 [%r4], %r0;\n";  // over what all four warps have read
    with_and_without(body, "wgmma.wait_group.sync.aligned 0;", "still reading", 128);
}
TEST(Order, WgmmaReadsWhatThreadsWroteOnlyAfterAFence) {
    const std::string writes = R"(
mad.lo.u32 %r4, %r0, 4, %r2;
st.shared.u32 [%r4], 0;
fence.proxy.async.shared::cta;
bar.sync 0;
)";
    const std::string body = replaced(kWgmma, "wgmma.fence", writes + "wgmma.fence");
    with_and_without(body, "fence.proxy.async.shared::cta;", "no fence.proxy.async", 128);
    with_and_without(body, "bar.sync 0;", "race: a read by the async proxy", 128);
}
// A in registers, which change between two products
TEST(Order, WgmmaOwnsItsOperandInRegisters) {
    const auto body = [](const std::string& wait, const std::string& fence) {
        const std::string product =
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, {%r20,%r21,%r22,%r23}, %rd4, "
            "%p1, 1, 1, 0;\nwgmma.commit_group.sync.aligned;\n";
        std::string s = kWgmma;
        s.erase(s.find("wgmma.fence"));
        for (const char* r : {"%r20", "%r21", "%r22", "%r23"}) s += "mov.u32 " + std::string(r) + ", 0;\n";
        return s + "wgmma.fence.sync.aligned;\n" + product + wait + "mov.u32 %r20, 1065369472;\n" + fence + product +
               "wgmma.wait_group.sync.aligned 0;\n";
    };
    const std::string wait = "wgmma.wait_group.sync.aligned 0;\n", fence = "wgmma.fence.sync.aligned;\n";
    expect_fine(body(wait, fence), 128);
    expect_error(body("", fence), "has not been waited for", 128);
    expect_error(body("wgmma.wait_group.sync.aligned 1;\n", fence), "has not been waited for", 128);
    expect_error(body(wait, ""), "no wgmma.fence", 128);
}
TEST(Order, MoreRegistersThanThereAreIsAnError) {
    expect_fine("setmaxnreg.inc.sync.aligned.u32 240;", 256);
    expect_error("setmaxnreg.inc.sync.aligned.u32 240;", "92160 of 64512 registers", 384);
    expect_error("setmaxnreg.inc.sync.aligned.u32 244;", "no multiple of 8", 128);
    const std::string roles = R"(
setp.lt.u32 %p1, %r0, 128;
@!%p1 bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 24;
bra END;
CONSUMER:
setmaxnreg.inc.sync.aligned.u32 240;
END:
)";
    with_and_without(roles, "setmaxnreg.dec.sync.aligned.u32 24;", "82944 of 64512 registers", 384);
}

// ---- fat binaries

TEST(Unpack, Lz4IsUnpackedAndDamageIsRefused) {
    const unsigned char text[] = {0x35, 'a', 'b', 'c', 3, 0, 0x20, 'x', 'y'};
    EXPECT_EQ(unpack_lz4(text, sizeof text, 14), "abcabcabcabcxy");
    EXPECT_THROW(unpack_lz4(text, sizeof text, 13), std::runtime_error);
    const unsigned char before[] = {0x10, 'a', 2, 0, 0x10, 'b'};
    EXPECT_THROW(unpack_lz4(before, sizeof before, 0), std::runtime_error);
}

}  // namespace
}  // namespace ptx
