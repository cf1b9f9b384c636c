// Attention: CUDA kernels against the CPU op.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"
#include "test/kernels/attention_double.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

struct Case : ops::AttentionCase {
    bool large = false;
    int64_t ahead = 0;                    // by how many positions the last query comes after the last key
    std::vector<int64_t> documents = {};  // of each row, from position 0 on: their lengths, but the last one's
    bool sum = false;                     // dk and dv are fp32 and added to
    AttentionKernels fastest = AttentionKernels::wgmma;
    bool tiles = Tq > 8 * Tk || Tk > 40 * Tq;  // many for one item
    int64_t window = 0;                        // keys that a query sees at most; 0: all of its document
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    out << "B" << c.B << "_T" << c.Tq << "of" << c.Tk << "_H" << c.H << "over" << c.K << "_D" << c.D << "_"
        << name_of(c.dtype) << (c.packed ? "_packed" : "");
    if (c.ahead) out << "_ahead" << c.ahead;
    for (const int64_t n : c.documents) out << "_" << n;
    if (c.window) out << "_window" << c.window;
    return out << (c.sum ? "_sum" : "");
}

AttentionShape shape_of(const Case& c) {
    AttentionShape s = c.shape();
    s.fastest = c.fastest;
    if (c.ahead > 0) s.k_at = 1000, s.q_at = s.k_at + c.Tk - c.Tq + c.ahead;
    return s;
}

// The first key of a query, counted from key 0: where its document starts, moved by one position from batch row to
// batch row, or its window
int64_t first_key(const Case& c, const AttentionShape& s, int64_t b, int64_t t) {
    int64_t start = 0, end = 0;
    for (const int64_t n : c.documents)
        if ((end += n) + b <= s.offset() + t) start = end + b;
    return c.window > 0 ? std::max(start, s.offset() + t - c.window + 1) : start;
}

void place_documents(KernelRun& run, const Case& c, AttentionShape& s) {
    if (c.documents.empty() && c.window == 0) return;
    std::vector<int32_t> first;
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t t = 0; t < c.Tq; ++t) first.push_back(int32_t(s.k_at + first_key(c, s, b, t)));
    s.first_key = run.values(first);
    s.first_key_batch = c.Tq;
}

void forward(KernelRun& run, const Case& c) {
    AttentionForward a = c.forward(run);
    a.shape = shape_of(c);
    place_documents(run, c, a.shape);
    attention_forward(run.stream(), a);
}

class Attention : public testing::TestWithParam<Case> {
   protected:
    void SetUp() override {
        if (GetParam().tiles && runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
        if (GetParam().large && skip_large()) GTEST_SKIP() << "set KERNEL_TESTS_LARGE to run this in the emulator";
    }
    // Rounding of one value to dtype, relative to it
    double rounding() const { return ulp(GetParam().dtype) / 2; }
    void check_forward(AttentionKernels fastest = AttentionKernels::wgmma);
    void check_backward(AttentionKernels fastest = AttentionKernels::wgmma);
    // The backward pass, with so many bytes for score gradients; o and lse come from the CPU, so that all sides start
    // from the same bits.
    enum class Rotation { none, after, within };  // by RoPE's backward pass: not, in a call of its own, in the stores
    std::function<void(KernelRun&)> backward(const Case& c, int64_t kept, Rotation = Rotation::none);
    // The gradients of one device against double
    std::function<void(const char* device, const KernelRun::Results&)> backward_in_double(const Case& c);
};

void Attention::check_forward(AttentionKernels fastest) {
    Case c = GetParam();
    c.fastest = fastest;
    compare_on_devices([&](KernelRun& run) { forward(run, c); });
}

bool wgmma_covers(const Case& c) {
    return c.dtype != DType::f32 && (c.D == 64 || c.D == 80 || c.D == 96 || c.D == 128);
}

TEST_P(Attention, ForwardMatchesCpu) { check_forward(); }

// Older devices run this where the test above has used wgmma
TEST_P(Attention, ForwardWithoutWgmmaMatchesCpu) {
    const Case c = GetParam();
    if (!wgmma_covers(c)) GTEST_SKIP() << "wgmma does not cover this anyway";
    check_forward(AttentionKernels::mma);
}

// Gradients in double from the same inputs. Rounded to dtype are p and ds on their way into products, o, from which
// delta is taken, and the results. Exponentials and sums in fp32: 2^-14 where products are of 16 bits, else 2^-16.
std::function<void(const char*, const KernelRun::Results&)> Attention::backward_in_double(const Case& c) {
    namespace dbl = attention_double;
    const AttentionShape s = shape_of(c);
    dbl::Problem a{c.B, c.Tq, c.Tk, c.H, c.K, c.D, double(s.scale), {}, {}, {}, {}, {}, {}};
    const int64_t at_k = c.packed ? c.H * c.D : 0, at_v = c.packed ? (c.H + c.K) * c.D : 0;
    const auto dense = [](const Data& d, int64_t from, int64_t B, int64_t T, int64_t n, int64_t batch, int64_t row) {
        std::vector<double> x;
        for (int64_t b = 0; b < B; ++b)
            for (int64_t t = 0; t < T; ++t)
                for (int64_t e = 0; e < n; ++e) x.push_back(d.at(from + b * batch + t * row + e));
        return x;
    };
    const auto data = [&](uint64_t seed, int64_t n) { return normal(n, c.dtype, c.packed ? 1 : seed); };
    const int64_t nq = c.H * c.D, nk = c.K * c.D, all_q = c.B * s.q_batch, all_kv = c.packed ? all_q : c.B * s.kv_batch;
    a.q = dense(data(1, all_q), 0, c.B, c.Tq, nq, s.q_batch, s.q_row);
    a.k = dense(data(2, all_kv), at_k, c.B, c.Tk, nk, s.kv_batch, s.kv_row);
    a.v = dense(data(3, all_kv), at_v, c.B, c.Tk, nk, s.kv_batch, s.kv_row);
    a.d_o = dense(normal(c.B * s.o_batch, c.dtype, 9), 0, c.B, c.Tq, nq, s.o_batch, s.o_row);
    a.first = [&c, s](int64_t b, int64_t t) { return first_key(c, s, b, t); };
    a.end = [s](int64_t, int64_t t) { return std::min(s.Tk, s.offset() + t + 1); };
    const double u = rounding();
    const auto want =
        std::make_shared<dbl::Result>(a, dbl::Rounding{u, u, u, std::ldexp(1.0, c.dtype == DType::f32 ? -16 : -14)});
    return [=](const char* device, const KernelRun::Results& have) {
        const auto compare = [&](const std::string& name, const dbl::Bounded& x, int64_t from, int64_t T, int64_t n,
                                 int64_t batch, int64_t row) {
            const bool sum = c.sum && name != "dq";
            const Data before = sum ? normal(c.B * batch, DType::f32, 11) : Data{};
            const std::vector<double>& values = have.at(c.packed ? "dqkv" : name).values;
            const auto get = [&](int64_t i) {
                const int64_t place = from + i / n / T * batch + i / n % T * row + i % n;
                return values[size_t(place)] - (sum ? before.at(place) : 0);
            };
            const double unit = sum ? std::ldexp(1.0, -22) : u;
            EXPECT_LE(x.worst(unit, get), 1)
                << name << " on the " << device << ", as a part of what its roundings allow";
            if (std::getenv("ATTENTION_ERRORS"))
                printf("%s %s: rms %.1e, worst %.2f of its bound\n", device, name.c_str(), x.rms(get),
                       x.worst(unit, get));
        };
        compare("dq", want->dq, 0, c.Tq, nq, s.q_batch, s.q_row);
        compare("dk", want->dk, at_k, c.Tk, nk, s.kv_batch, s.kv_row);
        compare("dv", want->dv, at_v, c.Tk, nk, s.kv_batch, s.kv_row);
    };
}

std::function<void(KernelRun&)> Attention::backward(const Case& c, int64_t kept, Rotation rotation) {
    const auto before = run_on(kCpu, [&](KernelRun& run) { forward(run, c); });
    const AttentionShape s = shape_of(c);
    const Data o{c.dtype, before.at("o").bytes}, lse{DType::f32, before.at("lse").bytes},
        d_o = normal(c.B * s.o_batch, c.dtype, 9);
    return [=](KernelRun& run) {
        const auto in = c.inputs(run);
        const auto grad = c.qkv([&](const std::string& name, int64_t n, uint64_t) -> char* {
            const std::string gradient = "d" + name;
            const ops::Output x{gradient.c_str(), c.gradient_tolerance(name, c.sum)};
            return c.sum && name[0] != 'q' ? run.inout(x, n, DType::f32, 11) : run.out(x, n, c.dtype);
        });
        AttentionBackward a;
        a.dq = grad.q, a.dk = grad.k, a.dv = grad.v;
        a.q = in.q, a.k = in.k, a.v = in.v;
        a.o = run.input(o);
        a.d_o = run.input(d_o);
        a.lse = run.input(lse);
        a.workspace = run.scratch(attention_backward_workspace(s));
        a.shape = s;
        a.sum_dkv = c.sum;
        if (kept > 0) a.kept = run.scratch(kept), a.kept_bytes = kept;
        place_documents(run, c, a.shape);
        if (rotation == Rotation::none) return attention_backward(run.stream(), a);
        const ops::RopeCase rows{c.B * c.Tq, c.Tq, c.H + c.K, c.D, c.K * c.D, c.dtype, 3, !c.documents.empty()};
        Rope back = rows.args(run, /*inverse=*/true);
        back.x = a.dq, back.amax = run.inout("amax", zeros(1, DType::f32));
        if (rotation == Rotation::within) a.back = back;
        attention_backward(run.stream(), a);
        if (rotation == Rotation::after) rope(run.stream(), back);
    };
}

void Attention::check_backward(AttentionKernels fastest) {
    Case c = GetParam();
    c.fastest = fastest;
    const int capability = compute_capability();
    const auto op = backward(c, attention_kept_bytes(shape_of(c), capability));
    if (c.D > 240 && capability > 0 && capability < 80) {  // what 64 KiB of shared memory do not hold
        EXPECT_THROW(run_on(kGpu, op), RequestError);
        return;
    }
    compare_on_devices(op, {}, nullptr, backward_in_double(c));
}

TEST_P(Attention, BackwardMatchesCpu) { check_backward(); }

TEST_P(Attention, BackwardWithoutWgmmaMatchesCpu) {
    const Case c = GetParam();
    if (!wgmma_covers(c)) GTEST_SKIP() << "wgmma does not cover this anyway";
    check_backward(AttentionKernels::mma);
}

// The bits are the same with scores computed twice and with score gradients kept, for all heads and for one key head at
// a time, in memory that held NaN.
TEST_P(Attention, KeptScoresLeaveTheBits) {
    const Case c = GetParam();
    const AttentionShape s = shape_of(c);
    const int64_t all = attention_kept_bytes(s, compute_capability());
    if (all == 0) GTEST_SKIP() << "not kept";
    const Device cuda{DeviceKind::cuda, 0};
    const KernelRun::Results twice = run_on(cuda, backward(c, 0));
    for (const int64_t kept : {all, all / (c.B * c.K)}) {
        next_schedule();
        for (const auto& [name, result] : run_on(cuda, backward(c, kept)))
            EXPECT_TRUE(result.bytes == twice.at(name).bytes) << name << ": " << kept << " of " << all << " bytes kept";
    }
}

// The blocks that kernels have had so far; 0 on a GPU
uint64_t blocks_so_far() {
#ifdef SIMT_EMU
    return simt::stats().blocks;
#else
    return 0;
#endif
}

// RoPE's backward pass in the stores of dq and dk gives the bits of a kernel of its own, the magnitude of all three
// included. The tensor-core kernels need no other kernel for it.
TEST_P(Attention, RopeInTheStoresLeavesTheBits) {
    Case c = GetParam();
    if (!c.packed || c.Tq != c.Tk || c.ahead > 0 || c.sum) GTEST_SKIP() << "not packed rows of queries and keys";
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
    const Device cuda{DeviceKind::cuda, 0};
    for (const AttentionKernels fastest : {AttentionKernels::wgmma, AttentionKernels::mma}) {
        c.fastest = fastest;
        const int64_t all = attention_kept_bytes(shape_of(c), compute_capability());
        const uint64_t before = blocks_so_far();
        const KernelRun::Results after = run_on(cuda, backward(c, 0, Rotation::after));
        const uint64_t blocks = blocks_so_far() - before;
        for (const int64_t kept : {int64_t(0), all}) {
            if (kept > 0 && fastest != AttentionKernels::wgmma) continue;
            next_schedule();
            for (const auto& [name, result] : run_on(cuda, backward(c, kept, Rotation::within)))
                EXPECT_TRUE(result.bytes == after.at(name).bytes) << name << ": " << kept << " bytes kept";
            if (kept == 0 && blocks > 0 && wgmma_covers(c) && compute_capability() >= 80) {
                EXPECT_LT(blocks_so_far() - before, 2 * blocks) << "a kernel of its own rotates";
            }
            if (all == 0) break;
        }
        if (!wgmma_covers(c)) return;
    }
}

// A build without code for Hopper takes no memory for kernels that it does not have. PTX_BUILT_FOR plays it.
TEST(AttentionKept, TakesMemoryForKernelsThatThereAre) {
    if (compute_capability() != 90) GTEST_SKIP() << "no CUDA device that keeps score gradients (9.0)";
    const AttentionShape s = shape_of({1, 256, 256, 2, 2, 128, DType::bf16});
    const char* built_for = std::getenv("PTX_BUILT_FOR");
    const bool there = built_for == nullptr || std::atoi(built_for) >= 90;
    EXPECT_EQ(attention_kept_bytes(s, kGpu), there ? attention_kept_bytes(s, 90) : 0);
    EXPECT_GT(attention_kept_bytes(s, 90), 0);
}

constexpr auto f32 = DType::f32, b16 = DType::bf16, h16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    Fma, Attention,
    testing::Values(Case{1, 1, 1, 1, 1, 6, f32}, Case{2, 33, 33, 3, 1, 6, f32}, Case{1, 65, 65, 9, 3, 16, f32, true},
                    Case{1, 64, 64, 1, 1, 64, f32}, Case{1, 50, 50, 2, 1, 80, f32}, Case{1, 129, 129, 1, 1, 128, f32},
                    Case{1, 37, 37, 2, 1, 256, f32}, Case{1, 33, 33, 2, 2, 34, b16},
                    Case{1, 19, 19, 1, 1, 130, b16, true}, Case{1, 40, 40, 2, 1, 72, h16},
                    Case{1, 20, 20, 2, 1, 34, h16}, Case{1, 20, 20, 2, 1, 200, h16}, Case{1, 20, 20, 1, 1, 100, b16},
                    Case{2, 3, 40, 2, 1, 16, f32}, Case{1, 1, 70, 3, 1, 48, b16},
                    // twice what loops over D, and over tiles, take where they are unrolled
                    Case{1, 70, 70, 2, 1, 62, b16}, Case{1, 70, 70, 2, 1, 62, h16}, Case{1, 40, 40, 2, 1, 126, b16},
                    Case{1, 40, 40, 2, 1, 126, h16}, Case{1, 20, 20, 2, 1, 256, b16}, Case{1, 20, 20, 2, 1, 254, h16},
                    Case{1, 20, 20, 2, 1, 126, f32}, Case{1, 1000, 1000, 2, 1, 64, f32, true, true}));
INSTANTIATE_TEST_SUITE_P(TensorCore, Attention,
                         testing::Values(Case{1, 1, 1, 1, 1, 64, b16}, Case{2, 127, 127, 2, 1, 64, b16},
                                         Case{1, 129, 129, 9, 3, 64, b16, true}, Case{1, 67, 67, 15, 5, 64, b16, true},
                                         Case{1, 200, 200, 2, 1, 80, b16}, Case{1, 150, 150, 2, 2, 96, b16, true},
                                         Case{1, 129, 129, 2, 1, 128, b16, true}, Case{1, 257, 257, 1, 1, 128, b16},
                                         Case{1, 70, 70, 2, 1, 64, h16}, Case{1, 66, 66, 1, 1, 128, h16},
                                         Case{2, 1, 70, 2, 1, 64, b16}, Case{1, 5, 133, 2, 1, 128, b16},
                                         Case{1, 130, 190, 1, 1, 80, b16}, Case{1, 33, 33, 2, 1, 80, h16},
                                         Case{1, 33, 33, 2, 1, 96, h16},
                                         // Several rounds and sections of work for the emulator's 4 multiprocessors
                                         Case{3, 330, 330, 4, 2, 64, b16}, Case{2, 290, 290, 6, 3, 128, b16, true},
                                         Case{1, 300, 500, 5, 1, 96, b16}, Case{1, 135, 135, 9, 3, 80, b16},
                                         Case{1, 135, 135, 9, 3, 64, h16}, Case{1, 135, 135, 9, 3, 80, h16},
                                         Case{1, 135, 135, 9, 3, 96, h16}, Case{1, 135, 135, 9, 3, 128, h16},
                                         Case{1, 1000, 1000, 9, 3, 64, b16, true, true},
                                         Case{2, 1000, 1000, 4, 2, 128, b16, true, true}));

// Documents, queries that are a part of the sequence, keys that end before the queries, and gradients that are added up
const std::vector<int64_t> kSome = {1, 70, 133}, kFew = {20, 5};
INSTANTIATE_TEST_SUITE_P(FmaRanges, Attention,
                         testing::Values(Case{2, 75, 75, 2, 1, 16, f32, false, false, 0, kFew},
                                         Case{1, 40, 90, 4, 2, 34, f32, false, false, 0, kFew, true},
                                         Case{1, 30, 64, 2, 2, 64, f32, false, false, 66, {}, true},
                                         Case{1, 20, 45, 2, 1, 200, f32, false, false, 7, {30, 20}, true},
                                         Case{1, 20, 45, 2, 1, 34, h16, false, false, 7, {30, 20}, true},
                                         Case{1, 20, 45, 2, 1, 100, b16, false, false, 7, {30, 20}, true},
                                         Case{2, 20, 45, 2, 1, 80, b16, false, false, 7, {30, 20}, true},
                                         Case{1, 50, 50, 2, 1, 130, b16, true, false, 0, kFew},
                                         Case{1, 20, 45, 2, 1, 62, b16, false, false, 7, {30, 20}, true},
                                         Case{1, 20, 45, 2, 1, 126, h16, false, false, 7, {30, 20}, true},
                                         Case{1, 20, 45, 2, 1, 200, h16, false, false, 7, {30, 20}, true},
                                         Case{1, 20, 45, 2, 1, 100, f32, false, false, 7, {30, 20}, true}));
INSTANTIATE_TEST_SUITE_P(TensorCoreRanges, Attention,
                         testing::Values(Case{2, 215, 215, 4, 2, 64, b16, true, false, 0, kSome},
                                         Case{1, 290, 290, 2, 1, 128, b16, false, false, 0, {128, 64, 3}},
                                         Case{1, 100, 300, 2, 1, 64, b16, false, false, 0, {}, true},
                                         Case{1, 70, 333, 2, 2, 96, h16, false, false, 0, kSome, true},
                                         Case{1, 128, 128, 2, 1, 64, b16, false, false, 128, {}, true},
                                         Case{1, 90, 130, 1, 1, 80, b16, false, false, 50, {100, 60}, true},
                                         Case{1, 215, 215, 2, 1, 64, h16, true, false, 0, kSome},
                                         Case{1, 70, 215, 2, 1, 64, h16, false, false, 0, kSome, true},
                                         Case{1, 90, 130, 1, 1, 80, h16, false, false, 50, {100, 60}, true},
                                         Case{1, 70, 215, 1, 1, 96, b16, false, false, 0, kSome, true},
                                         Case{1, 70, 215, 2, 1, 128, h16, false, false, 0, kSome, true},
                                         Case{1, 150, 150, 1, 1, 128, h16, true, false, 0, kFew},
                                         Case{1, 64, 256, 2, 1, 128, b16, false, false, 0, {200}, false},
                                         // The second document's queries see no key of the call.
                                         Case{1, 130, 140, 2, 1, 128, b16, false, false, 80, {150}, true}));

// Short documents: they begin at columns of every place in a tile, seen from both halves of a warp's rows.
std::vector<Case> short_documents() {
    const std::vector<int64_t> lengths = {3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9};
    std::vector<Case> all;
    for (const int64_t D : {64, 80, 96, 128})
        all.push_back({3, 130, 130, 1, 1, D, D % 64 == 0 ? h16 : b16, true, false, 0, lengths});
    return all;
}
INSTANTIATE_TEST_SUITE_P(ShortDocuments, Attention, testing::ValuesIn(short_documents()));

// Windows: the first key of each query is another one. Shorter and longer than a tile, with documents, and where a
// chunk of queries sees the last keys of an earlier chunk, or a cache.
std::vector<Case> windows() {
    std::vector<Case> all = {{1, 75, 75, 2, 1, 16, f32},
                             {2, 140, 140, 2, 1, 64, b16, true},
                             {1, 150, 150, 1, 1, 128, b16},
                             {2, 140, 140, 1, 1, 96, h16, true, false, 0, kSome},
                             {1, 64, 128, 2, 1, 80, b16, false, false, 64, {}, true},
                             {1, 5, 133, 2, 1, 128, b16}};
    const int64_t keys[] = {20, 70, 33, 50, 90, 40};
    for (size_t i = 0; i < all.size(); ++i) all[i].window = keys[i];
    return all;
}
INSTANTIATE_TEST_SUITE_P(Windows, Attention, testing::ValuesIn(windows()));

// A chunk of queries whose first is no tile's first row: each column of a later tile is the last for some row.
INSTANTIATE_TEST_SUITE_P(Chunks, Attention,
                         testing::Values(Case{1, 140, 273, 1, 1, 64, b16}, Case{1, 140, 273, 1, 1, 80, h16},
                                         Case{1, 140, 273, 1, 1, 96, h16}, Case{1, 140, 273, 1, 1, 128, h16}));

// Many tiles for one item: few queries and many keys, whose other warpgroups pass over all of them, then the reverse.
std::vector<Case> many_tiles() {
    std::vector<Case> all = {{1, 135, 135, 9, 3, 96, b16}};
    for (const int64_t D : {64, 80, 96, 128})
        for (const DType t : {b16, h16}) {
            const int64_t queries = t == h16 && (D == 80 || D == 96) ? 1170 : 560;
            all.push_back({1, 20, 1170, 1, 1, D, t});
            all.push_back({1, queries, 20, 1, 1, D, t, false, false, queries - 20});
        }
    return all;
}
INSTANTIATE_TEST_SUITE_P(ManyTiles, Attention, testing::ValuesIn(many_tiles()));

// Tiles that lie in another document altogether are not computed: rows of NaN in them change nothing.
TEST_P(Attention, HiddenTilesAreNotRead) {
    Case c = GetParam();
    if (c.documents.empty() || c.Tq != c.Tk || c.packed) GTEST_SKIP() << "two long documents, below";
    std::string why;
    if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
    c.Tq = c.Tk = 1024, c.B = 1, c.documents = {512}, c.H = 2, c.K = 1;
    const int64_t poisoned =
        128;  // rows of the first document's middle, and of the second's: whole tiles of any kernel
    // Queries of the second document alone
    const auto op = [&](KernelRun& run) {
        c.Tq = 512;
        AttentionForward a = c.forward(run);
        a.shape = shape_of(c);
        place_documents(run, c, a.shape);
        const auto poison = [&](int64_t seed) {
            Data d = normal(1024 * c.K * c.D, c.dtype, uint64_t(seed));
            for (int64_t i = poisoned * c.K * c.D; i < (512 - poisoned) * c.K * c.D; ++i) d.set(i, NAN);
            return run.input(d);
        };
        a.k = poison(2), a.v = poison(3);
        attention_forward(run.stream(), a);
        attention_backward(run.stream(), c.backward(run, a));
    };
    for (const AttentionKernels fastest : {AttentionKernels::wgmma, AttentionKernels::mma}) {
        c.fastest = fastest;
        for (const auto& [name, result] : run_on(kGpu, op))
            for (const double x : result.values) ASSERT_FALSE(std::isnan(x)) << name;
    }
}

// Beside communication: blocks draw their tiles, and they are fewer than the device could hold. The bits are the same,
// whichever block gets what, and the counter is 0 again. Where there is no GPU `resident` blocks run at a time and the
// others come when these have ended, so that none may wait for another.
struct Beside {
    int reserved_sms;
    bool draws;
    unsigned resident;
};

void let_run_together([[maybe_unused]] unsigned blocks) {
#ifdef SIMT_EMU
    simt::options().resident = blocks;
#endif
}

// Both passes of what has at least four items in each of its three kernels. `blocks`: what they had.
KernelRun::Results attention_beside(const Beside& how, uint64_t& blocks) {
    RankContext context;
    return run_on(Device{DeviceKind::cuda, 0, &context}, [&](KernelRun& run) {
        const Case c{1, 200, 200, 4, 2, 64, DType::bf16};
        uint32_t* next_tile = run.inout("next tile", zeros(1, DType::f32));
        context.beside = {how.reserved_sms, how.draws ? next_tile : nullptr};
        const AttentionForward f = c.forward(run);
        const AttentionBackward b = c.backward(run, f);
        let_run_together(how.resident);
        const uint64_t before = blocks_so_far();
        attention_forward(run.stream(), f);
        attention_backward(run.stream(), b);
        run.stream().synchronize();
        blocks = blocks_so_far() - before;
        let_run_together(1);
    });
}

TEST(AttentionBesideCommunication, GivesTheSameBits) {
    if (compute_capability() != 90) GTEST_SKIP() << "no CUDA device whose attention stays on its multiprocessors (9.0)";
    uint64_t all = 0, blocks = 0;
    const KernelRun::Results alone = attention_beside({0, false, 1}, all);
    for (const Beside& how : {Beside{3, false, 1}, Beside{0, true, 1}, Beside{0, true, 3}, Beside{1, true, 2}}) {
        next_schedule();
        for (const auto& [name, result] : attention_beside(how, blocks))
            EXPECT_TRUE(result.bytes == alone.at(name).bytes)
                << name << ": " << how.reserved_sms << " left free, " << how.draws << ", " << how.resident;
        if (all > 0) {
            EXPECT_EQ(all - blocks, uint64_t(3 * how.reserved_sms))
                << "of four multiprocessors, by each of three kernels";
        }
    }
}

// Two kernels at a time would take each other's tiles: the first stream that asks has the counter, others' are fixed.
TEST(AttentionBesideCommunication, OneStreamDraws) {
    if (compute_capability() != 90) GTEST_SKIP() << "no CUDA device whose attention stays on its multiprocessors (9.0)";
    const Case c{1, 64, 64, 1, 1, 64, DType::bf16};
    RankContext context;
    const auto op = [&](KernelRun& run) { attention_forward(run.stream(), c.forward(run)); };
    const Device device{DeviceKind::cuda, 0, &context};
    KernelRun first(device);
    context.beside.next_tile = first.inout("next tile", zeros(1, DType::f32));
    op(first);
    first.stream().synchronize();
    const Data in_use = raw(std::vector<uint32_t>{1});  // as if a kernel of the first stream had drawn one
    first.stream().copy(context.beside.next_tile, in_use.bytes.data(), 4);
    first.stream().synchronize();
    const KernelRun::Results second = run_on(device, op), drawn = first.finish();
    EXPECT_TRUE(second.at("o").bytes == drawn.at("o").bytes);
    EXPECT_TRUE(drawn.at("next tile").bytes == in_use.bytes);
}

}  // namespace
}  // namespace rz::test
