#pragma once
// Unicode for the tokenizers: the classes letter, number and white space, NFC, and UTF-8 in pieces.

#include <cstdint>
#include <string>
#include <string_view>

#include "llama/base/text.h"

namespace rz::unicode {

// Inclusive, ascending, not touching. The tables are in unicode_tables.cpp and nfc_tables.cpp, which
// dev/golden/make_unicode_tables.py writes.
struct CodeRange {
    uint32_t first, last;
};
extern const CodeRange kLetters[];
extern const int kLettersSize;
extern const CodeRange kNumbers[];
extern const int kNumbersSize;

// Canonically, `code` is first and second (0: nothing more); `composes`: NFC joins them again. Ascending by code.
struct Decomposition {
    uint32_t code, first, second;
    bool composes;
};
extern const Decomposition kDecompositions[];
extern const int kDecompositionsSize;
struct CombiningRange {
    uint32_t first, last;
    uint8_t combining_class;  // of others it is 0
};
extern const CombiningRange kCombining[];
extern const int kCombiningSize;

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };  // \p{L}, \p{N}, \s (White_Space)
CharClass char_class(uint32_t code_point);
bool is_python_space(uint32_t code_point);  // as str.isspace(): White_Space, and the four separators of ASCII

// Normalisation form C (UAX #15) of valid UTF-8. Invalid bytes stay as they are, and nothing is joined across them.
std::string nfc(std::string_view text);

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Passes valid UTF-8 through. Every invalid part becomes one U+FFFD, cut as the Unicode Standard recommends (3.9,
// "maximal subparts"), which Python and Rust do as well. Holds back a sequence that later bytes may complete.
class Utf8Stream {
   public:
    std::string push(std::string_view bytes);
    std::string finish();  // what was held back, as U+FFFD

   private:
    std::string held_;
};

}  // namespace rz::unicode
