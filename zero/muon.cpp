#include "zero/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/copy_rows.h"
#include "kernels/gemm/newton_schulz.h"
#include "kernels/muon.h"

namespace rz {

Muon::Muon(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams)
    : ownership_(ownership),
      options_(options),
      streams_(streams),
      ranks_(ownership.shard_groups().shard.size),
      rank_(ownership.shard_groups().shard.rank),
      tp_(options.muon.whole ? streams.mesh.place(Axis::tp) : AxisRank{}),
      element_(size_of(options.muon.dtype)) {
    const auto& by_unit = options.muon.matrices;
    require(by_unit.size() == ownership.units().size(), "matrices of %zu units for a rank that holds %zu",
            by_unit.size(), ownership.units().size());
    for (size_t u = 0; u < by_unit.size(); ++u)
        for (const MuonMatrix& m : by_unit[u]) {
            require(m.held.size() == m.elements.size() && m.elements.end <= ownership.unit(int(u)).size,
                    "unit %s: a matrix of %lld x %lld at [%lld, %lld)", ownership.unit(int(u)).name.c_str(),
                    (long long)m.rows, (long long)m.cols, (long long)m.elements.begin, (long long)m.elements.end);
            matrices_.push_back({m, int(u)});
        }
    choose_rounds();
    choose_owners();
    reserve();
}

Muon::~Muon() { streams_.drain(); }

// Twice as many matrices as ranks, so that a round has work for all of them.
void Muon::choose_rounds() {
    const int64_t wanted = exchanges() ? 2 * ranks_ * tp_.size : 1;
    int64_t here = wanted;
    for (size_t u = 0; u < options_.muon.matrices.size(); ++u) {
        if (here >= wanted) rounds_.push_back(int(u)), here = 0;
        here += int64_t(options_.muon.matrices[u].size());
    }
}

// The most work first, to the rank that has the least: of the round, then of all.
void Muon::choose_owners() {
    std::vector<double> all(size_t(ranks_ * tp_.size), 0);
    const auto flops = [&](const Matrix* m) { return newton_schulz_flops(streams_.device, m->rows, m->cols, 1); };
    for (int r = 0; r < rounds(); ++r) {
        std::vector<Matrix*> here;
        for (Matrix& m : matrices_)
            if (m.unit >= first_unit(r) && m.unit < end_unit(r)) here.push_back(&m);
        std::stable_sort(here.begin(), here.end(), [&](Matrix* a, Matrix* b) { return flops(a) > flops(b); });
        std::vector<double> round(all.size(), 0);
        for (Matrix* m : here) {
            size_t least = 0;
            for (size_t k = 1; k < round.size(); ++k)
                if (std::pair(round[k], all[k]) < std::pair(round[least], all[least])) least = k;
            m->owner = int(least) / tp_.size, m->of_tp = int(least) % tp_.size;
            round[least] += flops(m), all[least] += flops(m);
        }
    }
}

void Muon::reserve() {
    int64_t parts = 0, whole = 0, work = 0, joined = 0;
    for (int r = 0; r < rounds(); ++r) {
        int64_t own = 0, owned = 0;
        for (Matrix& m : matrices_) {
            if (m.unit < first_unit(r) || m.unit >= end_unit(r)) continue;
            m.own_at = own;
            own += round_up(part(rank_, m).size() * element_, int64_t(256));
            if (m.owner != rank_) continue;
            m.at = owned;
            owned += round_up((owns(m) ? m.rows * m.cols : m.held.size()) * element_, int64_t(256));
            m.rows_at = owned;
            if (has_rows()) owned += round_up((owns(m) ? m.rows : m.held.rows) * 4, int64_t(256));
            if (!owns(m)) continue;
            if (m.held.cols < m.cols) joined = std::max(joined, m.rows * m.cols * element_);
            work = std::max(work, newton_schulz_bytes(m.rows, m.cols, options_.muon.dtype));
            if (has_rows()) work = std::max(work, muon_rows_bytes(m.rows));
        }
        parts = std::max(parts, own), whole = std::max(whole, owned);
    }
    const auto take = [&](int64_t bytes, const char* name) {
        return Buffer(streams_.device, bytes, MemKind::workspace, name);
    };
    for (int i = 0; i < slots(); ++i) parts_[size_t(i)] = take(parts, "Muon: sums and results");
    for (Buffer& b : whole_)
        if (has_whole()) b = take(whole, "Muon: whole matrices");
    work_ = take(work, "Muon: Newton-Schulz");
    joined_ = take(joined, "Muon: a matrix of columns");
}

// Offset of a rank's piece among all of the matrix, in elements.
int64_t Muon::piece_at(const Matrix& m, int of_tp) const {
    int64_t at = 0;
    for (int t = 0; !m.pieces.empty() && t < m.pieces[size_t(of_tp)].holder; ++t)
        if (m.pieces[size_t(t)].holder == t) at += m.pieces[size_t(t)].size();
    return at;
}

// The part of a matrix that lies in a rank's slice, within the unit.
ElementRange Muon::part(int rank, const Matrix& m) const {
    if (!ownership_.shard_groups().sharded) return m.elements;
    const std::vector<int64_t>& cuts = ownership_.slices(m.unit);
    const int64_t begin = std::max(m.elements.begin, cuts[size_t(rank)]);
    return {begin, std::max(begin, std::min(m.elements.end, cuts[size_t(rank) + 1]))};
}

// From the slices to the owners, or back.
Event Muon::exchange(int round, bool back) {
    streams_.comm().wait(streams_.compute.record());
    if (back && tp_.size > 1) exchange_pieces(round, back);
    exchange_slices(round, back);
    if (!back && tp_.size > 1) exchange_pieces(round, back);
    return streams_.comm().record();
}

// Between the slices and who has the owner's place in their group.
void Muon::exchange_slices(int round, bool back) {
    Stream& comm = streams_.comm();
    std::vector<Message> messages;
    int64_t bytes = 0;
    // Between this rank and another one, or within it.
    const auto move = [&](void* from, void* to, int64_t size, int peer, bool sends) {
        if (peer != rank_)
            messages.push_back({sends ? from : to, size, peer, sends});
        else if (from != to)
            comm.copy(to, from, size);
    };
    for (const Matrix& m : matrices_) {
        if (m.unit < first_unit(round) || m.unit >= end_unit(round)) continue;
        const bool sums = !back && !ownership_.shard_groups().sharded;  // all have the same
        if (!sums) bytes += m.elements.size() * element_ + (has_rows() ? m.rows_in(m.elements).size() * 4 : 0);
        for (int peer = 0; peer < ranks_; ++peer) {  // the owner with everyone, the others with the owner
            const bool gathers = m.owner == rank_;
            if ((!gathers && m.owner != peer) || (sums && !(gathers && peer == rank_))) continue;
            const ElementRange there = part(gathers ? peer : rank_, m), rows = m.rows_in(there);
            char *mine = own_part(round, m), *place = nullptr;
            if (gathers) place = held(round, m) + (there.begin - m.elements.begin) * element_;
            move(back ? place : mine, back ? mine : place, there.size() * element_, peer, gathers == back);
            if (!has_rows() || rows.size() == 0) continue;
            float *my_rows = m.own_rows, *row = gathers ? held_rows(round, m) + rows.begin : nullptr;
            move(back ? row : my_rows, back ? my_rows : row, rows.size() * 4, peer, gathers == back);
        }
    }
    if (ranks_ == 1 || (!back && !ownership_.shard_groups().sharded)) return;
    const ShardGroups& shard_groups = ownership_.shard_groups();
    Collectives& group = shard_groups.sharded ? streams_.mesh.shard() : streams_.mesh.data();
    group.exchange(comm, back ? "muon results" : "muon sums", messages, bytes);
}

// Between the pieces and the owner, along the tp axis. Of ranks that have the same piece one sends it, all get it.
void Muon::exchange_pieces(int round, bool back) {
    std::vector<Message> messages;
    int64_t bytes = 0;
    for (const Matrix& m : matrices_) {
        if (m.unit < first_unit(round) || m.unit >= end_unit(round) || m.owner != rank_) continue;
        for (int peer = 0; peer < tp_.size; ++peer) {
            if (peer == tp_.rank || (!owns(m) && m.of_tp != peer)) continue;
            const int has = owns(m) ? peer : tp_.rank;
            const MuonPiece& piece = m.pieces[size_t(has)];
            if (!back && (piece.holder != has || piece.holder == m.pieces[size_t(m.of_tp)].holder)) continue;
            char* place = whole(round, m) + (owns(m) ? piece_at(m, has) * element_ : 0);
            messages.push_back({place, piece.size() * element_, peer, owns(m) == back});
            bytes += piece.size() * element_;
            if (!has_rows() || piece.col > 0) continue;
            float* row = whole_rows(round, m) + (owns(m) ? piece.row : 0);
            messages.push_back({row, piece.rows * 4, peer, owns(m) == back});
            bytes += piece.rows * 4;
        }
    }
    streams_.mesh.tp().exchange(streams_.comm(), back ? "muon results" : "muon sums", messages, bytes);
}

// The owner's matrix with its rows in one piece, from the pieces or back to them.
char* Muon::put_together(int round, const Matrix& m, bool apart) {
    char* pieces = whole(round, m);
    if (m.held.cols == m.cols) return pieces;  // rows lie one after the other
    for (int t = 0; t < tp_.size; ++t) {
        const MuonPiece& p = m.pieces[size_t(t)];
        if (p.holder != t) continue;
        char *piece = pieces + piece_at(m, t) * element_,
             *there = joined_.bytes_at((p.row * m.cols + p.col) * element_);
        copy_rows(streams_.compute, {.out = apart ? piece : there,
                                     .x = apart ? there : piece,
                                     .rows = p.rows,
                                     .columns = p.cols,
                                     .out_stride = apart ? p.cols : m.cols,
                                     .stride = apart ? m.cols : p.cols,
                                     .out_dtype = options_.muon.dtype,
                                     .dtype = options_.muon.dtype});
    }
    return static_cast<char*>(joined_.data());
}

void Muon::momentum(int round, const OwnedRange& r, int64_t by, const float* grad_scale, int64_t step) {
    muon_momentum(streams_.compute, {.out = own_part(round, matrices_[size_t(r.matrix)]) + by * element_,
                                     .m = r.m,
                                     .grad = r.grad,
                                     .grad_scale = grad_scale,
                                     .n = r.elements.size(),
                                     .first = r.global_offset,
                                     .momentum = options_.muon.momentum,
                                     .step = step,
                                     .seed = options_.rounding_seed,
                                     .out_dtype = options_.muon.dtype,
                                     .grad_dtype = options_.grad_dtype,
                                     .m_dtype = options_.adam_dtype});
}

void Muon::send(int round) {
    if (has_whole()) arrived_[size_t(round % 2)] = exchange(round, /*back=*/false);
}

void Muon::orthogonalise(int round, const float* grad_scale) {
    streams_.compute_waits(std::exchange(arrived_[size_t(round % 2)], Event()));
    const MuonOptions& o = options_.muon;
    for (const Matrix& m : matrices_) {
        if (!owns(m) || m.unit < first_unit(round) || m.unit >= end_unit(round)) continue;
        char* x = put_together(round, m, /*apart=*/false);
        newton_schulz(streams_.compute,
                      {.x = x,
                       .rows = m.rows,
                       .cols = m.cols,
                       .dtype = o.dtype,
                       .steps = o.polar_express ? polar_express_steps(o.steps) : jordan_steps(o.steps),
                       .margin = o.polar_express ? kPolarExpressMargin : 1.0f,
                       .work = work_.data()});
        if (has_rows())
            muon_rows(streams_.compute, {.x = x,
                                         .v = whole_rows(round, m),
                                         .grad_scale = grad_scale,
                                         .rows = m.rows,
                                         .cols = m.cols,
                                         .beta2 = o.beta2,
                                         .dtype = o.dtype,
                                         .work = work_.data()});
        put_together(round, m, /*apart=*/true);
    }
    if (exchanges()) returned_[size_t(round % slots())] = exchange(round, /*back=*/true);
}

void Muon::wait(int round) { streams_.compute_waits(std::exchange(returned_[size_t(round % slots())], Event())); }

static double scale_of(MuonScale scale, double rows, double cols) {
    switch (scale) {
        case MuonScale::match_rms_adamw:
            return 0.2 * std::sqrt(std::max(rows, cols));
        case MuonScale::original:
            return std::sqrt(std::max(1.0, rows / cols));
        case MuonScale::spectral_unclamped:
            return std::sqrt(rows / cols);
    }
    __builtin_unreachable();
}

void Muon::step(int round, const OwnedRange& r, int64_t by, const float* grad_scale, float learning_rate,
                float weight_decay, int64_t step) {
    const Matrix& m = matrices_[size_t(r.matrix)];
    const double rate = double(learning_rate) * double(options_.muon.rate);
    muon_step(streams_.compute, {.param = r.param,
                                 .master = r.master,
                                 .x = own_part(round, m) + by * element_,
                                 .grad_scale = grad_scale,
                                 .n = r.elements.size(),
                                 .first = r.global_offset,
                                 .keep = float(1 - (m.decays ? rate * double(weight_decay) : 0)),
                                 .rate = float(rate * scale_of(options_.muon.scale, double(m.rows), double(m.cols))),
                                 .step = step,
                                 .seed = options_.rounding_seed,
                                 .param_dtype = options_.param_dtype,
                                 .x_dtype = options_.muon.dtype,
                                 .master_dtype = options_.master_dtype});
}

}  // namespace rz
