#include <vector>

#include "dev/learn/heads.h"

using namespace learn;

int kv_head(int h, int H, int K);
int64_t kv_cache_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t positions, int64_t element);
void share_gradient(float* dk, const float* dk_of_query_heads, int H, int K, int64_t n);

constexpr int T = 24, D = 8, H = 6;
using Values = std::vector<float>;

static rz::AttentionShape shape(int kv_heads) { return packed(T, H, kv_heads, D, 0.35f); }

struct Pass {
    Values o, dq, dk, dv;
};

static Pass attention(const Values& q, const Values& k, const Values& v, const Values& d_o, int kv_heads) {
    Pass p{Values(T * H * D), Values(T * H * D), Values(size_t(T * kv_heads * D)), Values(size_t(T * kv_heads * D))};
    Values lse(H * T), workspace(size_t(rz::attention_backward_workspace(shape(kv_heads)) / 4 + 64));
    rz::attention_forward_cpu({p.o.data(), lse.data(), q.data(), k.data(), v.data(), shape(kv_heads)});
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
    rz::attention_backward_cpu({p.dq.data(), p.dk.data(), p.dv.data(), d_o.data(), q.data(), k.data(), v.data(),
                                p.o.data(), lse.data(), aligned, shape(kv_heads)});
    return p;
}

// (T, K, D) of shared heads to (T, H, D), every query head with a copy of its own.
static Values copies(const Values& shared, int K) {
    Values out(T * H * D);
    for (int t = 0; t < T; ++t)
        for (int h = 0; h < H; ++h)
            for (int d = 0; d < D; ++d)
                out[size_t((t * H + h) * D + d)] = shared[size_t((t * K + kv_head(h, H, K)) * D + d)];
    return out;
}

// Grouped attention of K heads must be attention of H heads whose keys are copies.
static void check_group(int K) {
    const Values q = noises(T * H * D, 0), d_o = noises(T * H * D, 9000);
    const Values k = noises(T * K * D, 3000), v = noises(T * K * D, 6000);
    const Pass grouped = attention(q, k, v, d_o, K), separate = attention(q, copies(k, K), copies(v, K), d_o, H);
    std::printf("%d query heads, %d key/value heads:\n", H, K);
    close("outputs differ by", distance(grouped.o, separate.o, T * H * D), 0, 1e-6);
    double worst = 0;
    for (int t = 0; t < T; ++t) {
        Values dk(size_t(K * D), NAN);
        share_gradient(dk.data(), &separate.dk[size_t(t * H * D)], H, K, D);
        worst = std::fmax(worst, distance(dk, &grouped.dk[size_t(t * K * D)], K * D));
    }
    // A sum of up to six fp32 values of size 1 in another order: 6 * 2^-24.
    close("key gradients differ by", worst, 0, 1e-6);
}

int main() {
    expect(kv_head(0, 32, 8) == 0 && kv_head(3, 32, 8) == 0 && kv_head(4, 32, 8) == 1 && kv_head(31, 32, 8) == 7,
           "32 query heads on 8: heads 0..3 read 0, head 4 reads %d, head 31 reads %d", kv_head(4, 32, 8),
           kv_head(31, 32, 8));
    expect(kv_cache_bytes(32, 8, 128, 1, 2) == 128 << 10, "Llama 3.1 8B: 128 KiB per token in bf16, found %lld KiB",
           (long long)kv_cache_bytes(32, 8, 128, 1, 2) >> 10);
    expect(kv_cache_bytes(32, 32, 128, 1, 2) == 512 << 10, "with 32 heads it would be 512 KiB, found %lld KiB",
           (long long)kv_cache_bytes(32, 32, 128, 1, 2) >> 10);
    expect(kv_cache_bytes(80, 8, 128, 131072, 2) == int64_t(40) << 30,
           "Llama 3.1 70B at 131072 positions: 40 GiB, found %lld GiB",
           (long long)kv_cache_bytes(80, 8, 128, 131072, 2) >> 30);
    for (const int K : {1, 2, 3, 6}) check_group(K);
    return verdict("sharing heads divides the cache by H / K and changes nothing else: a shared key sums gradients");
}
