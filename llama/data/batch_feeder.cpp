#include "llama/data/batch_feeder.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "llama/base/sum_hash.h"

namespace rz {

// tokens N, targets N, rows N, starts N + 1, ids N; with documents where they start N, positions N
static int64_t ints(int64_t N, bool documents) { return (documents ? 7 : 5) * N + 1; }

BatchFeeder::BatchFeeder(Device device, Stream& stream, int64_t B, int64_t T, int64_t vocab, int64_t ahead,
                         bool same_plan, int64_t held, const DocumentMask& documents)
    : stream_(stream),
      B_(B),
      T_(T),
      vocab_(vocab),
      same_plan_(same_plan),
      documents_(documents),
      staging_(size_t(ahead) + 1) {
    const int64_t bytes = checked_mul(ints(checked_mul(B, T, "micro-batch"), bool(documents)), 4, "micro-batch");
    for (Staging& s : staging_) s.host = Buffer::host_for(device, bytes, MemKind::data, "token staging");
    for (int64_t i = 0; i < held; ++i) device_.emplace_back(device, bytes, MemKind::data, "tokens");
}

DeviceBatch BatchFeeder::next(const DataLoader& data, int64_t position, int64_t end) {
    Staging& staging = staging_[turn_];
    turn_ = (turn_ + 1) % staging_.size();
    staging.copied.synchronize();
    const int64_t N = B_ * T_;
    int32_t* host = staging.host.as<int32_t>();
    data.batch(position, B_, host, host + N);
    data_hash_ = sum_hash(host, position * T_, N, 4);
    const int64_t valid = std::clamp<int64_t>(end - position, 0, B_);
    std::fill(host + N + valid * T_, host + 2 * N, kIgnoreTarget);
    int64_t distinct = embedding_plan(host, N, vocab_, host + 2 * N, host + 3 * N, host + 4 * N + 1);
    if (same_plan_)
        for (const int64_t most = std::min(N, vocab_); distinct < most; ++distinct) {
            host[3 * N + distinct + 1] = int32_t(N);
            host[4 * N + 1 + distinct] = 0;
        }
    if (documents_)
        attention_share_ =
            double(find_documents(documents_, host, B_, T_, host + 5 * N + 1, host + 6 * N + 1)) / double(N * T_);
    const Buffer& there = device_[device_turn_];
    device_turn_ = (device_turn_ + 1) % device_.size();
    stream_.copy(there.data(), host, staging.host.bytes());
    staging.copied = stream_.record();

    const int32_t* p = there.as<int32_t>();
    return {.B = B_,
            .T = T_,
            .tokens = p,
            .targets = p + N,
            .rows = p + 2 * N,
            .starts = p + 3 * N,
            .ids = p + 4 * N + 1,
            .distinct = distinct,
            .positions = documents_ ? p + 6 * N + 1 : nullptr,
            .first_key = documents_ ? p + 5 * N + 1 : nullptr};
}

}  // namespace rz
