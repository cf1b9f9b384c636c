#pragma once
// One row per tensor: the only place where a size, an offset or a name of a parameter is written.
//
// All parameters lie in one flat buffer, in the order in which the forward pass uses them. A unit is a contiguous run
// that is needed together: unit 0 the embedding, units 1..L the blocks, unit L+1 the final norm and the head (only the
// norm if the head is tied: the embedding then has two uses). Gradients, master weights and Adam's moments use the same
// offsets.
//
// There is no padding between the tensors of a unit; how it ends and is cut is zero/unit_layout.h's. Padding is
// initialised to zero and stays zero.
//
// A rank may hold a part of it (LocalShard): some units, some rows or columns of a tensor. Tensors, shapes, offsets are
// then still those of the whole model (logical); what is held lies, piece by piece in the same order, in a local flat
// buffer (physical), whose units begin at 0. for_each_run() is the one way from the one to the other: initialisation,
// files, hashes and checks walk parameters with it, so that files hold whole tensors whoever holds them.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llama/model/config.h"
#include "zero/unit_layout.h"

namespace rz {

enum class Init { kNormal, kOnes };

// How the holders of a unit share a tensor: by rows (the outputs of a matrix), by columns (its inputs; the elements of
// a vector), or each has it whole.
enum class Split { none, rows, cols };

struct Tensor {
    std::string name;            // Hugging Face's
    std::vector<int64_t> shape;  // row-major, [out, in] for matrices
    int unit;
    int64_t offset;  // elements, in the flat buffer
    int64_t size;    // elements
    bool decay;      // matrices decay, norms don't
    Init init;
    double init_std;  // of kNormal
    Split split;
    int64_t grain;  // rows or columns that stay together: those of a head
};

// This rank's part of the table.
struct LocalShard {
    std::vector<int> units = {};   // ascending; none: all of them
    int part = 0, parts = 1;       // of every tensor that is split
    std::vector<int> copies = {};  // of the units, those that a rank of another stage counts and writes
    int sharers = 1;               // ranks that each unit is cut for, which hold the very same
};

// The held part of a tensor: `rows` x `cols` elements from `first` on, one row `stride` elements after the other in the
// tensor; adjacent from `local` on in the local flat buffer. A vector is one row.
struct TensorShard {
    int tensor;
    int64_t rows, cols, first, stride, local;
    bool owned;                     // of the holders of the same elements, this one counts and writes them
    int first_part = 0, parts = 1;  // who holds them: neighbouring parts
    int64_t size() const { return rows * cols; }
};

// Elements [first, first + count) of a tensor that lie at [local, local + count) in the local flat buffer.
struct TensorRun {
    int tensor;
    int64_t first, count, local;
    bool owned;
};

// "embedding", "block 3", "head"; where it lies, its blocks and its slices.
struct Unit : UnitLayout {
    int first_tensor, tensors;
};

// The tensors of a block, in buffer order: q, k, v are adjacent (one GEMM of (H + 2K) D rows), so are gate and up (2F
// rows), and the biases of q, k, v. Those after kDown are not in every model; their sizes need not be multiples of 8,
// so they come last.
enum BlockTensor {
    kNorm1,  // of what attention reads, or of what it adds
    kQ,
    kK,
    kV,
    kO,
    kNorm2,  // of the MLP, likewise
    kGate,
    kUp,
    kDown,
    kQBias,
    kKBias,
    kVBias,
    kQNorm,
    kKNorm,
    kBlockTensors
};

class ParamTable {
   public:
    explicit ParamTable(const ModelConfig& config, LocalShard holding = {});  // resolved

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const std::vector<Unit>& units() const { return units_; }
    int64_t size() const { return size_; }              // elements of the flat buffer, with padding
    int64_t parameters() const { return parameters_; }  // elements of all tensors

    // nullptr if there is none of this name.
    const Tensor* find(std::string_view name) const;
    // A matrix of a block: what Muon updates.
    bool is_block_matrix(const Tensor& t) const {
        return t.shape.size() == 2 && t.unit > 0 && t.unit + 1 < int(units_.size());
    }

    const Tensor& embedding() const { return tensors_.front(); }
    const Tensor& block(int64_t layer, BlockTensor which) const;  // has() it
    bool has(BlockTensor which) const { return places_[which] >= 0; }
    const Tensor& final_norm() const;
    const Tensor& head() const;  // the embedding if tied
    bool tied() const { return tied_; }

    // The part of a tensor whose unit the rank holds, and how many elements after the beginning of what
    // it has of that unit; the padded elements of such a unit.
    TensorShard part_of(const Tensor&) const;
    // The same of another part; `local` is not its own.
    TensorShard part_of(const Tensor&, int part) const;
    int64_t within(const Tensor& t) const { return within_[size_t(&t - tensors_.data())]; }
    int64_t part_padded(int unit) const { return part_padded_[size_t(unit)]; }
    const LocalShard& holding() const { return holding_; }

    // Units held, at local offsets, each with its own padding; pieces in the order of the local buffer.
    const std::vector<UnitLayout>& held_units() const { return held_units_; }
    const std::vector<TensorShard>& held() const { return held_; }
    // Calls body for what lies in [begin, end) of the local flat buffer, ascending, in runs of at most `most` elements;
    // padding is left out.
    void for_each_run(int64_t begin, int64_t end, int64_t most,
                      const std::function<void(const TensorRun&)>& body) const;

    // Maximal runs with the same weight decay and rate (padding joins the run before it), in logical offsets: a held
    // unit's elements count from its logical offset. `end` is exclusive. What AdamW's segments are made of.
    struct DecaySegment {
        int64_t end;
        bool decay;
        double rate = 1;
    };
    // `embedding_decays` false: the embedding is left out, and with it a tied head.
    // `rates`: by tensor; none: 1.
    std::vector<DecaySegment> decay_segments(bool embedding_decays = true, const std::vector<double>& rates = {}) const;

   private:
    void add(std::string name, std::vector<int64_t> shape, Init init, double init_std = 0, Split split = Split::none,
             int64_t grain = 1);
    void end_unit(std::string name);
    void add_tensors(const ModelConfig&);
    void cut(const LocalShard&);
    void hold();
    TensorShard piece_of(int tensor, int64_t local, int part) const;

    std::vector<Tensor> tensors_;
    std::vector<Unit> units_;
    LocalShard holding_;
    std::vector<int64_t> within_, part_padded_;  // by tensor; by unit
    std::vector<UnitLayout> held_units_;
    std::vector<TensorShard> held_;
    std::unordered_map<std::string, int> by_name_;
    int64_t size_ = 0, parameters_ = 0;
    int64_t unit_size_ = 0;      // of the unit that is being filled
    int places_[kBlockTensors];  // in a block's unit; -1: not in this model
    bool tied_;
};

}  // namespace rz
