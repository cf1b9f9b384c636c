// libFuzzer target: manifest.json of a checkpoint. test/fuzz/README.md says how to run it.

#include <cstdlib>
#include <string_view>

#include "kernels/runtime/check.h"
#include "llama/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const rz::Manifest m = rz::Manifest::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
        // Whatever was accepted says the same again, and names no file outside the checkpoint.
        if (!(rz::Manifest::from_json(m.to_json(), "back") == m)) std::abort();
        for (const rz::ManifestFile& f : m.files)
            if (f.path.empty() || f.path[0] == '/' || f.path.find("..") != std::string::npos || f.bytes < 0)
                std::abort();
    } catch (const rz::Error&) {
    }
    return 0;
}
