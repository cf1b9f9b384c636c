#include "llama/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "kernels/adamw.h"
#include "kernels/argmax.h"
#include "kernels/attention/attention_largest.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/bias.h"
#include "kernels/bias_correction.h"
#include "kernels/bit_sum.h"
#include "kernels/copy_rows.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8/fold_scales.h"
#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/global_norm.h"
#include "kernels/loss_scale.h"
#include "kernels/muon.h"
#include "kernels/qk_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/runtime/host_streams.h"
#include "kernels/rope.h"
#include "kernels/statistics.h"
#include "kernels/swiglu.h"
#include "kernels/vocab_cross_entropy.h"

namespace rz {

// ---- ops ------------------------------------------------------------------------------------------------------------

namespace {

double n(int64_t x) { return double(x); }

OpWork bytes(double all, DType dtype = DType::f32) { return {.bytes = all, .dtype = dtype}; }

// `e`: bytes of an operand's element.
template <class Product>
OpWork product(const Product& g, double e, DType dtype, bool fp8) {
    return {
        .limit = OpWork::Limit::gemm,
        .flops = 2 * n(g.M) * n(g.N) * n(g.K),
        .bytes = e * (n(g.M) * n(g.K) + n(g.K) * n(g.N)) + n(g.M) * n(g.N) * size_of(g.c_dtype) * (g.beta != 0 ? 2 : 1),
        .dtype = dtype,
        .fp8 = fp8};
}
OpWork work(const Gemm& g) { return product(g, size_of(g.dtype), g.dtype, false); }
OpWork work(const Fp8Gemm& g) { return product(g, 1, DType::bf16, true); }
OpWork work(const Fp8BlockGemm& g) { return product(g, 1, DType::bf16, true); }
OpWork work(const Fp8MxGemm& g) { return product(g, 1, DType::bf16, true); }

// Keys that a query sees: of the last Tq of Tk positions, each those up to its own.
double seen(const AttentionShape& s) {
    if (s.offset() >= s.Tk) return n(s.B) * n(s.Tq) * n(s.Tk);  // queries after all of the keys
    return n(s.B) * n(s.Tq) * (n(s.Tk) - 0.5 * n(s.Tq - 1));
}

OpWork attention(const AttentionShape& s, bool backward, int reserved_sms) {
    const double q = n(s.B) * n(s.Tq) * n(s.H) * n(s.D), kv = 2 * n(s.B) * n(s.Tk) * n(s.K) * n(s.D);
    // The T^2 / 2 scores without the diagonal's half, as the field counts.
    const double scores = s.Tq == s.Tk && s.offset() == 0 ? 0.5 * n(s.B) * n(s.Tq) * n(s.Tk) : seen(s);
    return {.limit = backward ? OpWork::Limit::attention_backward : OpWork::Limit::attention_forward,
            .flops = (backward ? 10 : 4) * n(s.H) * n(s.D) * scores,
            .bytes = size_of(s.dtype) * (backward ? 4 * q + 2 * kv : 2 * q + kv),
            .dtype = s.dtype,
            .T = s.Tk,
            .head_dim = s.D,
            .reserved_sms = reserved_sms};
}

OpWork work(const AttentionForward& a) { return attention(a.shape, false, a.beside.reserved_sms); }
OpWork work(const AttentionLargest& a) { return attention(a.forward.shape, false, 0); }
OpWork work(const Rope&);
// RoPE's backward pass is in the stores of the tensor-core kernels alone.
OpWork work(const AttentionBackward& a) {
    OpWork w = attention(a.shape, true, a.beside.reserved_sms);
    const bool in_stores = a.shape.dtype != DType::f32 && attention_advice(a.shape.dtype, a.shape.D).empty();
    if (a.back.x && !in_stores) w.more_bytes = work(a.back).bytes;
    return w;
}
OpWork work(const RmsnormForward& a) {
    return bytes(n(a.N) * n(a.C) * size_of(a.dtype) * (a.residual ? 4 : 2), a.dtype);
}
OpWork work(const RmsnormBackward& a) {
    return bytes(n(a.N) * n(a.C) * size_of(a.dtype) * (a.dresidual ? 4 : 3), a.dtype);
}
OpWork work(const Rope& a) {
    const double others = a.amax ? n(a.row_stride) - n(a.heads) * n(a.D) : 0;
    return bytes(n(a.N) * (2 * n(a.heads) * n(a.D) + others) * size_of(a.dtype), a.dtype);
}
OpWork work(const AddBias& a) { return bytes(2 * n(a.N) * n(a.C) * size_of(a.dtype), a.dtype); }
OpWork work(const BiasBackward& a) { return bytes(n(a.N) * n(a.C) * size_of(a.dtype), a.dtype); }
OpWork work(const QkSums& a) {
    const QkNorm& q = a.norm;
    return bytes(n(q.N) * n(q.heads + q.kv_heads) * n(q.D) * size_of(q.dtype) * (a.dy ? 2 : 1), q.dtype);
}
OpWork work(const QkNormForward& a) {
    const QkNorm& q = a.norm;
    return bytes(n(q.N) * n(q.heads + q.kv_heads) * n(q.D) * size_of(q.dtype) * (a.kept ? 3 : 2), q.dtype);
}
OpWork work(const QkNormBackward& a) {
    const QkNorm& q = a.norm;
    const double heads = n(q.heads + q.kv_heads) * n(q.D), others = a.amax ? n(q.row_stride) - heads : 0;
    return bytes(n(q.N) * (3 * heads + others) * size_of(q.dtype), q.dtype);
}
OpWork work(const SwigluForward& a) { return bytes(3 * n(a.N) * n(a.F) * size_of(a.dtype), a.dtype); }
OpWork work(const SwigluBackward& a) { return bytes((a.h ? 6 : 5) * n(a.N) * n(a.F) * size_of(a.dtype), a.dtype); }
OpWork work(const CrossEntropy& a) {
    return bytes((a.write_gradient ? 2 : 1) * n(a.N) * n(a.V) * size_of(a.dtype), a.dtype);
}
OpWork work(const VocabSoftmax& a) { return bytes(n(a.N) * n(a.V) * size_of(a.dtype), a.dtype); }
OpWork work(const VocabCrossEntropy& a) {
    return bytes((a.write_gradient ? 2 : 1) * n(a.N) * n(a.V) * size_of(a.dtype), a.dtype);
}
OpWork work(const LossScaleUpdate&) { return bytes(0); }
OpWork work(const VocabArgmax& a) { return bytes(n(a.parts) * n(a.N) * 4 * (kVocabStats + 1), DType::f32); }
OpWork work(const Argmax& a) { return bytes(n(a.N) * n(a.V) * size_of(a.dtype), a.dtype); }
template <class Args>
OpWork tiled(const Args& a) {
    return bytes(n(a.rows) * n(a.columns) * (size_of(a.dtype) + (a.y ? 1 : 0) + (a.y_t ? 1 : 0)), a.dtype);
}
OpWork work(const QuantiseBlocks& a) { return tiled(a); }
OpWork work(const QuantiseMx& a) { return tiled(a); }
OpWork work(const AbsMax& a) { return bytes(n(a.n) * size_of(a.dtype), a.dtype); }
OpWork work(const Quantise& a) { return tiled(a); }
OpWork work(const FoldScales&) { return bytes(0); }
OpWork work(const Transpose8& a) { return bytes(2 * n(a.rows) * n(a.columns)); }
OpWork work(const SumF32& a) { return bytes(4 * n(a.n)); }
OpWork work(const EmbeddingForward& a) { return bytes(2 * n(a.N) * n(a.C) * size_of(a.dtype), a.dtype); }
OpWork work(const EmbeddingBackward& a) {
    return bytes(n(a.N) * n(a.C) * size_of(a.dtype) + 2 * n(a.distinct) * n(a.C) * size_of(a.grad_dtype), a.dtype);
}
OpWork work(const AdamW& a) {
    const int64_t masters = a.master_dtype == a.param_dtype ? 0 : 2 * size_of(a.master_dtype);
    const int64_t each =
        masters + 4 * size_of(a.adam_dtype) + size_of(a.grad_dtype) + size_of(a.param_dtype) * (masters ? 1 : 2);
    return bytes(n(a.n) * n(each), a.param_dtype);
}
OpWork work(const MuonMomentum& a) {
    return bytes(n(a.n) * n(2 * size_of(a.m_dtype) + size_of(a.grad_dtype) + size_of(a.out_dtype)), a.grad_dtype);
}
OpWork work(const MuonNormalise& a) { return bytes(n(a.n) * n(2 * size_of(a.dtype)), a.dtype); }
OpWork work(const MuonMirror& a) { return bytes(n(a.n) * n(a.n) * size_of(a.dtype), a.dtype); }
OpWork work(const MuonRowMoments& a) { return bytes(n(a.rows) * n(a.cols) * size_of(a.dtype), a.dtype); }
OpWork work(const MuonScaleRows& a) { return bytes(n(a.rows) * n(a.cols) * n(2 * size_of(a.dtype)), a.dtype); }
OpWork work(const MuonStep& a) {
    const int64_t masters = a.master_dtype == a.param_dtype ? 0 : 2 * size_of(a.master_dtype);
    return bytes(n(a.n) * n(masters + size_of(a.x_dtype) + size_of(a.param_dtype) * (masters ? 1 : 2)), a.param_dtype);
}
OpWork work(const SumSquares& a) { return bytes(n(a.n) * size_of(a.dtype), a.dtype); }
OpWork work(const ClipScale& a) { return bytes(n(a.count) * (a.order ? 12 : 8)); }
OpWork work(const BiasCorrection&) { return bytes(0); }
OpWork work(const Cast& a) { return bytes(n(a.n) * (size_of(a.dtype) + size_of(a.out_dtype)), a.dtype); }
OpWork work(const ReduceAdd& a) {
    return bytes(n(a.n) * (size_of(a.a_dtype) + size_of(a.b_dtype) + size_of(a.out_dtype)), a.b_dtype);
}
OpWork work(const BitSum& a) { return bytes(double(a.bytes)); }
OpWork work(const SumRows& a) { return bytes(n(a.n) * (n(a.rows) * size_of(a.dtype) + size_of(a.out_dtype)), a.dtype); }
OpWork work(const CopyRows& a) {
    return bytes(n(a.rows) * n(a.columns) * (size_of(a.dtype) + size_of(a.out_dtype)), a.dtype);
}
OpWork work(const AttentionMerge& a) {
    return bytes(n(a.B) * n(a.T) * n(a.H) * n(a.D) * (size_of(a.dtype) + 8), a.dtype);
}
OpWork work(const SegmentSquares& a) { return bytes(n(a.n) * size_of(a.dtype) * (a.minus ? 2 : 1), a.dtype); }
OpWork work(const BlockStatistics& a) { return bytes(4 * (n(a.rows) + n(a.count))); }
OpWork work(const Ema& a) { return bytes(12 * n(a.n)); }
OpWork work(const RandomNormal& a) { return bytes(n(a.n) * size_of(a.dtype), a.dtype); }

template <class Args>
bool try_one(const OpCall& op, OpWork& found) {
    const Args* args = op.as<Args>();
    if (args) found = work(*args);
    return args != nullptr;
}
template <class... Args>
bool try_all(const OpCall& op, OpWork& found) {
    return (try_one<Args>(op, found) || ...);
}

double attention_rate(const Machine& m, const OpWork& w) {
    const bool backward = w.limit == OpWork::Limit::attention_backward, wide = w.head_dim > 64;
    const std::vector<double>& rates = backward ? (wide ? m.attention_backward_128 : m.attention_backward_64)
                                                : (wide ? m.attention_forward_128 : m.attention_forward_64);
    const double at = std::clamp(std::log2(std::max(1.0, double(w.T)) / 1024), 0.0, 3.0);
    const int i = std::min(int(at), 2);
    const double rate = rates[size_t(i)] + (at - i) * (rates[size_t(i) + 1] - rates[size_t(i)]);
    // Only Hopper's kernels, of 16 bits, stay on their multiprocessors.
    const bool stays = w.dtype != DType::f32 && m.compute_capability == 9.0 && m.multiprocessors > w.reserved_sms;
    const double share = stays ? 1 - w.reserved_sms / m.multiprocessors : 1;
    return 1e12 * rate * share * (w.dtype == DType::f32 ? m.attention_fp32_share : 1);
}

double rate_of(const Machine& m, const OpWork& w) {
    switch (w.limit) {
        case OpWork::Limit::gemm:
            if (w.fp8 && m.gemm_fp8 > 0) return 1e12 * m.gemm_fp8;
            return 1e12 * (w.dtype == DType::f32 ? m.gemm_fp32 : m.gemm_bf16);
        case OpWork::Limit::attention_forward:
        case OpWork::Limit::attention_backward:
            return attention_rate(m, w);
        case OpWork::Limit::bytes:
            return 1;
    }
    __builtin_unreachable();
}

}  // namespace

bool find_work(const OpCall& op, OpWork& found) {
    if (!op.type) {
        found = bytes(n(op.bytes) * (op.label && std::string(op.label) == "zero" ? 1 : 2));
        return true;
    }
    return try_all<Gemm, AttentionForward, AttentionLargest, AttentionBackward, RmsnormForward, RmsnormBackward, Rope,
                   QkSums, QkNormForward, QkNormBackward, AddBias, BiasBackward, SwigluForward, SwigluBackward,
                   CrossEntropy, VocabSoftmax, VocabCrossEntropy, VocabArgmax, LossScaleUpdate, Argmax, Fp8Gemm,
                   Fp8BlockGemm, Fp8MxGemm, QuantiseBlocks, QuantiseMx, AbsMax, Quantise, Transpose8, FoldScales,
                   SumF32, EmbeddingForward, EmbeddingBackward, AdamW, SumSquares, ClipScale, BiasCorrection, BitSum,
                   Cast, ReduceAdd, SumRows, Ema, RandomNormal, CopyRows, AttentionMerge, SegmentSquares,
                   BlockStatistics, MuonMomentum, MuonNormalise, MuonMirror, MuonRowMoments, MuonScaleRows, MuonStep>(
        op, found);
}

double seconds_of(const Machine& m, const OpWork& w) {
    const double moved = w.bytes / (1e9 * m.memory_gbs);
    return 1e-6 * m.op_us + std::max(w.flops > 0 ? w.flops / rate_of(m, w) : 0, moved) +
           w.more_bytes / (1e9 * m.memory_gbs);
}

// What crosses the bus between a card and its host, or is computed there; 0: nothing of that.
static double host_seconds(const Machine& m, const OpCall& op, const Stream& stream) {
    const bool copies = !op.type && op.bytes > 0;
    if (copies && (stream.name() == kFromHostStream || stream.name() == kToHostStream))
        return 1e-6 * m.op_us + n(op.bytes) / (1e9 * m.host_gbs);
    if (const SumSquares* s = op.as<SumSquares>(); s && s->on_host)
        return 1e-6 * m.op_us + n(s->n) * n(size_of(s->dtype)) / (1e9 * m.host_gbs);
    if (const Ema* e = op.as<Ema>(); e && stream.name() == kHostComputeStream)
        return work(*e).bytes / (1e9 * m.host_memory_gbs);
    else if (e && e->on_host)  // average and masters come, the average goes
        return 1e-6 * m.op_us + 8 * n(e->n) / (1e9 * m.host_gbs);
    const AdamW* a = op.as<AdamW>();
    if (a && stream.name() == kHostComputeStream) return work(*a).bytes / (1e9 * m.host_memory_gbs);
    if (!a || !a->on_host) return 0;
    // The kernel reads and writes at once, so the two directions overlap.
    const int64_t each =
        2 * size_of(a->adam_dtype) + (a->master_dtype == a->param_dtype ? 0 : size_of(a->master_dtype));
    return 1e-6 * m.op_us + n(a->n) * n(each) / (1e9 * m.host_gbs);
}

// Pairs of a query and a key at or before it, the first query being `at` keys after key 0.
static double pairs(const AttentionShape& s, int64_t at) {
    const auto up_to = [&](int64_t queries) {  // of those from key 0's position on
        const double all = n(std::max<int64_t>(0, queries)), few = std::min(all, n(s.Tk));
        return few * (few + 1) / 2 + (all - few) * n(s.Tk);
    };
    return up_to(at + s.Tq) - up_to(at);
}

// Of the pairs that a causal mask leaves, those within the window.
static double share_in_window(const OpCall& op, int64_t window) {
    const AttentionShape* s = nullptr;
    if (const auto* forward = op.as<AttentionForward>()) s = &forward->shape;
    if (const auto* backward = op.as<AttentionBackward>()) s = &backward->shape;
    if (!s || window == 0) return 1;
    return 1 - pairs(*s, s->offset() - window) / pairs(*s, s->offset());
}

std::function<Ticks(const OpCall&, const Stream&)> make_cost(const Machine& machine, UnknownOps& unknown,
                                                             int64_t window) {
    return [machine, &unknown, window](const OpCall& op, const Stream& stream) {
        OpWork w;
        if (const double seconds = host_seconds(machine, op, stream); seconds > 0)
            return Ticks(std::llround(seconds * double(kTicksPerSecond)));
        if (!find_work(op, w)) {
            std::lock_guard lock(unknown.mutex);
            unknown.names.insert(op.name());
        }
        w.flops *= share_in_window(op, window);
        return Ticks(std::llround(seconds_of(machine, w) * double(kTicksPerSecond)));
    };
}

// ---- links ----------------------------------------------------------------------------------------------------------

namespace {

struct Edge {
    Ticks latency = 0;
    double ticks_per_byte = 0;
    bool operator<(const Edge& other) const { return ticks_per_byte < other.ticks_per_byte; }
};

class GroupLinks {
   public:
    GroupLinks(const Machine& m, std::vector<int> members, bool alone, std::optional<NcclChannels> channels)
        : m_(m),
          members_(std::move(members)),
          by_distance_only_(alone && std::ranges::is_sorted(members_)),
          channels_(channels) {
        one_node_ = std::ranges::all_of(members_, [&](int rank) { return node(rank) == node(members_[0]); });
        for (size_t i = 0; i < members_.size(); ++i) {
            const size_t rank = size_t(members_[i]);
            if (rank >= place_.size()) place_.resize(rank + 1, -1);
            place_[rank] = int(i);
        }
        by_distance_.resize(members_.size());
    }

    Ticks arrival(int from, int to, int64_t bytes, Ticks ready) {
        const Edge e = edge(from, to);
        const Ticks moving = Ticks(std::llround(double(bytes) * e.ticks_per_byte));
        Ticks& free = port_free_[{from, node(from) == node(to)}];
        const Ticks start = std::max(ready, free);
        free = start + moving;
        return std::max(free, through_channels(from, to, bytes, ready)) + e.latency;
    }

   private:
    int size() const { return int(members_.size()); }
    int64_t node(int rank) const { return rank / m_.ranks_per_node; }
    // -1: no member
    int place(int64_t rank) const { return rank < int64_t(place_.size()) ? place_[size_t(rank)] : -1; }

    int distance_of(int from, int to) const { return (place(to) - place(from) + size()) % size(); }

    // When its channels have passed a message on.
    Ticks through_channels(int from, int to, int64_t bytes, Ticks ready) {
        const double each = node(from) == node(to) ? m_.link_channel_gbs : m_.card_channel_gbs;
        if (!channels_ || each == 0) return ready;
        const int used = message_channels(bytes, size(), one_node_, *channels_, m_.nccl());
        Ticks& free = pair_free_[{from, to}];
        free =
            std::max(ready, free) + Ticks(std::llround(double(bytes) * double(kTicksPerSecond) / (1e9 * each * used)));
        return free;
    }

    Edge edge(int from, int to) {
        // Of two levels every message is told apart: members stand in columns then.
        if (!by_distance_only_) {
            const auto [known, is_new] = by_pair_.try_emplace({from, to});
            if (is_new) known->second = direct_edge(from, to);
            return known->second;
        }
        const int distance = distance_of(from, to);
        std::optional<Edge>& known = by_distance_[size_t(distance)];
        if (known) return *known;
        // Nodes follow each other in the same way: the first members and the last tell of all.
        const int64_t few = 2 * m_.ranks_per_node;
        Edge slowest;
        const auto look = [&](int64_t first, int64_t end) {
            for (int64_t i = first; i < end; ++i)
                slowest =
                    std::max(slowest, direct_edge(members_[size_t(i)], members_[size_t((i + distance) % size())]));
        };
        look(0, std::min<int64_t>(few, size()));
        look(std::max<int64_t>(few, size() - few), size());
        known = slowest;
        return slowest;
    }

    Edge direct_edge(int from, int to) {
        const double second = double(kTicksPerSecond);
        if (node(from) == node(to)) return {Ticks(m_.link_us * 1e-6 * second), second / (1e9 * m_.link_gbs)};
        // The cards of a node are shared by all of its ranks that send out now: those of this group as far apart, and
        // the same of the groups beside it.
        const int distance = distance_of(from, to);
        if (last_node_ == node(from) && last_distance_ == distance) return last_;
        int64_t here = 0, leaving = 0;
        for (int64_t r = node(from) * m_.ranks_per_node; r < (node(from) + 1) * m_.ranks_per_node; ++r) {
            const int at = place(r);
            if (at < 0) continue;
            ++here;
            const int peer = members_[size_t((at + distance) % size())];
            leaving += node(peer) != node(int(r));
        }
        const double senders = double(leaving) * double(m_.ranks_per_node) / double(here);
        const double rate = m_.card_gbs * std::min(1.0, double(m_.cards) / senders);
        last_node_ = node(from), last_distance_ = distance;
        return last_ = {Ticks(m_.card_us * 1e-6 * second), second / (1e9 * rate)};
    }

    Machine m_;
    std::vector<int> members_;
    bool by_distance_only_;   // members stand in the order of their ranks, and one of them tells of all
    std::vector<int> place_;  // by rank of the job: its place among the members
    std::vector<std::optional<Edge>> by_distance_;
    int64_t last_node_ = -1;  // whose cards were looked at last: neighbours ask the same
    int last_distance_ = 0;
    Edge last_;
    std::map<std::pair<int, int>, Edge> by_pair_;
    std::optional<NcclChannels> channels_;
    bool one_node_;
    std::map<std::pair<int, int>, Ticks> pair_free_;   // its channels
    std::map<std::pair<int, bool>, Ticks> port_free_;  // by sender, of its link inside the node or its card
};

}  // namespace

PlannedNetwork make_network(const Machine& machine, ChannelsOf channels) {
    return [machine, channels](const GroupKind& group, const std::vector<int>& members, bool alone) -> PlannedLink {
        auto links = std::make_shared<GroupLinks>(machine, members, alone, channels ? channels(group) : std::nullopt);
        return [links](int from, int to, int64_t bytes, Ticks ready) { return links->arrival(from, to, bytes, ready); };
    };
}

NetMachine net_machine(const Machine& m) {
    const auto ticks = [](double us) { return Ticks(std::llround(us * double(kMicrosecond))); };
    const auto rate = [](double gbs) { return std::max<int64_t>(1, std::llround(1e3 * gbs)); };
    return {.ranks_per_node = int(m.ranks_per_node),
            .cards = int(m.cards),
            .link_rate = rate(m.link_gbs),
            .card_rate = rate(m.card_gbs),
            .memory_rate = rate(m.memory_gbs),
            .link_latency = ticks(m.link_us),
            .card_latency = ticks(m.card_us),
            .link_message = ticks(m.link_message_us),
            .card_message = ticks(m.card_message_us),
            .group_gap = ticks(m.group_gap_us),
            .op_gap = ticks(m.sum_gap_us)};
}

}  // namespace rz
