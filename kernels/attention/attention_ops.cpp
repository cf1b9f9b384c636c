// Attention's ops: what they refuse, and what they hand to the kernels of a device (attention.cpp, attention.cu).
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/checks.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"

namespace rz {

int64_t attention_backward_workspace(const AttentionShape& s) {
    const int64_t heads = checked_mul(s.B, s.H, "attention: B x H");
    const int64_t rows = checked_mul(heads, round_up(s.Tq, 64), "attention: B x H x Tq");
    return checked_mul(rows, 2 * 4, "attention: bytes of workspace");  // BackwardStats; the CPU needs half of it
}

static int64_t kept_bytes_of_key_head(const AttentionShape& s) {
    return checked_mul(KeptPlaces(s).count() * (s.H / s.K), kKeptTileBytes, "attention: score gradients of a key head");
}

int64_t kept_key_heads(const AttentionShape& s, int64_t bytes) {
    const int64_t all = s.B * s.K, fit = std::min(all, bytes / kept_bytes_of_key_head(s));
    return fit == 0 ? 0 : ceil_div(all, ceil_div(all, fit));
}

static bool keeps_scores(const AttentionShape& s, int capability) {
    return capability / 10 == 9 && s.D == 128 && s.dtype != DType::f32;
}

constexpr int64_t kMostKept = int64_t(260) << 20;

int64_t attention_kept_bytes(const AttentionShape& s, int capability) {
    constexpr int64_t kFewestTiles = 200;
    if (!keeps_scores(s, capability) || s.B == 0 || s.Tq == 0 || s.Tk == 0) return 0;
    const int64_t all = s.B * s.K, heads = kept_key_heads(s, kMostKept);
    if (heads == 0) return 0;
    const int64_t fewest = all / ceil_div(all, heads);
    if (heads < all && fewest * ceil_div(s.Tk, int64_t(128)) < kFewestTiles) return 0;
    return heads * kept_bytes_of_key_head(s);
}

int64_t attention_kept_bytes(const AttentionShape& s, Device device) {
    const int capability = compute_capability(device);
#ifdef RZ_CUDA
    if (device.is_cuda() && keeps_scores(s, capability) && !attention_has_wgmma()) return 0;
#endif
    return attention_kept_bytes(s, capability);
}

std::string attention_products(const AttentionShape& s, int capability, int64_t kept) {
    if (!keeps_scores(s, capability)) return "";
    const int64_t heads = kept_key_heads(s, kept), all = s.B * s.K, fit = kept_key_heads(s, kMostKept);
    if (heads > 0)
        return format("five products, the score gradients of %ld of %ld key heads at a time in %s", heads, all,
                      human_bytes(kept).c_str());
    if (fit == 0)
        return format("seven products; the score gradients of a key head would take %s",
                      human_bytes(kept_bytes_of_key_head(s)).c_str());
    if (attention_kept_bytes(s, capability) == 0)
        return format("seven products; the score gradients of %ld of %ld key heads fit, too little work at a time", fit,
                      all);
    return "seven products; chunks of sequences keep no score gradients";
}

static void check_shape(const char* op, const AttentionShape& s) {
    check_sizes(op, {{"B", s.B, 0}, {"Tq", s.Tq, 0}, {"K (key/value heads)", s.K, 1}});
    require(s.H >= s.K && s.H % s.K == 0, "%s: %ld query heads over %ld key/value heads; H must be a multiple of K", op,
            s.H, s.K);
    require(s.D > 0 && s.D % 2 == 0 && s.D <= kMaxHeadDim, "%s: head dimension %ld; it must be even and at most %ld",
            op, s.D, kMaxHeadDim);
    require(s.q_at >= 0 || s.Tk >= s.Tq, "%s: %ld queries but %ld keys; every query needs a key at its own position",
            op, s.Tq, s.Tk);
    require(s.offset() >= 0 && s.k_at >= 0 && (s.Tk > 0 || s.Tq == 0),
            "%s: queries from position %ld on and keys from %ld on; no query may come before the keys", op, s.q_at,
            s.k_at);
    require(s.scale > 0, "%s: scale is %g; it must be positive (1 / sqrt(D) is %g)", op, double(s.scale),
            1 / __builtin_sqrt(double(s.D)));
    const auto check_stride = [&](const char* name, int64_t stride, int64_t heads) {
        require(stride >= heads * s.D, "%s: %s is %ld, less than its %ld heads of %ld elements", op, name, stride,
                heads, s.D);
    };
    check_stride("q_row", s.q_row, s.H);
    check_stride("kv_row", s.kv_row, s.K);
    check_stride("o_row", s.o_row, s.H);
}

// Queries and keys are the same rows, packed.
static void check_back(const char* op, const AttentionBackward& a) {
    const AttentionShape& s = a.shape;
    const Rope& r = a.back;
    const auto part = [&](int64_t head) { return static_cast<const char*>(a.dq) + head * s.D * size_of(s.dtype); };
    const bool packed = s.Tq == s.Tk && s.offset() == 0 && s.q_row == s.kv_row && s.q_batch == s.Tq * s.q_row &&
                        s.kv_batch == s.q_batch && a.dk == part(s.H) && a.dv == part(s.H + s.K) && !a.sum_dkv;
    const bool same = r.x == a.dq && r.inverse && r.N == s.B * s.Tq && r.T == s.Tq && r.heads == s.H + s.K &&
                      r.D == s.D && r.row_stride == s.q_row && r.dtype == s.dtype;
    require(packed && same, "%s: `back` must rotate back dq and dk of packed rows of dq, dk and dv", op);
    require(!r.amax || s.q_row == (s.H + 2 * s.K) * s.D, "%s: with amax, rows hold dq, dk and dv alone", op);
    check_pointers(op, {{"cos_table", r.cos_table}, {"sin_table", r.sin_table}});
}

static SmBudget beside_of(const Stream& stream) {
    RankContext& context = stream.context();
    SmBudget beside = context.beside;
    if (context.draws == nullptr) context.draws = &stream;
    if (context.draws != &stream) beside.next_tile = nullptr;
    return beside;
}

void attention_forward(Stream& stream, const AttentionForward& a) {
    const char* op = "attention_forward";
    check_shape(op, a.shape);
    if (a.shape.B == 0 || a.shape.Tq == 0) return;
    const int64_t alignment = a.shape.D % 8 == 0 ? 16 : size_of(a.shape.dtype);
    check_pointers(
        op,
        {{"o", a.o, alignment}, {"lse", a.lse}, {"q", a.q, alignment}, {"k", a.k, alignment}, {"v", a.v, alignment}});
    AttentionForward call = a;
    call.beside = beside_of(stream);
    stream.run(call, attention_forward_cpu, RZ_CUDA_OP(attention_forward_cuda));
}

std::string attention_advice(DType dtype, int64_t D) {
    constexpr int64_t kCovered[] = {64, 80, 96, 128};  // mma_covers() and wgmma's
    const int64_t nearest = *std::ranges::min_element(kCovered, {}, [&](int64_t c) { return std::abs(c - D); });
    if (dtype == DType::f32 || nearest == D) return "";
    return format(
        "head dimension %ld has no tensor-core kernel (64, 80, 96, 128 have; nearest: %ld), so attention runs on the "
        "scalar units: at an H100's peaks 67 TFLOP/s instead of 989 (a prediction)",
        D, nearest);
}

void attention_backward(Stream& stream, const AttentionBackward& a) {
    const char* op = "attention_backward";
    check_shape(op, a.shape);
    if (a.shape.B == 0 || a.shape.Tq == 0) return;
    const int64_t alignment = a.shape.D % 8 == 0 ? 16 : size_of(a.shape.dtype);
    check_pointers(op, {{"dq", a.dq, alignment},
                        {"dk", a.dk, alignment},
                        {"dv", a.dv, alignment},
                        {"d_o", a.d_o, alignment},
                        {"q", a.q, alignment},
                        {"k", a.k, alignment},
                        {"v", a.v, alignment},
                        {"o", a.o, alignment},
                        {"lse", a.lse},
                        {"workspace", a.workspace, 256}});
    if (a.kept != nullptr) check_pointer(op, "kept", a.kept, 256);
    if (a.back.x != nullptr) check_back(op, a);
    AttentionBackward call = a;
    call.beside = beside_of(stream);
    stream.run(call, attention_backward_cpu, RZ_CUDA_OP(attention_backward_cuda));
}

}  // namespace rz
