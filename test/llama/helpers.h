#pragma once
// Shared by tests of this room.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "llama/base/safetensors.h"
#include "test/checks.h"
#include "test/kernels/cpu_device.h"
#include "llama/model/presets.h"

namespace rz {

// A tensor of a golden file.
inline std::vector<float> stored(const Safetensors& file, const std::string& name) {
    const StoredTensor* t = file.find(name);
    require(t != nullptr, "%s is not in %s", name.c_str(), file.path().c_str());
    std::vector<float> out(size_t(t->elements));
    file.read(*t, 0, t->elements, DType::f32, out.data());
    return out;
}

inline std::vector<int32_t> stored_ids(const Safetensors& file, const std::string& name) {
    const StoredTensor* t = file.find(name);
    require(t != nullptr && t->type == "I32", "%s is not in %s", name.c_str(), file.path().c_str());
    std::vector<int32_t> out(size_t(t->elements));
    std::memcpy(out.data(), file.data(*t), out.size() * 4);
    return out;
}

// Largest difference over the largest value: relative to the tensor's scale, since single elements may be sums that
// cancel.
template <class Got>
double distance(const std::vector<float>& want, const Got& got) {
    double worst = 0, scale = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs(double(want[i]) - double(got[i])));
        scale = std::max(scale, std::abs(double(want[i])));
    }
    return worst / scale;
}

inline ModelConfig resolved_preset(const char* name) {
    ModelConfig c = find_preset(name).config;
    c.resolve();
    return c;
}

}  // namespace rz
