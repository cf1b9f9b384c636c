#include "llama/train/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/statistics.h"
#include "llama/base/json.h"

namespace rz {

Statistics::Statistics(TrainState& core)
    : core_(core),
      counts_(core.zero.ownership.shard_groups().replicate.rank == 0),
      no_logits_(size_t(core.config.layers), -std::numeric_limits<float>::infinity()) {
    cut_into_segments();
    const Device device = core.device;
    bounds_there_ = Buffer(device, 8 * int64_t(bounds_.size()), MemKind::workspace, "segments of tensors");
    sums_ = Buffer(device, result_bytes(), MemKind::workspace, "sums of statistics");
    previous_ = Buffer(device, most() * size_of(core.zero.options.master_dtype), MemKind::workspace,
                       "weights before their update");
    for (Buffer& b : results_) b = Buffer::host_for(device, result_bytes(), MemKind::workspace, "statistics");
    core.compute.copy(bounds_there_.data(), bounds_.data(), bounds_there_.bytes());
    core.compute.synchronize();
}

// Tensors in pieces that a thread block sums up, and what lies between them.
void Statistics::cut_into_segments() {
    constexpr int64_t kLongest = 1 << 16;
    bounds_ = {0};
    const auto add_until = [&](int64_t end, int tensor) {
        while (bounds_.back() < end) {
            tensors_.push_back(tensor);
            bounds_.push_back(std::min(end, bounds_.back() + kLongest));
        }
    };
    for (const TensorShard& p : core_.table.held()) {
        add_until(p.local, -1);
        add_until(p.local + p.size(), p.owned && counts_ ? p.tensor : -1);
    }
    add_until(core_.zero.ownership.elements(), -1);
}

void Statistics::begin() {
    core_.compute.zero(sums_.data(), logits_at());
    core_.compute.copy(sums_.bytes_at(logits_at()), no_logits_.data(), 4 * blocks());
    core_.zero.optimizer.watch(this);
}

BlockStats Statistics::watch() const {
    return {reinterpret_cast<double*>(sums_.bytes_at(squares_at())),
            reinterpret_cast<float*>(sums_.bytes_at(logits_at()))};
}

void Statistics::end(int64_t step) {
    core_.zero.optimizer.watch(nullptr);
    core_.compute.copy(results_[size_t(step % 2)].data(), sums_.data(), result_bytes());
}

void Statistics::add(Sum which, const void* x, const void* minus, int64_t local, int64_t n, DType dtype) {
    const int64_t first = std::upper_bound(bounds_.begin(), bounds_.end(), local) - bounds_.begin() - 1,
                  end = std::lower_bound(bounds_.begin(), bounds_.end(), local + n) - bounds_.begin();
    segment_squares(core_.compute, {.sums = sums_.as<double>() + which * segments() + first,
                                    .x = x,
                                    .minus = minus,
                                    .bounds = bounds_there_.as<int64_t>() + first,
                                    .segments = end - first,
                                    .first = local,
                                    .n = n,
                                    .dtype = dtype});
}

void Statistics::before(const OwnedRange& piece, int64_t local, int64_t n) {
    if (!counts_) return;
    const ZeroOptions& o = core_.zero.options;
    add(kGradient, piece.grad, nullptr, local, n, o.grad_dtype);
    add(kWeight, piece.master, nullptr, local, n, o.master_dtype);
    core_.compute.copy(previous_.data(), piece.master, n * size_of(o.master_dtype));
}

void Statistics::after(const OwnedRange& piece, int64_t local, int64_t n) {
    if (counts_) add(kUpdate, piece.master, previous_.data(), local, n, core_.zero.options.master_dtype);
}

// JSON has no NaN or infinity. Seven digits do not show in which order doubles were added.
static std::string seven_digits(double x) { return std::isfinite(x) ? format("%.7g", x) : "null"; }

std::string Statistics::report(int64_t step, Process& process, double loss_scale, int64_t tokens) const {
    const size_t tensors = core_.table.tensors().size(), L = size_t(blocks());
    const Buffer& here = results_[size_t(step % 2)];
    std::vector<double> own(kSums * tensors + L, 0), logits(L);
    for (int64_t s = 0; s < segments(); ++s)
        for (int64_t w = 0; w < kSums && tensors_[size_t(s)] >= 0; ++w)
            own[kSums * size_t(tensors_[size_t(s)]) + size_t(w)] += here.as<double>()[w * segments() + s];
    std::memcpy(&own[kSums * tensors], here.bytes_at(squares_at()), 8 * L);
    for (size_t l = 0; l < L; ++l) {
        float logit = 0;
        std::memcpy(&logit, here.bytes_at(logits_at() + 4 * int64_t(l)), 4);
        own.push_back(double(logit));
    }
    std::vector<double> all(own.size() * size_t(process.size())), sum(own.size(), 0);
    process.all_gather(own.data(), int64_t(own.size()) * 8, all.data());
    if (!process.is_root()) return "";
    std::fill(sum.end() - int64_t(L), sum.end(), -std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < all.size(); ++i) {
        const size_t k = i % own.size();
        sum[k] = k < own.size() - L ? sum[k] + all[i] : std::max(sum[k], all[i]);
    }
    std::string json = "{\"tensors\":{";
    for (size_t t = 0; t < tensors; ++t) {
        const double* of = &sum[kSums * t];
        json += format(
            "%s\"%s\":{\"grad_norm\":%s,\"norm\":%s,\"update_ratio\":%s}", t ? "," : "",
            core_.table.tensors()[t].name.c_str(), seven_digits(std::sqrt(of[kGradient]) / loss_scale).c_str(),
            seven_digits(std::sqrt(of[kWeight])).c_str(), seven_digits(std::sqrt(of[kUpdate] / of[kWeight])).c_str());
    }
    json += "},\"blocks\":[";
    for (size_t l = 0; l < L; ++l)
        json += format("%s{\"residual_rms\":%s,\"largest_logit\":%s}", l ? "," : "",
                       seven_digits(std::sqrt(sum[kSums * tensors + l] / double(tokens))).c_str(),
                       seven_digits(sum[kSums * tensors + L + l]).c_str());
    return json + "]}";
}

}  // namespace rz
