#include "llama/data/token_shards.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "kernels/cross_entropy.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/crc32.h"
#include "llama/base/json.h"
#include "llama/base/text.h"

namespace rz {
namespace {

constexpr uint32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801, kEvalMagic = 20240522;
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kMegatronHeaderBytes = 34;

template <class T>
T load(const uint8_t* p) {  // unaligned
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

bool starts_with(const MappedFile& file, std::string_view magic) {
    return file.size() >= int64_t(magic.size()) && !std::memcmp(file.data(), magic.data(), magic.size());
}

std::string replace_extension(const std::string& path, const char* from, const char* to) {
    return path.ends_with(from) ? path.substr(0, path.size() - std::strlen(from)) + to : "";
}

// Describes a file that is no shard of ours, for the message.
const char* describe_foreign(const MappedFile& file) {
    if (starts_with(file, "version https://git-lfs")) return "a Git LFS pointer (run git lfs pull)";
    if (starts_with(file, "<") || starts_with(file, "\n<")) return "HTML or XML, perhaps a failed download";
    if (starts_with(file, "BIN.TOK\n")) return "an LLM.Q file, which is not supported";
    if (starts_with(file, "\x1f\x8b")) return "gzip-compressed: unpack it first";
    if (starts_with(file, "PK\x03\x04")) return "a zip archive: unpack it first";
    if (starts_with(file, "PAR1")) return "a Parquet file: run data_prep/prepare.py on it";
    return "no known magic number";
}

[[noreturn]] void refuse_foreign(const std::string& path, const MappedFile& file, uint32_t magic) {
    require(file.size() >= 4, "%s: %ld bytes are too short for a token shard's header of %ld; prepare it again",
            path.c_str(), file.size(), kLlmcHeaderBytes);
    require(magic != kEvalMagic,
            "%s: an llm.c evaluation file (magic %u), which holds no training tokens; pass token "
            "shards (magic %u or %u)",
            path.c_str(), magic, kGpt2Magic, kLlama3Magic);
    require(__builtin_bswap32(magic) != kGpt2Magic && __builtin_bswap32(magic) != kLlama3Magic,
            "%s: an llm.c shard in big-endian byte order; write it again in little-endian", path.c_str());
    fail(
        "%s: not a token shard: %s (the first 4 bytes are 0x%08x; expected %u, %u or MMIDIDX); if it holds raw "
        "uint16 ids as nanoGPT writes them, pass --raw16",
        path.c_str(), describe_foreign(file), magic, kGpt2Magic, kLlama3Magic);
}

// Copies, widens and returns the largest id, negative ones counting as very large.
template <class T>
uint32_t widen(const T* in, int64_t count, int32_t* out) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t id = static_cast<uint32_t>(in[i]);
        out[i] = static_cast<int32_t>(id);
        largest = std::max(largest, id);
    }
    return largest;
}

template <class T>
int64_t find_at_least(const T* in, int64_t count, uint32_t limit) {
    return std::find_if(in, in + count, [&](T id) { return uint32_t(id) >= limit; }) - in;
}

template <class T>
uint32_t largest_of(const T* in, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, uint32_t(in[i]));
    return largest;
}

// f(typed pointer to token `begin`)
template <class F>
auto with_tokens(const TokenShard& shard, int64_t data_offset, int64_t begin, F f) {
    const uint8_t* p = shard.file().data() + data_offset + begin * shard.token_bytes();
    if (shard.token_bytes() == 1) return f(p);
    if (shard.token_bytes() == 2) return f(reinterpret_cast<const uint16_t*>(p));
    return f(reinterpret_cast<const uint32_t*>(p));
}

}  // namespace

TokenShard::TokenShard(const std::string& path, bool raw16) : path_(path), file_(path) {
    require(file_.size() > 0, "%s: the file is empty (0 bytes); prepare or download it again", path.c_str());
    const uint32_t magic = file_.size() >= 4 ? load<uint32_t>(file_.data()) : 0;
    const std::string index = replace_extension(path, ".bin", ".idx");
    if (starts_with(file_, kMegatronMagic)) {
        open_megatron(path);
    } else if (!index.empty() && is_file(index) && starts_with(MappedFile(index), kMegatronMagic)) {
        open_megatron(index);
    } else if (magic == kGpt2Magic || magic == kLlama3Magic) {
        open_llmc();
    } else if (raw16) {
        open_raw16();
    } else {
        refuse_foreign(path, file_, magic);
    }
}

void TokenShard::open_llmc() {
    require(file_.size() >= kLlmcHeaderBytes, "%s: the header is cut off: %ld bytes of %ld; prepare it again",
            path_.c_str(), file_.size(), kLlmcHeaderBytes);
    const bool gpt2 = load<uint32_t>(file_.data()) == kGpt2Magic;
    const int32_t version = load<int32_t>(file_.data() + 4), want_version = gpt2 ? 1 : 7;
    format_ = gpt2 ? ShardFormat::kLlmcGpt2 : ShardFormat::kLlmcLlama3;
    token_bytes_ = gpt2 ? 2 : 4;
    require(version == want_version,
            "%s: %s shard of version %d, but only version %d is known; prepare it again "
            "with data_prep/prepare.py",
            path_.c_str(), name_of(format_), version, want_version);
    tokens_ = load<int32_t>(file_.data() + 8);
    require(tokens_ >= 0, "%s: the header claims %ld tokens; a shard holds at most 2147483647", path_.c_str(), tokens_);
    data_offset_ = kLlmcHeaderBytes;
    const int32_t marked = load<int32_t>(file_.data() + 12);
    require(marked == 0 || marked == 1,
            "%s: the header's fourth number is %d; 1 says that targets follow, 0 that none do", path_.c_str(), marked);
    has_targets_ = marked == 1;
    const int64_t expected = kLlmcHeaderBytes + tokens_ * token_bytes_ + (has_targets_ ? ceil_div(tokens_, 8) : 0);
    require(file_.size() == expected,
            "%s: %ld bytes, but its header of %ld tokens asks for %ld: the file is %s; "
            "prepare or download it again",
            path_.c_str(), file_.size(), tokens_, expected, file_.size() < expected ? "cut off" : "too long");
}

void TokenShard::open_raw16() {
    require(file_.size() % 2 == 0,
            "%s: raw uint16 ids need an even number of bytes, but the file has %ld; it is "
            "cut off or of another format",
            path_.c_str(), file_.size());
    format_ = ShardFormat::kRaw16;
    token_bytes_ = 2;
    tokens_ = file_.size() / 2;
}

// idx: magic[9], u64 version 1, u8 dtype, u64 sequences, u64 documents, i32 length[sequences],
//      i64 byte offset[sequences], i64 first sequence[documents], optionally i8 mode[sequences]
void TokenShard::open_megatron(const std::string& index_path) {
    const char* at = index_path.c_str();
    const MappedFile index(index_path);
    require(index.size() >= kMegatronHeaderBytes, "%s: the Megatron index is cut off: %ld bytes of a header of %ld", at,
            index.size(), kMegatronHeaderBytes);
    const uint8_t* p = index.data();
    const uint64_t version = load<uint64_t>(p + 9), sequences = load<uint64_t>(p + 18),
                   documents = load<uint64_t>(p + 26);
    const int dtype = p[17];
    require(version == 1, "%s: Megatron index of version %lu, but only version 1 is known", at, version);
    token_bytes_ = dtype == 1 ? 1 : dtype == 8 ? 2 : dtype == 4 ? 4 : 0;
    require(token_bytes_ != 0,
            "%s: Megatron dtype code %d is not supported; known are 1 (uint8), 4 (int32) and "
            "8 (uint16)",
            at, dtype);
    const uint64_t most = uint64_t(index.size()) / 8;  // bounds both counts before they are multiplied
    require(sequences <= most && documents <= most,
            "%s: the index claims %lu sequences and %lu documents, more than "
            "its %ld bytes can hold",
            at, sequences, documents, index.size());
    const int64_t expected = kMegatronHeaderBytes + int64_t(sequences) * 12 + int64_t(documents) * 8;
    require(index.size() == expected || index.size() == expected + int64_t(sequences),
            "%s: %ld bytes, but %lu sequences and %lu documents ask for %ld; copy the index again", at, index.size(),
            sequences, documents, expected);

    if (path_ == index_path) {
        path_ = replace_extension(index_path, ".idx", ".bin");
        require(!path_.empty(), "%s: a Megatron index must be named PREFIX.idx, beside PREFIX.bin", at);
        file_ = MappedFile(path_);
    }
    const uint8_t* lengths = p + kMegatronHeaderBytes;
    const uint8_t* offsets = lengths + 4 * sequences;
    int64_t end = 0;
    for (uint64_t i = 0; i < sequences; ++i) {
        const int64_t length = load<int32_t>(lengths + 4 * i), offset = load<int64_t>(offsets + 8 * i);
        require(length >= 0 && offset == end,
                "%s: sequence %lu (offset %ld, length %ld) does not follow the one "
                "before it, which ends at byte %ld; only contiguous files are read",
                at, i, offset, length, end);
        end = offset + length * token_bytes_;
        require(end <= file_.size(), "%s: sequence %lu ends at byte %ld, but %s has only %ld; copy it again", at, i,
                end, path_.c_str(), file_.size());
    }
    require(end == file_.size(), "%s: the index covers %ld bytes, but %s has %ld; the two do not belong together", at,
            end, path_.c_str(), file_.size());
    format_ = ShardFormat::kMegatron;
    tokens_ = end / token_bytes_;
}

uint32_t TokenShard::sum() const {
    return crc32({reinterpret_cast<const char*>(file_.data() + data_offset_), size_t(tokens_ * token_bytes_)});
}

void TokenShard::check_range(int64_t begin, int64_t count) const {
    require(begin >= 0 && count >= 0 && begin <= tokens_ - count, "%s: tokens [%ld, %ld) asked of %ld", path_.c_str(),
            begin, begin + count, tokens_);
}

void TokenShard::bad_token(int64_t position, int64_t vocab) const {
    const uint32_t id = with_tokens(*this, data_offset_, position, [](auto p) { return uint32_t(*p); });
    fail(
        "%s: token %ld (byte offset %ld) is %ld, outside the vocabulary of %ld: the file is damaged or was made "
        "with another tokenizer; prepare it again or set the model's vocabulary",
        path_.c_str(), position, data_offset_ + position * token_bytes_,
        format_ == ShardFormat::kMegatron ? int64_t(int32_t(id)) : int64_t(id), vocab);
}

void TokenShard::read(int64_t begin, int64_t count, int64_t vocab, int32_t* out) const {
    check_range(begin, count);
    const uint32_t largest = with_tokens(*this, data_offset_, begin, [&](auto p) { return widen(p, count, out); });
    if (count == 0 || largest < vocab) return;
    bad_token(begin + with_tokens(*this, data_offset_, begin,
                                  [&](auto p) { return find_at_least(p, count, uint32_t(vocab)); }),
              vocab);
}

int64_t TokenShard::targets(int64_t begin, int64_t count) const {
    check_range(begin, count);
    if (!has_targets_) return count;
    const uint8_t* bits = file_.data() + data_offset_ + tokens_ * token_bytes_;
    int64_t n = 0, i = begin;
    const int64_t end = begin + count;
    for (; i < end && i % 8 != 0; ++i) n += bits[i / 8] >> (i % 8) & 1;
    for (; i + 8 <= end; i += 8) n += std::popcount(bits[i / 8]);
    for (; i < end; ++i) n += bits[i / 8] >> (i % 8) & 1;
    return n;
}

void TokenShard::ignore_others(int64_t begin, int64_t count, int32_t* ids) const {
    check_range(begin, count);
    if (!has_targets_) return;
    const uint8_t* bits = file_.data() + data_offset_ + tokens_ * token_bytes_;
    for (int64_t i = 0; i < count; ++i)
        if ((bits[(begin + i) / 8] >> ((begin + i) % 8) & 1) == 0) ids[i] = kIgnoreTarget;
}

void TokenShard::check_tokens(int64_t vocab) const {
    if (vocab >> (8 * token_bytes_)) return;  // no id of this width can be too large
    const uint32_t largest = with_tokens(*this, data_offset_, 0, [&](auto p) { return largest_of(p, tokens_); });
    if (tokens_ == 0 || largest < vocab) return;
    bad_token(with_tokens(*this, data_offset_, 0, [&](auto p) { return find_at_least(p, tokens_, uint32_t(vocab)); }),
              vocab);
}

std::vector<std::string> expand_paths(std::string_view spec) {
    std::vector<std::string> paths;
    std::set<std::string> seen;
    for (const std::string& pattern : split(spec, ',')) {
        if (pattern.empty()) continue;
        glob_t found{};
        const int rc = ::glob(pattern.c_str(), 0, nullptr, &found);
        std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + (rc == 0 ? found.gl_pathc : 0));
        ::globfree(&found);
        require(!matches.empty(), "no data file matches '%s'; prepare some with data_prep/prepare.py or mend the path",
                pattern.c_str());
        for (auto& path : matches) {
            require(seen.insert(path).second, "%s: listed twice in the data files; name each once", path.c_str());
            paths.push_back(std::move(path));
        }
    }
    require(!paths.empty(), "no data files given; name shards or a pattern such as 'DIR/*_train_*.bin'");
    return paths;
}

std::vector<TokenShard> open_shards(const std::vector<std::string>& paths, const ShardOptions& options) {
    require(options.vocab > 0 && options.vocab <= INT32_MAX, "a vocabulary of %ld ids; it must be 1 to 2147483647",
            options.vocab);
    require(!paths.empty(), "no data files given");
    std::vector<TokenShard> shards;
    std::set<std::string> data_files;  // a Megatron pair may be matched by its .idx and by its .bin
    int64_t total = 0;
    for (const auto& path : paths) {
        TokenShard shard(path, options.raw16);
        if (!data_files.insert(shard.path()).second) continue;
        total = checked_add(total, shard.file_bytes(), "bytes of data");
        shards.push_back(std::move(shard));
        const TokenShard &a = shards.front(), &b = shards.back();
        require(a.format() == b.format(), "%s is %s but %s is %s; train on one format at a time", a.path().c_str(),
                name_of(a.format()), b.path().c_str(), name_of(b.format()));
        require(a.token_bytes() == b.token_bytes(),
                "%s has ids of %d bytes but %s of %d; they come from different "
                "tokenizers",
                a.path().c_str(), a.token_bytes(), b.path().c_str(), b.token_bytes());
    }
    if (total <= options.scan_bytes)
        for (const auto& shard : shards) shard.check_tokens(options.vocab);
    return shards;
}

Dataset load_dataset(const std::string& folder) {
    const std::string path = folder + "/dataset.json";
    require(is_file(path), "%s: not found; make a dataset with: python3 data_prep/prepare.py stdlib --out %s",
            path.c_str(), folder.c_str());
    const Json json = read_json(path, kDatasetFile);
    const auto file = [&](const Json& value) {
        const std::string base = json_string(value, "file", path);
        require(!base.empty() && base.find('/') == std::string::npos, "%s: '%s' is not a plain file name", path.c_str(),
                base.c_str());
        return folder + "/" + base;
    };
    const auto read_split = [&](const char* split, std::vector<std::string>& shards, std::vector<int64_t>& sums) {
        const Json& part = json_at(json, split, path);
        json_int_at(part, "tokens", 0, INT64_MAX, path);
        const Json& list = json_at(part, "shards", path);
        require(list.is_array(), "%s: \"shards\" must be an array", path.c_str());
        for (const Json& shard : list) {
            shards.push_back(file(json_at(shard, "file", path)));
            const Json* sum = json_find(shard, "crc32");
            sums.push_back(sum ? json_int(*sum, "crc32", 0, UINT32_MAX, path) : -1);
        }
    };
    const int64_t version = json_int_at(json, "format_version", 0, INT64_MAX, path);
    require(version == 1, "%s: format_version %ld, but only 1 is known; prepare the data again", path.c_str(), version);
    Dataset d;
    d.folder = folder;
    d.name = json_string_at(json, "name", path);
    d.vocab = json_int_at(json, "vocab_size", 1, INT32_MAX, path);
    d.tokenizer = file(json_at(json_at(json, "tokenizer", path), "file", path));
    const Json& tokenizer = json["tokenizer"];
    if (const Json* id = json_find(tokenizer, "eot_id")) d.doc_token = json_int(*id, "eot_id", 0, d.vocab - 1, path);
    if (const Json* id = json_find(tokenizer, "eos_id")) d.eos = json_int(*id, "eos_id", 0, d.vocab - 1, path);
    read_split("train", d.train, d.train_sums);
    if (const Json* growing = json_find(json, "growing")) {
        require(growing->is_boolean(), "%s: \"growing\" is true or false, not %s", path.c_str(),
                json_excerpt(*growing).c_str());
        d.growing = growing->get<bool>();
    }
    if (const Json* packed = json_find(json, "packed")) d.packed = json_int(*packed, "packed", 2, INT32_MAX, path);
    read_split("val", d.val, d.val_sums);
    if (const Json* ratio = json_find(json["val"], "bytes_per_token"))
        d.val_bytes_per_token = json_number(*ratio, "bytes_per_token", 0, 1e9, path);
    if (const Json* entropy = json_find(json, "entropy_nats_per_token"))
        d.entropy_nats = json_number(*entropy, "entropy_nats_per_token", 0, 100, path);
    require(!d.train.empty(), "%s: no training shards; prepare the data again", path.c_str());
    return d;
}

}  // namespace rz
