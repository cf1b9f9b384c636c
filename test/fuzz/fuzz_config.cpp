// libFuzzer target: config.json and model.safetensors.index.json. test/fuzz/README.md says how to run it.

#include <cstdlib>
#include <string_view>

#include "kernels/runtime/check.h"
#include "llama/model/config.h"
#include "llama/model/hf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        const rz::ModelConfig config = rz::config_from_json(text, "fuzz");
        // Whatever was accepted is a model that can be written and read back as itself.
        const rz::ModelConfig back = rz::config_from_json(rz::config_to_json(config, rz::DType::bf16), "back");
        if (!rz::differences(config, back, "read", "back").empty() || config.parameter_count() <= 0) std::abort();
        if (config.eos != back.eos || config.bos != back.bos || config.pad != back.pad) std::abort();
        if (config.layers <= 64 && config.parameter_count() < rz::ParamTable(config).parameters()) std::abort();
    } catch (const rz::Error&) {
    }
    try {
        for (const auto& [tensor, file] : rz::parse_weight_map(text, "fuzz"))
            if (file.empty() || file.find('/') != std::string::npos || file == "..") std::abort();
    } catch (const rz::Error&) {
    }
    return 0;
}
