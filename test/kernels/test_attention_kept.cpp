// The places of the score gradients that attention's backward pass keeps, and whose are kept.
#include "kernels/attention/attention_kept.h"

#include <gtest/gtest.h>

#include <set>

namespace rz::test {
namespace {

AttentionShape shape(int64_t B, int64_t T, int64_t H, int64_t K) {
    AttentionShape s{};
    s.B = B, s.Tq = s.Tk = T, s.H = H, s.K = K, s.D = 128, s.dtype = DType::bf16;
    return s;
}

// Every tile in which a query comes at or after a key has a place of its own, and there is no other place.
TEST(KeptPlaces, AreThoseThatCausalQueriesSee) {
    for (const int64_t Tq : {1, 64, 65, 300, 512})
        for (const int64_t Tk : {1, 64, 65, 300, 700})
            for (const int64_t offset : {0, 1, 63, 64, 65, 200, 1000}) {
                AttentionShape s = shape(1, Tq, 1, 1);
                s.Tk = Tk, s.q_at = offset;
                const KeptPlaces places(s);
                std::set<int> taken;
                int wanted = 0;
                for (int k = 0; 64 * k < Tk; ++k)
                    for (int q = 0; 64 * q < Tq; ++q) {
                        if (offset + 64 * q + 63 < 64 * k) continue;
                        ++wanted;
                        taken.insert(places.at(q, k));
                        if (q + 1 < places.queries && 64 * (k + 1) <= offset + 64 * q + 63 && 64 * (k + 1) < Tk) {
                            ASSERT_EQ(places.at(q, k + 1), places.at(q, k) + places.to_next_keys(k));
                        }
                    }
                ASSERT_EQ(int(taken.size()), wanted);
                ASSERT_EQ(places.count(), wanted) << Tq << " queries, " << Tk << " keys, from " << offset;
                ASSERT_EQ(*taken.begin(), 0);
                ASSERT_EQ(*taken.rbegin(), wanted - 1);
            }
}

// B, T, H, K: the key heads at a time; 0: seven products
int64_t heads_at_a_time(int64_t B, int64_t T, int64_t H, int64_t K) {
    const AttentionShape s = shape(B, T, H, K);
    const int64_t bytes = attention_kept_bytes(s, 90);
    EXPECT_LE(bytes, int64_t(260) << 20);
    return kept_key_heads(s, bytes);
}

TEST(KeptScores, AreThoseThatFitWithWorkForAllMultiprocessors) {
    EXPECT_EQ(heads_at_a_time(1, 1024, 32, 32), 32);  // all
    EXPECT_EQ(heads_at_a_time(1, 4096, 32, 32), 16);
    EXPECT_EQ(heads_at_a_time(4, 2048, 32, 32), 43);  // 63 would fit; 43, 43 and 42 are as many sections
    EXPECT_EQ(heads_at_a_time(2, 8192, 32, 32), 4);
    EXPECT_EQ(heads_at_a_time(1, 16384, 32, 32), 0);  // one fits, of 128 tiles
    EXPECT_EQ(heads_at_a_time(1, 32768, 32, 32), 0);
    EXPECT_EQ(heads_at_a_time(1, 4096, 32, 8), 0);  // four, of 128 tiles
    EXPECT_EQ(heads_at_a_time(1, 2048, 32, 8), 8);
    EXPECT_EQ(heads_at_a_time(1, 64, 2, 1), 1);
    AttentionShape s = shape(1, 1024, 8, 8);
    EXPECT_EQ(attention_kept_bytes(s, 80), 0);
    EXPECT_EQ(attention_kept_bytes(s, 100), 0);
    s.D = 64;
    EXPECT_EQ(attention_kept_bytes(s, 90), 0);
    s.D = 128, s.dtype = DType::f32;
    EXPECT_EQ(attention_kept_bytes(s, 90), 0);
}

TEST(KeptScores, AreNamed) {
    const AttentionShape s = shape(1, 4096, 32, 32), t = shape(1, 32768, 32, 32), few = shape(1, 4096, 32, 8);
    EXPECT_EQ(attention_products(s, 90, attention_kept_bytes(s, 90)),
              "five products, the score gradients of 16 of 32 key heads at a time in 260.0 MiB");
    EXPECT_EQ(attention_products(t, 90, 0), "seven products; the score gradients of a key head would take 1.00 GiB");
    EXPECT_EQ(attention_products(few, 90, 0),
              "seven products; the score gradients of 4 of 8 key heads fit, too little work at a time");
    EXPECT_EQ(attention_products(s, 90, 0), "seven products; chunks of sequences keep no score gradients");
    EXPECT_EQ(attention_products(s, 100, 0), "");
}

}  // namespace
}  // namespace rz::test
