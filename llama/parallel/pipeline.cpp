#include "llama/parallel/pipeline.h"

#include <algorithm>
#include <deque>

#include "kernels/runtime/request.h"

namespace rz {

std::vector<int> PipelineSchedule::stages_of(int rank) const {
    std::vector<int> held;
    for (int s = 0; s < stages; ++s)
        if (std::find(rank_of[size_t(s)].begin(), rank_of[size_t(s)].end(), rank) != rank_of[size_t(s)].end())
            held.push_back(s);
    return held;
}

namespace {

// One rank's cells, written as the papers write them.
struct RankOrder {
    std::vector<Cell> cells;
    void add(Op op, int stage, int micro_batch) { cells.push_back({{op, stage, micro_batch}}); }
};

std::vector<Cell> gpipe(int rank, int M) {
    RankOrder o;
    for (int m = 0; m < M; ++m) o.add(Op::F, rank, m);
    for (int m = 0; m < M; ++m) o.add(Op::B, rank, m);
    return o.cells;
}

std::vector<Cell> one_forward_one_backward(int rank, int P, int M) {
    RankOrder o;
    const int warm_up = std::min(P - rank - 1, M);
    for (int m = 0; m < warm_up; ++m) o.add(Op::F, rank, m);
    for (int m = warm_up; m < M; ++m) {
        o.add(Op::F, rank, m);
        o.add(Op::B, rank, m - warm_up);
    }
    for (int m = M - warm_up; m < M; ++m) o.add(Op::B, rank, m);
    return o.cells;
}

// Groups of P micro-batches pass the rank's first stage, then its second, ...
std::vector<Cell> interleaved(int rank, int P, int M, int V) {
    struct Turn {
        int micro_batch, chunk;
    };
    std::vector<Turn> turns;
    for (int group = 0; group < M; group += P)
        for (int chunk = 0; chunk < V; ++chunk)
            for (int m = group; m < group + P; ++m) turns.push_back({m, chunk});
    const int total = M * V, warm_up = std::min(2 * (P - rank - 1) + (V - 1) * P, total);
    RankOrder o;
    const auto forward = [&](int k) { o.add(Op::F, turns[size_t(k)].chunk * P + rank, turns[size_t(k)].micro_batch); };
    const auto backward = [&](int k) {
        o.add(Op::B, (V - 1 - turns[size_t(k)].chunk) * P + rank, turns[size_t(k)].micro_batch);
    };
    for (int k = 0; k < warm_up; ++k) forward(k);
    for (int k = warm_up; k < total; ++k) {
        forward(k);
        backward(k - warm_up);
    }
    for (int k = total - warm_up; k < total; ++k) backward(k);
    return o.cells;
}

// 1f1b's order; a W waits until the rank holds as many micro-batches as the first one.
std::vector<Cell> zb_h1(int rank, int P, int M) {
    RankOrder o;
    const int warm_up = std::min(P - rank - 1, M);
    int inputs = 0, weights = 0;
    for (int m = 0; m < warm_up; ++m) o.add(Op::F, rank, m);
    for (int m = warm_up; m < M; ++m) {
        o.add(Op::F, rank, m);
        o.add(Op::I, rank, inputs++);
        if (inputs - weights > rank) o.add(Op::W, rank, weights++);
    }
    while (inputs < M) {
        o.add(Op::I, rank, inputs++);
        o.add(Op::W, rank, weights++);
    }
    while (weights < M) o.add(Op::W, rank, weights++);
    return o.cells;
}

// The rank's two stages, 0 below and 1 above. What is past the last micro-batch is left out, so few micro-batches work.
class ZbV {
   public:
    ZbV(int rank, int P, int M) : stage_{rank, 2 * P - 1 - rank}, M_(M) {
        const int n = std::max(2 * P - 1, M);
        for (int i = 0; i < 2 * (P - rank) - 1; ++i) next(Op::F, 0);
        for (int i = 0; i < rank; ++i) next(Op::F, 1), next(Op::F, 0);
        for (int i = 0; i < P - rank; ++i) next(Op::F, 1), next(Op::I, 1), next(Op::W, 1);
        while (done(Op::F, 1) < done(Op::F, 0) || done(Op::F, 0) < n) {
            if (done(Op::F, 0) < n) next(Op::F, 0);
            next(Op::I, 0), next(Op::W, 0);
            next(Op::F, 1), next(Op::I, 1), next(Op::W, 1);
        }
        for (int i = 0; i < rank; ++i) next(Op::I, 0), next(Op::I, 1);
        for (int i = 0; i < P - rank; ++i) next(Op::I, 0), next(Op::W, 0);
        for (int which : {1, 0})
            while (done(Op::W, which) < done(Op::I, which)) next(Op::W, which);
    }
    RankOrder order;

   private:
    int& done(Op op, int which) { return done_[size_t(op)][which]; }
    void next(Op op, int which) {
        if (const int m = done(op, which)++; m < M_) order.add(op, stage_[which], m);
    }
    int stage_[2], M_;
    int done_[3][2] = {};
};

// The eight steps of DualPipe for one rank, which has two streams of work, 0 and 1: two directions of DualPipe, the two
// stages of DualPipeV. `half` ranks lie between an end and the turn; `at` is this rank's place among them; each stream
// has `count` micro-batches.
class DualPipe {
   public:
    struct Stream {
        int stage, first_micro_batch;
    };
    DualPipe(int half, int at, int count, bool at_turn, Stream s0, Stream s1) : stream_{s0, s1} {
        const int rest = half - at - 1;
        for (int i = 0; i < 2 * rest; ++i) single(forward(0));
        for (int i = 0; i < at + 1; ++i) single(forward(0)), single(forward(1));
        for (int i = 0; i < rest; ++i) single(input(1)), weight(), single(forward(1));
        for (int i = 0; i < count - 2 * half + at + 1; ++i) {
            if (i == 0 && at_turn) {
                single(forward(0));
                single(backward(1));
            } else {
                fused(0, 1);
            }
            fused(1, 0);
        }
        for (int i = 0; i < rest; ++i) single(backward(1)), fused(1, 0);
        for (int i = 0; i < 2 * (at + 1); ++i) {
            const bool parts = i >= at + 1;  // the second half of these leave their W for later
            single(parts ? input(1 - i % 2) : backward(1 - i % 2));
        }
        for (int i = 0; i < rest; ++i) weight(), single(input(0));
        for (int i = 0; i < at + 1; ++i) weight();
        require(pending_.empty() && forwards_[0] == count && forwards_[1] == count && backwards_[0] == count &&
                    backwards_[1] == count,
                "dualpipe: place %d of %d does not come out even with %d micro-batches", at, half, count);
    }
    RankOrder order;

   private:
    Task forward(int p) { return {Op::F, stream_[p].stage, stream_[p].first_micro_batch + forwards_[p]++}; }
    Task backward(int p) { return {Op::B, stream_[p].stage, stream_[p].first_micro_batch + backwards_[p]++}; }
    Task input(int p) {
        Task t = backward(p);
        t.op = Op::I;
        pending_.push_back({Op::W, t.stage, t.micro_batch});
        return t;
    }
    void single(const Task& t) { order.cells.push_back({t}); }
    void fused(int f, int b) {
        const Task first = forward(f);
        order.cells.push_back({first, backward(b)});
    }
    void weight() {
        single(pending_.front());
        pending_.pop_front();
    }
    Stream stream_[2];
    int forwards_[2] = {}, backwards_[2] = {};
    std::deque<Task> pending_;
};

std::vector<Cell> rank_order(PipelineKind kind, int r, int P, int M, int V) {
    switch (kind) {
        case PipelineKind::gpipe:
            return gpipe(r, M);
        case PipelineKind::f1b1:
            return one_forward_one_backward(r, P, M);
        case PipelineKind::interleaved:
            return interleaved(r, P, M, V);
        case PipelineKind::zb_h1:
            return zb_h1(r, P, M);
        case PipelineKind::zb_v:
            return ZbV(r, P, M).order.cells;
        case PipelineKind::dualpipe: {
            const int half = P / 2, at = std::min(r, P - 1 - r), H = M / 2;
            const DualPipe::Stream down{r, 0}, up{P - 1 - r, H};
            const bool second = r >= half;  // the far half sees the two directions the other way round
            return DualPipe(half, at, H, at == half - 1, second ? up : down, second ? down : up).order.cells;
        }
        case PipelineKind::dualpipev:
            return DualPipe(P, r, M, r == P - 1, {r, 0}, {2 * P - 1 - r, 0}).order.cells;
    }
    fail("a schedule of kind %d", int(kind));
}

int home_of(PipelineKind kind, int stage, int micro_batch, int P, int M) {
    switch (kind) {
        case PipelineKind::gpipe:
        case PipelineKind::f1b1:
        case PipelineKind::zb_h1:
            return stage;
        case PipelineKind::interleaved:
            return stage % P;
        case PipelineKind::zb_v:
        case PipelineKind::dualpipev:
            return stage < P ? stage : 2 * P - 1 - stage;
        case PipelineKind::dualpipe:
            return micro_batch < M / 2 ? stage : P - 1 - stage;
    }
    fail("a schedule of kind %d", int(kind));
}

bool is_v_shaped(PipelineKind kind) { return kind == PipelineKind::zb_v || kind == PipelineKind::dualpipev; }

}  // namespace

std::vector<PipelineKind> pipeline_kinds() {
    std::vector<PipelineKind> all;
    for (const auto& n : kNames<PipelineKind>) all.push_back(n.value);
    return all;
}

int default_stages_per_rank(PipelineKind kind) {
    return kind == PipelineKind::interleaved || is_v_shaped(kind) ? 2 : 1;
}

std::string find_pipeline_refusal(PipelineKind kind, const PipelineShape& shape) {
    const int P = shape.ranks, M = shape.micro_batches, own = default_stages_per_rank(kind);
    const int V = shape.stages_per_rank ? shape.stages_per_rank : own;
    const char* name = name_of(kind);
    const bool dual = kind == PipelineKind::dualpipe || kind == PipelineKind::dualpipev;
    if (P < 1) return format("pp %d: there must be at least one rank\n  nearest: pp 1", P);
    if (M < 1) return format("%d micro-batches: there must be at least one\n  nearest: 1 micro-batch", M);
    if (kind == PipelineKind::interleaved) {
        if (V < 2)
            return format(
                "schedule interleaved with %d stage on each rank: that is 1f1b\n"
                "  nearest: 2 stages on each rank, or schedule 1f1b",
                V);
        if (M % P != 0) {
            const int below = M / P * P, above = below + P;
            return format(
                "schedule interleaved with %d micro-batches on %d ranks: it runs them in groups of %d\n"
                "  nearest: %s%d micro-batches, or schedule zb-v",
                M, P, P, below > 0 ? format("%d or ", below).c_str() : "", above);
        }
    } else if (V != own) {
        return format(
            "schedule %s with %d stages on each rank: it has %d\n"
            "  nearest: %d on each rank, or schedule interleaved",
            name, V, own, own);
    }
    if (kind == PipelineKind::dualpipe && P % 2 != 0)
        return format(
            "schedule dualpipe: pp %d is odd, and its ranks work in mirrored pairs\n"
            "  nearest: pp %d, or schedule dualpipev",
            P, P + 1);
    if (kind == PipelineKind::dualpipe && M % 2 != 0 && M > 2 * P)
        return format(
            "schedule dualpipe: %d micro-batches are odd, and each direction has half of them\n"
            "  nearest: %d or %d micro-batches, or schedule dualpipev",
            M, M - 1, M + 1);
    if (dual && M < 2 * P)
        return format(
            "schedule %s needs at least 2 x pp = %d micro-batches, there are %d\n"
            "  nearest: %d micro-batches, or schedule zb-v",
            name, 2 * P, M, 2 * P);
    return "";
}

PipelineSchedule make_pipeline(PipelineKind kind, const PipelineShape& shape) {
    const std::string why = find_pipeline_refusal(kind, shape);
    require_request(why.empty(), "%s", why.c_str());
    const int P = shape.ranks, M = shape.micro_batches;
    const int V = shape.stages_per_rank ? shape.stages_per_rank : default_stages_per_rank(kind);
    PipelineSchedule s{.ranks = P, .stages = P * V, .micro_batches = M, .rank_of = {}, .order = {}};
    s.rank_of.assign(size_t(s.stages), std::vector<int>(size_t(M)));
    for (int stage = 0; stage < s.stages; ++stage)
        for (int m = 0; m < M; ++m) s.rank_of[size_t(stage)][size_t(m)] = home_of(kind, stage, m, P, M);
    for (int r = 0; r < P; ++r) s.order.push_back(rank_order(kind, r, P, M, V));
    return s;
}

}  // namespace rz
