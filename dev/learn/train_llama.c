// LLaMA training in one file of plain C: the whole of what train_llama does on one CPU in fp32, with nothing left out but
// speed, other devices and other ranks. It reads the program's token shards, starts from the same weights, reads the
// same samples in the same order, and after ten steps has the program's loss and weights (dev/learn/test_lessons.py).
//
//   cc -std=c11 -O3 -march=native -fopenmp -o train_llama dev/learn/train_llama.c -lm
//   ./train_llama --train-data data/stdlib/stdlib_train_000000.bin --steps 50 --out model.safetensors
//
// Names: B sequences of T tokens, N = B * T rows, C = dim, H query heads and K key/value heads of D, F = ffn, V = vocab.
// A weight is stored (out, in), row by row. `d` before a name is a gradient.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *what, const char *which) {
    fprintf(stderr, "train_llama: %s%s%s\n", what, *which ? ": " : "", which);
    exit(1);
}

static void *take(int64_t elements, int64_t size) {  // zeroed
    void *p = calloc((size_t)(elements > 0 ? elements : 1), (size_t)size);
    if (!p) fail("out of memory", "make the model or the batch smaller");
    return p;
}

static float *floats(int64_t n) { return take(n, sizeof(float)); }

// ---- options --------------------------------------------------------------------------------------------------------

static struct {
    const char *train_data, *val_data, *out;
    int64_t dim, layers, heads, kv_heads, head_dim, ffn, vocab, tied;
    int64_t batch, seq_len, micro_batches, steps, warmup, val_tokens, seed;
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip, init_std, norm_eps, rope_theta;
} o = {.dim = 256, .layers = 4, .heads = 8, .kv_heads = 4, .ffn = 688, .vocab = 512, .batch = 8, .seq_len = 256,
       .micro_batches = 1, .steps = 100, .warmup = -1, .val_tokens = 16384, .seed = 1337, .lr = 1e-3, .min_lr = -1,
       .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0, .init_std = 0.02, .norm_eps = 1e-5,
       .rope_theta = 10000};

static const struct {
    const char *name;
    char type;  // 's' text, 'i' whole, 'd' real
    void *to;
    const char *help;
} flags[] = {
    {"train-data", 's', &o.train_data, "token shards, comma-separated, in this order"},
    {"val-data", 's', &o.val_data, "shards to validate on after the last step"},
    {"val-tokens", 'i', &o.val_tokens, "how many of their tokens"},
    {"out", 's', &o.out, "safetensors file for the final weights"},
    {"dim", 'i', &o.dim, "width of the residual stream, C"},
    {"layers", 'i', &o.layers, "blocks"},
    {"heads", 'i', &o.heads, "query heads, H"},
    {"kv-heads", 'i', &o.kv_heads, "key/value heads, K; divides heads"},
    {"head-dim", 'i', &o.head_dim, "D; 0: dim / heads"},
    {"ffn", 'i', &o.ffn, "hidden width of the feed-forward network, F"},
    {"vocab", 'i', &o.vocab, "V; every token id is below it"},
    {"tied", 'i', &o.tied, "1: the head is the embedding"},
    {"batch", 'i', &o.batch, "sequences in a micro-batch, B"},
    {"seq-len", 'i', &o.seq_len, "tokens in a sequence, T"},
    {"micro-batches", 'i', &o.micro_batches, "micro-batches in an update"},
    {"steps", 'i', &o.steps, "updates"},
    {"warmup", 'i', &o.warmup, "steps of linear warm-up; -1: a tenth of the run, at most 2000"},
    {"seed", 'i', &o.seed, "of weights and data order"},
    {"lr", 'd', &o.lr, "peak learning rate"},
    {"min-lr", 'd', &o.min_lr, "learning rate of the last step; -1: lr / 10"},
    {"beta1", 'd', &o.beta1, "decay of AdamW's first moment"},
    {"beta2", 'd', &o.beta2, "decay of AdamW's second moment"},
    {"eps", 'd', &o.eps, "added to the root of the second moment"},
    {"weight-decay", 'd', &o.weight_decay, "of matrices; norms have none"},
    {"max-grad-norm", 'd', &o.clip, "largest global gradient norm; 0: any"},
    {"init-std", 'd', &o.init_std, "deviation of initial weights"},
    {"norm-eps", 'd', &o.norm_eps, "added to RMSNorm's mean square"},
    {"rope-theta", 'd', &o.rope_theta, "base of the rotary frequencies"},
};
enum { FLAGS = sizeof flags / sizeof flags[0] };

static void help(void) {
    printf("train_llama --train-data FILES [--flag value ...]\n");
    for (int i = 0; i < FLAGS; ++i) {
        char now[32] = "";
        if (flags[i].type == 'i') snprintf(now, sizeof now, " [%lld]", (long long)*(int64_t *)flags[i].to);
        if (flags[i].type == 'd') snprintf(now, sizeof now, " [%g]", *(double *)flags[i].to);
        printf("  --%-14s %s%s\n", flags[i].name, flags[i].help, now);
    }
}

static void parse(int argc, char **argv) {
    for (int a = 1; a < argc; a += 2) {
        if (!strcmp(argv[a], "--help")) help(), exit(0);
        int i = 0;
        while (i < FLAGS && (strncmp(argv[a], "--", 2) || strcmp(argv[a] + 2, flags[i].name))) ++i;
        if (i == FLAGS) fail("no such flag (--help lists them)", argv[a]);
        if (a + 1 == argc) fail("a value is missing", argv[a]);
        char *end = argv[a + 1] + strlen(argv[a + 1]);
        if (flags[i].type == 's') *(const char **)flags[i].to = argv[a + 1];
        if (flags[i].type == 'i') *(int64_t *)flags[i].to = strtoll(argv[a + 1], &end, 10);
        if (flags[i].type == 'd') *(double *)flags[i].to = strtod(argv[a + 1], &end);
        if (*end || !*argv[a + 1]) fail("not a number", argv[a + 1]);
    }
    const int64_t *positive[] = {&o.dim, &o.layers, &o.heads, &o.kv_heads, &o.ffn, &o.vocab, &o.batch, &o.seq_len,
                                 &o.micro_batches};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; ++i)
        if (*positive[i] < 1 || *positive[i] > 1 << 24) fail("sizes must be from 1 to 2^24 (--help lists them)", "");
    if (o.head_dim == 0) o.head_dim = o.dim / o.heads;
    if (o.head_dim < 2 || o.head_dim % 2) fail("--head-dim must be even: RoPE rotates pairs", "");
    if (o.heads % o.kv_heads) fail("--kv-heads must divide --heads", "");
    if (!o.train_data) fail("--train-data FILES is needed (--help lists all flags)", "");
    if (o.warmup < 0) o.warmup = o.steps / 10 < 2000 ? o.steps / 10 : 2000;
    if (o.min_lr < 0) o.min_lr = 0.1 * o.lr;
}

// ---- random numbers: Philox4x32-10, and Box-Muller from its words (kernels/philox.h) ---------------------------------

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static void philox(uint32_t w[4], uint64_t seed, uint64_t group, uint64_t stream) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)group, c1 = (uint32_t)(group >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

static float natural_log(float u) {
    static const float p_of[] = {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                                 1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                                 3.3333331174e-1f};
    const uint32_t bits = bits_of(u);
    const int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
    const float x = float_of(bits - ((uint32_t)e << 23)) - 1.0f, z = x * x;
    float p = p_of[0];
    for (int i = 1; i < 9; ++i) p = fmaf(p, x, p_of[i]);
    const float cubic = p * x * z;
    const float low = fmaf(-0.5f, z, fmaf((float)e, -2.12194440e-4f, cubic));
    return fmaf((float)e, 0.693359375f, x + low);
}

static void normal_pair(uint32_t radius_word, uint32_t angle_word, float z[2]) {
    const float u = (float)((radius_word >> 9) * 2 + 1) * 0x1p-24f;
    const float radius = sqrtf(-2.0f * natural_log(u));
    const uint32_t quadrant = angle_word >> 30;
    const float a = fmaf((float)((angle_word << 2) >> 8), 0x1p-24f, -0.5f) * 1.57079632679f, aa = a * a;
    float s = fmaf(fmaf(-1.9515295891e-4f, aa, 8.3321608736e-3f), aa, -1.6666654611e-1f);
    s = fmaf(s * aa, a, a);
    float c = fmaf(fmaf(2.443315711809948e-5f, aa, -1.388731625493765e-3f), aa, 4.166664568298827e-2f);
    c = fmaf(c * aa, aa, fmaf(-0.5f, aa, 1.0f));
    const float cosine = quadrant & 1 ? s : c, sine = quadrant & 1 ? c : s;
    z[0] = radius * (quadrant == 1 || quadrant == 2 ? -cosine : cosine);
    z[1] = radius * (quadrant >= 2 ? -sine : sine);
}

// Element i is a pure function of (seed, tensor, i).
static void fill_normal(float *x, int64_t n, uint64_t tensor, float std) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t w[4];
        float z[4];
        philox(w, (uint64_t)o.seed, (uint64_t)(i / 4), tensor);
        normal_pair(w[0], w[1], z);
        normal_pair(w[2], w[3], z + 2);
        for (int64_t j = i; j < i + 4 && j < n; ++j) x[j] = std * z[j - i];
    }
}

// ---- data: token shards, and samples in a shuffled order that is a function of (seed, position) ----------------------

typedef struct {
    int32_t *ids;
    int64_t tokens, samples;  // samples: windows of T + 1 tokens, T apart
} Shard;

typedef struct {
    Shard shard[64];
    int shards;
    int64_t samples;  // of all shards
} Data;

static Shard read_shard(const char *path) {
    FILE *f = fopen(path, "rb");
    int32_t header[256];
    if (!f || fread(header, sizeof header, 1, f) != 1) fail("can't read a token shard", path);
    const int gpt2 = header[0] == 20240520 && header[1] == 1, llama3 = header[0] == 20240801 && header[1] == 7;
    if (!gpt2 && !llama3) fail("neither a uint16 nor a uint32 token shard", path);
    Shard s = {.tokens = header[2], .samples = header[2] > 0 ? (header[2] - 1) / o.seq_len : 0};
    if (s.tokens < 0) fail("a token shard with a negative count", path);
    s.ids = take(s.tokens, sizeof *s.ids);
    for (int64_t i = 0; i < s.tokens; ++i) {
        uint32_t id = 0;
        if (fread(&id, gpt2 ? 2 : 4, 1, f) != 1) fail("a token shard is cut short", path);
        if (id >= (uint64_t)o.vocab) fail("a token id is not below --vocab", path);
        s.ids[i] = (int32_t)id;
    }
    fclose(f);
    return s;
}

static Data read_data(const char *list) {
    Data d = {.shards = 0};
    for (char *copy = strcpy(take((int64_t)strlen(list) + 1, 1), list), *path = strtok(copy, ","); path;
         path = strtok(NULL, ",")) {
        if (d.shards == 64) fail("more than 64 shards", path);
        d.shard[d.shards] = read_shard(path);
        d.samples += d.shard[d.shards++].samples;
    }
    if (d.samples < 1) fail("no shard holds seq-len + 1 tokens", list);
    return d;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A bijection of [0, n) for each epoch: a Feistel network over the next power of two, walked until it lands inside.
static int64_t shuffled(int64_t i, int64_t n, uint64_t epoch) {
    int bits = 2;
    while ((uint64_t)(n - 1) >> bits) ++bits;
    const int left_bits = bits / 2, right_bits = bits - left_bits;
    const uint64_t left_mask = (1ull << left_bits) - 1, right_mask = (1ull << right_bits) - 1;
    uint64_t key[8], state = mix((uint64_t)o.seed + 0x9e3779b97f4a7c15ull) ^ mix(epoch * 0xd1342543de82ef95ull + 1);
    for (int k = 0; k < 8; ++k) key[k] = mix(state += 0x9e3779b97f4a7c15ull);
    uint64_t x = (uint64_t)i;
    do {
        uint64_t left = x >> right_bits, right = x & right_mask;
        for (int r = 0; r < 8; r += 2) {
            left ^= mix(right ^ key[r]) & left_mask;
            right ^= mix(left ^ key[r + 1]) & right_mask;
        }
        x = left << right_bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

// Fills inputs and targets, (B, T) each: targets are the inputs one further.
static void read_batch(const Data *d, int64_t position, int is_shuffled, int32_t *inputs, int32_t *targets) {
    const int64_t T = o.seq_len;
    for (int64_t b = 0; b < o.batch; ++b) {
        int64_t sample = (position + b) % d->samples;
        if (is_shuffled) sample = shuffled(sample, d->samples, (uint64_t)((position + b) / d->samples));
        const Shard *s = d->shard;
        for (; sample >= s->samples; ++s) sample -= s->samples;
        memcpy(inputs + b * T, s->ids + sample * T, (size_t)T * sizeof *inputs);
        memcpy(targets + b * T, s->ids + sample * T + 1, (size_t)T * sizeof *targets);
    }
}

// ---- operators ------------------------------------------------------------------------------------------------------

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(float *y, float s, const float *x, int64_t n) {  // y += s * x
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] += s * x[i];
}

// y (N, out) = x (N, in) w^T
static void linear(float *y, const float *x, const float *w, int64_t N, int64_t in, int64_t out) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n)
        for (int64_t j = 0; j < out; ++j) y[n * out + j] = dot(x + n * in, w + j * in, in);
}

// dx (N, in) = dy w, dw (out, in) += dy^T x
static void linear_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int64_t N, int64_t in,
                            int64_t out) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
        memset(dx + n * in, 0, (size_t)in * sizeof(float));
        for (int64_t j = 0; j < out; ++j) add_scaled(dx + n * in, dy[n * out + j], w + j * in, in);
    }
#pragma omp parallel for
    for (int64_t j = 0; j < out; ++j)
        for (int64_t n = 0; n < N; ++n) add_scaled(dw + j * in, dy[n * out + j], x + n * in, in);
}

// y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps)
static void rmsnorm(float *y, float *rstd, const float *x, const float *w, int64_t N, int64_t C) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
        rstd[n] = 1 / sqrtf(dot(x + n * C, x + n * C, C) / (float)C + (float)o.norm_eps);
        for (int64_t i = 0; i < C; ++i) y[n * C + i] = x[n * C + i] * rstd[n] * w[i];
    }
}

// dx += its gradient: the residual stream's own gradient is there already. dw += ...
static void rmsnorm_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, const float *rstd,
                             int64_t N, int64_t C) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
        const float *xn = x + n * C, *dyn = dy + n * C;
        float along = 0;
        for (int64_t i = 0; i < C; ++i) along += dyn[i] * w[i] * xn[i] * rstd[n];
        along /= (float)C;
        for (int64_t i = 0; i < C; ++i) dx[n * C + i] += rstd[n] * (dyn[i] * w[i] - xn[i] * rstd[n] * along);
    }
    for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < C; ++i) dw[i] += dy[n * C + i] * x[n * C + i] * rstd[n];
}

static float *cosine, *sine;  // (T, D/2)

static void make_rope_tables(void) {
    const int64_t half = o.head_dim / 2;
    cosine = floats(o.seq_len * half), sine = floats(o.seq_len * half);
    for (int64_t t = 0; t < o.seq_len; ++t)
        for (int64_t j = 0; j < half; ++j) {
            const double angle = (double)t * pow(o.rope_theta, -2.0 * (double)j / (double)o.head_dim);
            cosine[t * half + j] = (float)cos(angle), sine[t * half + j] = (float)sin(angle);
        }
}

// Rotates the q and k heads of packed qkv rows in place; direction -1 is the backward pass.
static void rope(float *qkv, int64_t N, float direction) {
    const int64_t D = o.head_dim, half = D / 2, row = (o.heads + 2 * o.kv_heads) * D;
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n)
        for (int64_t h = 0; h < o.heads + o.kv_heads; ++h)
            for (int64_t j = 0; j < half; ++j) {
                float *a = qkv + n * row + h * D + j, *b = a + half, x = *a, y = *b;
                const float c = cosine[n % o.seq_len * half + j], s = direction * sine[n % o.seq_len * half + j];
                *a = x * c - y * s, *b = y * c + x * s;
            }
}

// Softmax of query t's scores into p[0 .. t].
static void attention_row(float *p, const float *q, const float *keys, int64_t t, int64_t row) {
    const float scale = 1 / sqrtf((float)o.head_dim);
    float largest = -INFINITY, sum = 0;
    for (int64_t s = 0; s <= t; ++s) {
        p[s] = scale * dot(q, keys + s * row, o.head_dim);
        largest = fmaxf(largest, p[s]);
    }
    for (int64_t s = 0; s <= t; ++s) sum += p[s] = expf(p[s] - largest);
    for (int64_t s = 0; s <= t; ++s) p[s] /= sum;
}

// out (B, T, H, D) from packed qkv rows: H query heads, K key heads, K value heads. Head h reads key/value head h / (H/K).
static void attention(float *out, const float *qkv) {
    const int64_t T = o.seq_len, H = o.heads, K = o.kv_heads, D = o.head_dim, row = (H + 2 * K) * D;
#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < o.batch; ++b)
        for (int64_t h = 0; h < H; ++h) {
            const float *q = qkv + b * T * row + h * D, *k = qkv + b * T * row + (H + h / (H / K)) * D, *v = k + K * D;
            float *p = floats(T);
            for (int64_t t = 0; t < T; ++t) {
                float *to = out + ((b * T + t) * H + h) * D;
                memset(to, 0, (size_t)D * sizeof(float));
                attention_row(p, q + t * row, k, t, row);
                for (int64_t s = 0; s <= t; ++s) add_scaled(to, p[s], v + s * row, D);
            }
            free(p);
        }
}

// dqkv = gradient of the packed rows. One key/value head at a time, since its query heads add into the same rows.
static void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out) {
    const int64_t T = o.seq_len, H = o.heads, K = o.kv_heads, D = o.head_dim, row = (H + 2 * K) * D;
    const float scale = 1 / sqrtf((float)D);
    memset(dqkv, 0, (size_t)(o.batch * T * row) * sizeof(float));
#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < o.batch; ++b)
        for (int64_t g = 0; g < K; ++g) {
            const float *k = qkv + b * T * row + (H + g) * D, *v = k + K * D;
            float *dk = dqkv + b * T * row + (H + g) * D, *dv = dk + K * D, *p = floats(T);
            for (int64_t h = g * (H / K); h < (g + 1) * (H / K); ++h)
                for (int64_t t = 0; t < T; ++t) {
                    const int64_t at = ((b * T + t) * H + h) * D;
                    const float *q = qkv + (b * T + t) * row + h * D, *d = dout + at;
                    float *dq = dqkv + (b * T + t) * row + h * D;
                    const float all = dot(d, out + at, D);  // sum of p[s] * dp[s]
                    attention_row(p, q, k, t, row);
                    for (int64_t s = 0; s <= t; ++s) {
                        const float dscore = scale * p[s] * (dot(d, v + s * row, D) - all);
                        add_scaled(dv + s * row, p[s], d, D);
                        add_scaled(dk + s * row, dscore, q, D);
                        add_scaled(dq, dscore, k + s * row, D);
                    }
                }
            free(p);
        }
}

// act (N, F) = silu(gate) * up; a row of gate_up is gate, then up
static void swiglu(float *act, const float *gate_up, int64_t N, int64_t F) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < F; ++i) {
            const float g = gate_up[2 * n * F + i];
            act[n * F + i] = g / (1 + expf(-g)) * gate_up[(2 * n + 1) * F + i];
        }
}

static void swiglu_backward(float *dgate_up, const float *dact, const float *gate_up, int64_t N, int64_t F) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < F; ++i) {
            const int64_t gate = 2 * n * F + i, up = gate + F;
            const float g = gate_up[gate], s = 1 / (1 + expf(-g)), d = dact[n * F + i];
            dgate_up[gate] = d * gate_up[up] * (s + g * s * (1 - s));
            dgate_up[up] = d * g * s;
        }
}

// Returns the sum of the rows' losses; logits become (softmax - 1[target]) * scale.
static double cross_entropy(float *logits, const int32_t *targets, int64_t N, int64_t V, float scale) {
    double loss = 0;
#pragma omp parallel for reduction(+ : loss)
    for (int64_t n = 0; n < N; ++n) {
        float *row = logits + n * V, largest = row[0], sum = 0;
        for (int64_t v = 1; v < V; ++v) largest = fmaxf(largest, row[v]);
        for (int64_t v = 0; v < V; ++v) sum += expf(row[v] - largest);
        const float log_sum = largest + logf(sum);
        loss += (double)(log_sum - row[targets[n]]);
        for (int64_t v = 0; v < V; ++v) row[v] = (expf(row[v] - log_sum) - (v == targets[n])) * scale;
    }
    return loss;
}

// ---- the model: one table of tensors over one buffer ------------------------------------------------------------------

enum { NORM1, Q, K_, V_, O, NORM2, GATE, UP, DOWN, PER_BLOCK };

typedef struct {
    char name[80];
    int64_t rows, cols, at;  // rows 0: a vector of cols; at: offset in the buffer
    double std;              // of the initial weights; 0: ones
} Tensor;

static Tensor *table;
static int tensors;
static int64_t parameters;

static int64_t size_of(const Tensor *t) { return (t->rows ? t->rows : 1) * t->cols; }

static void add(const char *prefix, const char *name, int64_t rows, int64_t cols, double std) {
    Tensor *t = &table[tensors++];
    snprintf(t->name, sizeof t->name, "%s%s.weight", prefix, name);
    t->rows = rows, t->cols = cols, t->std = std, t->at = parameters;
    parameters += size_of(t);
}

static void make_table(void) {
    const int64_t C = o.dim, q = o.heads * o.head_dim, kv = o.kv_heads * o.head_dim;
    const double std = o.init_std, last = std / sqrt(2.0 * (double)o.layers);  // what a branch adds to the stream
    table = take(PER_BLOCK * o.layers + 3, sizeof(Tensor));
    add("model.", "embed_tokens", o.vocab, C, std);
    for (int64_t l = 0; l < o.layers; ++l) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)l);
        add(prefix, "input_layernorm", 0, C, 0);
        add(prefix, "self_attn.q_proj", q, C, std);
        add(prefix, "self_attn.k_proj", kv, C, std);
        add(prefix, "self_attn.v_proj", kv, C, std);
        add(prefix, "self_attn.o_proj", C, q, last);
        add(prefix, "post_attention_layernorm", 0, C, 0);
        add(prefix, "mlp.gate_proj", o.ffn, C, std);
        add(prefix, "mlp.up_proj", o.ffn, C, std);
        add(prefix, "mlp.down_proj", C, o.ffn, last);
    }
    add("model.", "norm", 0, C, 0);
    if (!o.tied) add("", "lm_head", o.vocab, C, std);
}

static int64_t block_at(int64_t l, int which) { return table[1 + l * PER_BLOCK + which].at; }
static int64_t norm_at(void) { return table[1 + o.layers * PER_BLOCK].at; }
static int64_t head_at(void) { return o.tied ? 0 : table[tensors - 1].at; }

static void initialise(float *w) {
    for (int i = 0; i < tensors; ++i)
        if (table[i].std > 0)
            fill_normal(w + table[i].at, size_of(&table[i]), (uint64_t)i, (float)table[i].std);
        else
            for (int64_t j = 0; j < size_of(&table[i]); ++j) w[table[i].at + j] = 1;
}

// What the backward pass reads again of a block.
typedef struct {
    float *resid, *h1, *rstd1, *qkv, *o, *mid, *h2, *rstd2, *gate_up, *act;
} Kept;

static struct {
    Kept *block;
    float *last, *last_h, *last_rstd;                // the final norm's input, output, rstd
    float *logits, *dresid, *dh, *dqkv, *dact, *branch;  // scratch
} a;

static void make_activations(void) {
    const int64_t N = o.batch * o.seq_len, C = o.dim, q = o.heads * o.head_dim, qkv = q + 2 * o.kv_heads * o.head_dim;
    a.block = take(o.layers, sizeof(Kept));
    for (int64_t l = 0; l < o.layers; ++l)
        a.block[l] = (Kept){.resid = floats(N * C), .h1 = floats(N * C), .rstd1 = floats(N), .qkv = floats(N * qkv),
                            .o = floats(N * q), .mid = floats(N * C), .h2 = floats(N * C), .rstd2 = floats(N),
                            .gate_up = floats(N * 2 * o.ffn), .act = floats(N * o.ffn)};
    a.last = floats(N * C), a.last_h = floats(N * C), a.last_rstd = floats(N);
    a.logits = floats(N * o.vocab), a.dresid = floats(N * C), a.branch = floats(N * C), a.dqkv = floats(N * qkv);
    a.dh = floats(N * (C > q ? C : q)), a.dact = floats(N * o.ffn);
}

static void add_rows(float *out, const float *x, const float *y, int64_t n) {
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}

static void forward(const float *w, const int32_t *tokens) {
    const int64_t N = o.batch * o.seq_len, C = o.dim, F = o.ffn, q = o.heads * o.head_dim;
    const int64_t qkv = q + 2 * o.kv_heads * o.head_dim;
    for (int64_t n = 0; n < N; ++n) memcpy(a.block[0].resid + n * C, w + tokens[n] * C, (size_t)C * sizeof(float));
    for (int64_t l = 0; l < o.layers; ++l) {
        const Kept *k = &a.block[l];
        rmsnorm(k->h1, k->rstd1, k->resid, w + block_at(l, NORM1), N, C);
        linear(k->qkv, k->h1, w + block_at(l, Q), N, C, qkv);  // q, k and v lie side by side: one matrix
        rope(k->qkv, N, 1);
        attention(k->o, k->qkv);
        linear(a.branch, k->o, w + block_at(l, O), N, q, C);
        add_rows(k->mid, k->resid, a.branch, N * C);
        rmsnorm(k->h2, k->rstd2, k->mid, w + block_at(l, NORM2), N, C);
        linear(k->gate_up, k->h2, w + block_at(l, GATE), N, C, 2 * F);
        swiglu(k->act, k->gate_up, N, F);
        linear(a.branch, k->act, w + block_at(l, DOWN), N, F, C);
        add_rows(l + 1 < o.layers ? a.block[l + 1].resid : a.last, k->mid, a.branch, N * C);
    }
    rmsnorm(a.last_h, a.last_rstd, a.last, w + norm_at(), N, C);
    linear(a.logits, a.last_h, w + head_at(), N, C, o.vocab);
}

// Enters with the logits' gradient in a.logits; adds to dw.
static void backward(float *dw, const float *w, const int32_t *tokens) {
    const int64_t N = o.batch * o.seq_len, C = o.dim, F = o.ffn, q = o.heads * o.head_dim;
    const int64_t qkv = q + 2 * o.kv_heads * o.head_dim;
    linear_backward(a.dh, dw + head_at(), a.logits, a.last_h, w + head_at(), N, C, o.vocab);
    memset(a.dresid, 0, (size_t)(N * C) * sizeof(float));
    rmsnorm_backward(a.dresid, dw + norm_at(), a.dh, a.last, w + norm_at(), a.last_rstd, N, C);
    for (int64_t l = o.layers - 1; l >= 0; --l) {
        const Kept *k = &a.block[l];
        linear_backward(a.dact, dw + block_at(l, DOWN), a.dresid, k->act, w + block_at(l, DOWN), N, F, C);
        swiglu_backward(k->gate_up, a.dact, k->gate_up, N, F);
        linear_backward(a.dh, dw + block_at(l, GATE), k->gate_up, k->h2, w + block_at(l, GATE), N, C, 2 * F);
        rmsnorm_backward(a.dresid, dw + block_at(l, NORM2), a.dh, k->mid, w + block_at(l, NORM2), k->rstd2, N, C);
        linear_backward(a.dh, dw + block_at(l, O), a.dresid, k->o, w + block_at(l, O), N, q, C);
        attention_backward(a.dqkv, a.dh, k->qkv, k->o);
        rope(a.dqkv, N, -1);
        linear_backward(a.dh, dw + block_at(l, Q), a.dqkv, k->h1, w + block_at(l, Q), N, C, qkv);
        rmsnorm_backward(a.dresid, dw + block_at(l, NORM1), a.dh, k->resid, w + block_at(l, NORM1), k->rstd1, N, C);
    }
    for (int64_t n = 0; n < N; ++n) add_scaled(dw + tokens[n] * C, 1, a.dresid + n * C, C);
}

// ---- the update -------------------------------------------------------------------------------------------------------

static double learning_rate(int64_t step) {
    if (step <= o.warmup) return o.lr * (double)step / (double)o.warmup;
    if (step >= o.steps) return o.min_lr;
    const double done = (double)(step - o.warmup) / (double)(o.steps - o.warmup);
    return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * done));
}

static double global_norm(const float *dw) {
    double sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
    for (int64_t i = 0; i < parameters; ++i) sum += (double)dw[i] * dw[i];
    return sqrt(sum);
}

static void adamw(float *w, float *m, float *v, const float *dw, double norm, int64_t step) {
    const double lr = learning_rate(step), clipped = o.clip > 0 ? fmin(1, o.clip / (norm + 1e-6)) : 1;
    const float g_scale = (float)clipped, beta1 = (float)o.beta1, beta2 = (float)o.beta2, eps = (float)o.eps;
    const float rest1 = (float)(1 - (double)beta1), rest2 = (float)(1 - (double)beta2);
    const float lr_m = (float)(lr / (1 - pow((double)beta1, (double)step)));
    const float root_scale = (float)(1 / sqrt(1 - pow((double)beta2, (double)step)));
    for (int i = 0; i < tensors; ++i) {
        const float keep = table[i].rows ? 1 - (float)(lr * o.weight_decay) : 1;  // matrices decay, norms don't
        const int64_t end = table[i].at + size_of(&table[i]);
#pragma omp parallel for simd
        for (int64_t j = table[i].at; j < end; ++j) {
            const float g = dw[j] * g_scale;
            m[j] = beta1 * m[j] + rest1 * g;
            v[j] = beta2 * v[j] + rest2 * g * g;
            w[j] = keep * w[j] - lr_m * m[j] / (sqrtf(v[j]) * root_scale + eps);
        }
    }
}

// ---- files and the loop -----------------------------------------------------------------------------------------------

// safetensors: the header's length, a JSON header, then the tensors as they lie.
static void save(const char *path, const float *w) {
    char *json = take(tensors * 200 + 64, 1), *at = json;
    at += sprintf(at, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < tensors; ++i) {
        const Tensor *t = &table[i];
        at += sprintf(at, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", t->name);
        if (t->rows) at += sprintf(at, "%lld,", (long long)t->rows);
        at += sprintf(at, "%lld],\"data_offsets\":[%lld,%lld]}", (long long)t->cols, (long long)t->at * 4,
                      (long long)(t->at + size_of(t)) * 4);
    }
    at += sprintf(at, "}");
    while ((at - json) % 8) *at++ = ' ';
    const uint64_t length = (uint64_t)(at - json);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(&length, 8, 1, f) != 1 || fwrite(json, length, 1, f) != 1 ||
        fwrite(w, 4, (size_t)parameters, f) != (size_t)parameters || fclose(f) != 0)
        fail("can't write", path);
    free(json);
}

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    make_table();
    make_rope_tables();
    make_activations();
    const Data train = read_data(o.train_data);
    const int64_t N = o.batch * o.seq_len, targets_per_update = N * o.micro_batches;
    int32_t *tokens = take(N, 4), *targets = take(N, 4);
    float *w = floats(parameters), *dw = floats(parameters), *m = floats(parameters), *v = floats(parameters);
    initialise(w);
    printf("%lld parameters, %lld samples, %lld tokens per step\n", (long long)parameters, (long long)train.samples,
           (long long)targets_per_update);

    for (int64_t step = 1; step <= o.steps; ++step) {
        const double start = seconds();
        double loss = 0;
        memset(dw, 0, (size_t)parameters * sizeof(float));
        for (int64_t i = 0; i < o.micro_batches; ++i) {
            read_batch(&train, ((step - 1) * o.micro_batches + i) * o.batch, 1, tokens, targets);
            forward(w, tokens);
            loss += cross_entropy(a.logits, targets, N, o.vocab, 1.0f / (float)targets_per_update);
            backward(dw, w, tokens);
        }
        loss /= (double)targets_per_update;
        const double norm = global_norm(dw);
        if (!isfinite(norm)) fail("the gradient is not finite", "lower --lr");
        adamw(w, m, v, dw, norm, step);
        printf("step %lld/%lld | loss %.9g | norm %.6g | lr %.3e | %.0f ms\n", (long long)step, (long long)o.steps, loss,
               norm, learning_rate(step), 1e3 * (seconds() - start));
        fflush(stdout);
    }

    if (o.val_data) {
        const Data val = read_data(o.val_data);
        double loss = 0;
        int64_t rows = 0;
        for (int64_t s = 0; s + o.batch <= val.samples && rows < o.val_tokens; s += o.batch, rows += N) {
            read_batch(&val, s, 0, tokens, targets);
            forward(w, tokens);
            loss += cross_entropy(a.logits, targets, N, o.vocab, 0);
        }
        if (rows == 0) fail("fewer validation samples than --batch", o.val_data);
        printf("validation loss %.6f nats over %lld tokens\n", loss / (double)rows, (long long)rows);
    }
    if (o.out) save(o.out, w);
    return 0;
}
