#pragma once
// Token shards: files of token ids, memory-mapped and read in place.
//
//   llm.c GPT-2    256 x int32 header {20240520, 1, tokens}, then uint16 ids
//   llm.c Llama-3  256 x int32 header {20240801, 7, tokens}, then uint32 ids
//   Megatron       .idx (MMIDIDX) beside .bin; ids uint8, uint16 or int32; read as one stream in file order
//   ours           either of llm.c's with a 1 as the header's fourth number: after the ids one bit for each token,
//                  lowest bit first, which says whether it is a target (prepare.py chat)
//   raw16          no header, uint16 ids (nanoGPT's train.bin); nothing marks it, so it must be asked for
//
// The format is read from the first bytes, never guessed from a file's name. All integers are little-endian.
// Every error is one line that names the file, what was found and what to do.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/names.h"
#include "llama/base/mapped_file.h"

namespace rz {

constexpr int64_t kLlmcHeaderBytes = 256 * sizeof(int32_t);  // of a shard in llm.c's format, as prepare.py writes them

enum class ShardFormat { kLlmcGpt2, kLlmcLlama3, kMegatron, kRaw16 };
template <>
inline constexpr auto kNames<ShardFormat> =
    std::to_array<Named<ShardFormat>>({{ShardFormat::kLlmcGpt2, "llm.c gpt-2 (uint16)"},
                                       {ShardFormat::kLlmcLlama3, "llm.c llama-3 (uint32)"},
                                       {ShardFormat::kMegatron, "Megatron idx/bin"},
                                       {ShardFormat::kRaw16, "raw uint16"}});

class TokenShard {
   public:
    // Checks magic, version and size; reads no token. `raw16` takes a file without header as uint16 ids.
    explicit TokenShard(const std::string& path, bool raw16 = false);

    const std::string& path() const { return path_; }  // of the file that holds the ids
    ShardFormat format() const { return format_; }
    int token_bytes() const { return token_bytes_; }
    int64_t tokens() const { return tokens_; }
    bool has_targets() const { return has_targets_; }  // else every token is one
    int64_t file_bytes() const { return file_.size(); }
    const MappedFile& file() const { return file_; }

    // out[i] = token begin + i for i in [0, count). Throws if one is outside [0, vocab): file, position, byte
    // offset and value are named. Const and safe from several threads.
    void read(int64_t begin, int64_t count, int64_t vocab, int32_t* out) const;

    // How many of the tokens [begin, begin + count) are targets.
    int64_t targets(int64_t begin, int64_t count) const;
    // ids[i] = kIgnoreTarget for each token begin + i, i in [0, count), that is none.
    void ignore_others(int64_t begin, int64_t count, int32_t* ids) const;

    // CRC-32 of the ids as they lie in the file. Reads the whole file.
    uint32_t sum() const;

    // Throws as read() does if any token of the shard is outside [0, vocab). Reads the whole file.
    void check_tokens(int64_t vocab) const;

   private:
    void open_llmc();
    void open_raw16();
    void open_megatron(const std::string& index_path);
    void check_range(int64_t begin, int64_t count) const;
    [[noreturn]] void bad_token(int64_t position, int64_t vocab) const;

    std::string path_;
    MappedFile file_;
    ShardFormat format_ = ShardFormat::kLlmcGpt2;
    int token_bytes_ = 2;
    int64_t tokens_ = 0;
    int64_t data_offset_ = 0;  // bytes before the first token
    bool has_targets_ = false;
};

// `spec` is a comma-separated list of files and glob patterns ("data/*_train_*.bin"). Returns the files, each
// pattern's matches sorted by name. Throws if an element matches nothing or a file is listed twice.
std::vector<std::string> expand_paths(std::string_view spec);

struct ShardOptions {
    int64_t vocab = 0;             // ids must be in [0, vocab); > 0
    bool raw16 = false;            // accept files without header as uint16
    int64_t scan_bytes = 1 << 28;  // a dataset up to this size has every id checked at opening (0: never)
};

// Opens and checks all shards before anything is read. All must have one format and one token width. Larger
// datasets than options.scan_bytes have their ids checked as they are read.
std::vector<TokenShard> open_shards(const std::vector<std::string>& paths, const ShardOptions& options);

// The dataset.json that `data_prep/prepare.py` wrote into a folder.
struct Dataset {
    std::string name;
    std::string folder;
    std::string tokenizer;  // path of tokenizer.json
    int64_t vocab = 0;
    std::vector<std::string> train, val;        // paths of the shards, in order
    int64_t eos = -1;                           // the tokenizer's own end token, which the data need not have
    double val_bytes_per_token = 0;             // bits per byte = loss in nats / ln 2 / this; 0: not text
    int64_t doc_token = -1;                     // begins each document; -1: unknown
    double entropy_nats = -1;                   // of the synthetic source, per token; -1: unknown (real text)
    bool growing = false;                       // it is still being written: shards will be added to `train`
    std::vector<int64_t> train_sums, val_sums;  // TokenShard::sum() of each; -1: unknown
    int64_t packed = 0;                         // > 0: rows of this length cut no conversation
};
Dataset load_dataset(const std::string& folder);

}  // namespace rz
