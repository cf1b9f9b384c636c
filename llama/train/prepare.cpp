#include "llama/train/prepare.h"

#include <algorithm>
#include <utility>

#include "comm/nccl_transport.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_check.h"
#include "kernels/fp8/prepare_products.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/load.h"
#include "kernels/runtime/queues.h"
#include "kernels/runtime/request.h"
#include "llama/train/plan_memory.h"

namespace rz {

std::string prepare_device(const TrainOptions& o, const ModelConfig& config, int64_t prompt, Device device,
                           Process& process, std::string& choices) {
    const std::string chosen_before = std::exchange(choices, "");
    if (!device.is_cuda()) return "";
    std::string text = load_kernels(device).text();
    check_attention(device, {.T = std::min<int64_t>(o.seq_len, 192),
                             .H = config.heads > config.kv_heads ? 2 : 1,
                             .K = 1,
                             .D = config.head_dim,
                             .dtype = o.dtype,
                             .documents = o.doc_boundary != DocBoundary::none});
    GemmTuning& tuning = gemm_tuning(*device.context);
    const bool tuned = tuning.tune != GemmTune::off || !tuning.cache_file.empty();
    if (process.alone() && !tuned) return text;  // its first step may wait for the device

    ProductShapes of_all, own;
    try {
        const PlannedJob job{.kind = device.kind,
                             .ranks = process.size(),
                             .capability = compute_capability(device),
                             .finishes = false,
                             .prompt = prompt};
        // The ranks that hold the model together; all others have the same shapes.
        for (PlannedRank& one : plan_ranks(o, config, job, process.rank())) {
            of_all.all.insert(one.products.all.begin(), one.products.all.end());
            if (one.rank == process.rank()) own = std::move(one.products);
        }
    } catch (const RequestError&) {
        throw;
    } catch (const Error& error) {
        const std::string why = error.what();
        return text + "; products are not known beforehand: " + why.substr(0, why.find('\n'));
    }
    if (tuned) {
        tuning.chosen = chosen_before;
        if (process.is_root()) {
            prepare_products(device, of_all);
            text += format("; GEMM tuning: %ld shapes measured, %ld known", tuning.measured, tuning.read);
        }
        choices = process.broadcast_text(tuning.chosen, 0);
        tuning.chosen = choices, tuning.cache_file.clear(), tuning.closed = true;
    }
    return text + "; " + prepare_products(device, own).text();
}

std::vector<std::string> device_notes(const TrainOptions& o, const ModelConfig& config, Device device,
                                      Process& process) {
    if (!device.is_cuda()) return {};
    std::vector<std::string> notes = {attention_advice(o.dtype, config.head_dim), queue_advice()};
    if (process.size() > 1 && process.uses_nccl(o.transport, device)) notes.insert(notes.begin(), nccl_launch_order());
    std::erase(notes, "");
    return notes;
}

}  // namespace rz
