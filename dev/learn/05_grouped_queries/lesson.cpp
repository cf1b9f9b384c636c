// Grouped-query attention: H query heads share K key/value heads.
#include <cstdint>

// The key/value head that query head h reads. Neighbouring query heads share one.
int kv_head(int h, int H, int K) {
    // >>> hole 1: H / K query heads in a row form a group
#ifdef HOLE
    return h % K;
#else
    return h / (H / K);
#endif
    // <<<
}

// Bytes of keys and values that one sequence of `positions` tokens keeps while text is generated.
int64_t kv_cache_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t positions, int64_t element) {
    // >>> hole 2: a key and a value for every layer, position and head
#ifdef HOLE
    return layers * positions * kv_heads * head_dim * element;
#else
    return 2 * layers * positions * kv_heads * head_dim * element;
#endif
    // <<<
}

// Gradient of the keys of K heads from that of H heads as if each query head had keys of its own. Both (heads, n).
void share_gradient(float* dk, const float* dk_of_query_heads, int H, int K, int64_t n) {
    for (int64_t i = 0; i < K * n; ++i) dk[i] = 0;
    for (int h = 0; h < H; ++h)
        for (int64_t i = 0; i < n; ++i) {
            // >>> hole 3: a key that several heads read gets a gradient from each of them
#ifdef HOLE
            dk[kv_head(h, H, K) * n + i] = dk_of_query_heads[h * n + i];
#else
            dk[kv_head(h, H, K) * n + i] += dk_of_query_heads[h * n + i];
#endif
            // <<<
        }
}
