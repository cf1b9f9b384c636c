#include "llama/train/commands.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/load.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/text.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/checkpoint/gguf.h"
#include "llama/model/hf.h"
#include "llama/report/log.h"
#include "llama/model/model.h"
#include "llama/train/plan_memory.h"
#include "llama/train/trainer.h"

namespace rz {

std::string describe_model(const ModelConfig& config, const ParamTable& table, bool embedding_decays) {
    std::string text =
        summary(config) + "\n\n" + format("  %-52s %-18s %14s %6s\n", "tensor", "shape", "offset", "decay");
    for (const Tensor& t : table.tensors()) {
        if (t.unit > 2 && t.unit < int(table.units().size()) - 1) continue;  // blocks 2... look like the first
        text += format("  %-52s %-18s %14ld %6s\n", t.name.c_str(), joined(t.shape, " x ").c_str(), t.offset,
                       t.decay && (embedding_decays || &t != &table.embedding()) ? "yes" : "");
        const Unit& unit = table.units()[size_t(t.unit)];
        const bool last = &t == &table.tensors()[size_t(unit.first_tensor + unit.tensors - 1)];
        if (t.unit == 2 && last && config.layers > 2) text += format("  ... %ld more blocks\n", config.layers - 2);
    }
    return text;
}

namespace {

constexpr int kRanks[] = {1, 8, 64};
using Plans = std::array<std::optional<PlannedMemory>, 3>;  // by ranks; none where these ranks can't be so

Plans plan_each(TrainOptions o, const ModelConfig& config, DeviceKind kind, int64_t stage,
                std::set<std::string>& refused) {
    Plans plans;
    o.zero = stage;
    for (size_t r = 0; r < plans.size(); ++r) try {
            plans[r] = plan_memory(o, config, kind, /*rank=*/0, kRanks[r]);
        } catch (const Error& error) {
            refused.insert(error.what());
        }
    return plans;
}

void print_row(const std::string& name, const Plans& plans,
               const std::function<std::string(const PlannedMemory&)>& text) {
    std::printf("  %-12s", name.c_str());
    for (const std::optional<PlannedMemory>& plan : plans) std::printf(" %19s", plan ? text(*plan).c_str() : "-");
    std::printf("\n");
}

// Prints what offload changes: memory on both sides, before it and with it, and what the bus takes for it.
void print_offload(const TrainOptions& o, const ModelConfig& config, DeviceKind kind, const Plans& with) {
    TrainOptions without = o;
    without.offload_optimizer = OffloadOptimizer::none;
    without.offload_params = without.offload_grads = without.offload_activations = false;
    std::set<std::string> refused;
    const Plans before = plan_each(without, config, kind, o.zero, refused);
    const auto on_device = [](const PlannedMemory& m) { return human_bytes(m.total); };
    const auto on_host = [](const PlannedMemory& m) { return human_bytes(m.host); };
    std::printf("with what is offloaded, and without it:\n");
    print_row("on the GPU", with, on_device);
    print_row("  without", before, on_device);
    print_row("host, pinned", with, on_host);
    print_row("  without", before, on_host);
    for (size_t r = 0; r < with.size(); ++r)
        if (const std::string text = with[r] ? host_copies_text(*with[r]) : ""; !text.empty())
            std::printf("of %d: %s", kRanks[r], text.c_str());
}

}  // namespace

static void print_memory(const TrainOptions& o, const ModelConfig& config) {
    // Offload is a GPU's, and its plan needs none here.
    const bool gpu = o.offloads() && o.device == DeviceChoice::automatic;
    const DeviceKind kind = gpu ? DeviceKind::cuda : pick_device(o.device, 0, nullptr).kind;
    std::set<std::string> refused;
    Plans plans[4];  // by ZeRO stage
    for (int stage = 0; stage <= 3; ++stage) plans[stage] = plan_each(o, config, kind, stage, refused);
    const auto row = [&](const std::string& name, int64_t stage, const auto& text) {
        print_row(name, plans[stage], text);
    };
    std::printf("\nbytes of rank 0 at the peak of a step, --batch %ld, --seq-len %ld, on %s:\n", o.batch, o.seq_len,
                kind == DeviceKind::cpu ? "the CPU" : "a GPU, beside what CUDA's libraries take");
    std::printf("  --zero %ld     %15d rank %13d ranks %13d ranks\n", o.zero, 1, 8, 64);
    for (int k = 0; k < int(MemKind::count_); ++k)
        row(name_of(MemKind(k)), o.zero, [k](const PlannedMemory& m) { return std::to_string(m.peak[size_t(k)]); });
    row("at once", o.zero, [](const PlannedMemory& m) { return std::to_string(m.total); });
    for (int stage = 0; stage <= 3; ++stage)
        row(format("--zero %d", stage), stage, [](const PlannedMemory& m) { return human_bytes(m.total); });
    if (o.offloads()) print_offload(o, config, kind, plans[o.zero]);
    std::printf("bytes that it sends in a step, by axis (llama/train/traffic.h):\n");
    for (const auto& [name, axis] : kTrafficAxes)
        row(name, o.zero, [axis](const PlannedMemory& m) { return std::to_string(m.sent.*axis); });
    for (const std::string& why : refused) std::printf("  -: %s\n", why.c_str());
}

int print_config_command(const TrainOptions& asked) {
    TrainOptions o = asked;
    const int here = gpu_capability(o);
    choose_dtype(o, here == 0 && o.offloads() && o.device == DeviceChoice::automatic ? 80 : here);
    std::string note;
    const ModelConfig config = planned_config(o, note);
    if (!note.empty()) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    const ParamTable table(config);
    std::printf("%s\n", describe_model(config, table, o.decay_embeddings).c_str());
    std::printf("%s\n", config_to_json(config, o.dtype).c_str());
    print_memory(o, config);
    std::printf("\nFLOPs per token, forward and backward, at --seq-len %ld: %.4g\n", o.seq_len,
                training_flops_per_token(config, o.seq_len));
    return 0;
}

static void export_gguf(const ExportOptions& o, const std::string& folder, const ModelConfig& config,
                        const ParamTable& table, DType dtype, const HfWeights& weights) {
    require_request(!path_exists(o.to) || o.overwrite,
                    "--to %s is there already\n  choose another file, or --overwrite", o.to.c_str());
    std::error_code none;
    require_request(!std::filesystem::is_directory(o.to, none),
                    "--to %s is a folder, and --format gguf writes a file: %s/%s", o.to.c_str(), o.to.c_str(),
                    "model.gguf");
    std::optional<Tokenizer> tokenizer;
    if (!o.tokenizer.empty() || TokenizerFiles(folder).has_tokenizer())
        tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);
    else
        std::fprintf(stderr, "train_llama: %s has no tokenizer, so the file has none: --tokenizer gives one\n",
                     folder.c_str());
    make_folder(parent_folder(o.to));
    save_gguf(o.to, config, table, dtype, weights, tokenizer ? &*tokenizer : nullptr);
}

void prepare_device(const ModelUse& o, Device device, std::string note, bool tells) {
    require_products("--dtype", o.dtype, compute_capability(device), "--dtype fp32");
    load_kernels(device);
    for (const std::string& line : {std::move(note), set_gemm_tuning(device, o.gemm_tune, o.gemm_cache)})
        if (tells && !line.empty()) std::fprintf(stderr, "train_llama: %s\n", line.c_str());
}

// Says how far an export is, every five seconds.
class Progress {
   public:
    explicit Progress(int64_t total) : total_(total) {}
    void add(int64_t count) {
        done_ += count;
        const double seconds = timer_.seconds();
        if (seconds - shown_at_ < 5) return;
        shown_at_ = seconds;
        std::fprintf(stderr, "%.0f %%, eta %s\n", 100.0 * double(done_) / double(total_),
                     duration(seconds * double(total_ - done_) / double(done_)).c_str());
    }

   private:
    int64_t total_, done_ = 0;
    Timer timer_;
    double shown_at_ = 0;
};

// `folders`: the models that are read; the first one's other files are copied.
static void write_folder(const ExportOptions& o, const std::vector<std::string>& folders, const ModelConfig& config,
                         const ParamTable& table, DType dtype, const WeightSource& read) {
    std::error_code none;
    for (const std::string& folder : folders)
        require_request(!std::filesystem::equivalent(folder, o.to, none),
                        "--to %s is the model itself: choose another folder", o.to.c_str());
    const bool holds_model = path_exists(o.to + "/config.json") || path_exists(o.to + "/model.safetensors") ||
                             path_exists(o.to + "/model.safetensors.index.json");
    require_request(!holds_model || o.overwrite,
                    "--to %s holds a model already\n  choose another folder, or --overwrite", o.to.c_str());
    TokenizerFiles files = TokenizerFiles::beside_model(folders[0]);
    if (!o.tokenizer.empty()) files.replace_tokenizer(o.tokenizer);
    for (const std::string& line : files.left_out()) std::fprintf(stderr, "train_llama: %s\n", line.c_str());
    if (holds_model) remove_model(o.to);
    Progress progress(table.parameters());
    save_model(
        o.to, config, table, dtype,
        [&](const Tensor& t, int64_t first, int64_t count, void* out) {
            read(t, first, count, out);
            progress.add(count);
        },
        files, o.shard_above_mib << 20);
}

static void export_folder(const ExportOptions& o, const std::string& folder, const ModelConfig& config,
                          const ParamTable& table, DType dtype, const HfWeights& weights) {
    write_folder(o, {folder}, config, table, dtype, [&](const Tensor& t, int64_t first, int64_t count, void* out) {
        weights.read(t, first, count, dtype, out);
    });
}

int export_command(const ExportOptions& o) {
    // A run that has ended has its average as a model of its own.
    const bool own_folder = o.average && path_exists(o.from + "/final_ema/config.json");
    const std::string folder = own_folder ? o.from + "/final_ema" : model_folder(o.from);
    const ModelConfig config = load_config(folder);
    const ParamTable table(config);
    const HfWeights weights(folder, table, nullptr, o.average && !own_folder);
    for (const std::string& w : weights.warnings()) std::fprintf(stderr, "train_llama: %s\n", w.c_str());
    const DType dtype = o.dtype.value_or(weights.dtype());
    (o.format == ModelFormat::gguf || o.to.ends_with(".gguf") ? export_gguf : export_folder)(o, folder, config, table,
                                                                                             dtype, weights);
    std::printf("%s: %s in %s\n", o.to.c_str(), summary(config).c_str(), safetensors_type(dtype).c_str());
    return 0;
}

// Sums in double in the order given, divided and rounded once.
int average_command(const AverageOptions& o) {
    std::vector<std::string> folders;
    for (const std::string& from : split(o.from, ',')) folders.push_back(model_folder(from));
    require_request(folders.size() > 1, "average: one model, %s, is its own mean\n  nearest: train_llama export",
                    o.from.c_str());
    const ModelConfig config = load_config(folders[0]);
    const ParamTable table(config);
    std::vector<std::unique_ptr<HfWeights>> models;
    for (const std::string& folder : folders) {
        const std::string other = differences(config, load_config(folder), folders[0], folder);
        require_request(other.empty(), "average: the models differ, so their weights have no mean\n%s", other.c_str());
        models.push_back(std::make_unique<HfWeights>(folder, table));
        for (const std::string& w : models.back()->warnings()) std::fprintf(stderr, "train_llama: %s\n", w.c_str());
    }
    const DType dtype = o.dtype.value_or(models[0]->dtype());
    std::vector<float> one;
    std::vector<double> sum;
    write_folder(o, folders, config, table, dtype, [&](const Tensor& t, int64_t first, int64_t count, void* out) {
        one.resize(size_t(count));
        sum.assign(size_t(count), 0.0);
        for (const auto& model : models) {
            model->read(t, first, count, DType::f32, one.data());
            for (size_t i = 0; i < one.size(); ++i) sum[i] += double(one[i]);
        }
        for (size_t i = 0; i < one.size(); ++i) one[i] = float(sum[i] / double(models.size()));
        convert(one.data(), DType::f32, out, dtype, count, t.name.c_str());
    });
    std::printf("%s: the mean of %zu models, %s in %s\n", o.to.c_str(), models.size(), summary(config).c_str(),
                safetensors_type(dtype).c_str());
    return 0;
}

}  // namespace rz
