// The logits of a Hugging Face model folder at every position of given sequences, for comparison with other programs.
//
//   build/dev/model_logits MODEL IN.safetensors OUT.safetensors [--dtype fp32] [--device cpu]
//
// IN holds `inputs` (B, T) I32, OUT gets `logits` (B, T, V) F32. Tokens are fed one at a time through the cache that
// generation uses.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/model/weights.h"

namespace rz {
namespace {

struct Request {
    std::string model, in, out, dtype = "fp32", device = "cpu";
};

struct Tokens {
    int64_t B, T;
    std::vector<int32_t> ids;
};

Tokens read_inputs(const std::string& path, int64_t vocab) {
    const Safetensors file(path);
    const StoredTensor* t = file.find("inputs");
    require(t != nullptr && t->type == "I32" && t->shape.size() == 2,
            "%s: needs a tensor \"inputs\" of shape (B, T) and type I32", path.c_str());
    Tokens tokens{t->shape[0], t->shape[1], std::vector<int32_t>(static_cast<size_t>(t->elements))};
    std::memcpy(tokens.ids.data(), file.data(*t), size_t(t->bytes()));
    for (const int32_t id : tokens.ids)
        require(id >= 0 && id < vocab, "%s: token %d is not in [0, %lld)", path.c_str(), id, (long long)vocab);
    return tokens;
}

void run(const Request& r) {
    const Device device = pick_device(parse_name<DeviceChoice>("--device", r.device), 0, nullptr);
    const std::string folder = resolve_model(r.model);
    const ModelConfig config = load_config(folder);
    const ParamTable table(config);
    const Tokens tokens = read_inputs(r.in, config.vocab);
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

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    rz::Request request;
    CLI::App app{"Logits of a model folder at every position of given sequences"};
    app.add_option("model", request.model, "Folder, or repo id in the local Hugging Face cache.")->required();
    app.add_option("in", request.in, "safetensors file with `inputs`, (B, T) I32.")->required();
    app.add_option("out", request.out, "safetensors file to write `logits` to.")->required();
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
