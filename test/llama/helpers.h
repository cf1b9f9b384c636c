#pragma once
// Shared by tests of this room. Its tests are compiled several at a time, so each names its own differently.

#include <cstring>
#include <string>
#include <vector>

#include "llama/base/safetensors.h"
#include "test/checks.h"
#include "test/kernels/cpu_device.h"

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

}  // namespace rz
