// Reads SentencePiece's tokenizer.model, a protocol buffer, into a Tokenizer. Only what Llama-2 and its kin use: BPE
// with byte fallback, no text normalisation but the space in front. The rest is refused.

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/runtime/check.h"
#include "llama/tokenizer/spelling.h"
#include "llama/tokenizer/tokenizer.h"

namespace rz {
namespace {

[[noreturn]] void refuse_file(const std::string& where) {
    fail(
        "%s: neither JSON nor an intact SentencePiece model; if it is a tiktoken file (Llama-3's tokenizer.model), use "
        "the tokenizer.json that Hugging Face keeps beside it",
        where.c_str());
}

// One message of the wire format: a sequence of (field number, value).
class Message {
   public:
    Message(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

    // Moves to the next field; false at the end.
    bool next() {
        if (bytes_.empty()) return false;
        const uint64_t key = varint();
        field_ = key >> 3;
        switch (key & 7) {
            case 0:
                number_ = varint();
                break;
            case 1:
                number_ = fixed(8);
                break;
            case 2:
                text_ = take(varint());
                break;
            case 5:
                number_ = fixed(4);
                break;
            default:
                damaged();
        }
        type_ = int(key & 7);
        return true;
    }
    uint64_t field() const { return field_; }
    uint64_t number() const { return type_ == 2 ? damaged() : number_; }
    std::string_view text() const { return type_ == 2 ? text_ : (damaged(), text_); }
    float real() const { return type_ == 5 ? std::bit_cast<float>(uint32_t(number_)) : (damaged(), 0.0f); }

   private:
    [[noreturn]] uint64_t damaged() const { refuse_file(where_); }
    std::string_view take(uint64_t size) {
        if (size > bytes_.size()) damaged();
        const std::string_view taken = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        return taken;
    }
    uint64_t fixed(size_t size) {
        uint64_t value = 0;
        std::memcpy(&value, take(size).data(), size);
        return value;
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const uint8_t byte = uint8_t(take(1)[0]);
            value |= uint64_t(byte & 0x7f) << shift;
            if (byte < 0x80) return value;
        }
        damaged();
    }

    std::string_view bytes_, text_;
    const std::string& where_;
    uint64_t field_ = 0, number_ = 0;
    int type_ = 0;
};

}  // namespace

class SentencePieceReader {
   public:
    explicit SentencePieceReader(const std::string& where) : where_(where) {
        t_.where_ = where;
        t_.space_ = Tokenizer::Space::kFirstSegment;
        t_.bad_byte_spoils_ = false;
        std::fill(std::begin(t_.byte_token_), std::end(t_.byte_token_), -1);
    }

    Tokenizer read(std::string_view model) {
        for (Message m(model, where_); m.next();) {
            if (m.field() == 1) read_piece(m.text());
            if (m.field() == 2) read_trainer(m.text());
            if (m.field() == 3) read_normalizer(m.text());
        }
        if (t_.tokens_.empty()) refuse_file(where_);
        require(is_bpe_ && byte_fallback_,
                "%s: only SentencePiece models of type BPE with byte fallback are supported, this "
                "is %s %s",
                where_.c_str(), is_bpe_ ? "BPE" : "of another type", byte_fallback_ ? "with it" : "without it");
        for (int b = 0; b < 256; ++b)
            require(t_.byte_token_[b] >= 0, "%s: byte fallback needs the piece <0x%02X>", where_.c_str(), b);
        make_merges();
        t_.bos_ = checked(bos_);
        if (t_.bos_ >= 0) t_.before_ = {t_.bos_};  // as transformers does for these models
        t_.eos_ = checked(eos_);
        return std::move(t_);
    }

   private:
    enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

    void read_piece(std::string_view bytes) {
        std::string piece;
        float score = 0;
        uint64_t type = kNormal;
        for (Message m(bytes, where_); m.next();) {
            if (m.field() == 1) piece = m.text();
            if (m.field() == 2) score = m.real();
            if (m.field() == 3) type = m.number();
        }
        const int32_t id = int32_t(t_.tokens_.size());
        Tokenizer::Token token{replaced(piece, kSpaceMark, " "), true, type == kControl || type == kUnknown, {}};
        require(type != kUserDefined && type != kUnused && type >= 1 && type <= 6 && !piece.empty(),
                "%s: piece %d is user-defined, unused, empty or of unknown type %lu, which is not supported",
                where_.c_str(), id, type);
        if (type == kByte) {
            const int byte = Tokenizer::fallback_byte(piece);
            require(byte >= 0, "%s: byte piece %d has a name that is no <0xNN>", where_.c_str(), id);
            t_.byte_token_[byte] = id;
            token.bytes = std::string(1, char(byte));
        } else if (type == kNormal) {
            require(t_.vocab_.emplace(piece, id).second, "%s: piece %d is there twice", where_.c_str(), id);
            scores_.push_back({score, id, piece});
        } else {
            token.content = piece;
            t_.added_ids_.emplace(piece, id);
            Tokenizer::add_to_trie(t_.added_, piece, id);
        }
        t_.tokens_.push_back(std::move(token));
    }

    void read_trainer(std::string_view bytes) {
        for (Message m(bytes, where_); m.next();) {
            if (m.field() == 3) is_bpe_ = m.number() == 2;
            if (m.field() == 35) byte_fallback_ = m.number() != 0;
            if (m.field() == 41) bos_ = int64_t(m.number());
            if (m.field() == 42) eos_ = int64_t(m.number());
        }
    }

    void read_normalizer(std::string_view bytes) {
        bool remove_extra_spaces = true, dummy_prefix = true, escape = true, plain = true;
        for (Message m(bytes, where_); m.next();) {
            if (m.field() == 2) plain = m.text().empty();
            if (m.field() == 3) dummy_prefix = m.number() != 0;
            if (m.field() == 4) remove_extra_spaces = m.number() != 0;
            if (m.field() == 5) escape = m.number() != 0;
        }
        require(plain && dummy_prefix && escape && !remove_extra_spaces,
                "%s: this SentencePiece model normalises text in a way "
                "that is not supported (character map, no dummy prefix, or removal of spaces)",
                where_.c_str());
    }

    // SentencePiece merges the adjacent pair whose union has the highest score, however the union is split.
    void make_merges() {
        std::stable_sort(scores_.begin(), scores_.end(),
                         [](const auto& a, const auto& b) { return a.score > b.score; });
        int32_t rank = 0;
        for (size_t i = 0; i < scores_.size(); ++i) {
            if (i > 0 && scores_[i].score < scores_[i - 1].score) ++rank;
            const std::string_view piece = scores_[i].piece;
            require(piece.size() <= 4096, "%s: a piece of %zu bytes", where_.c_str(), piece.size());
            for (size_t cut = 1; cut < piece.size(); ++cut) {
                const auto left = t_.vocab_.find(piece.substr(0, cut)), right = t_.vocab_.find(piece.substr(cut));
                if (left != t_.vocab_.end() && right != t_.vocab_.end())
                    t_.bpe_.add(left->second, right->second, scores_[i].id, rank);
            }
        }
    }

    int32_t checked(int64_t id) const { return id >= 0 && id < t_.vocab_size() ? int32_t(id) : -1; }

    struct Score {
        float score;
        int32_t id;
        std::string piece;
    };
    const std::string& where_;
    Tokenizer t_;
    std::vector<Score> scores_;
    bool is_bpe_ = false, byte_fallback_ = false;
    int64_t bos_ = 1, eos_ = 2;
};

Tokenizer Tokenizer::parse_sentencepiece(std::string_view model, const std::string& where) {
    return SentencePieceReader(where).read(model);
}

}  // namespace rz
