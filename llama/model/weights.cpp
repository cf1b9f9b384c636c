#include "llama/model/weights.h"

#include <algorithm>
#include <cstdio>

#include "llama/model/hf.h"

namespace rz {

constexpr int64_t kPiece = int64_t(4) << 20;  // elements moved at a time

static HfWeights open_weights(const std::string& folder, const ParamTable& table) {
    HfWeights weights(folder, table);
    for (const std::string& w : weights.warnings()) std::fprintf(stderr, "train_llama: %s\n", w.c_str());
    return weights;
}

// Copies elements [begin, end) of a tensor to `out` on the device through a staging buffer.
static void upload(const HfWeights& weights, const Tensor& t, int64_t begin, int64_t end, DType dtype, char* out,
                   Buffer& staging, Stream& stream) {
    const int64_t e = size_of(dtype);
    for (int64_t at = begin; at < end; at += kPiece) {
        const int64_t n = std::min(kPiece, end - at);
        weights.read(t, at, n, dtype, staging.data());
        stream.copy(out + (at - begin) * e, staging.data(), n * e);
        stream.synchronize();  // staging is filled again
    }
}

void load_weights(const std::string& folder, const ParamTable& table, Device device, Stream& stream, Zero& zero) {
    const HfWeights weights = open_weights(folder, table);
    Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being loaded");
    for (const OwnedRange& own : zero.owned()) {
        const Unit& unit = table.units()[size_t(own.unit)];
        for (int i = unit.first_tensor; i < unit.first_tensor + unit.tensors; ++i) {
            const Tensor& t = table.tensors()[size_t(i)];
            const int64_t begin = std::max(own.logical, t.offset) - t.offset;
            const int64_t end = std::min(own.logical + own.elements.size(), t.offset + t.size) - t.offset;
            if (begin >= end) continue;
            const DType dtype = zero.options().master_dtype;
            char* out = static_cast<char*>(own.master) + (t.offset + begin - own.logical) * size_of(dtype);
            upload(weights, t, begin, end, dtype, out, staging, stream);
        }
    }
    zero.publish();
}

void load_weights(const std::string& folder, const ParamTable& table, DType dtype, Device device, Stream& stream,
                  ResidentParameters& parameters) {
    const HfWeights weights = open_weights(folder, table);
    Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being loaded");
    for (const Tensor& t : table.tensors()) {
        const int64_t within = t.offset - table.units()[size_t(t.unit)].offset;
        upload(weights, t, 0, t.size, dtype, parameters.bytes(t.unit) + within * size_of(dtype), staging, stream);
    }
}

void save_weights(const std::string& folder, const ModelConfig& config, const ParamTable& table, DType dtype,
                  Device device, Stream& stream, ParameterSource& parameters, bool writes,
                  const std::string& tokenizer_from) {
    int held = -1;
    const char* unit_bytes = nullptr;
    // Units in ascending order, on every rank: a gather needs them all.
    auto move_to = [&](int unit) {
        while (held < unit) {
            if (held >= 0) parameters.release(held);
            unit_bytes = static_cast<const char*>(parameters.gather(++held));
        }
    };
    if (writes) {
        Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being saved");
        save_model(
            folder, config, table, dtype,
            [&](const Tensor& t, int64_t first, int64_t count, void* out) {
                move_to(t.unit);
                const int64_t e = size_of(dtype), within = t.offset - table.units()[size_t(t.unit)].offset;
                for (int64_t at = 0; at < count; at += kPiece) {
                    const int64_t n = std::min(kPiece, count - at);
                    stream.copy(staging.data(), unit_bytes + (within + first + at) * e, n * e);
                    stream.synchronize();
                    std::copy_n(staging.as<char>(), n * e, static_cast<char*>(out) + at * e);
                }
            },
            tokenizer_from);
    }
    move_to(int(table.units().size()) - 1);
    parameters.release(held);
    stream.synchronize();
}

}  // namespace rz
