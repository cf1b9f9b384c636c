#include "llama/data/synthetic_data.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "kernels/philox.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"

namespace rz {
namespace {

constexpr int kSymbols = 32;
constexpr int64_t kTrainTokens = 4'000'000, kValTokens = 200'000;
constexpr uint64_t kSeed = 20240520, kMatrixStream = 1, kTextStream = 2;

double uniform(uint64_t index, uint64_t stream) { return philox4x32(kSeed, index / 4, stream).w[index % 4] * 0x1p-32; }

struct Chain {
    double p[kSymbols][kSymbols];  // of the next symbol, by the one before

    Chain() {
        for (int i = 0; i < kSymbols; ++i) {
            double sum = 0;
            for (int j = 0; j < kSymbols; ++j) {
                float z[4];
                philox_normal4(kSeed, uint64_t(i * kSymbols + j), kMatrixStream, z);
                sum += p[i][j] = std::exp(2.0 * z[0]);
            }
            for (double& x : p[i]) x /= sum;
        }
    }

    // Mean over the stationary distribution of each row's entropy.
    double entropy() const {
        std::vector<double> now(kSymbols, 1.0 / kSymbols);
        for (int round = 0; round < 1000; ++round) {
            std::vector<double> next(kSymbols, 0);
            for (int i = 0; i < kSymbols; ++i)
                for (int j = 0; j < kSymbols; ++j) next[size_t(j)] += now[size_t(i)] * p[i][j];
            now = next;
        }
        double nats = 0;
        for (int i = 0; i < kSymbols; ++i)
            for (int j = 0; j < kSymbols; ++j) nats -= now[size_t(i)] * p[i][j] * std::log(p[i][j]);
        return nats;
    }

    int next(int symbol, double draw) const {
        for (int j = 0; j + 1 < kSymbols; ++j)
            if ((draw -= p[symbol][j]) < 0) return j;
        return kSymbols - 1;
    }
};

// llm.c's GPT-2 format.
void write_shard(const std::string& path, const std::vector<uint16_t>& tokens) {
    std::string bytes(1024 + 2 * tokens.size(), '\0');
    const int32_t head[] = {20240520, 1, int32_t(tokens.size())};
    std::memcpy(bytes.data(), head, sizeof head);
    std::memcpy(bytes.data() + 1024, tokens.data(), 2 * tokens.size());
    write_file_atomically(path, bytes);
}

}  // namespace

bool is_made_data(const std::string& data) {
    return (data == "synthetic" || data == "dummy") && !path_exists(data + "/dataset.json");
}

MadeData make_data(const std::string& data) {
    const bool synthetic = data == "synthetic";
    const std::string folder =
        std::filesystem::temp_directory_path().string() + format("/ringzero-made-data-%d", int(getuid()));
    make_folder(folder);
    MadeData made;
    made.train = folder + "/" + data + "_train_000000.bin";
    made.val = folder + "/" + data + "_val_000000.bin";
    const Chain chain;
    uint64_t drawn = 0;
    for (const auto& [path, count] : {std::pair(made.train, kTrainTokens), {made.val, kValTokens}}) {
        std::vector<uint16_t> tokens;
        int symbol = 0;
        for (int64_t i = 0; i < count; ++i) {
            const double draw = uniform(drawn++, kTextStream);
            symbol = synthetic ? chain.next(symbol, draw) : int(256 * draw);
            tokens.push_back(uint16_t(symbol));
        }
        write_shard(path, tokens);
    }
    made.vocab = synthetic ? kSymbols : 0;
    made.entropy_nats = synthetic ? chain.entropy() : std::log(256.0);
    made.about = format("%s data of %.4f nats per token, made on the spot: no model's loss can stay below that",
                        data.c_str(), made.entropy_nats);
    return made;
}

}  // namespace rz
