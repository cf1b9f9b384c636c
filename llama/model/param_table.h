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

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llama/model/config.h"
#include "zero/unit_layout.h"

namespace rz {

enum class Init { kNormal, kOnes };

struct Tensor {
    std::string name;            // Hugging Face's
    std::vector<int64_t> shape;  // row-major, [out, in] for matrices
    int unit;
    int64_t offset;  // elements, in the flat buffer
    int64_t size;    // elements
    bool decay;      // matrices decay, norms don't
    Init init;
    double init_std;  // of kNormal
};

// "embedding", "block 3", "head"; where it lies, its blocks and its slices.
struct Unit : UnitLayout {
    int first_tensor, tensors;
};

// The tensors of a block, in buffer order: q, k, v are adjacent (one GEMM of (H + 2K) D rows), so are gate and up (2F
// rows).
enum BlockTensor { kInputNorm, kQ, kK, kV, kO, kPostNorm, kGate, kUp, kDown, kBlockTensors };

class ParamTable {
   public:
    explicit ParamTable(const ModelConfig& config);  // resolved

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const std::vector<Unit>& units() const { return units_; }
    int64_t size() const { return size_; }              // elements of the flat buffer, with padding
    int64_t parameters() const { return parameters_; }  // elements of all tensors

    // nullptr if there is none of this name.
    const Tensor* find(std::string_view name) const;

    const Tensor& embedding() const { return tensors_.front(); }
    const Tensor& block(int64_t layer, BlockTensor which) const;
    const Tensor& final_norm() const;
    const Tensor& head() const;  // the embedding if tied
    bool tied() const { return tied_; }

    // Maximal runs of the flat buffer with the same weight decay (padding joins the run before it): `end` is exclusive,
    // the last one is size(). What AdamW's segments are made of.
    struct DecaySegment {
        int64_t end;
        bool decay;
    };
    std::vector<DecaySegment> decay_segments() const;

   private:
    void add(std::string name, std::vector<int64_t> shape, Init init, double init_std = 0);
    void end_unit(std::string name);

    std::vector<Tensor> tensors_;
    std::vector<Unit> units_;
    std::unordered_map<std::string, int> by_name_;
    int64_t size_ = 0, parameters_ = 0;
    int64_t unit_size_ = 0;  // of the unit that is being filled
    bool tied_;
};

}  // namespace rz
