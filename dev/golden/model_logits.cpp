// The logits of a Hugging Face model folder at every position of given sequences, or loss and gradients of all its
// tensors, for comparison with other programs.
//
//   build/dev/model_logits MODEL IN.safetensors OUT.safetensors [--dtype fp32] [--device cpu]
//
// IN holds `inputs` (B, T) I32, OUT gets `logits` (B, T, V) F32. Tokens are fed one at a time through the cache that
// generation uses. If IN has `targets` (B, T) I32 too, OUT gets `loss` (1) F32, the mean over all targets, and
// `grad.NAME` F32 of every tensor instead, by the program of a training step in fp32.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "comm/mesh.h"
#include "kernels/embedding.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/model/weights.h"
#include "llama/train/train_state.h"

namespace rz {
namespace {

struct Request {
    std::string model, in, out, dtype = "fp32", device = "cpu";
};

struct Tokens {
    int64_t B, T;
    std::vector<int32_t> ids;
};

Tokens read_tokens(const Safetensors& file, const char* name, int64_t vocab) {
    const std::string& path = file.path();
    const StoredTensor* t = file.find(name);
    require(t != nullptr && t->type == "I32" && t->shape.size() == 2,
            "%s: needs a tensor \"%s\" of shape (B, T) and type I32", path.c_str(), name);
    Tokens tokens{t->shape[0], t->shape[1], std::vector<int32_t>(static_cast<size_t>(t->elements))};
    std::memcpy(tokens.ids.data(), file.data(*t), size_t(t->bytes()));
    for (const int32_t id : tokens.ids)
        require(id >= 0 && id < vocab, "%s: token %d is not in [0, %lld)", path.c_str(), id, (long long)vocab);
    return tokens;
}

void write_logits(const Request& r, const std::string& folder, const ModelConfig& config, Device device,
                  const Tokens& tokens) {
    const ParamTable table(config);
    const DType dtype = parse_dtype("--dtype", r.dtype);
    Stream stream(device, "compute");
    ResidentParameters parameters(device, stream, unit_layouts(table), dtype);
    load_weights(folder, table, dtype, device, stream, parameters);
    Decoder decoder(config, table, dtype, device, stream, parameters, tokens.T);
    SafetensorsWriter writer(r.out, {{"logits", "F32", {tokens.B, tokens.T, config.vocab}}});
    for (int64_t b = 0; b < tokens.B; ++b) {
        decoder.reset();
        for (int64_t t = b * tokens.T; t < (b + 1) * tokens.T; ++t) {
            const std::vector<float> logits = decoder.append({tokens.ids[size_t(t)]});
            writer.write(0, t * config.vocab * 4, logits.data(), config.vocab * 4);
        }
    }
    writer.commit();
}

void write_gradients(const Request& r, const std::string& folder, const ModelConfig& config, Device device,
                     const Tokens& tokens, const Tokens& targets) {
    require(device.kind == DeviceKind::cpu && r.dtype == "fp32", "gradients: only with --device cpu --dtype fp32");
    const int64_t B = tokens.B, T = tokens.T, N = B * T;
    require(targets.B == B && targets.T == T, "inputs and targets differ in shape");
    Mesh mesh(device);
    CoreOptions options;
    options.stage.B = B;
    options.stage.T = T;
    TrainState core(config, options, device, mesh);
    load_weights(folder, core.table, device, core.compute, core.zero);
    std::vector<int32_t> rows(tokens.ids.size()), starts(rows.size() + 1), ids(rows.size());
    const int64_t distinct = embedding_plan(tokens.ids.data(), N, config.vocab, rows.data(), starts.data(), ids.data());
    core.model.train({B, T, tokens.ids.data(), targets.ids.data(), rows.data(), starts.data(), ids.data(), distinct},
                     1.0f / float(N));
    core.compute.synchronize();

    std::vector<TensorSpec> specs{{"loss", "F32", {1}}};
    for (const Tensor& t : core.table.tensors()) specs.push_back({"grad." + t.name, "F32", t.shape});
    SafetensorsWriter writer(r.out, specs);
    const float loss = float(*core.model.loss_sum() / double(N));
    writer.write(0, 0, &loss, 4);
    for (size_t i = 1; i < specs.size(); ++i) {
        const Tensor& t = core.table.tensors()[i - 1];
        const float* unit = static_cast<const float*>(core.zero.grads.gradients(t.unit));
        writer.write(i, 0, unit + (t.offset - core.table.units()[size_t(t.unit)].offset), t.size * 4);
    }
    writer.commit();
}

void run(const Request& r) {
    const Device device = pick_device(parse_name<DeviceChoice>("--device", r.device), 0, nullptr);
    const std::string folder = resolve_model(r.model);
    const ModelConfig config = load_config(folder);
    const Safetensors file(r.in);
    const Tokens tokens = read_tokens(file, "inputs", config.vocab);
    if (file.find("targets"))
        write_gradients(r, folder, config, device, tokens, read_tokens(file, "targets", config.vocab));
    else
        write_logits(r, folder, config, device, tokens);
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    rz::Request request;
    CLI::App app{"Logits of a model folder at every position of given sequences, or loss and gradients"};
    app.add_option("model", request.model, "Folder, or repo id in the local Hugging Face cache.")->required();
    app.add_option("in", request.in, "safetensors file with `inputs`, (B, T) I32; for gradients also `targets`.")
        ->required();
    app.add_option("out", request.out, "safetensors file to write to.")->required();
    app.add_option("--dtype", request.dtype, "Data type of weights and activations.")
        ->check(CLI::IsMember({"fp32", "bf16"}))
        ->capture_default_str();
    app.add_option("--device", request.device, "Device: auto, cuda or cpu.")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        rz::run(request);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "model_logits: %s\n", e.what());
        return 1;
    }
}
