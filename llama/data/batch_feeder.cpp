#include "llama/data/batch_feeder.h"

#include <algorithm>

#include "comm/meter.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "llama/base/sum_hash.h"

namespace rz {

// tokens N, targets N, rows N, starts N + 1, ids N; where rows are not one text from 0 on: positions N, and where
// documents start N
static int64_t ints(int64_t N, bool positions, bool documents) { return (5 + positions + documents) * N + 1; }

BatchFeeder::BatchFeeder(Device device, Stream& stream, int64_t B, int64_t T, int64_t vocab, int64_t ahead,
                         bool same_plan, int64_t held, const DocumentMask& documents, AxisRank cp, int read_ahead)
    : stream_(stream),
      B_(B),
      T_(T),
      vocab_(vocab),
      same_plan_(same_plan),
      documents_(documents),
      cp_(cp),
      staging_(size_t(ahead) + 1) {
    const int64_t N = checked_mul(B, T, "micro-batch");
    const int64_t own = ints(N / cp.size, documents || cp.size > 1, bool(documents));
    const int64_t bytes = checked_mul(own, 4, "micro-batch");
    if (cp.size > 1) {
        require(T % (2 * cp.size) == 0, "sequences of %ld tokens do not cut into 2 x %d chunks", T, cp.size);
        whole_.resize(size_t(checked_mul(N, 4, "micro-batch")));
    }
    for (Staging& s : staging_) s.host = Buffer::host_for(device, bytes, MemKind::data, "token staging");
    constexpr int64_t kEachThread = 2;  // one is read while one waits
    if (read_ahead > 0) ahead_ = std::make_unique<ReadAhead>(device, B, T, kEachThread * read_ahead + 1, read_ahead);
    for (int64_t i = 0; i < held; ++i) device_.emplace_back(device, bytes, MemKind::data, "tokens");
}

void BatchFeeder::train_on(const SampleSource& data, std::function<int64_t(int64_t)> position) {
    if (trains_on_) return;
    trains_on_ = &data;
    if (ahead_ && position) ahead_->start(data, std::move(position));
}

void BatchFeeder::cut(const int32_t* whole, int32_t* own) const {
    const int64_t chunk = T_ / (2 * cp_.size);
    for (int64_t b = 0; b < B_; ++b)
        for (const int64_t c : {cp_.rank, 2 * cp_.size - 1 - cp_.rank})
            own = std::copy_n(whole + b * T_ + c * chunk, chunk, own);
}

DeviceBatch BatchFeeder::next(const SampleSource& data, int64_t position, int64_t end, bool in_turn) {
    Staging& staging = staging_[turn_];
    turn_ = (turn_ + 1) % staging_.size();
    staging.copied.synchronize();
    const bool cuts = cp_.size > 1, has_positions = documents_ || cuts;
    const int64_t N = B_ * T_ / cp_.size, all = B_ * T_;
    int32_t* const host = staging.host.as<int32_t>();
    int32_t* const tokens = cuts ? whole_.data() : host;
    const Timer timer;
    const bool trains = in_turn && &data == trains_on_;
    if (trains && ahead_ && ahead_->started())
        std::copy_n(ahead_->take(position), 2 * all, tokens);
    else
        data.batch(position, B_, tokens, tokens + all);
    if (trains) waited_ += timer.seconds();
    data_hash_ = sum_hash(tokens, position * T_, all, 4);
    const int64_t valid = std::clamp<int64_t>(end - position, 0, B_);
    std::fill(tokens + all + valid * T_, tokens + 2 * all, kIgnoreTarget);
    if (has_positions) {
        int32_t* const positions = cuts ? tokens + 2 * all : host + 5 * N + 1;
        int32_t* const starts = positions + (documents_ ? all : 0);  // without documents nobody asks for them
        attention_share_ = double(find_documents(documents_, tokens, B_, T_, starts, positions)) /
                           double(B_ * attention_squares(T_, documents_.window));
        if (documents_) tiles_ = attention_tiles(starts, B_, T_);
    }
    if (cuts) {
        cut(tokens, host);
        cut(tokens + all, host + N);
        cut(tokens + 2 * all, host + 5 * N + 1);
        if (documents_) cut(tokens + 3 * all, host + 6 * N + 1);
    }
    int64_t distinct = embedding_plan(host, N, vocab_, host + 2 * N, host + 3 * N, host + 4 * N + 1);
    if (same_plan_)
        for (const int64_t most = std::min(N, vocab_); distinct < most; ++distinct) {
            host[3 * N + distinct + 1] = int32_t(N);
            host[4 * N + 1 + distinct] = 0;
        }
    const Buffer& there = device_[device_turn_];
    device_turn_ = (device_turn_ + 1) % device_.size();
    stream_.copy(there.data(), host, staging.host.bytes());
    staging.copied = stream_.record();

    const int32_t* p = there.as<int32_t>();
    return {.B = B_,
            .T = T_ / cp_.size,
            .tokens = p,
            .targets = p + N,
            .rows = p + 2 * N,
            .starts = p + 3 * N,
            .ids = p + 4 * N + 1,
            .distinct = distinct,
            .positions = has_positions ? p + 5 * N + 1 : nullptr,
            .first_key = documents_ ? p + 6 * N + 1 : nullptr};
}

}  // namespace rz
