#include "llama/tokenizer/tokenizer.h"

#include "kernels/runtime/check.h"

namespace rz {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

}  // namespace

// The longest added token that begins at text[at]; -1 if none does.
int32_t Tokenizer::match_added(std::string_view text, size_t at, bool allow_special, size_t& length) const {
    int32_t found = -1;
    int32_t node = 0;
    while (true) {
        if (added_[node].id >= 0 && (allow_special || !tokens_[added_[node].id].special)) {
            found = added_[node].id;
            length = tokens_[found].bytes.size();
        }
        if (at >= text.size()) break;
        const auto next = added_[node].next.find(uint8_t(text[at++]));
        if (next == added_[node].next.end()) break;
        node = next->second;
    }
    return found;
}

void Tokenizer::add_to_trie(std::string_view content, int32_t id) {
    int32_t node = 0;
    for (const char c : content) {
        const auto [next, inserted] = added_[size_t(node)].next.emplace(uint8_t(c), int32_t(added_.size()));
        node = next->second;  // before the vector may move
        if (inserted) added_.emplace_back();
    }
    added_[size_t(node)].id = id;
}

int Tokenizer::fallback_byte(std::string_view name) {
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
    return digit(name[3]) < 0 || digit(name[4]) < 0 ? -1 : digit(name[3]) * 16 + digit(name[4]);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool allow_special) const {
    std::vector<int32_t> ids;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
        size_t length = 0;
        const int32_t added = match_added(text, at, allow_special, length);
        if (added < 0) {
            ++at;
            continue;
        }
        encode_segment(text.substr(begin, at - begin), begin == 0, ids);
        ids.push_back(added);
        begin = at += length;
    }
    encode_segment(text.substr(begin), begin == 0, ids);
    return ids;
}

void Tokenizer::encode_segment(std::string_view text, bool first, std::vector<int32_t>& out) const {
    if (text.empty()) return;
    std::vector<int32_t> symbols;
    if (space_ != Space::kBytes) {
        std::string marked;
        const bool begins_marked = text.starts_with(' ') || text.starts_with(kSpaceMark);
        if ((space_ == Space::kEverySegment || first) && (prepend_always_ || !begins_marked)) marked = kSpaceMark;
        for (const char c : text) {
            if (c == ' ') {
                marked += kSpaceMark;
            } else {
                marked += c;
            }
        }
        encode_characters(marked, symbols);
        bpe_.apply(symbols);
        out.insert(out.end(), symbols.begin(), symbols.end());
        return;
    }
    for (const std::string_view piece : pretokenize(split_, text)) {
        if (ignore_merges_) {
            if (const auto whole = vocab_.find(piece); whole != vocab_.end()) {
                out.push_back(whole->second);
                continue;
            }
        }
        encode_bytes(piece, symbols);
        bpe_.apply(symbols);
        out.insert(out.end(), symbols.begin(), symbols.end());
    }
}

void Tokenizer::encode_bytes(std::string_view piece, std::vector<int32_t>& symbols) const {
    symbols.clear();
    for (const char c : piece) {
        const int32_t id = byte_token_[uint8_t(c)];
        require(id >= 0, "%s: the vocabulary has no token for byte 0x%02x%s; use text of its own alphabet",
                where_.c_str(), uint8_t(c), c > ' ' && c < 0x7f ? format(" ('%c')", c).c_str() : "");
        symbols.push_back(id);
    }
}

void Tokenizer::encode_characters(std::string_view text, std::vector<int32_t>& symbols) const {
    for (size_t at = 0; at < text.size();) {
        const auto c = unicode::next_char(text, at);
        const std::string_view bytes = text.substr(at, size_t(c.bytes));
        const auto known = vocab_.find(bytes);
        if (c.status == unicode::Utf8::kValid && known != vocab_.end()) {
            symbols.push_back(known->second);
        } else {
            for (const char b : bytes) symbols.push_back(byte_token_[uint8_t(b)]);
        }
        at += bytes.size();
    }
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
    return id >= 0 && id < vocab_size() && tokens_[id].present ? std::string_view(tokens_[id].bytes)
                                                               : unicode::kReplacement;
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && tokens_[id].special; }

int32_t Tokenizer::find(std::string_view token) const {
    size_t length = 0;
    const int32_t added = match_added(token, 0, /*allow_special=*/true, length);
    if (added >= 0 && length == token.size()) return added;
    const auto it = vocab_.find(token);
    return it == vocab_.end() ? -1 : it->second;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    Stream stream(*this, skip_special);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    return text + stream.finish();
}

std::string Tokenizer::Stream::push(int32_t id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    std::string_view bytes = tokenizer_->bytes_of(id);
    if (!begun_ && !bytes.empty()) {
        begun_ = true;  // the space that encoding put in front of the text
        if (tokenizer_->space_ != Space::kBytes && bytes.front() == ' ') bytes.remove_prefix(1);
    }
    return utf8_.push(bytes);
}

std::string Tokenizer::Stream::finish() { return utf8_.finish(); }

}  // namespace rz
