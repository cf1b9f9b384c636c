#include "llama/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/runtime/check.h"
#include "llama/tokenizer/spelling.h"

namespace rz {
namespace {

// On one line, for a message.
std::string on_one_line(std::string_view bytes) {
    std::string text;
    for (const char c : bytes.substr(0, 40))
        text += uint8_t(c) < 0x20 || uint8_t(c) > 0x7e ? format("\\x%02x", uint8_t(c)) : std::string(1, c);
    return text;
}

}  // namespace

int32_t Tokenizer::add_to_trie(Trie& trie, std::string_view content, int32_t id) {
    int32_t node = 0;
    for (const char c : content) {
        const auto [next, inserted] = trie[size_t(node)].next.emplace(uint8_t(c), int32_t(trie.size()));
        node = next->second;  // before the vector may move
        if (inserted) trie.emplace_back();
    }
    return std::exchange(trie[size_t(node)].id, id);
}

// The ids of the added tokens in `text`, the longest of the leftmost first, and between them what `rest(part, first)`
// makes of the parts without any. A special token that is not allowed is text, to its end.
template <class Rest>
void Tokenizer::split_at_added(const Trie& trie, std::string_view text, bool allow_special, std::vector<int32_t>& out,
                               Rest&& rest) const {
    size_t begin = 0;
    for (size_t at = 0; at < text.size() && trie.size() > 1;) {
        int32_t found = -1, node = 0;
        size_t after = at;
        for (size_t i = at; i < text.size(); ++i) {
            const auto next = trie[size_t(node)].next.find(uint8_t(text[i]));
            if (next == trie[size_t(node)].next.end()) break;
            node = next->second;
            if (trie[size_t(node)].id >= 0) found = trie[size_t(node)].id, after = i + 1;
        }
        if (found < 0) {
            ++at;
        } else if (tokens_[size_t(found)].special && !allow_special) {
            at = after;
        } else {
            if (at > begin) rest(text.substr(begin, at - begin), begin == 0);
            out.push_back(found);
            begin = at = after;
        }
    }
    if (begin < text.size()) rest(text.substr(begin), begin == 0);
}

int Tokenizer::fallback_byte(std::string_view name) {
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
    return digit(name[3]) < 0 || digit(name[4]) < 0 ? -1 : digit(name[3]) * 16 + digit(name[4]);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool allow_special) const {
    std::vector<int32_t> ids;
    split_at_added(added_, text, allow_special, ids, [&](std::string_view part, bool first) {
        if (normalises_)
            split_at_added(normalised_, with_marks(part, first), allow_special, ids,
                           [&](std::string_view piece, bool) { encode_marked(piece, ids); });
        else
            split_at_added(normalised_, nfc_ ? unicode::nfc(part) : std::string(part), allow_special, ids,
                           [&](std::string_view piece, bool begins) { encode_segment(piece, first && begins, ids); });
    });
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
        const bool present = id < t.vocab_size() && t.tokens_[size_t(id)].present;
        return present ? format("'%s'", on_one_line(t.bytes_of(id)).c_str()) : "no token";
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
        if (here && there && tokens_[size_t(id)].normalised != other.tokens_[size_t(id)].normalised)
            return format("added token %d is normalised in one of %s and %s", id, where_.c_str(), other.where_.c_str());
    }
    if (larger) return "";
    if (split_ != other.split_ || space_ != other.space_ || prepend_always_ != other.prepend_always_ ||
        normalises_ != other.normalises_ || nfc_ != other.nfc_)
        return format("%s and %s cut text into words in different ways", where_.c_str(), other.where_.c_str());
    if (bpe_ != other.bpe_) return format("%s and %s merge in different orders", where_.c_str(), other.where_.c_str());
    return "";
}

Tokenizer::Parts Tokenizer::parts() const {
    Parts p;
    const ByteAlphabet alphabet;
    p.byte_level = space_ == Space::kBytes;
    for (int32_t id = 0; id < vocab_size(); ++id) {
        const Token& token = tokens_[size_t(id)];
        const bool added = !token.content.empty();
        std::string name = added          ? token.content
                           : p.byte_level ? alphabet.encode(token.bytes)
                                          : replaced(token.bytes, " ", kSpaceMark);
        Parts::Kind kind = token.special ? Parts::kControl : added ? Parts::kUserDefined : Parts::kNormal;
        if (token.present && token.bytes == "<unk>") kind = Parts::kUnknown;
        if (!token.present) name = format("[PAD%d]", id), kind = Parts::kUnused;
        if (!p.byte_level && is_byte(id)) name = format("<0x%02X>", uint8_t(token.bytes[0])), kind = Parts::kByte;
        p.names.push_back(std::move(name));
        p.kinds.push_back(kind);
        p.scores.push_back(0);
    }
    const std::vector<Bpe::Pair> pairs = bpe_.pairs();
    for (const Bpe::Pair& pair : pairs)
        p.merges.push_back(p.names[size_t(pair.left)] + " " + p.names[size_t(pair.right)]);
    for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair)  // the lowest rank stays
        p.scores[size_t(pair->merged)] = -1 - float(pair->rank);
    p.whole_words = ignore_merges_;
    p.begins = bos_ >= 0 && before_ == std::vector{bos_};
    p.ends = eos_ >= 0 && after_ == std::vector{eos_};
    return p;
}

// Spaces as U+2581, and one in front where this kind of tokenizer puts it.
std::string Tokenizer::with_marks(std::string_view text, bool first) const {
    const bool begins_marked = text.starts_with(' ') || text.starts_with(kSpaceMark);
    const bool prepends = (space_ == Space::kEverySegment || first) && (prepend_always_ || !begins_marked);
    return (prepends ? std::string(kSpaceMark) : "") + replaced(text, " ", kSpaceMark);
}

void Tokenizer::encode_marked(std::string_view text, std::vector<int32_t>& out) const {
    std::vector<int32_t> symbols;
    encode_characters(text, symbols);
    bpe_.apply(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
}

void Tokenizer::encode_segment(std::string_view text, bool first, std::vector<int32_t>& out) const {
    if (space_ != Space::kBytes) return encode_marked(with_marks(text, first), out);
    std::vector<int32_t> symbols;
    for (const std::string_view piece : pretokenize(split_, text)) {
        if (ignore_merges_) {
            // Text that is not asked for special tokens makes none.
            if (const auto whole = vocab_.find(piece); whole != vocab_.end() && !is_special(whole->second)) {
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
    if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
    const auto it = vocab_.find(token);
    return it == vocab_.end() ? -1 : it->second;
}

bool Tokenizer::is_byte(int32_t id) const {
    const std::string_view bytes = bytes_of(id);
    return space_ != Space::kBytes && bytes.size() == 1 && byte_token_[uint8_t(bytes[0])] == id;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    Stream stream(*this, skip_special);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    return text + stream.finish();
}

std::string Tokenizer::Stream::push(int32_t id) {
    if (skip_special_ && tokenizer_->is_special(id) && !tokenizer_->tokens_[size_t(id)].shown) return {};
    const std::string_view bytes = tokenizer_->bytes_of(id);
    if (tokenizer_->is_byte(id)) {
        run_ += bytes;
        return {};
    }
    const std::string before = end_run();
    return before + text(bytes);
}

std::string Tokenizer::Stream::finish() {
    const std::string before = end_run();
    return before + utf8_.finish();
}

std::string Tokenizer::Stream::text(std::string_view bytes) {
    if (!begun_ && !bytes.empty()) {
        begun_ = true;  // the space that encoding put in front of the text
        if (tokenizer_->space_ != Space::kBytes && bytes.front() == ' ') bytes.remove_prefix(1);
    }
    return utf8_.push(bytes);
}

std::string Tokenizer::Stream::end_run() {
    std::string valid;
    bool spoiled = false;
    for (size_t at = 0; at < run_.size();) {
        const unicode::Utf8Char c = unicode::next_char(run_, at);
        const bool good = c.status == unicode::Utf8::kValid;
        spoiled |= !good;
        valid += good ? std::string_view(run_).substr(at, size_t(c.bytes)) : unicode::kReplacement;
        at += good ? size_t(c.bytes) : 1;
    }
    if (spoiled && tokenizer_->bad_byte_spoils_) {
        valid.clear();
        for (size_t i = 0; i < run_.size(); ++i) valid += unicode::kReplacement;
    }
    run_.clear();
    return text(valid);
}

}  // namespace rz
