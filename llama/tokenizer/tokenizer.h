#pragma once
// Text to token ids and back. These are read:
//
//   tokenizer.json    byte-level BPE, split like GPT-2, Llama-3, Qwen2 or SmolLM2, or not at all (plain bytes);
//                     BPE over characters with byte fallback, as Llama-2 and TinyLlama write it (a space is U+2581)
//   tokenizer.model   SentencePiece BPE with byte fallback, as Llama-2 has it
//
// Any other kind (model, normalizer, pre-tokenizer or decoder, a flag with an effect that is not
// implemented) is refused, quoting the JSON: a tokenizer that is nearly right is wrong.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llama/tokenizer/bpe.h"
#include "llama/tokenizer/pretokenize.h"
#include "llama/tokenizer/unicode.h"

namespace rz {

class Tokenizer {
   public:
    // `path` is one of these files or a folder that holds one. A tokenizer_config.json beside a tokenizer.json names
    // bos and eos.
    static Tokenizer load(const std::string& path);
    // The same from memory; `where` stands in front of errors.
    static Tokenizer parse(std::string_view tokenizer_json, const std::string& where,
                           std::string_view tokenizer_config_json = {});
    static Tokenizer parse_sentencepiece(std::string_view model, const std::string& where);

    // No bos is added. Special tokens in the text ("<|endoftext|>") become their ids only with allow_special; else they
    // are text like any other. Invalid UTF-8 is kept byte for byte by byte-level tokenizers. Throws if the text needs a
    // byte for which the vocabulary has no token (only tokenizers of synthetic data lack any). O(n log n).
    std::vector<int32_t> encode(std::string_view text, bool allow_special = false) const;

    // The ids of a prompt, as Hugging Face's libraries make them from the same files: special tokens in the text are
    // their ids, and what the tokenizer's template puts around a text is there (of a tokenizer.model: bos, unless
    // tokenizer_config.json says otherwise). May be empty.
    std::vector<int32_t> encode_prompt(std::string_view text) const;

    // Says what makes ids of this tokenizer mean something else to `other`, or text other ids; "": nothing. Special
    // tokens that only `other` has make no difference. larger: this one may have more tokens than the other.
    std::string difference(const Tokenizer& other, bool larger = false) const;

    // Always valid UTF-8: U+FFFD stands for invalid parts and for ids outside the vocabulary. Of a run of byte tokens
    // that is not UTF-8 as a whole, each byte is one U+FFFD with a tokenizer.json; each invalid byte, with a
    // tokenizer.model.
    std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

    // The bytes of one token, as they stand in the middle of a text; may be part of a character.
    std::string_view bytes_of(int32_t id) const;

    int64_t vocab_size() const { return int64_t(tokens_.size()); }  // largest id + 1
    int32_t bos_id() const { return bos_; }                         // -1: none
    int32_t eos_id() const { return eos_; }                         // -1: none
    bool adds_bos() const { return !before_.empty(); }              // whether Hugging Face's encode() puts bos in front
    bool is_special(int32_t id) const;
    int32_t find(std::string_view token) const;  // id of an added token or a vocabulary entry by its text; -1: none
    PreTokenizer pre_tokenizer() const { return split_; }

    // All of it, as other programs write tokenizers down.
    struct Parts {
        enum Kind : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };  // GGUF's numbers
        bool byte_level;                  // else over characters, spaces as U+2581 and bytes as <0x0A>
        std::vector<std::string> names;   // by id; bytes as GPT-2's visible characters where byte_level
        std::vector<int32_t> kinds;       // by id
        std::vector<float> scores;        // by id: the sooner a token is merged, the higher
        std::vector<std::string> merges;  // "left right", the first first
        bool whole_words;                 // whether a word that is a token is not merged
        bool begins, ends;                // whether a prompt gets bos before it and eos after it
    };
    Parts parts() const;

    // Decodes a stream of tokens; the parts joined are what decode() gives. Holds back incomplete characters, and runs
    // of byte tokens (<0x0A>) until another token follows.
    // The tokenizer must outlive it.
    class Stream {
       public:
        explicit Stream(const Tokenizer& tokenizer, bool skip_special = false)
            : tokenizer_(&tokenizer), skip_special_(skip_special) {}
        std::string push(int32_t id);
        std::string finish();

       private:
        std::string text(std::string_view bytes);
        std::string end_run();
        const Tokenizer* tokenizer_;
        bool skip_special_, begun_ = false;
        std::string run_;  // of byte tokens
        unicode::Utf8Stream utf8_;
    };

   private:
    friend class TokenizerReader;
    friend class SentencePieceReader;
    enum class Space { kBytes, kEverySegment, kFirstSegment };  // how spaces are written; where U+2581 is prepended

    struct Token {
        std::string bytes;  // that it decodes to
        bool present = false, special = false;
        std::string content;      // of an added token, as the file has it
        bool normalised = false;  // and it is found in normalised text
        bool shown = false;       // though it is special: what it decodes to is not its content
    };
    struct AddedNode {  // of a trie over the bytes of added tokens
        std::map<uint8_t, int32_t> next;
        int32_t id = -1;
    };
    using Trie = std::vector<AddedNode>;
    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;
    };

    static int32_t add_to_trie(Trie&, std::string_view content, int32_t id);  // whose the content was before, or -1
    template <class Rest>
    void split_at_added(const Trie&, std::string_view text, bool allow_special, std::vector<int32_t>& out,
                        Rest&& rest) const;
    std::string with_marks(std::string_view text, bool first) const;
    void encode_segment(std::string_view text, bool first, std::vector<int32_t>& out) const;
    void encode_marked(std::string_view text, std::vector<int32_t>& out) const;
    bool is_byte(int32_t id) const;
    void encode_bytes(std::string_view piece, std::vector<int32_t>& symbols) const;
    void encode_characters(std::string_view text, std::vector<int32_t>& symbols) const;
    // The byte that a token such as <0x0A> stands for; -1 if it is none.
    static int fallback_byte(std::string_view name);

    std::string where_;
    std::vector<Token> tokens_;                                              // by id
    std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> vocab_;  // by bytes; without added tokens
    int32_t byte_token_[256];
    Bpe bpe_;
    bool ignore_merges_ = false;
    PreTokenizer split_ = PreTokenizer::kNone;
    Space space_ = Space::kBytes;
    bool prepend_always_ = true;     // U+2581 also before text that begins with it
    bool normalises_ = false;        // U+2581 is written before normalised added tokens are looked for, and in them
    bool nfc_ = false;               // text is normalised, before normalised added tokens are looked for, and those too
    bool bad_byte_spoils_ = true;    // the whole run of byte tokens
    Trie added_{1}, normalised_{1};  // looked for one after the other
    std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> added_ids_;  // by content
    int32_t bos_ = -1, eos_ = -1;
    std::vector<int32_t> before_, after_;  // around a prompt
};

}  // namespace rz
