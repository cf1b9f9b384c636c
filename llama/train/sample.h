#pragma once
// Samples during training: how and when they are drawn, on the weights as they are, whatever the ranks share.

#include <optional>

#include "llama/model/generate.h"
#include "llama/train/train_state.h"
#include "llama/train/options_train.h"
#include "zero/gathered_units.h"

namespace rz {

// Takes its memory with the first sample and gives it back with the last: one for each sample.
class SampleDecoder {
   public:
    // The core outlives this. Collective, as every append() is.
    SampleDecoder(TrainState&, int64_t positions);
    Decoder& decoder() { return decoder_; }

   private:
    std::optional<GatheredUnits> whole_;  // where units are gathered in fp8
    Decoder decoder_;
};

// True: the validation with this number, from 0 on, prints a sample. The one before the first step does not.
inline bool samples_at(const TrainOptions& o, int64_t validation, int64_t step) {
    return o.sample_every > 0 && validation % o.sample_every == 0 && step > 0;
}
// True: a run that begins with this step, after so many validations, prints any.
bool draws_samples(const TrainOptions&, int64_t first_step = 1, int64_t validations = 0);

}  // namespace rz
