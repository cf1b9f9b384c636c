#pragma once
// Who owns which bytes of the flat buffers, when they are gathered and released, when gradients are reduced, and the AdamW
// step on what a rank owns. ZeRO: Rajbhandari et al. 2020.
//
//   stage   parameters   gradients   master, m, v      wire volume per step (elements, one micro-batch)
//     0     whole        whole       whole             all-reduce
//     1     whole        whole       own slices        reduce-scatter + all-gather
//     2     whole        own slices  own slices        reduce-scatter + all-gather
//     3     own slices   own slices  own slices        2 all-gathers + reduce-scatter
//
// A rank owns one slice of every unit (unit_layout.h), never one range of the whole: a gather then uses every link.
// The model announces three things about a unit and never waits by itself:
//
//   gather(u)     its parameters are read by compute work enqueued after this call
//   release(u)    the compute work enqueued so far was the last to read them for now
//   reduce(u)     the compute work enqueued so far has completed its gradients
//
// Everything here enqueues and returns. Work on the compute stream is ordered with the communication stream by events.

#include <memory>
#include <vector>

#include "kernels/runtime/memory.h"
#include "zero/unit_layout.h"

namespace rz {

struct ZeroOptions {
    int stage = 0;
    DType param_dtype = DType::f32;
    DType grad_dtype = DType::f32;
};

struct AdamWOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_norm = 1.0f;  // of the global gradient; <= 0 clips nothing
};

// Which logical offsets decay: runs in ascending order that cover the flat buffer.
struct DecaySegments {
    std::vector<int64_t> end;
    std::vector<uint8_t> decays;
};

// One run of parameters that this rank keeps the optimizer state of.
struct OwnedRange {
    int unit;
    ElementRange elements;   // within the unit
    int64_t logical;  // offset of the first element in the flat buffer
    void* param;      // param_dtype
    float* master;    // == param with fp32 parameters
    float* m;
    float* v;
};

// Where a forward pass finds parameters.
class ParameterSource {
   public:
    virtual ~ParameterSource() = default;
    // Parameters of the unit, `padded` elements; valid on the compute stream until release(u).
    virtual const void* gather(int unit) = 0;
    virtual void release(int unit) = 0;
};

// All parameters in memory and nothing else: for generation.
class ResidentParameters : public ParameterSource {
   public:
    ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype);
    const void* gather(int unit) override { return bytes(unit); }
    void release(int) override {}
    char* bytes(int unit) const { return params_.bytes_at(units_[size_t(unit)].offset * size_of(dtype_)); }

   private:
    std::vector<UnitLayout> units_;
    DType dtype_;
    Buffer params_;
};

class Zero : public ParameterSource {
   public:
    Zero(Device device, Stream& compute, std::vector<UnitLayout> units, const DecaySegments& decay, ZeroOptions options,
         AdamWOptions adamw);
    ~Zero() override;

    const void* gather(int unit) override;
    void release(int unit) override;
    // Where the unit's gradients are added (+=), grad_dtype, `padded` elements; zero at the start of each step.
    void* gradients(int unit);
    void reduce(int unit);

    // Clips by the global norm and updates what this rank owns. A non-finite gradient leaves every bit of the state.
    // `step` counts updates from 1.
    void update(float learning_rate, int64_t step);
    // (1) f32 on the device, valid on the compute stream after update().
    const float* grad_norm() const;

    // For initialisation, checkpoints and export. Masters may be written through these; publish() then rounds them into the
    // parameters. Elements beyond the unit's size must stay zero.
    const std::vector<OwnedRange>& owned() const { return owned_; }
    void publish();

    const std::vector<UnitLayout>& units() const { return units_; }
    const ZeroOptions& options() const { return options_; }

   private:
    Device device_;
    Stream& compute_;
    std::vector<UnitLayout> units_;
    ZeroOptions options_;
    AdamWOptions adamw_;
    int64_t total_ = 0;  // padded elements of all units
    Buffer params_, grads_, master_, m_, v_;
    Buffer segment_end_, segment_decays_, partial_sums_, scalars_;
    int64_t segments_ = 0;
    std::vector<OwnedRange> owned_;
};

}  // namespace rz
