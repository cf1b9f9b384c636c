#include "llama/tokenizer/tokenizer.h"

#include <algorithm>

#include "kernels/runtime/check.h"

namespace rz {
namespace {

// On one line, for a message.
std::string printable(std::string_view bytes) {
    std::string text;
    for (const char c : bytes.substr(0, 40))
        text += uint8_t(c) < 0x20 || uint8_t(c) > 0x7e ? format("\\x%02x", uint8_t(c)) : std::string(1, c);
    return text;
}

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

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
    std::vector<int32_t> ids = before_;
    const std::vector<int32_t> inner = encode(text, /*allow_special=*/true);
    ids.insert(ids.end(), inner.begin(), inner.end());
    ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
}

std::string Tokenizer::difference(const Tokenizer& other, bool larger) const {
    const auto name = [](const Tokenizer& t, int32_t id) {
        return id < t.vocab_size() && t.tokens_[size_t(id)].present ? "'" + printable(t.bytes_of(id)) + "'"
                                                                    : "no token";
    };
    const auto say = [&](int32_t id) {
        return format("id %d is %s in %s and %s in %s", id, name(*this, id).c_str(), where_.c_str(),
                      name(other, id).c_str(), other.where_.c_str());
    };
    const int64_t most = larger ? other.vocab_size() : std::max(vocab_size(), other.vocab_size());
    for (int32_t id = 0; id < most; ++id) {
        const bool here = id < vocab_size() && tokens_[size_t(id)].present;
        const bool there = id < other.vocab_size() && other.tokens_[size_t(id)].present;
        if (here && (!there || bytes_of(id) != other.bytes_of(id))) return say(id);
        if (!here && there && !other.is_special(id)) return say(id);
    }
    if (larger) return "";
    if (split_ != other.split_ || space_ != other.space_)
        return format("%s and %s cut text into words in different ways", where_.c_str(), other.where_.c_str());
    if (bpe_ != other.bpe_) return format("%s and %s merge in different orders", where_.c_str(), other.where_.c_str());
    return "";
}

// GPT-2's visible characters for bytes.
static std::string visible(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) {
        const uint8_t b = uint8_t(c);
        uint32_t hidden = 256;
        for (int other = 0; other < b; ++other)
            hidden += !((other >= 0x21 && other <= 0x7e) || (other >= 0xa1 && other <= 0xac) || other >= 0xae);
        const bool shows = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unicode::append_utf8(text, shows ? b : hidden);
    }
    return text;
}

Tokenizer::Parts Tokenizer::parts() const {
    Parts p;
    p.byte_level = space_ == Space::kBytes;
    for (int32_t id = 0; id < vocab_size(); ++id) {
        const Token& token = tokens_[size_t(id)];
        size_t length = 0;
        const bool added = token.present && match_added(token.bytes, 0, true, length) == id;
        std::string name = added ? token.bytes : visible(token.bytes);
        if (!added && !p.byte_level) {
            name.clear();
            for (const char c : token.bytes) name += c == ' ' ? std::string(kSpaceMark) : std::string(1, c);
        }
        Parts::Kind kind = token.special ? Parts::kControl : added ? Parts::kUserDefined : Parts::kNormal;
        if (token.present && token.bytes == "<unk>") kind = Parts::kUnknown;
        if (!token.present) name = format("[PAD%d]", id), kind = Parts::kUnused;
        if (!p.byte_level && token.present && token.bytes.size() == 1 && byte_token_[uint8_t(token.bytes[0])] == id)
            name = format("<0x%02X>", uint8_t(token.bytes[0])), kind = Parts::kByte;
        p.names.push_back(std::move(name));
        p.kinds.push_back(kind);
        p.scores.push_back(0);
    }
    const std::vector<Bpe::Pair> pairs = bpe_.pairs();
    for (const Bpe::Pair& pair : pairs)
        p.merges.push_back(p.names[size_t(pair.left)] + " " + p.names[size_t(pair.right)]);
    for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair)  // the lowest rank stays
        p.scores[size_t(pair->merged)] = -1 - float(pair->rank);
    p.begins = bos_ >= 0 && before_ == std::vector{bos_};
    p.ends = eos_ >= 0 && after_ == std::vector{eos_};
    return p;
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
