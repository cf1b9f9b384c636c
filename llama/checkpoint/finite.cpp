#include "llama/checkpoint/finite.h"

namespace rz {

std::string find_not_finite(Process& process, Device device, Stream& compute, const Zero& zero,
                            const ParamTable& table) {
    constexpr int64_t kPiece = kFinitePiece;
    const DType dtype = zero.options.param_dtype;
    const int64_t e = size_of(dtype);
    std::string problem;
    try {
        Buffer staging = Buffer::host_for(device, kPiece * e, MemKind::workspace, "weights being checked");
        for (const OwnedRange& r : zero.optimizer.owned())
            table.for_each_run(r.local_offset, r.local_offset + r.elements.size(), kPiece, [&](const TensorRun& run) {
                compute.copy(staging.data(), at(r.param, run.local - r.local_offset, dtype), run.count * e);
                compute.synchronize();
                require_finite(staging.data(), run.first, run.count, dtype, "the weights",
                               table.tensors()[size_t(run.tensor)].name);
            });
    } catch (const NotFinite& error) {
        problem = error.what();
    }
    for (const std::string& text : process.all_gather_text(problem))
        if (!text.empty()) return text;
    return "";
}

}  // namespace rz
