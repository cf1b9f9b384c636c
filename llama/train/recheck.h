#pragma once
// --recheck-every: a step is computed twice from the same state and the same batches, and every bit of this rank's
// gradients, before they are summed over the ranks, and of its loss must be the same. All of ringzero's work is, so a
// difference is a fault of the device or its memory.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/process.h"
#include "llama/train/train_state.h"

namespace rz {

constexpr int64_t kRecheckPiece = int64_t(16) << 20;  // bytes of a GPU's gradients that are looked at at a time

class Recheck {
   public:
    // Both outlive this.
    Recheck(Process& process, TrainState& core);
    ~Recheck();
    Recheck(const Recheck&) = delete;
    Recheck& operator=(const Recheck&) = delete;

    // The forward and backward pass of a step for the first time; its gradients are thrown away. Collective.
    void compute_twice(const PassArgs&, const Model::Batches&);
    // From here on the step counts.
    void begin() { pass_ = &second_; }
    // After it: "" or the ranks whose bits differ, and where. Collective, the same on all ranks.
    std::string compare();

   private:
    struct Bits {
        std::vector<std::pair<int, uint64_t>> units;  // in the order of the program
        double loss = 0;
    };
    void see(int unit, void* gradients);
    double loss();
    std::string difference() const;

    Process& process_;
    TrainState& core_;
    Buffer staging_;  // of a device's gradients
    Bits first_, second_;
    Bits* pass_ = nullptr;  // that is under way
};

}  // namespace rz
