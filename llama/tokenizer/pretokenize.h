#pragma once
// How byte-level tokenizers cut text into words before merging: hand-written equivalents of the regular expressions
// in tokenizer.json, which need Unicode classes and look-ahead that no small regex library has.

#include <string_view>
#include <vector>

namespace rz {

enum class PreTokenizer {
    kNone,     // the text is one piece
    kGpt2,     // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    kLlama3,   // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
               // |\s*[\r\n]+|\s+(?!\S)|\s+
    kQwen2,    // as kLlama3, but every \p{N} alone
    kSmolLm2,  // every \p{N} alone, then kGpt2 on what lies between
};

// Consecutive, non-empty pieces that cover `text`. Invalid UTF-8 counts as characters of no class. O(text).
std::vector<std::string_view> pretokenize(PreTokenizer kind, std::string_view text);

}  // namespace rz
