#pragma once
// A host for the executor whose work takes no time but adds its cost to the rank's clock, and whose messages carry
// the time at which they arrive. What the clocks show in the end depends on nothing but the order in which the executor
// lets things happen, so it must equal the simulator's makespan to the tick.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "kernels/runtime/check.h"
#include "llama/parallel/executor.h"
#include "llama/parallel/pipeline_program.h"

namespace rz {

class VirtualTime : public ProgramHost {
   public:
    VirtualTime(const RankProgram& rank, const PipelineCosts& costs, Stream& compute)
        : shape_(rank.shape), costs_(costs), compute_(compute) {
        for (const StageSlots& s : rank.program.slots)
            for (int slot = 0; slot < s.forward; ++slot)
                for (const Boundary b : {Boundary::input, Boundary::output, Boundary::gradient})
                    tensors_[{b, s.stage, slot}] = Tensor{};
    }

    void compute(const Instr& i) override {
        const StageUnits& s = shape_.stage(i.stage);
        const bool forward = i.what == Do::forward, weight = i.what == Do::weight_grad;
        const bool begins = forward ? i.first_unit == s.first_unit : i.last_unit == s.last_unit;
        const bool ends = forward ? i.last_unit == s.last_unit : i.first_unit == s.first_unit;
        Tensor* in = nullptr;
        Tensor* out = nullptr;
        if (begins && forward && s.first_unit > 0) in = at(Boundary::input, i);
        if (begins && !forward && !weight && s.last_unit < shape_.last_unit()) in = at(Boundary::gradient, i);
        if (ends && !weight) out = at(forward ? Boundary::output : Boundary::gradient, i);
        const int64_t cost = begins ? cost_of(i) : 0;
        const Tensor expected{0, i.stage + (forward ? -1 : 1), i.micro_batch, forward};
        compute_.enqueue_host([=, this] {
            if (in) {
                EXPECT_EQ(in->stage, expected.stage) << describe(i);
                EXPECT_EQ(in->micro_batch, expected.micro_batch) << describe(i);
                EXPECT_EQ(in->forward, expected.forward) << describe(i);
                clock_ = std::max(clock_, in->time);
            }
            clock_ += cost;
            if (out) *out = {clock_, i.stage, i.micro_batch, forward};
        });
    }

    void before_message(const Instr& i, Stream& lane) override {
        if (i.what != Do::send) return;
        Tensor* t = at(i.last_unit > i.first_unit ? Boundary::output : Boundary::gradient, i);
        int64_t* free = &lane_free_[i.lane];
        lane.enqueue_host([=, this] { *free = t->time = std::max(t->time, *free) + costs_.message; });
    }

    void* boundary(Boundary b, int stage, int slot) override { return &tensors_.at({b, stage, slot}); }
    int64_t boundary_bytes(int) override { return sizeof(Tensor); }

    // After the streams are synchronised.
    int64_t clock() const { return clock_; }

   private:
    struct Tensor {
        int64_t time = -1;
        int32_t stage = -1, micro_batch = -1, forward = 0;
    };
    struct Key {
        Boundary which;
        int stage, slot;
        auto operator<=>(const Key&) const = default;
    };

    Tensor* at(Boundary b, const Instr& i) { return &tensors_.at({b, i.stage, i.slot}); }
    int64_t cost_of(const Instr& i) const {
        const size_t s = size_t(i.stage);
        switch (i.what) {
            case Do::forward:
                return costs_.forward[s];
            case Do::input_grad:
                return costs_.input[s];
            case Do::weight_grad:
                return costs_.weight[s];
            case Do::backward:
                return costs_.input[s] + costs_.weight[s];
            case Do::gather:
            case Do::recv:
            case Do::send:
            case Do::release:
            case Do::reduce:
                break;
        }
        fail("%s does not compute", describe(i).c_str());
    }

    StepShape shape_;
    PipelineCosts costs_;
    Stream& compute_;
    std::map<Key, Tensor> tensors_;
    std::map<int, int64_t> lane_free_;  // by peer
    int64_t clock_ = 0;
};

// Two units a stage, and the embedding and the head.
inline PipelineProgramOptions two_blocks_a_stage(const PipelineSchedule& s) {
    PipelineProgramOptions o;
    const int blocks = 2 * s.stages;
    o.unit_bytes.assign(size_t(blocks) + 2, 300);
    o.unit_bytes.front() = 100, o.unit_bytes.back() = 110;
    for (int stage = 0; stage < s.stages; ++stage)
        o.cut.push_back({stage, stage == 0 ? 0 : 2 * stage + 1, stage == s.stages - 1 ? blocks + 1 : 2 * stage + 2});
    return o;
}

// Runs the rank's program on the mesh's pp axis, `steps` times, and waits until all is done. `enqueued` is called when
// all of them are under way.
inline void run_to_end(const RankProgram& mine, ProgramHost& host, Stream& compute, Mesh& mesh, int steps = 1,
                       const std::function<void()>& enqueued = nullptr) {
    Executor executor(compute, mesh.pp().size() > 1 ? &mesh : nullptr);
    for (int n = 0; n < steps; ++n) executor.run(mine, host);
    if (enqueued) enqueued();
    compute.synchronize();
    for (const Instr& i : mine.program.code)
        if (i.what == Do::send) mesh.link_to(i.lane).stream().synchronize();
}

// The clock of this rank after that.
inline int64_t virtual_clock(const std::vector<RankProgram>& programs, const PipelineCosts& costs, Mesh& mesh,
                             int steps, const std::function<void()>& enqueued = nullptr) {
    const RankProgram& mine = programs[size_t(mesh.pp().rank())];
    Stream compute({DeviceKind::cpu, 0}, "compute");
    VirtualTime host(mine, costs, compute);
    run_to_end(mine, host, compute, mesh, steps, enqueued);
    return host.clock();
}

}  // namespace rz
