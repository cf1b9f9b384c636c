#include "llama/train/commands.h"

#include <omp.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/report/log.h"
#include "llama/model/model.h"
#include "llama/train/plan_memory.h"
#include "llama/train/trainer.h"
#include "llama/tokenizer/tokenizer.h"
#include "llama/model/weights.h"

namespace rz {

std::string model_folder(const std::string& from) {
    namespace fs = std::filesystem;
    std::error_code none;
    if (!fs::is_directory(from, none) || fs::exists(from + "/config.json", none)) return resolve_model(from);
    if (fs::exists(from + "/final/config.json", none)) return from + "/final";
    const CheckpointStore store(from);
    const std::vector<int64_t> steps = store.steps();
    return resolve_model(steps.empty() ? from : store.path(steps.back()));
}

int generate_command(const GenerateOptions& o) {
    std::string note;
    RankContext context;
    Device device = pick_device(o.device, 0, &note);
    device.context = &context;
    if (!note.empty()) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    if (note = set_gemm_tuning(device, o.gemm_tune, o.gemm_cache); !note.empty())
        std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    const std::string folder = model_folder(o.from);
    const ModelConfig config = load_config(folder);
    const ParamTable table(config);
    const Tokenizer tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);

    std::vector<int32_t> prompt = tokenizer.encode(o.prompt);
    if (tokenizer.bos_id() >= 0) prompt.insert(prompt.begin(), tokenizer.bos_id());
    require(!prompt.empty(), "--prompt is empty and this tokenizer has no token that begins a text: give a --prompt");
    require(int64_t(prompt.size()) < config.max_seq_len,
            "the prompt has %zu tokens, the model %lld positions: shorten it", prompt.size(),
            (long long)config.max_seq_len);

    Stream stream(device, "compute");
    if (o.threads > 0 && !device.is_cuda()) stream.enqueue_host([n = int(o.threads)] { omp_set_num_threads(n); });
    ResidentParameters parameters(device, stream, unit_layouts(table), o.dtype);
    load_weights(folder, table, o.dtype, device, stream, parameters);
    Decoder decoder(config, table, o.dtype, device, stream, parameters, int64_t(prompt.size()) + o.max_tokens);

    std::fputs(o.prompt.c_str(), stdout);
    std::fflush(stdout);
    Tokenizer::Stream text(tokenizer, /*skip_special=*/true);
    const auto start = std::chrono::steady_clock::now();
    const Sampling how{.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = o.seed};
    const int64_t made = generate(decoder, config, prompt, o.max_tokens, how, [&](int32_t token) {
        std::fputs(text.push(token).c_str(), stdout);
        return std::fflush(stdout) == 0;
    });
    std::printf("%s\n", text.finish().c_str());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "%zu prompt tokens, %lld new, %.1f tokens/s\n", prompt.size(), (long long)made,
                 double(made) / seconds);
    return 0;
}

std::string describe_model(const ModelConfig& config, const ParamTable& table) {
    std::string text =
        summary(config) + "\n\n" + format("  %-52s %-18s %14s %6s\n", "tensor", "shape", "offset", "decay");
    for (const Tensor& t : table.tensors()) {
        if (t.unit > 2 && t.unit < int(table.units().size()) - 1) continue;  // blocks 2... look like the first
        std::string shape;
        for (int64_t n : t.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(n);
        text += format("  %-52s %-18s %14lld %6s\n", t.name.c_str(), shape.c_str(), (long long)t.offset,
                       t.decay ? "yes" : "");
        if (t.unit == 2 && &t == &table.block(1, kDown) && config.layers > 2)
            text += format("  ... %lld more blocks\n", (long long)config.layers - 2);
    }
    return text;
}

static void print_memory(const TrainOptions& o, const ModelConfig& config) {
    constexpr int kRanks[] = {1, 8, 64};
    const DeviceKind kind = pick_device(o.device, 0, nullptr).kind;
    std::optional<PlannedMemory> plans[4][3];  // by ZeRO stage and ranks; none where these ranks can't be so
    std::set<std::string> refused;
    for (int stage = 0; stage <= 3; ++stage)
        for (int r = 0; r < 3; ++r) {
            TrainOptions asked = o;
            asked.zero = stage;
            try {
                plans[stage][r] = plan_memory(asked, config, kind, /*rank=*/0, kRanks[r]);
            } catch (const Error& error) {
                refused.insert(error.what());
            }
        }
    const auto row = [&](const char* name, int64_t stage, const auto& text) {
        std::printf("  %-12s", name);
        for (const std::optional<PlannedMemory>& plan : plans[stage])
            std::printf(" %19s", plan ? text(*plan).c_str() : "-");
        std::printf("\n");
    };
    std::printf("\nbytes of rank 0 at the peak of a step, --batch %lld, --seq-len %lld, on %s:\n", (long long)o.batch,
                (long long)o.seq_len, kind == DeviceKind::cpu ? "the CPU" : "a GPU, beside what CUDA's libraries take");
    std::printf("  --zero %lld     %15d rank %13d ranks %13d ranks\n", (long long)o.zero, 1, 8, 64);
    for (int k = 0; k < int(MemKind::count_); ++k)
        row(name_of(MemKind(k)), o.zero, [k](const PlannedMemory& m) { return std::to_string(m.peak[size_t(k)]); });
    row("at once", o.zero, [](const PlannedMemory& m) { return std::to_string(m.total); });
    for (int stage = 0; stage <= 3; ++stage)
        row(format("--zero %d", stage).c_str(), stage, [](const PlannedMemory& m) { return human_bytes(m.total); });
    std::printf("bytes that it sends in a step, by axis (llama/train/traffic.h):\n");
    for (const auto& [name, axis] : {std::pair("tp", &Traffic::tp),
                                     {"pp", &Traffic::pp},
                                     {"data", &Traffic::data},
                                     {"replicate", &Traffic::replicate},
                                     {"model", &Traffic::model}})
        row(name, o.zero, [axis](const PlannedMemory& m) { return std::to_string(m.sent.*axis); });
    for (const std::string& why : refused) std::printf("  -: %s\n", why.c_str());
}

int print_config_command(const TrainOptions& o) {
    const ModelConfig config = model_config(o, find_data(o).vocab);
    const ParamTable table(config);
    std::printf("%s\n", describe_model(config, table).c_str());
    std::printf("%s\n", config_to_json(config, o.dtype).c_str());
    print_memory(o, config);
    std::printf("\nFLOPs per token, forward and backward, at --seq-len %lld: %.4g\n", (long long)o.seq_len,
                training_flops_per_token(config, o.seq_len));
    return 0;
}

int export_command(const ExportOptions& o) {
    const std::string folder = model_folder(o.from);
    const ModelConfig config = load_config(folder);
    const ParamTable table(config);
    const HfWeights weights(folder, table);
    for (const std::string& w : weights.warnings()) std::fprintf(stderr, "train_llama: %s\n", w.c_str());
    const DType dtype = o.dtype.value_or(weights.dtype());
    std::error_code none;
    require(!std::filesystem::equivalent(folder, o.to, none), "--to %s is the model itself: choose another folder",
            o.to.c_str());
    const bool holds_model = std::filesystem::exists(o.to + "/config.json", none) ||
                             std::filesystem::exists(o.to + "/model.safetensors", none) ||
                             std::filesystem::exists(o.to + "/model.safetensors.index.json", none);
    require(!holds_model || o.overwrite, "--to %s holds a model already\n  choose another folder, or --overwrite",
            o.to.c_str());
    const auto start = std::chrono::steady_clock::now();
    auto shown = start;
    int64_t done = 0;
    save_model(
        o.to, config, table, dtype,
        [&](const Tensor& t, int64_t first, int64_t count, void* out) {
            weights.read(t, first, count, dtype, out);
            done += count;
            const auto now = std::chrono::steady_clock::now();
            if (std::chrono::duration<double>(now - shown).count() < 5) return;
            shown = now;
            const double seconds = std::chrono::duration<double>(now - start).count();
            const double rest = seconds * double(table.parameters() - done) / double(done);
            std::fprintf(stderr, "%.0f %%, eta %s\n", 100.0 * double(done) / double(table.parameters()),
                         duration(rest).c_str());
        },
        o.tokenizer.empty() ? folder : o.tokenizer);
    std::printf("%s: %s in %s\n", o.to.c_str(), summary(config).c_str(), safetensors_type(dtype).c_str());
    return 0;
}

}  // namespace rz
