#include "llama/train/recheck.h"

#include <algorithm>
#include <cstring>

#include "llama/base/fault.h"
#include "llama/base/sum_hash.h"
#include "llama/checkpoint/replicas.h"

namespace rz {

constexpr int64_t kPiece = kRecheckPiece;

Recheck::Recheck(Process& process, TrainState& core) : process_(process), core_(core) {
    if (core_.device.is_cuda())
        staging_ = Buffer::host_for(core_.device, kPiece, MemKind::workspace, "gradients being compared");
    core_.units.before_reduce = [this](int unit, void* gradients) {
        if (pass_) see(unit, gradients);
    };
}

Recheck::~Recheck() { core_.units.before_reduce = nullptr; }

void Recheck::see(int unit, void* gradients) {
    Stream& compute = core_.compute;
    if (fault_point("recheck") == FaultAction::flip) damage_word(compute, gradients, /*nan=*/false);
    const int64_t element = size_of(core_.units.grad_dtype(unit));
    const int64_t bytes = core_.units.padded(unit) * element;
    uint64_t hash = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
        const int64_t count = std::min(kPiece, bytes - at);
        const char* here = static_cast<const char*>(gradients) + at;
        if (staging_) compute.copy(staging_.data(), here, count);
        compute.synchronize();
        hash += sum_hash(staging_ ? staging_.as<char>() : here, at / element, count / element, element);
    }
    pass_->units.emplace_back(unit, hash);
}

double Recheck::loss() {
    double sum = 0;
    if (!core_.model.loss_sum()) return 0;
    core_.compute.copy(&sum, core_.model.loss_sum(), sizeof sum);
    core_.compute.synchronize();
    return sum;
}

void Recheck::compute_twice(const PassArgs& goal, const Model::Batches& batches) {
    first_ = {}, second_ = {};
    pass_ = &first_;
    core_.model.run(core_.program, goal, batches);
    pass_ = nullptr;
    first_.loss = loss();
    core_.model.reset_loss();
    core_.model.take_times();
    core_.zero.grads.wait();
    core_.zero.grads.begin_step();
    core_.zero.params.forget_what_was_made();
}

std::string Recheck::difference() const {
    for (size_t i = 0; i < std::max(first_.units.size(), second_.units.size()); ++i) {
        if (i >= first_.units.size() || i >= second_.units.size()) return "other reduces";
        if (first_.units[i] == second_.units[i]) continue;
        const int unit = second_.units[i].first, last = int(core_.config.layers) + 1;
        return unit == 0      ? "gradients of the embedding"
               : unit == last ? "gradients of norm and head"
                              : format("gradients of block %d", unit - 1);
    }
    return std::memcmp(&first_.loss, &second_.loss, sizeof first_.loss) != 0 ? "its loss" : "";
}

std::string Recheck::compare() {
    pass_ = nullptr;
    second_.loss = loss();
    const std::vector<std::string> by_rank = process_.all_gather_text(difference());
    std::string text;
    for (size_t r = 0; r < by_rank.size(); ++r)
        if (!by_rank[r].empty()) text += format("%srank %zu (%s)", text.empty() ? "" : ", ", r, by_rank[r].c_str());
    if (!text.empty()) text = "computed twice, this step has other bits the second time on " + text;
    return text;
}

}  // namespace rz
