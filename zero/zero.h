#pragma once
// Who owns which bytes of the flat buffers, when they are gathered and released, when gradients are reduced, and the
// AdamW step on what a rank owns. ZeRO: Rajbhandari et al. 2020.
//
//   stage   parameters   gradients   master, m, v   communication per step of M micro-batches, in passes over the
//                                                   parameters
//     0     whole        whole       whole          all-reduce (2)
//     1     whole        whole       own slices     reduce-scatter + all-gather (2)
//     2     whole        own slices  own slices     M reduce-scatters + all-gather (M + 1); 2 if accumulated locally
//     3     own slices   own slices  own slices     2M all-gathers + M reduce-scatters (3M)
//
// A pass sends (N - 1) / N of the parameters (bytes of param_dtype or wire_dtype). Stage 3's backward pass gathers
// blocks only: the last unit is still there and the embedding is not read (test/zero/test_zero_program.cpp has the
// bytes to the last one).
//
// A rank owns one slice of every unit (unit_layout.h), never one range of the whole: a gather then uses every link.
// Units are those that this rank holds, at the offsets of its own flat buffer; where a pipeline shares them out, they
// keep the logical offsets of the whole model, which draw the stochastic rounding and order the sums of the gradient
// norm, so that neither depends on the pipeline.
//
// Whoever runs the model announces three things about a unit and never waits by itself:
//
//   gather(u)     its parameters will be read: the all-gather starts
//   release(u)    the compute work enqueued so far was the last to read them until the next gather
//   reduce(u)     the compute work enqueued so far has completed its gradients
//
// and asks for memory: parameters(u) makes the compute stream wait until they are whole, gradients(u) is where they
// add.
//
// Everything here enqueues and returns. Work on the compute stream is ordered with the communication stream by events.
//
// Hybrid sharding: slices are among the ranks of a row of the mesh, and rows hold the same. Gradients are
// reduce-scattered in the row, then the slices all-reduced along the column.
//
// Bits. With one micro-batch and no hybrid sharding all stages sum each gradient element in the same order, so they
// give the same weights to the bit, whatever the prefetch, overlap or chunk size. With M > 1, stages 0 and 1 add
// micro-batches locally and reduce once; stages 2 and 3 reduce every micro-batch into the own slice, which sums in
// another order, unless `accumulate_locally` spends the memory of whole gradients to keep the first order.

#include <functional>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "comm/meter.h"
#include "kernels/runtime/memory.h"
#include "zero/unit_layout.h"
#include "zero/unit_pool.h"

namespace rz {

struct ZeroOptions {
    int stage = 0;
    DType param_dtype = DType::f32;
    DType grad_dtype = DType::f32;
    DType wire_dtype = DType::f32;    // gradients on the wire
    DType master_dtype = DType::f32;  // == param_dtype: the parameters are their own masters.
    DType adam_dtype = DType::f32;    // of m and v
    uint64_t rounding_seed = 0;       // of the stochastic rounding of bf16 masters and moments
    int prefetch = 1;                 // stage 3: units gathered ahead of use
    bool overlap = true;              // false: compute waits for each collective
    bool accumulate_locally = false;  // stages 2, 3: keep whole gradients until the last micro-batch
};

struct AdamWOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_norm = 1.0f;  // of the global gradient; <= 0 clips nothing
};

// Which logical offsets decay: runs in ascending order that cover the units.
struct DecaySegments {
    std::vector<int64_t> end;
    std::vector<uint8_t> decays;
};

// One run of parameters that this rank keeps the optimizer state of.
struct OwnedRange {
    int unit;
    ElementRange elements;  // within the unit; not empty
    int64_t local;          // offset of the first element in the flat buffer of this rank
    int64_t logical;        // and in that of the whole model
    void* param;            // param_dtype
    void* master;           // master_dtype; == param where the two have the same dtype
    void* m;                // adam_dtype
    void* v;                // adam_dtype
    void* grad;             // grad_dtype: the reduced gradient, once reduce() is done
};

// Where parameters are found.
class ParameterSource {
   public:
    virtual ~ParameterSource() = default;
    virtual void gather(int unit) = 0;
    // Parameters of the unit, `padded` elements; valid on the compute stream from here until release(u). Where units
    // are gathered, only after gather(u).
    virtual const void* parameters(int unit) = 0;
    virtual void release(int unit) = 0;
    // How many units of one size can be whole at once; 0: parameters are always whole, and gather and release do
    // nothing.
    virtual int gathered_at_once() const = 0;
};

// Where gradients are added.
class GradientSink {
   public:
    virtual ~GradientSink() = default;
    // Where the unit's gradients are added (+=), grad_dtype, `padded` elements; zero at the start of each step. Valid
    // until reduce(u).
    virtual void* gradients(int unit) = 0;
    // `last`: of the step. Where gradients are kept whole there is no other.
    virtual void reduce(int unit, bool last) = 0;
    virtual bool reduces_each_micro_batch() const = 0;
};

// All parameters in memory and nothing else: for generation.
class ResidentParameters : public ParameterSource {
   public:
    ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype);
    void gather(int) override {}
    const void* parameters(int unit) override { return bytes(unit); }
    void release(int) override {}
    int gathered_at_once() const override { return 0; }
    char* bytes(int unit) const { return params_.bytes_at(units_[size_t(unit)].offset * size_of(dtype_)); }

   private:
    std::vector<UnitLayout> units_;
    DType dtype_;
    Buffer params_;
};

class Zero : public ParameterSource, public GradientSink {
   public:
    // `mesh` outlives this. `meter` may be nullptr.
    Zero(Device device, Stream& compute, std::vector<UnitLayout> units, const DecaySegments& decay, ZeroOptions options,
         AdamWOptions adamw, Mesh& mesh, CommMeter* meter = nullptr);
    ~Zero() override;

    void gather(int unit) override;
    const void* parameters(int unit) override;
    void release(int unit) override;
    int gathered_at_once() const override;
    void* gradients(int unit) override;
    void reduce(int unit, bool last) override;
    bool reduces_each_micro_batch() const override { return !whole_gradients(); }

    // Clips by the global norm and updates what this rank owns. A non-finite gradient leaves every bit of the state.
    // `step` counts from 1 and draws the stochastic rounding. AdamW's bias correction goes by the updates that were
    // made, which only the device counts.
    void update(float learning_rate, int64_t step);
    // (1) int64 on the device: updates made, valid on the compute stream after update().
    const int64_t* updates() const { return count_.as<int64_t>(); }
    void set_updates(int64_t updates);  // for resuming; waits for the compute stream
    // (1) f32 on the device, valid on the compute stream after update().
    const float* grad_norm() const { return scalars_.as<float>(); }

    // For initialisation, checkpoints and export. Masters may be written through these on the compute stream; publish()
    // then rounds them into the parameters of every rank. Elements beyond the unit's size must stay zero.
    const std::vector<OwnedRange>& owned() const { return owned_; }
    void publish();

    const std::vector<UnitLayout>& units() const { return units_; }
    const ZeroOptions& options() const { return options_; }
    // Elements whose gradients, masters and moments this rank keeps.
    // How many ranks keep the very same, and which of them this one is: they share the work of writing it.
    int holders() const { return copies().size(); }
    int holder() const { return copies().rank(); }
    const Mesh& mesh() const { return mesh_; }

   private:
    struct UnitState {
        std::vector<int64_t> slices;  // offsets within the unit, ranks of the row + 1
        std::vector<int64_t> across;  // the own slice, cut for the column's all-reduce
        int64_t own_at = 0;           // elements before the own slice in buffers that hold only own slices
        Event own_ready = {};         // stage 3: the own slice's parameters are final
        Event ready = {};             // parameters are whole
        Event reduced = {};           // gradients are summed
        bool slices_begun = false;    // the own slice holds earlier micro-batches of this step
    };

    bool slices_state() const { return options_.stage >= 1; }
    const Collectives& copies() const { return slices_state() ? mesh_.replicate() : mesh_.data(); }
    bool whole_gradients() const { return options_.stage <= 1 || options_.accumulate_locally; }
    bool whole_parameters() const { return options_.stage <= 2; }
    ElementRange own(int unit) const;
    void allocate(const DecaySegments& decay);
    void index_owned();
    void index_block_sums();
    std::vector<int64_t> gather_stages(const std::vector<int64_t>& own);
    void reduce_slices(int unit, void* whole, bool last);
    void compute_waits(const Event& event);
    void sum_blocks();
    void update_range(const OwnedRange& range, int64_t elements, float learning_rate, int64_t step);
    void update_whole(float learning_rate, int64_t step);
    void update_slices(const std::function<void(const OwnedRange&)>& change);
    void spread_parameters(int unit);

    Device device_;
    Stream& compute_;
    Stream* comm_;  // the mesh's
    std::vector<UnitLayout> units_;
    ZeroOptions options_;
    AdamWOptions adamw_;
    Mesh& mesh_;
    CommMeter* meter_;
    int row_rank_, row_size_;            // among those that share slices
    int64_t total_ = 0, own_total_ = 0;  // padded elements: of all units, of own slices

    Buffer params_, grads_, own_grads_, master_, m_, v_, arrived_;
    UnitPool gathered_, unreduced_;
    std::vector<UnitState> state_;
    std::vector<OwnedRange> owned_;

    Buffer segment_end_, segment_decays_, scalars_;
    Buffer count_;  // int64 updates made, double[2] bias correction
    int64_t segments_ = 0;
    // The sums of the gradient norm's blocks: doubles, stage by stage, rank by rank in a stage; and int32, from logical
    // order to that. Offsets are in halves of a double.
    Buffer block_sums_, block_order_;
    std::vector<int64_t> row_sums_, stage_sums_;  // per rank of the row, within a stage; per rank of the pp axis
    int64_t blocks_ = 0;
};

}  // namespace rz
