// Settings that a run tells MLPerf's checker before it is timed (llama/report/mlperf_log.h).

#include "comm/host.h"
#include "llama/base/json.h"
#include "llama/train/run_config.h"
#include "llama/train/trainer.h"

namespace rz {

// Names of number formats as the checker knows them.
static std::string precision(DType dtype) {
    return std::string("\"") + (dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "fp16" : "fp32") + "\"";
}

std::vector<std::pair<std::string, std::string>> mlperf_settings(const Trainer& t) {
    const TrainOptions& o = t.options;
    const Mesh& mesh = *t.mesh;
    const auto text = [](const std::string& s) { return Json(replace_invalid_utf8(s)).dump(); };
    const auto real = [](double x) { return format("%.9g", x); };
    const auto size = [&](Axis axis) { return std::to_string(mesh.place(axis).size); };
    const DType wire = o.gradient_wire_dtype();
    const std::string sent = precision(size_of(wire) < size_of(o.dtype) ? wire : o.dtype);  // gradients; parameters
    int64_t validated = 0;
    for (size_t k = 0; k < t.sources.val.size(); ++k) validated += validation_sequences(t, k);
    return {
        {"submission_benchmark", text("llama31_8b")},
        {"submission_org", text("ringzero")},
        {"submission_division", text("open")},
        {"submission_status", text("onprem")},
        {"submission_platform", text(format("%d x %s", mesh.world().size, t.core->device.name().c_str()))},
        {"config_filename", text(o.out.empty() ? command_text(o.arguments) : o.out + "/config.toml")},
        {"seed", std::to_string(o.seed)},
        {"global_batch_size", std::to_string(t.samples_per_step())},
        {"micro_batch_size", std::to_string(o.batch)},
        {"gradient_accumulation_steps", std::to_string(t.core->options.micro_batches)},
        {"max_sequence_length", std::to_string(o.seq_len)},
        {"eval_samples", std::to_string(validated)},
        {"opt_name", text(name_of(o.optimizer))},
        {"opt_base_learning_rate", real(o.lr)},
        {"opt_end_learning_rate", real(o.min_lr)},
        {"opt_learning_rate_warmup_steps", std::to_string(o.warmup)},
        {"opt_learning_rate_decay_steps", std::to_string(o.steps - o.warmup)},
        {"opt_learning_rate_decay_schedule", text(std::string(name_of(o.decay)) + " with linear warmup")},
        {"opt_adamw_beta_1", real(o.beta1)},
        {"opt_adamw_beta_2", real(o.beta2)},
        {"opt_adamw_epsilon", real(o.eps)},
        {"opt_adamw_weight_decay", real(o.weight_decay)},
        {"opt_gradient_clip_norm", real(o.clip)},
        {"lowest_numerical_precision_in_linear", o.fp8.on() ? text("fp8") : precision(o.dtype)},
        {"lowest_numerical_precision_in_attn", precision(o.dtype)},
        {"lowest_numerical_precision_in_comm", o.fp8.on() && o.fp8_gather && o.zero == 3 ? text("fp8") : sent},
        {"tensor_parallelism", size(Axis::tp)},
        {"pipeline_parallelism", size(Axis::pp)},
        {"context_parallelism", size(Axis::cp)},
        {"expert_parallelism", "1"},
    };
}

}  // namespace rz
