#pragma once
// Training itself: parameters and their state, the model, the program of a step, on one rank of a mesh. No data, files
// or reports: the trainer puts those around it, tests and benchmarks what they need.

#include "llama/model/model.h"
#include "llama/model/param_table.h"
#include "llama/parallel/local_units.h"
#include "llama/model/pipeline_plan.h"
#include "llama/parallel/context.h"
#include "zero/zero.h"

namespace rz {

struct CoreOptions {
    ZeroOptions zero;
    AdamWOptions adamw;
    bool decay_embeddings = true;
    Mup mup = {};
    StageOptions stage;         // dtype and grad_dtype are zero's; T is that of whole sequences
    int64_t micro_batches = 1;  // of an update, on each rank
    bool fp8_gather = true;     // with stage.fp8 and ZeRO-3: one byte for each weight of the layers in fp8
    bool graphs = false;  // replay CUDA graphs: of micro-batches where nothing in them communicates, else of blocks
    int64_t threads = 0;  // OpenMP's on the compute stream's worker; 0: as it is
    PipelineOptions pipeline = {};  // where the mesh has a pp axis
    ContextExchange cp_exchange = ContextExchange::gather;
    bool tp_overlap = false;   // products beside their collectives, part by part
    bool tp_wire_f32 = false;  // partial sums over the tp axis travel in fp32, not in the parameters' type
};

struct TrainState {
    // The mesh and the meter outlive this. Weights are zero until they are initialised or loaded.
    TrainState(const ModelConfig&, CoreOptions, Device, Mesh&, CommMeter* meter = nullptr);

    ModelConfig config;
    CoreOptions options;
    Device device;
    Mesh& mesh;
    std::optional<TensorParallel> tp;  // with a tp axis
    std::optional<PipelinePlan> plan;  // with a pp axis
    ParamTable table;
    std::unique_ptr<ContextParallel> context;  // with a cp axis
    Stream compute;
    Zero zero;
    LocalUnits units;  // what `zero` holds, by its number in the whole model
    Model model;
    RankProgram program;  // of a step
    bool whole_graphs;    // a micro-batch is one graph
};

}  // namespace rz
