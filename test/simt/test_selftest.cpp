// The emulator's own tests: every feature under many schedules, against values computed here.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include "kernels/runtime/check.h"
#include "test/simt/control.h"
#include "test/simt/device_array.h"
#include "test/simt/selftest.h"

namespace rz::selftest {
namespace {

std::vector<int> small_integers(int n) {
    std::vector<int> v(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) v[size_t(i)] = i * 37 % 113;
    return v;
}
std::vector<float> counting(int n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) v[size_t(i)] = float(i);
    return v;
}
// Small integers, exact in bf16 and fp16, whose products sum exactly in f32.
std::vector<uint16_t> random_halves(int n, bool fp16, unsigned seed) {
    std::mt19937 rng(seed);
    std::vector<uint16_t> v(static_cast<size_t>(n));
    for (uint16_t& x : v) {
        const float f = float(int(rng() % 17) - 8);
        x = fp16 ? std::bit_cast<uint16_t>(_Float16(f)) : uint16_t(std::bit_cast<uint32_t>(f) >> 16);
    }
    return v;
}
float value(uint16_t bits, bool fp16) {
    return fp16 ? float(std::bit_cast<_Float16>(bits)) : std::bit_cast<float>(uint32_t(bits) << 16);
}

// Runs `body` under several seeds, on top of the one given.
void for_seeds(int n, const std::function<void()>& body) {
    const uint64_t first = simt::options().seed;
    for (int i = 0; i < n && !testing::Test::HasFailure(); i++) {
        simt::options().seed = first + uint64_t(i);
        SCOPED_TRACE("seed " + std::to_string(simt::options().seed));
        body();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << simt::last_error();
    }
    simt::options().seed = first;
}

TEST(Simt, WarpCollectivesGiveTheDefinedValues) {
    const std::vector<int> in = small_integers(128);
    for_seeds(20, [&] {
        DeviceArray<int> din(in), dout(128 * kWarpOps);
        warp_ops(dout.data(), din.data(), nullptr);
        const std::vector<int> out = dout.get();
        for (int i = 0; i < 128; i++) {
            const int l = i & 31, *v = &in[size_t(i & ~31)];
            unsigned ballot = 0;
            for (int k = 0; k < 32; k++) ballot |= unsigned(v[k] & 1) << k;
            const int want[kWarpOps] = {v[(l & 24) + 5],
                                        v[(l & 15) < 3 ? l : l - 3],
                                        v[l + 3 > 31 ? l : l + 3],
                                        v[l ^ 17],
                                        int(ballot),
                                        0,
                                        v[l < 16 ? l ^ 1 : l ^ 2],
                                        1};
            for (int k = 0; k < kWarpOps; k++)
                ASSERT_EQ(out[size_t(i * kWarpOps + k)], want[k]) << "thread " << i << ", op " << k;
        }
    });
}

TEST(Simt, NamedBarriersHoldOnlyTheirThreads) {
    const std::vector<int> in = small_integers(128);
    for_seeds(20, [&] {
        DeviceArray<int> din(in), dout(256);
        named_barriers(dout.data(), din.data(), nullptr);
        const auto out = dout.get();
        for (int t = 0; t < 4; t++)
            for (int i = 0; i < 64; i++) ASSERT_EQ(out[size_t(t * 64 + i)], in[size_t(63 - i)] + t);
    });
}

thread_local int host_thread_local = 7;

TEST(Simt, DeepStacksSpinsAndThreadLocalsWork) {
    const std::vector<int> in = small_integers(128);
    for_seeds(5, [&] {
        DeviceArray<int> din(in), dout(128), flag(std::vector<int>(2, 0));
        deep_stack(dout.data(), din.data(), nullptr);
        const auto out = dout.get();
        for (int i = 0; i < 128; i++) {
            int want = 0;
            for (int k = 0; k < 4000; k++) want += in[size_t((k * 7 + i) % 4000 % 128)] + (k * 7 + i) % 4000;
            ASSERT_EQ(out[size_t(i)], want);
        }
        spin_on_flag(flag.data(), true, nullptr);
        ASSERT_EQ(flag.get()[1], 1);
        ASSERT_EQ(host_thread_local, 7);  // static shared memory shares its segment
    });
}

TEST(Simt, FenceAndAtomicOrderBlocks) {
    const auto in = counting(64 * 32);
    for_seeds(5, [&] {
        DeviceArray<float> din(in), out(1), partial(64);
        DeviceArray<unsigned> counter(std::vector<unsigned>(1, 0));
        last_block_sum(out.data(), partial.data(), counter.data(), din.data(), 64, nullptr);
        ASSERT_EQ(out.get()[0], 2047.0f * 1024);
    });
}

TEST(Simt, SeveralBlocksRunAtATime) {
    const std::vector<float> in = counting(2048);
    for_seeds(5, [&] {
        simt::options().resident = 1 + unsigned(simt::options().seed % 5);
        DeviceArray<float> din(in), partial(64), out(1);
        DeviceArray<unsigned> counter(std::vector<unsigned>{0});
        last_block_sum(out.data(), partial.data(), counter.data(), din.data(), 64, nullptr);
        const float sum = out.get()[0];
        simt::options().resident = 1;
        ASSERT_EQ(sum, 2047.0f * 1024);
    });
}

TEST(Simt, CpAsyncCopiesWhatWasWaitedFor) {
    for (int n : {1, 3, 511, 512, 513, 1900}) {
        const auto in = counting(n);
        for_seeds(10, [&] {
            DeviceArray<float> din(in), dout(n);
            cp_async_ring(dout.data(), din.data(), n, nullptr);
            ASSERT_EQ(dout.get(), in) << n;
        });
    }
}

TEST(Simt, MmaAndLdmatrixGiveTheMatrixProduct) {
    for (bool fp16 : {false, true})
        for (bool trans : {false, true}) {
            const auto a = random_halves(256, fp16, 1), b = random_halves(128, fp16, 2);
            DeviceArray<uint16_t> da(a), db(b);
            DeviceArray<float> dc(128);
            mma_tile(dc.data(), da.data(), db.data(), fp16, trans, nullptr);
            const auto c = dc.get();
            for (int i = 0; i < 16; i++)
                for (int j = 0; j < 8; j++) {
                    float want = 0;
                    for (int k = 0; k < 16; k++)
                        want +=
                            value(a[size_t(i * 16 + k)], fp16) * value(b[size_t(trans ? k * 8 + j : j * 16 + k)], fp16);
                    ASSERT_EQ(c[size_t(i * 8 + j)], want)
                        << i << "," << j << (fp16 ? " fp16" : " bf16") << (trans ? " trans" : "");
                }
        }
}

TEST(Simt, MovmatrixTransposesWhatLdmatrixLoads) {
    std::vector<uint16_t> in(64);
    for (int i = 0; i < 64; i++) in[size_t(i)] = uint16_t(i);
    DeviceArray<uint16_t> din(in);
    DeviceArray<uint32_t> dout(64);
    transposed_twice(dout.data(), din.data(), nullptr);
    const auto out = dout.get();
    for (int l = 0; l < 32; l++) {
        const int row = l / 4, column = l % 4 * 2;
        ASSERT_EQ(out[size_t(l)], uint32_t((column + 1) * 8 + row) << 16 | uint32_t(column * 8 + row));
        ASSERT_EQ(out[size_t(l)], out[size_t(32 + l)]);
    }
}

// The swizzle as CUDA's programming guide draws it: 16-byte chunk c of 128-byte line r goes to chunk c ^ (r % 8), or
// with the 64 and 32 byte modes to c ^ (r / 2 % 4) and c ^ (r / 4 % 2), r counting 64 or 32-byte rows.
size_t swizzled(size_t element, int mode) {
    if (!mode) return element;
    const size_t chunk = element / 8, line = chunk / 8, mask = mode == 128 ? 7 : mode == 64 ? 3 : 1;
    return (chunk ^ (line & mask)) * 8 + element % 8;
}

const TmaCase kTmaCases[] = {
    {{64, 16, 1, 1}, {64, 8, 1, 1}, {0, 4, 0, 0}, 128}, {{64, 16, 1, 1}, {32, 8, 1, 1}, {32, 12, 0, 0}, 64},
    {{40, 9, 1, 1}, {16, 8, 1, 1}, {-3, 5, 0, 0}, 32},  {{40, 9, 1, 1}, {64, 16, 1, 1}, {-8, -4, 0, 0}, 0},
    {{48, 5, 3, 1}, {16, 4, 2, 1}, {40, 3, 2, 0}, 32},  {{128, 3, 4, 1}, {64, 2, 3, 1}, {64, -1, 2, 0}, 128},
    {{64, 3, 4, 2}, {64, 1, 4, 2}, {0, 2, 1, 1}, 128},  {{16, 3, 3, 3}, {8, 2, 2, 3}, {12, 2, -1, 1}, 0},
};

TEST(Simt, TmaCopiesTheBoxAndZerosOutside) {
    for (const TmaCase& c : kTmaCases) {
        int n = 1;
        for (int side : c.dims) n *= side;
        std::vector<uint16_t> tensor(static_cast<size_t>(n));
        for (int i = 0; i < n; i++) tensor[size_t(i)] = uint16_t(i + 1);
        const int box = box_elements(c);
        // Element i of the box in the tensor, or -1.
        const auto source = [&](int i) {
            int offset = 0, scale = 1;
            for (int d = 0; d < 4; d++) {
                const int x = c.at[d] + i % c.box[d];
                if (x < 0 || x >= c.dims[d]) return -1;
                offset += x * scale, scale *= c.dims[d], i /= c.box[d];
            }
            return offset;
        };
        for_seeds(4, [&] {
            DeviceArray<uint16_t> dt(tensor), dout(box);
            tma_read(dout.data(), dt.data(), c, nullptr);
            const auto out = dout.get();
            for (int i = 0; i < box; i++)
                ASSERT_EQ(out[swizzled(size_t(i), c.swizzle)], source(i) < 0 ? 0 : tensor[size_t(source(i))])
                    << "case " << &c - kTmaCases << ", swizzle " << c.swizzle << ", element " << i;
        });
    }
}

TEST(Simt, BulkCopiesArrive) {
    const auto in = counting(300);
    for_seeds(10, [&] {
        DeviceArray<float> din(in), dout(300);
        bulk_double(dout.data(), din.data(), 300, nullptr);
        const auto out = dout.get();
        for (int i = 0; i < 300; i++) ASSERT_EQ(out[size_t(i)], 2.0f * float(i));
    });
}

TEST(Simt, WgmmaGivesTheMatrixProduct) {
    for (int n : {16, 64, 96, 128})
        for (int layout = 0; layout < 4; layout++)
            for (int flags = 0; flags < 16; flags++) {
                const WgmmaCase c{n, layout, bool(flags & 1), bool(flags & 2), bool(flags & 4), bool(flags & 8)};
                const int width = layout == 1 ? 64 : layout == 2 ? 32 : 16;
                if (layout && c.trans_b && n % width) continue;  // not made of whole swizzle atoms
                if (n > 64 && (flags & 8)) continue;             // the type does not depend on n
                const auto a = random_halves(64 * 16, c.fp16, 3), b = random_halves(n * 16, c.fp16, 4);
                DeviceArray<uint16_t> da(a), db(b);
                DeviceArray<float> dd(64 * n);
                wgmma_tile(dd.data(), da.data(), db.data(), c, nullptr);
                const auto d = dd.get();
                for (int i = 0; i < 64; i++)
                    for (int j = 0; j < n; j++) {
                        float want = 0;
                        for (int k = 0; k < 16; k++)
                            want += value(a[size_t(i * 16 + k)], c.fp16) * value(b[size_t(j * 16 + k)], c.fp16);
                        ASSERT_EQ(d[size_t(i * n + j)], want)
                            << "n " << n << ", layout " << layout << ", flags " << flags << ", at " << i << "," << j;
                    }
            }
}

TEST(Simt, APipelinedGemmGivesTheMatrixProduct) {
    for (const auto& [M, N, K] : {std::array{64, 64, 64}, std::array{128, 64, 512}, std::array{100, 72, 200}}) {
        const auto a = random_halves(M * K, false, 5), b = random_halves(N * K, false, 6);
        std::vector<float> want(size_t(M * N));
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                for (int k = 0; k < K; k++)
                    want[size_t(i * N + j)] += value(a[size_t(i * K + k)], false) * value(b[size_t(j * K + k)], false);
        for_seeds(5, [&] {
            DeviceArray<uint16_t> da(a), db(b);
            DeviceArray<float> dc(M * N);
            pipelined_gemm(dc.data(), da.data(), db.data(), M, N, K, GemmFault::none, nullptr);
            ASSERT_EQ(dc.get(), want);
        });
    }
}

TEST(Simt, LaunchesThatCannotBeAreRefused) {
    DeviceArray<float> x(counting(4));
    EXPECT_THROW(bulk_double(x.data(), x.data(), 100000, nullptr), rz::Error);  // shared memory
    try {
        add_one(x.data(), -64 * 3, nullptr);  // no blocks
        FAIL();
    } catch (const rz::Error& e) {
        EXPECT_NE(std::string(e.what()).find("selftest.cu:"), std::string::npos) << e.what();
    }
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Simt, TheSameSeedGivesTheSameSchedule) {
    const auto switches = [] {
        DeviceArray<int> in(small_integers(128)), out(256);
        const uint64_t launches = simt::stats().launches, before = simt::stats().switches;
        simt::stats().launches = 0;  // the launch number is part of the seed
        named_barriers(out.data(), in.data(), nullptr);
        const uint64_t n = simt::stats().switches - before;
        simt::stats().launches = launches + 1;
        return n;
    };
    EXPECT_EQ(switches(), switches());
}

}  // namespace
}  // namespace rz::selftest
