#include "llama/model/weights.h"

#include <cstdio>

#include "llama/model/hf.h"

namespace rz {

constexpr int64_t kPiece = kWeightsPiece;

static HfWeights open_weights(const std::string& folder, const ParamTable& table, const uint64_t* grow = nullptr) {
    HfWeights weights(folder, table, grow);
    for (const std::string& w : weights.warnings()) std::fprintf(stderr, "train_llama: %s\n", w.c_str());
    return weights;
}

// Reads what lies in [begin, end) of the local flat buffer to `out` on the device, through a staging buffer.
static void upload(const HfWeights& weights, const ParamTable& table, int64_t begin, int64_t end, DType dtype,
                   char* out, Buffer& staging, Stream& stream) {
    table.for_each_run(begin, end, kPiece, [&](const TensorRun& run) {
        weights.read(table.tensors()[size_t(run.tensor)], run.first, run.count, dtype, staging.data());
        stream.copy(out + (run.local - begin) * size_of(dtype), staging.data(), run.count * size_of(dtype));
        stream.synchronize();  // staging is filled again
    });
}

void load_weights(const std::string& folder, const ParamTable& table, Device device, Stream& stream, Zero& zero,
                  const uint64_t* grow) {
    const HfWeights weights = open_weights(folder, table, grow);
    Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being loaded");
    for (const OwnedRange& own : zero.optimizer.owned())
        upload(weights, table, own.local_offset, own.local_offset + own.elements.size(), zero.options.master_dtype,
               static_cast<char*>(own.master), staging, stream);
    zero.optimizer.all_gather_updated();
    zero.optimizer.begin_average();
}

void load_weights(const std::string& folder, const ParamTable& table, DType dtype, Device device, Stream& stream,
                  const Ownership& ownership, ParameterCache& parameters) {
    const HfWeights weights = open_weights(folder, table);
    Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being loaded");
    for (int u = 0; u < int(ownership.units().size()); ++u) {
        const OwnedSlice& own = ownership.owned(u);
        upload(weights, table, own.local_offset, own.local_offset + own.elements.size(), dtype,
               static_cast<char*>(parameters.owned(u)), staging, stream);
        parameters.all_gather_updated(u);
    }
}

void load_weights(const std::string& folder, const ParamTable& table, DType dtype, Device device, Stream& stream,
                  ResidentParameters& parameters) {
    const HfWeights weights = open_weights(folder, table);
    Buffer staging = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "weights being loaded");
    for (int u = 0; u < int(table.held_units().size()); ++u) {
        const UnitLayout& unit = table.held_units()[size_t(u)];
        upload(weights, table, unit.offset, unit.offset + unit.size, dtype, parameters.bytes(u), staging, stream);
    }
}

}  // namespace rz
