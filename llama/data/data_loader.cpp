#include "llama/data/data_loader.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/runtime/check.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/base/sum_hash.h"

namespace rz {
namespace {

uint64_t hash_head_and_tail(const MappedFile& file) {
    const std::string_view all(reinterpret_cast<const char*>(file.data()), size_t(file.size()));
    const size_t part = std::min<size_t>(64 << 10, all.size());
    return fnv1a(all.substr(all.size() - part), fnv1a(all.substr(0, part)));
}

}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
    require(n > 0, "a permutation of %ld elements", n);
    const int bits = std::max(2, int(std::bit_width(uint64_t(n - 1))));
    left_bits_ = bits / 2;
    right_bits_ = bits - left_bits_;
    uint64_t state = splitmix64(seed + 0x9e3779b97f4a7c15ull) ^ splitmix64(epoch * 0xd1342543de82ef95ull + 1);
    for (auto& key : keys_) key = splitmix64(state += 0x9e3779b97f4a7c15ull);
}

int64_t Permutation::operator()(int64_t i) const {
    const uint64_t left_mask = (1ull << left_bits_) - 1, right_mask = (1ull << right_bits_) - 1;
    uint64_t x = uint64_t(i);
    do {
        uint64_t left = x >> right_bits_, right = x & right_mask;
        for (int r = 0; r < kRounds; r += 2) {
            left ^= splitmix64(right ^ keys_[r]) & left_mask;
            right ^= splitmix64(left ^ keys_[r + 1]) & right_mask;
        }
        x = left << right_bits_ | right;
    } while (x >= uint64_t(n_));
    return int64_t(x);
}

// File that this thread reads now, for the handler of SIGBUS: a mapped file was cut off, or a disk fails.
static thread_local const char* reading = nullptr;

static void on_sigbus(int) {
    const auto say = [](const char* text) { return ::write(2, text, std::strlen(text)) >= 0; };
    const bool said = say("train_llama: ") && say(reading ? reading : "a mapped file") &&
                      say(": can't be read any more: it was cut off while it is in use, or the disk fails (SIGBUS)\n");
    ::_exit(said ? 70 : 71);
}

// Only once data are mapped: other faults of the bus keep the system's handling.
static void name_sigbus() {
    struct sigaction action {};
    action.sa_handler = on_sigbus;
    ::sigaction(SIGBUS, &action, nullptr);
}

void DataLoader::Shards::add(TokenShard shard, int64_t T) {
    tokens += shard.tokens();
    first_sample.push_back(first_sample.back() + std::max<int64_t>(0, shard.tokens() - 1) / T);
    list.push_back(std::move(shard));
}

DataLoader::DataLoader(std::vector<TokenShard> shards, int64_t T, uint64_t seed, int64_t vocab, DataOrder order,
                       ShardSource next)
    : shards_(std::make_unique<Shards>()), T_(T), vocab_(vocab), seed_(seed), order_(order), growing_(bool(next)) {
    require(T > 0, "sequence length %ld; it must be at least 1", T);
    require(vocab > 0, "a vocabulary of %ld ids", vocab);
    require(!shards.empty() || next, "no data files given");
    require(!next || order == DataOrder::kSequential, "data that grow have no order but their own");
    name_sigbus();
    int64_t longest = 0;
    for (TokenShard& shard : shards) {
        longest = std::max(longest, shard.tokens());
        shards_->add(std::move(shard), T);
    }
    shards_->next = std::move(next);
    require(growing_ || shards_->first_sample.back() > 0,
            "%s: the longest of %zu data files has %ld tokens, but one sample of sequence length %ld "
            "takes %ld; use --seq-len %ld or less, or more data",
            growing_ ? "" : shards_->list[0].path().c_str(), shards_->list.size(), longest, T, T + 1,
            std::max<int64_t>(longest - 1, 0));
}

int64_t DataLoader::samples() const {
    const std::lock_guard lock(shards_->mutex);
    return shards_->first_sample.back();
}

int64_t DataLoader::tokens() const {
    const std::lock_guard lock(shards_->mutex);
    return shards_->tokens;
}

int64_t DataLoader::written_locked(int64_t end) const {
    Shards& s = *shards_;
    while (s.next && end > s.first_sample.back()) {
        NextShard next = s.next(s.list.size());
        if (next.shard)
            s.add(std::move(*next.shard), T_);
        else if (next.more)
            return s.first_sample.back();
        else
            s.next = nullptr;
    }
    return s.next ? s.first_sample.back() : INT64_MAX;
}

int64_t DataLoader::written(int64_t end) const {
    const std::lock_guard lock(shards_->mutex);
    return written_locked(end);
}

int64_t DataLoader::sample_at(int64_t position) const {
    require(position >= 0, "data position %ld is negative", position);
    const std::lock_guard lock(shards_->mutex);
    const bool there = position < written_locked(position + 1);
    const int64_t all = shards_->first_sample.back();
    require(there, "sample %ld is not written yet, %ld are", position, all);
    require(all > 0, "the data that were written hold no sample of %ld tokens", T_ + 1);
    const int64_t epoch = position / all, i = position % all;
    if (order_ == DataOrder::kSequential) return i;
    return Permutation(all, seed_, uint64_t(epoch))(i);
}

DataLoader::Window DataLoader::window_at(int64_t position) const {
    const int64_t sample = sample_at(position);
    const std::lock_guard lock(shards_->mutex);
    const std::vector<int64_t>& first = shards_->first_sample;
    const int64_t s = std::upper_bound(first.begin(), first.end(), sample) - first.begin() - 1;
    return {&shards_->list[size_t(s)], (sample - first[size_t(s)]) * T_};
}

bool DataLoader::has_targets() const {
    const std::lock_guard lock(shards_->mutex);
    return std::any_of(shards_->list.begin(), shards_->list.end(), [](const TokenShard& s) { return s.has_targets(); });
}

int64_t DataLoader::targets(int64_t position, int64_t count) const {
    if (!has_targets()) return count * T_;
    int64_t n = 0;
    for (int64_t b = 0; b < count; ++b) {
        const auto [shard, begin] = window_at(position + b);
        n += shard->targets(begin + 1, T_);
    }
    return n;
}

void DataLoader::batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const {
    const TokenShard* last = nullptr;
    const auto leave = [&] {
        if (last) last->file().check_unchanged(last->path());
        reading = nullptr;
    };
    for (int64_t b = 0; b < count; ++b) {
        const auto [shard, begin] = window_at(position + b);
        int32_t *in = inputs + b * T_, *out = targets + b * T_;
        if (last != shard) {
            leave();
            last = shard;
            last->file().check_unchanged(last->path());
            reading = last->path().c_str();
        }
        fault_point("data.read");
        shard->read(begin, T_, vocab_, in);
        std::memcpy(out, in + 1, size_t(T_ - 1) * sizeof(int32_t));
        shard->read(begin + T_, 1, vocab_, out + T_ - 1);
        shard->ignore_others(begin + 1, T_, out);
    }
    leave();
}

DataFingerprint DataLoader::fingerprint(int64_t position) const {
    const std::lock_guard lock(shards_->mutex);
    DataFingerprint f{.seq_len = T_, .seed = seed_, .shuffled = order_ == DataOrder::kShuffled, .shards = {}};
    f.growing = growing_;
    std::vector<DataFingerprint::Shard>& known = shards_->known;
    for (size_t i = 0; i < shards_->list.size(); ++i) {
        const TokenShard& shard = shards_->list[i];
        if (growing_ && shards_->first_sample[i] >= position) break;
        if (known.size() == i)
            known.push_back({replace_invalid_utf8(shard.path().substr(shard.path().rfind('/') + 1)), shard.file_bytes(),
                             shard.tokens(), shard.token_bytes(), hash_head_and_tail(shard.file())});
        f.shards.push_back(known[i]);
    }
    return f;
}

std::vector<std::string> DataLoader::files() const {
    const std::lock_guard lock(shards_->mutex);
    std::vector<std::string> paths;
    for (const TokenShard& shard : shards_->list) paths.push_back(shard.path());
    return paths;
}

std::string DataFingerprint::to_json() const {
    Json list = Json::array();
    for (const auto& s : shards)
        list.push_back({{"name", s.name},
                        {"bytes", s.bytes},
                        {"tokens", s.tokens},
                        {"token_bytes", s.token_bytes},
                        {"hash", format("%016lx", s.hash)}});
    Json json{{"seq_len", seq_len}, {"seed", seed}, {"shuffled", shuffled}, {"shards", list}};
    if (growing) json["growing"] = true;
    for (const Set& s : sets) json["sets"].push_back({{"name", s.name}, {"shards", s.shards}});
    for (const Stage& s : stages) json["stages"].push_back({{"first", s.first}, {"shares", s.shares}});
    return json.dump();
}

DataFingerprint DataFingerprint::from_json(std::string_view text) {
    const char* where = "data fingerprint";
    const Json json = parse_json(text, where);
    try {
        DataFingerprint f{json.at("seq_len"), json.at("seed"), json.at("shuffled"), {}};
        if (const Json* growing = json_find(json, "growing")) f.growing = growing->get<bool>();
        for (const Json& s : json.at("shards"))
            f.shards.push_back({s.at("name"), s.at("bytes"), s.at("tokens"), s.at("token_bytes"),
                                std::stoull(s.at("hash").get<std::string>(), nullptr, 16)});
        if (const Json* sets = json_find(json, "sets"))
            for (const Json& s : *sets) f.sets.push_back({s.at("name"), s.at("shards")});
        if (const Json* stages = json_find(json, "stages"))
            for (const Json& s : *stages) f.stages.push_back({s.at("first"), s.at("shares")});
        return f;
    } catch (const std::exception& e) {
        fail("%s: %s", where, e.what());
    }
}

std::string DataFingerprint::difference(const DataFingerprint& now) const {
    const auto text = [](int64_t v) { return std::to_string(v); };
    if (seq_len != now.seq_len) return "sequence length was " + text(seq_len) + ", now " + text(now.seq_len);
    if (seed != now.seed) return "data seed was " + std::to_string(seed) + ", now " + std::to_string(now.seed);
    if (shuffled != now.shuffled) return "data order was changed between shuffled and sequential";
    if (sets.size() != now.sets.size())
        return "there were " + text(std::max<int64_t>(1, int64_t(sets.size()))) + " sets in --data, now " +
               text(std::max<int64_t>(1, int64_t(now.sets.size())));
    std::string renamed;  // a set in another folder is still that set, if its shards are
    for (size_t i = 0; i < sets.size(); ++i) {
        const std::string both = "set " + text(int64_t(i)) + " of --data was " + sets[i].name + " with " +
                                 text(sets[i].shards) + " shards, now " + now.sets[i].name + " with " +
                                 text(now.sets[i].shards);
        if (sets[i].shards != now.sets[i].shards) return both;
        if (sets[i] != now.sets[i]) renamed += both + ": ";
    }
    for (size_t i = 0; i < std::min(shards.size(), now.shards.size()); ++i) {
        const Shard &a = shards[i], &b = now.shards[i];
        if (a.name != b.name) return renamed + "data file " + text(int64_t(i)) + " was " + a.name + ", now " + b.name;
        if (a.bytes != b.bytes) return renamed + b.name + " had " + text(a.bytes) + " bytes, now " + text(b.bytes);
        if (a.tokens != b.tokens || a.token_bytes != b.token_bytes)
            return renamed + b.name + " had " + text(a.tokens) + " tokens of " + text(a.token_bytes) + " bytes, now " +
                   text(b.tokens) + " of " + text(b.token_bytes);
        if (a.hash != b.hash) return renamed + b.name + " has the same size but other contents";
    }
    if (growing && shards.size() <= now.shards.size()) return {};
    if (shards.size() != now.shards.size())
        return "there were " + text(int64_t(shards.size())) + " data files, now " + text(int64_t(now.shards.size()));
    return {};
}

}  // namespace rz
