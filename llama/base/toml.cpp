#include "llama/base/toml.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/text.h"

namespace rz {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_key(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-'; }

// "+1_000" as "1000"; "" for what is no decimal number of TOML.
std::string decimal(std::string_view word) {
    std::string text(word), digits;
    if (!text.empty() && text[0] == '+') text.erase(0, 1);
    const bool minus = !text.empty() && text[0] == '-';
    const std::string bare = text.substr(minus);
    if (bare == "inf" || bare == "nan") return text;
    size_t at = 0;
    const auto take_digits = [&](bool may_begin_with_zero) {
        const size_t begin = at;
        for (; at < bare.size() && (is_digit(bare[at]) || bare[at] == '_'); ++at) {
            if (bare[at] != '_') digits += bare[at];
            if (bare[at] == '_' && (at == begin || at + 1 == bare.size() || !is_digit(bare[at + 1]))) return false;
        }
        return at > begin && (may_begin_with_zero || at == begin + 1 || bare[begin] != '0');
    };
    if (!take_digits(false)) return "";
    if (at < bare.size() && bare[at] == '.') {
        digits += bare[at++];
        if (!take_digits(true)) return "";
    }
    if (at < bare.size() && (bare[at] == 'e' || bare[at] == 'E')) {
        digits += bare[at++];
        if (at < bare.size() && (bare[at] == '+' || bare[at] == '-')) digits += bare[at++];
        if (!take_digits(true)) return "";
    }
    return at == bare.size() ? (minus ? "-" : "") + digits : "";
}

class Reader {
   public:
    Reader(std::string_view text, const std::string& file, std::span<const char* const> headings)
        : text_(text), file_(file), headings_(headings) {}

    std::vector<TomlEntry> read() {
        if (!valid_utf8(text_)) fail("%s: is not UTF-8 text", file_.c_str());
        std::set<std::string> headings;
        std::map<std::string, int> keys;  // under their heading, with their line
        std::string heading;
        for (skip_blank(true); at_ < text_.size(); skip_blank(true)) {
            if (text_[at_] == '[') {
                heading = read_heading();
                if (!headings.insert(heading).second) refuse("[" + heading + "] is there twice");
            } else {
                TomlEntry entry = read_entry();
                entry.heading = heading;
                const auto [earlier, is_new] = keys.emplace(heading + "\n" + entry.key, entry.line);
                if (!is_new)
                    refuse("'" + entry.key + "' stands in line " + std::to_string(earlier->second) + " already");
                entries_.push_back(std::move(entry));
            }
            end_line();
        }
        return std::move(entries_);
    }

   private:
    [[noreturn]] void refuse(const std::string& why) const {
        fail("%s, line %d: %s", file_.c_str(), line_, why.c_str());
    }
    bool is_at(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
    std::string rest_of_line() const {
        std::string rest(text_.substr(at_, std::min(text_.find('\n', at_), text_.size()) - at_));
        while (!rest.empty() && (rest.back() == '\r' || rest.back() == ' ')) rest.pop_back();
        return rest.size() > 60 ? rest.substr(0, 60) + "..." : rest;
    }
    void check_character(char c) const {
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f)
            refuse(format("has the control character 0x%02x", static_cast<unsigned char>(c)));
    }

    // Spaces and a comment; ends of lines too, if `lines`.
    void skip_blank(bool lines) {
        for (; at_ < text_.size(); ++at_) {
            if (text_[at_] == '#')
                for (; at_ < text_.size() && text_[at_] != '\n' && !is_at("\r\n"); ++at_) check_character(text_[at_]);
            if (at_ == text_.size()) return;
            if (lines && is_at("\r\n")) ++at_;
            if (lines && text_[at_] == '\n')
                ++line_;
            else if (text_[at_] != ' ' && text_[at_] != '\t')
                return;
        }
    }
    void end_line() {
        skip_blank(false);
        if (at_ < text_.size() && text_[at_] != '\n' && !is_at("\r\n"))
            refuse("'" + rest_of_line() + "' stands after the end of a value or heading");
    }

    std::string read_key() {
        if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) return read_text();
        const size_t begin = at_;
        while (at_ < text_.size() && is_key(text_[at_])) ++at_;
        return std::string(text_.substr(begin, at_ - begin));
    }

    std::string read_heading() {
        const std::string whole = rest_of_line();
        const auto wrong = [&] { refuse("'" + whole + "' is no heading of one word in brackets"); };
        ++at_;
        skip_blank(false);
        const std::string name = read_key();
        skip_blank(false);
        if (name.empty() || at_ >= text_.size() || text_[at_] != ']') wrong();
        ++at_;
        std::string known;
        for (const char* one : headings_) {
            if (name == one) return name;
            known += (known.empty() ? "[" : one == headings_.back() ? " and [" : ", [") + std::string(one) + "]";
        }
        refuse("'" + whole + "' is no heading that is known; there " +
               (known.empty() ? "are none, only  key = value" : "are " + known + ", or none at all"));
    }

    TomlEntry read_entry() {
        TomlEntry entry;
        entry.line = line_;
        const std::string whole = rest_of_line();
        const bool quoted = text_[at_] == '"' || text_[at_] == '\'';
        entry.key = read_key();
        skip_blank(false);
        if (at_ < text_.size() && text_[at_] == '.') refuse("'" + whole + "' has a dotted key, which is not read");
        if ((entry.key.empty() && !quoted) || at_ >= text_.size() || text_[at_] != '=')
            refuse("'" + whole + "' is neither key = value nor a heading");
        ++at_;
        skip_blank(false);
        if (at_ < text_.size() && text_[at_] == '[') {
            read_list(entry);
        } else {
            entry.values = {read_value(entry.kind)};
        }
        return entry;
    }

    void read_list(TomlEntry& entry) {
        for (++at_;;) {
            skip_blank(true);
            if (at_ < text_.size() && text_[at_] == ']') break;
            if (at_ < text_.size() && text_[at_] == '[') refuse("a list in a list is not read");
            TomlEntry::Kind kind;
            entry.values.push_back(read_value(kind));
            skip_blank(true);
            if (at_ < text_.size() && text_[at_] == ',')
                ++at_;
            else if (at_ >= text_.size() || text_[at_] != ']')
                refuse("the list of '" + entry.key + "' has no ] at its end, or no comma after a value");
        }
        ++at_;
        entry.kind = TomlEntry::Kind::list;
    }

    std::string read_value(TomlEntry::Kind& kind) {
        using enum TomlEntry::Kind;
        kind = text;
        if (is_at("\"\"\"") || is_at("'''")) refuse("a text of several lines is not read; write \\n in \"quotes\"");
        if (is_at("\"") || is_at("'")) return read_text();
        if (is_at("{")) refuse("a table is not read as a value");
        const size_t begin = at_;
        while (at_ < text_.size() && (is_key(text_[at_]) || text_[at_] == '+' || text_[at_] == '.')) ++at_;
        const std::string_view word = text_.substr(begin, at_ - begin);
        kind = boolean;
        if (word == "true" || word == "false") return std::string(word);
        kind = number;
        if (const std::string number = decimal(word); !number.empty()) return number;
        at_ = begin;
        const std::string rest = rest_of_line();
        if (rest.empty() || rest[0] == '#') refuse("there is no value after =");
        refuse("'" + rest + "' is no decimal number, true, false or list; a text stands in \"quotes\"");
    }

    // A text in "quotes", where \ begins an escape, or in 'quotes', which has none.
    std::string read_text() {
        const char quote = text_[at_++];
        const std::string whole = quote + rest_of_line();
        std::string text;
        while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n' && !is_at("\r\n")) {
            check_character(text_[at_]);
            if (text_[at_] == '\\' && quote == '"')
                text += read_escape();
            else
                text += text_[at_++];
        }
        if (at_ >= text_.size() || text_[at_] != quote)
            refuse(whole + " is no text in quotes; write \\\" for a quote in it");
        ++at_;
        return text;
    }

    std::string read_escape() {
        const std::string_view names = "btnfr\"\\", are = "\b\t\n\f\r\"\\";
        const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : ' ';
        if (const size_t known = names.find(c); known != std::string_view::npos) {
            at_ += 2;
            return {are[known]};
        }
        const size_t digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
        uint32_t code = 0;
        bool right = digits > 0 && at_ + 2 + digits <= text_.size();
        for (size_t i = at_ + 2; right && i < at_ + 2 + digits; ++i) {
            right = is_hex(text_[i]);
            code = code * 16 + uint32_t(is_digit(text_[i]) ? text_[i] - '0' : (text_[i] | 0x20) - 'a' + 10);
        }
        if (!right || code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            refuse("'" + std::string(text_.substr(at_, 2 + (right ? digits : 0))) +
                   "' is no escape that is known\n  there are \\n \\t \\r \\b \\f \\\" \\\\ \\u0041 and \\U0001F600");
        at_ += 2 + digits;
        std::string text;
        unicode::append_utf8(text, code);
        return text;
    }

    std::string_view text_;
    const std::string& file_;
    std::span<const char* const> headings_;
    size_t at_ = 0;
    int line_ = 1;
    std::vector<TomlEntry> entries_;
};

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& file,
                                  std::span<const char* const> headings) {
    return Reader(text, file, headings).read();
}

std::vector<TomlEntry> read_toml(const std::string& file, std::span<const char* const> headings) {
    require(is_file(file), "%s: %s", file.c_str(),
            path_exists(file) ? "is not a regular file" : "there is no such file");
    return parse_toml(read_file(file, kTomlFile), file, headings);
}

}  // namespace rz
