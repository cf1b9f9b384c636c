// Fuzzes every token-shard reader. Input: a byte of flags, then the file; with flag 2 the file is a Megatron index and
// its last 64 bytes are the data beside it. test/fuzz/README.md says how to run it.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/runtime/check.h"
#include "llama/data/data_loader.h"

namespace {

namespace fs = std::filesystem;

const std::string& folder() {
    static const std::string path = [] {
        std::string pattern = (fs::temp_directory_path() / "rz_fuzz_XXXXXX").string();
        return std::string(::mkdtemp(pattern.data()));
    }();
    return path;
}

void write(const std::string& path, const uint8_t* data, size_t size) {
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), std::streamsize(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const bool raw16 = data[0] & 1, megatron = data[0] & 2;
    ++data, --size;
    const size_t beside = megatron ? std::min<size_t>(size, 64) : 0;
    const std::string path = folder() + (megatron ? "/x.idx" : "/x");
    write(path, data, size - beside);
    if (megatron) write(folder() + "/x.bin", data + size - beside, beside);
    try {
        const rz::DataLoader loader(rz::open_shards({path}, {.vocab = 50000, .raw16 = raw16, .scan_bytes = 0}), 3, 1,
                                    50000);
        int32_t inputs[12], targets[12];
        for (int64_t position : {int64_t(0), loader.samples() - 1, int64_t(1) << 60}) {
            loader.batch(position, 4, inputs, targets);
            for (int i = 0; i < 12; ++i)
                if (inputs[i] < 0 || inputs[i] >= 50000 || targets[i] < 0 || targets[i] >= 50000) __builtin_trap();
        }
        if (loader.fingerprint().difference(rz::DataFingerprint::from_json(loader.fingerprint().to_json())) != "")
            __builtin_trap();
    } catch (const rz::Error&) {
    }
    return 0;
}
