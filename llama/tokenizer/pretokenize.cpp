#include "llama/tokenizer/pretokenize.h"

#include <cstdint>

#include "llama/tokenizer/unicode.h"

namespace rz {
namespace {

using unicode::CharClass;

// The text as characters with their classes, and matchers that answer "where does this alternative end?".
class Scanner {
   public:
    explicit Scanner(std::string_view text) {
        for (size_t at = 0; at < text.size();) {
            const auto c = unicode::next_char(text, at);
            const bool valid = c.status == unicode::Utf8::kValid;
            chars_.push_back(
                {uint32_t(at), c.code_point, valid ? unicode::char_class(c.code_point) : CharClass::kOther});
            at += size_t(c.bytes);
        }
        text_ = text;
    }

    size_t size() const { return chars_.size(); }
    CharClass type(size_t i) const { return chars_[i].type; }
    bool is(size_t i, CharClass type) const { return i < size() && chars_[i].type == type; }
    bool is_code(size_t i, uint32_t code) const { return i < size() && chars_[i].code == code; }
    bool is_newline(size_t i) const { return is_code(i, '\n') || is_code(i, '\r'); }
    std::string_view piece(size_t begin, size_t end) const {
        const size_t from = chars_[begin].at, to = end < size() ? chars_[end].at : text_.size();
        return text_.substr(from, to - from);
    }

    size_t run(size_t i, CharClass type, size_t most = SIZE_MAX) const {
        for (; most > 0 && is(i, type); --most) ++i;
        return i;
    }

    // 's|'t|'re|'ve|'m|'ll|'d at i; returns i if there is none. U+017F is the other upper case of s.
    size_t contraction(size_t i, bool any_case) const {
        if (!is_code(i, '\'')) return i;
        const auto letter = [&](size_t at) -> uint32_t {
            if (at >= size()) return 0;
            const uint32_t c = chars_[at].code;
            if (!any_case) return c;
            return c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c | 0x20 : c;
        };
        const uint32_t a = letter(i + 1), b = letter(i + 2);
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
        return i;
    }

    // \s+(?!\S)|\s+ where i is a space: all but the last of several if something follows.
    size_t spaces(size_t i) const {
        const size_t end = run(i, CharClass::kSpace);
        return end < size() && end - i > 1 ? end - 1 : end;
    }

   private:
    struct Char {
        uint32_t at, code;
        CharClass type;
    };
    std::string_view text_;
    std::vector<Char> chars_;
};

size_t gpt2_piece(const Scanner& s, size_t i) {
    if (const size_t end = s.contraction(i, /*any_case=*/false); end > i) return end;
    const size_t word = s.is_code(i, ' ') ? i + 1 : i;
    if (word < s.size() && s.type(word) != CharClass::kSpace) return s.run(word, s.type(word));
    return s.spaces(i);
}

size_t llama3_piece(const Scanner& s, size_t i, size_t digits) {
    if (const size_t end = s.contraction(i, /*any_case=*/true); end > i) return end;
    if (s.is(i, CharClass::kLetter)) return s.run(i, CharClass::kLetter);
    if (s.is(i, CharClass::kNumber)) return s.run(i, CharClass::kNumber, digits);
    if (!s.is_newline(i) && s.is(i + 1, CharClass::kLetter)) return s.run(i + 1, CharClass::kLetter);
    const size_t word = s.is_code(i, ' ') ? i + 1 : i;
    if (s.is(word, CharClass::kOther)) {
        size_t end = s.run(word, CharClass::kOther);
        while (s.is_newline(end)) ++end;
        return end;
    }
    for (size_t end = s.run(i, CharClass::kSpace); end > i; --end)  // \s*[\r\n]+: up to the last line end of the run
        if (s.is_newline(end - 1)) return end;
    return s.spaces(i);
}

template <class Next>
void split(std::string_view text, std::vector<std::string_view>& pieces, Next next) {
    const Scanner scanner(text);
    for (size_t i = 0; i < scanner.size();) {
        const size_t end = next(scanner, i);
        pieces.push_back(scanner.piece(i, end));
        i = end;
    }
}

}  // namespace

std::vector<std::string_view> pretokenize(PreTokenizer kind, std::string_view text) {
    std::vector<std::string_view> pieces;
    switch (kind) {
        case PreTokenizer::kNone:
            if (!text.empty()) pieces.push_back(text);
            break;
        case PreTokenizer::kGpt2:
            split(text, pieces, gpt2_piece);
            break;
        case PreTokenizer::kLlama3:
            split(text, pieces, [](const Scanner& s, size_t i) { return llama3_piece(s, i, 3); });
            break;
        case PreTokenizer::kQwen2:
            split(text, pieces, [](const Scanner& s, size_t i) { return llama3_piece(s, i, 1); });
            break;
        case PreTokenizer::kSmolLm2: {
            std::vector<std::string_view> parts;
            split(text, parts, [](const Scanner& s, size_t i) {
                if (s.is(i, CharClass::kNumber)) return i + 1;
                while (i < s.size() && !s.is(i, CharClass::kNumber)) ++i;
                return i;
            });
            for (const auto part : parts) split(part, pieces, gpt2_piece);
            break;
        }
    }
    return pieces;
}

}  // namespace rz
