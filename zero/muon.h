#pragma once
// Muon's half of an update: who orthogonalises which matrix, and how sums and results travel. Slices cut matrices, and
// Newton-Schulz needs a whole one, so each matrix has one owner among the ranks that a unit is cut for:
//
//   momentum(), send(round)   momentum on slices; the sums go to the matrices' owners        compute, then comm
//   orthogonalise(round)      the owner's products; the result goes to whoever has a part    compute, then comm
//   wait(round), step()       slices move by their part of the result                        compute
//
// A round is a run of units with matrices enough for all ranks. The rounds overlap: while one is orthogonalised, the
// next one's sums and the last one's results travel. Where the state is whole on every rank (stage 0) nothing goes to
// the owner, which sends what it made to all.
//
// If the tp axis cuts matrices too, the owner is one rank of both: slices go to the rank of their piece that has the
// owner's place in the first group, and pieces from there along the tp axis; results take the same way back. Pieces of
// columns are put together, and apart, by the owner.
//
// Sums and results travel in the type of the products: bf16, or fp32 where these are. Padding is in no matrix. A
// matrix's bits depend on its gradient alone: not on the slices, nor on who owns it. NorMuon's moment of a row lies
// with the slice in which the row begins, goes to the owner beside the sums, and comes back beside the results.

#include <array>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "zero/state.h"
#include "zero/streams.h"

namespace rz {

class Muon {
   public:
    // `ownership` and `options` outlive this.
    Muon(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams);
    ~Muon();

    // All units have their matrices in one row.
    struct Matrix : MuonMatrix {
        int unit = 0, owner = 0;    // a rank of those that the unit is cut for
        int of_tp = 0;              // and of the tp axis, where that cuts the matrix
        int64_t at = 0;             // where it lies among the owner's of a round, in bytes
        int64_t own_at = 0;         // where this rank's part lies among those of a round, in bytes
        int64_t rows_at = 0;        // NorMuon's moments, as `at`
        float* own_rows = nullptr;  // those of this rank's part: its state
    };
    const std::vector<Matrix>& matrices() const { return matrices_; }

    int rounds() const { return int(rounds_.size()); }
    int first_unit(int round) const { return rounds_[size_t(round)]; }
    int end_unit(int round) const {
        return round + 1 < rounds() ? rounds_[size_t(round) + 1] : int(ownership_.units().size());
    }
    bool exchanges() const { return ranks_ > 1 || tp_.size > 1; }

    // Rows of NorMuon's moments of a matrix, of this rank's part of it.
    void keep_rows(int matrix, float* rows) { matrices_[size_t(matrix)].own_rows = rows; }
    // Momentum of a part of this rank's part of a matrix; `by`: elements from the beginning of that on.
    void momentum(int round, const OwnedRange& part, int64_t by, const float* grad_scale, int64_t step);
    void send(int round);
    void orthogonalise(int round, const float* grad_scale);
    void wait(int round);
    // The same, where wait() has passed.
    void step(int round, const OwnedRange& part, int64_t by, const float* grad_scale, float learning_rate,
              float weight_decay, int64_t step);

   private:
    void choose_rounds();
    void choose_owners();
    void reserve();
    Event exchange(int round, bool back);
    void exchange_slices(int round, bool back);
    void exchange_pieces(int round, bool back);
    ElementRange part(int rank, const Matrix& m) const;
    int64_t piece_at(const Matrix& m, int of_tp) const;
    bool owns(const Matrix& m) const { return m.owner == rank_ && m.of_tp == tp_.rank; }
    // In memory of its own.
    bool has_whole() const { return (ownership_.shard_groups().sharded && ranks_ > 1) || tp_.size > 1; }
    int slots() const { return exchanges() ? 3 : 1; }
    bool has_rows() const { return options_.muon.beta2 > 0; }
    char* own_part(int round, const Matrix& m) { return parts_[size_t(round % slots())].bytes_at(m.own_at); }
    // For the owner all pieces, one after the other; for the others that gather a piece, that.
    char* whole(int round, const Matrix& m) {
        return has_whole() ? whole_[size_t(round % 2)].bytes_at(m.at) : own_part(round, m);
    }
    float* whole_rows(int round, const Matrix& m) {
        return has_whole() ? reinterpret_cast<float*>(whole_[size_t(round % 2)].bytes_at(m.rows_at)) : m.own_rows;
    }
    char* held(int round, const Matrix& m) {
        return whole(round, m) + (owns(m) ? piece_at(m, tp_.rank) * element_ : 0);
    }
    float* held_rows(int round, const Matrix& m) { return whole_rows(round, m) + (owns(m) ? m.held.row : 0); }
    char* put_together(int round, const Matrix& m, bool apart);

    const Ownership& ownership_;
    const ZeroOptions& options_;
    ZeroStreams streams_;
    int ranks_, rank_;
    AxisRank tp_;      // the ranks that have pieces; alone where none are to be put together
    int64_t element_;  // bytes
    std::vector<Matrix> matrices_;
    std::vector<int> rounds_;        // the first unit of each
    std::array<Buffer, 3> parts_;    // of this rank's slices, by round
    std::array<Event, 3> returned_;  // the results are there
    std::array<Buffer, 2> whole_;    // the matrices that this rank owns
    std::array<Event, 2> arrived_;   // the sums are there
    Buffer joined_;                  // a matrix whose pieces are columns
    Buffer work_;
};

}  // namespace rz
