#pragma once
// How vocabularies spell spaces and bytes.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "llama/base/text.h"

namespace rz {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, how SentencePiece writes a space

inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    for (size_t at; (at = text.find(from)) != text.npos; text.remove_prefix(at + from.size()))
        out.append(text.substr(0, at)).append(to);
    return out.append(text);
}

// GPT-2's visible characters for bytes.
class ByteAlphabet {
   public:
    ByteAlphabet() {
        std::fill(std::begin(byte_of_), std::end(byte_of_), -1);
        uint32_t hidden = 256;
        for (int b = 0; b < 256; ++b) {
            const bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            code_of_[b] = visible ? uint32_t(b) : hidden++;
            byte_of_[code_of_[b]] = b;
        }
    }
    std::string encode(std::string_view bytes) const {
        std::string text;
        for (const char c : bytes) unicode::append_utf8(text, code_of_[uint8_t(c)]);
        return text;
    }
    // Nothing where a character stands for no byte.
    std::optional<std::string> decode(std::string_view text) const {
        std::string bytes;
        for (size_t at = 0; at < text.size();) {
            const auto c = unicode::next_char(text, at);
            if (c.code_point >= std::size(byte_of_) || byte_of_[c.code_point] < 0) return {};
            bytes += char(byte_of_[c.code_point]);
            at += size_t(c.bytes);
        }
        return bytes;
    }

   private:
    uint32_t code_of_[256];
    int byte_of_[324];  // -1: none
};

}  // namespace rz
