#pragma once
// A rank's part of the model, and what the instructions of a program do to it. Parameters and gradients belong to
// zero/; nothing here knows which rank it is.

#include <functional>
#include <memory>
#include <vector>

#include "llama/model/mup.h"
#include "llama/model/stage.h"
#include "llama/parallel/executor.h"
#include "llama/parallel/program.h"
#include "zero/zero.h"

namespace rz {

class Model {
   public:
    // The whole model as one stage. `gradients` may be nullptr: forward only. All references outlive this.
    Model(const ModelConfig&, const ParamTable&, const StageOptions&, Device, Stream& compute, ParameterSource&,
          GradientSink* gradients);

    // One rank of a pipeline: its stages, and its programs of a step and of the evaluation of a micro-batch.
    // Collective: all ranks of the pp axis run the same ones in the same order.
    Model(const ModelConfig&, const ParamTable&, const StageOptions&, const RankProgram& training,
          const RankProgram& evaluation, Mesh&, Device, Stream& compute, ParameterSource&, GradientSink*);
    // When the tasks of the latest step were, of a pipeline or after keep_times(); readable when its work is done.
    void keep_times() { executor_.keep_times(); }
    StepEvents take_times() { return executor_.take_times(); }
    // Micro-batches whose data must be on the device at once.
    int64_t batches_held() const;
    // Micro-batches of a step in the order in which their data are asked for.
    std::vector<int64_t> micro_batch_order(const RankProgram&) const;

    // The program of a step of so many micro-batches; checked. A pipeline has one, whose number is its own.
    RankProgram training_program(int64_t micro_batches) const;

    // Begins a program, whose instructions the caller enqueues one by one (llama/parallel/executor.h). `batch` is asked
    // for each micro-batch once, when the first of its instructions comes that needs it; what it returns must stay
    // valid until the program's last instruction of that micro-batch. One run at a time; this and the program outlive
    // it.
    using Batches = std::function<DeviceBatch(int64_t micro_batch)>;
    ProgramRun begin(const RankProgram&, const PassArgs&, Batches batch);
    // The whole program at once.
    void run(const RankProgram&, const PassArgs&, Batches batch);

    // Programs of one micro-batch. train: adds the gradient of grad_scale * (sum of token losses), and the losses to
    // loss_sum(). evaluate: adds to loss_sum(). logits: (B*T, V) dtype, on the device.
    void train(const DeviceBatch&, float grad_scale);
    void evaluate(const DeviceBatch&);
    void logits(const DeviceBatch&, void* out);

    // The loss of each token and the likeliest one in its place, (B*T) each, on the device. Of a pipeline only the rank
    // that holds the head writes them.
    void score(const DeviceBatch&, float* losses, int32_t* best);
    bool holds_head() const { return workspace_.losses() != nullptr; }

    // (1) double on the device: the token losses added up since reset_loss().
    const double* loss_sum() const { return workspace_.loss_sum(); }
    // The same of the z-losses of training; nullptr without StageOptions::z_loss, and where there is no head.
    const double* z_sum() const { return workspace_.z_sum(); }
    void reset_loss() { workspace_.reset_loss(); }

    // CUDA graphs: from now on each block's passes and the head are replayed; or, where nothing in a micro-batch
    // communicates, the whole micro-batch.
    enum class Replay { blocks, micro_batches };
    void replay_graphs(Replay);
    // Pieces that were recorded, and that were replayed.
    int64_t graphs_recorded() const;
    int64_t graphs_replayed() const;

   private:
    class Host;
    Stage& stage(int number);
    RankProgram make_program(int64_t micro_batches, bool trains) const;

    const ParamTable& table_;
    DType dtype_;
    int64_t boundary_bytes_;  // of the tensor between two stages
    ParameterSource& parameters_;
    GradientSink* gradients_;
    Workspace workspace_;
    std::vector<std::unique_ptr<Stage>> stages_;
    std::vector<int> stage_numbers_;
    bool pipeline_ = false;
    RankProgram training_, evaluation_;  // a pipeline's step, or one micro-batch; forward only, one micro-batch
    Executor executor_;
};

// Inputs of a program: the table's units, and how parameters and gradients are kept. `first`, `last`: the units
// of each stage of this rank, ascending.
StepShape step_shape(const ParamTable&, DType dtype, const ParameterSource&, const GradientSink*,
                     const std::vector<StageUnits>& stages, int64_t micro_batches, bool trains);

// Writes initial weights into what this rank owns of the masters and publishes them. Any cut gives the same numbers.
// `mup`: by tensor, factors of what is drawn (llama/model/mup.h); none: 1.
void initialise_weights(const ParamTable&, uint64_t seed, Stream&, Zero&, const std::vector<MupFactors>& mup = {});

// FLOPs of one token's forward and backward pass: 6 per matrix parameter (head included, embedding lookup not), and the
// causal half of attention, 6 L H D T.
double training_flops_per_token(const ModelConfig&, int64_t T);
double attention_flops_per_token(const ModelConfig&, int64_t T);  // of them

std::vector<UnitLayout> unit_layouts(const ParamTable&);
// By held unit: what other holders of parts hold too.
std::vector<std::vector<Replicated>> replicated_elements(const ParamTable&);
DecaySegments decay_segments(const ParamTable&, bool embedding_decays = true, const std::vector<MupFactors>& mup = {});
// By held unit: what Muon updates. `whole`: where the tp axis cuts matrices, with the pieces of all its ranks; else the
// part that is held is a matrix.
std::vector<std::vector<MuonMatrix>> muon_matrices(const ParamTable&, bool whole);

}  // namespace rz
