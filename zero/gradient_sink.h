#pragma once
// The gradients' place, for whoever runs the model and adds them.

namespace rz {

// Everything enqueues and returns.
class GradientSink {
   public:
    virtual ~GradientSink() = default;
    // Address where the unit's gradients are added (+=), in GradientStore's type, `padded` elements; zero at the
    // start of each step. Valid until reduce(u).
    virtual void* gradients(int unit) = 0;
    // The compute work enqueued so far has completed the unit's gradients. `last`: of the step. Where gradients are
    // kept whole there is no other.
    virtual void reduce(int unit, bool last) = 0;
    virtual bool reduces_each_micro_batch() const = 0;
};

}  // namespace rz
