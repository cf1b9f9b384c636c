#include "llama/train/scorer.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/cross_entropy.h"

namespace rz {

static int64_t buffer_bytes(int64_t B, int64_t T) {
    return checked_mul(checked_mul(B, T, "evaluation batch"), 20, "evaluation batch");
}

Scorer::Buffers::Buffers(Device d, int64_t B, int64_t T)
    : host(Buffer::host_for(d, buffer_bytes(B, T), MemKind::data, "evaluation staging")),
      device(d, buffer_bytes(B, T), MemKind::data, "evaluation batch") {}

Scorer::Scorer(Process& process, Model& model, Device device, Stream& stream, AxisRank dp, bool counts, int64_t B,
               int64_t T, int64_t vocab, AxisRank cp, int64_t multiple)
    : process_(process),
      model_(model),
      stream_(stream),
      dp_(dp),
      cp_(cp),
      counts_(counts),
      B_(B),
      T_(T),
      vocab_(vocab),
      multiple_(multiple),
      buffers_(device, B, T / cp.size) {}

// Places of this rank's tokens among the rows x T of a batch, in the order in which it holds them.
std::vector<int64_t> Scorer::own_places(int64_t rows, int64_t T) const {
    std::vector<int64_t> places;
    const int64_t chunks = cp_.size > 1 ? 2 * cp_.size : 1, length = T / chunks;
    for (int64_t r = 0; r < rows; ++r)
        for (const int64_t c :
             cp_.size > 1 ? std::vector<int64_t>{cp_.rank, chunks - 1 - cp_.rank} : std::vector<int64_t>{0})
            for (int64_t t = 0; t < length; ++t) places.push_back(r * T + c * length + t);
    return places;
}

// The scores of the batch's items. Waits for the device.
std::vector<Score> Scorer::run(const Batch& b, const std::vector<const ScoreItem*>& sorted) {
    const bool cuts = cp_.size > 1;
    const int64_t rows = cuts || multiple_ > 1 ? B_ : int64_t(b.end - b.first);
    const int64_t T = cuts ? T_ : round_up(b.T, multiple_ / std::gcd(B_, multiple_));  // at most T_
    // Tokens after an item in its row are seen by none of its tokens.
    std::vector<int32_t> whole(size_t(2 * rows * T), 0);
    std::fill(whole.begin() + rows * T, whole.end(), kIgnoreTarget);
    for (size_t i = b.first; i < b.end; ++i) {
        const ScoreItem& item = *sorted[i];
        const int64_t n = int64_t(item.tokens.size()) - 1, row = int64_t(i - b.first) * T;
        std::copy_n(item.tokens.begin(), n, whole.begin() + row);
        std::copy_n(item.tokens.end() - item.scored, item.scored, whole.begin() + rows * T + row + n - item.scored);
    }
    const std::vector<int64_t> places = own_places(rows, T);
    const int64_t N = int64_t(places.size());
    int32_t *tokens = buffers_.host.as<int32_t>(), *targets = tokens + N, *best = tokens + 3 * N;
    const float* losses = reinterpret_cast<const float*>(tokens + 2 * N);
    for (int64_t i = 0; i < N; ++i) {
        const int64_t at = places[size_t(i)];
        tokens[i] = whole[size_t(at)], targets[i] = whole[size_t(rows * T + at)], tokens[4 * N + i] = int32_t(at % T);
    }
    int32_t* device = buffers_.device.as<int32_t>();
    stream_.copy(device, tokens, 8 * N);
    if (cuts) stream_.copy(device + 4 * N, tokens + 4 * N, 4 * N);
    model_.score({.B = rows,
                  .T = N / rows,
                  .tokens = device,
                  .targets = device + N,
                  .positions = cuts ? device + 4 * N : nullptr},
                 reinterpret_cast<float*>(device + 2 * N), device + 3 * N);
    stream_.copy(tokens + 2 * N, device + 2 * N, 8 * N);
    stream_.synchronize();

    std::vector<Score> scores(b.end - b.first, {.log_p = 0, .greedy = true});
    for (int64_t i = 0; i < N; ++i) {
        if (targets[i] == kIgnoreTarget) continue;
        Score& score = scores[size_t(places[size_t(i)] / T)];
        score.log_p -= double(losses[i]);
        score.greedy &= best[i] == targets[i];
    }
    return scores;
}

std::vector<Score> Scorer::score(const std::vector<const ScoreItem*>& items) {
    for (const ScoreItem* item : items) {
        const int64_t n = int64_t(item->tokens.size()) - 1;
        require(item->scored > 0 && item->scored <= n && n <= T_,
                "an item of %ld tokens, %ld of them scored, for windows of %ld", n + 1, item->scored, T_);
        for (const int32_t t : item->tokens)
            require(t >= 0 && t < vocab_,
                    "token %d is outside the model's vocabulary of %ld: this is another tokenizer", t, vocab_);
    }
    // Longest first, so that memory runs out at once or never; the batches do not depend on the ranks.
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return items[a]->tokens.size() > items[b]->tokens.size(); });
    std::vector<const ScoreItem*> sorted;
    for (const size_t i : order) sorted.push_back(items[i]);
    std::vector<Batch> batches;
    for (size_t first = 0; first < sorted.size(); first += size_t(B_))
        batches.push_back(
            {first, std::min(sorted.size(), first + size_t(B_)), int64_t(sorted[first]->tokens.size()) - 1});

    // Every rank runs equally many: where parameters are gathered or a pipeline passes on, all take part. What a rank
    // has beyond the last batch is the last batch again, and counts nowhere.
    const bool mine_count = counts_ && model_.holds_head();
    std::vector<Score> own(items.size());
    std::vector<bool> scored(items.size(), false);
    for (size_t first = 0; first < batches.size(); first += size_t(dp_.size)) {
        const size_t mine = first + size_t(dp_.rank);
        const Batch& b = batches[std::min(mine, batches.size() - 1)];
        const std::vector<Score> scores = run(b, sorted);
        if (mine >= batches.size() || !mine_count) continue;
        for (size_t i = b.first; i < b.end; ++i) own[order[i]] = scores[i - b.first], scored[order[i]] = true;
    }
    // Scores of the ranks that cut a sequence are added in their order.
    std::vector<Score> out(items.size(), {.log_p = 0, .greedy = true});
    for (int part = 0; part < cp_.size; ++part) {
        std::vector<uint64_t> sums(2 * items.size(), 0);  // each item's: the bits of log p; 2 if scored, 1 if greedy
        for (size_t i = 0; i < items.size(); ++i)
            if (scored[i] && cp_.rank == part)
                sums[2 * i] = std::bit_cast<uint64_t>(own[i].log_p), sums[2 * i + 1] = 2 + uint64_t(own[i].greedy);
        sums = process_.sums(sums);
        for (size_t i = 0; i < items.size(); ++i) {
            require((sums[2 * i + 1] & ~uint64_t(1)) == 2,
                    "item %zu of an evaluation was scored by more or less than one rank", i);
            out[i].log_p += std::bit_cast<double>(sums[2 * i]);
            out[i].greedy &= (sums[2 * i + 1] & 1) != 0;
        }
    }
    return out;
}

}  // namespace rz
