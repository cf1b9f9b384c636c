#include "llama/parallel/stages_line.h"

#include <algorithm>

#include "kernels/runtime/check.h"

namespace rz {

std::string stages_line(const std::vector<PipelineNumbers>& ranks) {
    PipelineNumbers all;
    for (const PipelineNumbers& r : ranks) {
        for (const auto part : {&PipelineNumbers::busy, &PipelineNumbers::span, &PipelineNumbers::warm_up,
                                &PipelineNumbers::steady, &PipelineNumbers::drain, &PipelineNumbers::waiting})
            all.*part += r.*part;
        for (const auto most :
             {&PipelineNumbers::queue_forward, &PipelineNumbers::queue_backward, &PipelineNumbers::in_flight})
            all.*most = std::max(all.*most, r.*most);
        all.length = std::max(all.length, r.length);
    }
    for (const PipelineNumbers& r : ranks) all.drain += all.length - r.length;
    const double whole = all.length * double(ranks.size());
    const auto percent = [](double part, double of) { return of > 0 ? 100 * part / of : 0; };
    return format(
        "stages   busy %.1f %% of the step, %.1f %% of their spans | idle %.1f %% warm-up, %.1f %% steady, %.1f %% "
        "drain; %.1f %% waiting for messages | queues %d forward, %d backward | %d in flight",
        percent(all.busy, whole), percent(all.busy, all.span), percent(all.warm_up, whole), percent(all.steady, whole),
        percent(all.drain, whole), percent(all.waiting, whole), all.queue_forward, all.queue_backward, all.in_flight);
}

}  // namespace rz
