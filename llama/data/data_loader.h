#pragma once
// Samples from token shards, in an order that is a pure function of (seed, position).
//
// A sample is a window of T + 1 tokens: T inputs and, one further, T targets. Windows start every T tokens of a
// shard, never cross shards, and are numbered through all shards in order; a shard of n tokens holds
// max(0, (n - 1) / T) of them. Epoch e of the training stream is the permutation (seed, e) of all samples, so the
// state of the loader is one number, `position`, and any rank reads any part of a batch with no other state:
// the order of the data never depends on how many ranks there are.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llama/data/data_order.h"
#include "llama/data/token_shards.h"

namespace rz {

// A bijection of [0, n) chosen by (seed, epoch), evaluated at one point in O(1) with no table: an 8-round Feistel
// network over the next power of two, walked until it lands inside [0, n) (Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002). Not for cryptography.
class Permutation {
   public:
    Permutation(int64_t n, uint64_t seed, uint64_t epoch);
    int64_t operator()(int64_t i) const;  // i in [0, n)

   private:
    static constexpr int kRounds = 8;
    int64_t n_;
    int left_bits_, right_bits_;
    uint64_t keys_[kRounds];
};

// Record of the data, to be stored in a checkpoint and compared when the run is resumed.
struct DataFingerprint {
    struct Shard {
        std::string name;  // without folders: a dataset may move
        int64_t bytes = 0, tokens = 0;
        int token_bytes = 0;
        uint64_t hash = 0;  // FNV-1a of the first and last 64 KiB
        bool operator==(const Shard&) const = default;
    };
    // A mix: its sets, whose shards follow one another in `shards`, and the shares from a sample on.
    struct Set {
        std::string name;
        int64_t shards = 0;
        bool operator==(const Set&) const = default;
    };
    struct Stage {
        int64_t first = 0;
        std::vector<std::string> shares;
        bool operator==(const Stage&) const = default;
    };
    int64_t seq_len = 0;
    uint64_t seed = 0;
    bool shuffled = true;
    std::vector<Shard> shards;
    bool growing = false;  // the shards so far of data that were still being written: others may follow them
    std::vector<Set> sets = {};
    std::vector<Stage> stages = {};
    bool operator==(const DataFingerprint&) const = default;

    std::string to_json() const;
    static DataFingerprint from_json(std::string_view text);
    // One line that names the first difference, from the point of view of a resumed run; empty: none. Shares may be
    // others: a run continues with them.
    std::string difference(const DataFingerprint& now) const;
};

// Data that are still being written, asked for what comes after the first `known` shards. Never waits.
struct NextShard {
    std::optional<TokenShard> shard;  // if it is there
    bool more = false;                // without one: whether one is to come
};
using ShardSource = std::function<NextShard(size_t known)>;

// An endless stream of samples.
class SampleSource {
   public:
    virtual ~SampleSource() = default;
    virtual int64_t seq_len() const = 0;
    virtual int64_t vocab() const = 0;

    // Samples [position, position + count).
    //   inputs, targets  (count, T)  targets[b][t] = inputs[b][t + 1], or kIgnoreTarget where a shard says that it is
    //                                none; every id is in [0, vocab)
    // Throws, naming file and place, at an id outside the vocabulary. Const and safe from several threads.
    virtual void batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const = 0;
    // How many of their targets are not ignored.
    virtual int64_t targets(int64_t position, int64_t count) const = 0;
};

class DataLoader : public SampleSource {
   public:
    // Throws if no shard holds a window of T + 1 tokens. `vocab` as given to open_shards.
    DataLoader(std::vector<TokenShard> shards, int64_t T, uint64_t seed, int64_t vocab,
               DataOrder order = DataOrder::kShuffled, ShardSource next = {});

    int64_t seq_len() const override { return T_; }
    int64_t samples() const;  // in one epoch, of the shards so far
    int64_t tokens() const;   // in all shards so far
    int64_t vocab() const override { return vocab_; }
    bool has_targets() const;  // whether a shard says which tokens are targets
    // Data that are still being written: looks for new shards until samples before `end` are there, without waiting.
    // Samples so far; INT64_MAX once no shard is to come. What is not there yet can't be read: batch() throws.
    int64_t written(int64_t end) const;

    void batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const override;
    int64_t targets(int64_t position, int64_t count) const override;

    // The number in [0, samples()) of the sample at `position` of the stream.
    int64_t sample_at(int64_t position) const;

    // Reads the ends of every shard, once. Of data that are still being written: of the shards that begin before sample
    // `position`.
    DataFingerprint fingerprint(int64_t position = INT64_MAX) const;
    std::vector<std::string> files() const;  // paths of the shards

   private:
    struct Window {
        const TokenShard* shard;
        int64_t begin;
    };
    // State that grows with the data; shards stay where they are.
    struct Shards {
        std::mutex mutex;
        std::deque<TokenShard> list;
        std::vector<int64_t> first_sample{0};  // per shard, then the total
        int64_t tokens = 0;
        ShardSource next;
        std::vector<DataFingerprint::Shard> known;  // those that fingerprint() has read
        void add(TokenShard shard, int64_t T);
    };
    Window window_at(int64_t position) const;
    int64_t written_locked(int64_t end) const;

    std::unique_ptr<Shards> shards_;
    int64_t T_, vocab_;
    uint64_t seed_;
    DataOrder order_;
    bool growing_;  // as it was opened
};

}  // namespace rz
