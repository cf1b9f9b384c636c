#include "llama/train/core.h"

#include <omp.h>

#include <utility>

namespace rz {

static StageOptions with_dtypes(StageOptions stage, const ZeroOptions& zero) {
    stage.dtype = zero.param_dtype;
    stage.grad_dtype = zero.grad_dtype;
    return stage;
}

TrainingCore::TrainingCore(const ModelConfig& c, CoreOptions o, Device d, Mesh& m, CommMeter* meter)
    : config(c),
      options(std::move(o)),
      device(d),
      mesh(m),
      table(config),
      compute(device, "compute"),
      zero(device, compute, unit_layouts(table), decay_segments(table), options.zero, options.adamw, mesh, meter),
      model(config, table, with_dtypes(options.stage, options.zero), device, compute, zero, &zero),
      program(model.training_program(options.micro_batches)),
      whole_graphs(options.graphs && mesh.world().size == 1 && options.zero.stage <= 1) {
    // OpenMP keeps the number per thread, and a CPU stream computes on its own.
    if (options.threads > 0 && !device.is_cuda())
        compute.enqueue_host([n = int(options.threads)] { omp_set_num_threads(n); });
    if (options.graphs) model.replay_graphs(whole_graphs ? Model::Replay::micro_batches : Model::Replay::blocks);
}

}  // namespace rz
