#include "llama/parallel/stages_line.h"

#include <algorithm>
#include <map>

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

std::string stages_by_rank_line(const std::vector<PipelineNumbers>& ranks, const std::vector<int>& pp) {
    double length = 0;
    std::map<int, PipelineNumbers> by_place;
    for (const PipelineNumbers& r : ranks) length = std::max(length, r.length);
    for (size_t r = 0; r < ranks.size(); ++r) by_place.insert({pp[r], ranks[r]});
    for (auto& [place, n] : by_place) n.drain += length - n.length;
    const auto list = [&](auto number, const char* form) {
        std::string text;
        for (const auto& [place, n] : by_place) text += (text.empty() ? "" : "/") + format(form, number(n));
        return text;
    };
    const auto share = [&](double PipelineNumbers::*part) {
        return list([&](const PipelineNumbers& n) { return length > 0 ? 100 * n.*part / length : 0; }, "%.0f");
    };
    const auto depth = [&](int PipelineNumbers::*most) {
        return list([&](const PipelineNumbers& n) { return n.*most; }, "%d");
    };
    return "         by rank: busy " + share(&PipelineNumbers::busy) + " % of the step, " +
           list([](const PipelineNumbers& n) { return n.span > 0 ? 100 * n.busy / n.span : 0; }, "%.0f") +
           " % of its span | idle " + share(&PipelineNumbers::warm_up) + " % warm-up, " +
           share(&PipelineNumbers::steady) + " % steady, " + share(&PipelineNumbers::drain) + " % drain; " +
           share(&PipelineNumbers::waiting) + " % waiting | queues " + depth(&PipelineNumbers::queue_forward) +
           " forward, " + depth(&PipelineNumbers::queue_backward) + " backward | " +
           depth(&PipelineNumbers::in_flight) + " in flight";
}

}  // namespace rz
