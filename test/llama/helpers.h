#pragma once
// Shared by tests of this room. Its tests are compiled several at a time, so each names its own differently.

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "llama/base/safetensors.h"
#include "test/kernels/cpu_device.h"

namespace rz {

// Removed in the end, with what is in it.
struct TempFolder {
    TempFolder() { require(::mkdtemp(path.data()) != nullptr, "can't make a folder: %m"); }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    std::string operator/(const std::string& file) const { return path + "/" + file; }

    std::string path = "/tmp/ringzero-test-XXXXXX";
};

// The refusal of f; "" if it is not refused.
template <class F>
std::string error_of(F&& f) {
    try {
        f();
        return "";
    } catch (const Error& e) {
        return e.what();
    }
}

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
