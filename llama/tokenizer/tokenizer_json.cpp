// Reads tokenizer.json into a Tokenizer. Whatever has an effect and is not known is refused.

#include <algorithm>
#include <filesystem>
#include <optional>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/folder_file.h"
#include "llama/base/json.h"
#include "llama/tokenizer/spelling.h"
#include "llama/tokenizer/tokenizer.h"

namespace rz {
namespace {

constexpr const char* kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int64_t kMaxIds = 1 << 24;
constexpr size_t kMaxAddedBytes = 512;  // bounds the cost of looking for added tokens in a text

std::string quote(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 600 ? text.substr(0, 600) + "..." : text;
}

bool is_type(const Json& value, const char* type) { return value.is_object() && value.value("type", Json()) == type; }

// Members equal to `expected`, whatever else there is.
bool has(const Json& value, const Json& expected) {
    return value.is_object() && std::all_of(expected.items().begin(), expected.items().end(), [&](const auto& item) {
               return value.contains(item.key()) && value[item.key()] == item.value();
           });
}

// The members of a Sequence, or nothing.
const Json* sequence(const Json& value, const char* key, size_t size) {
    if (!is_type(value, "Sequence")) return nullptr;
    const Json* list = json_find(value, key);
    return list && list->is_array() && list->size() == size ? list : nullptr;
}

std::optional<bool> byte_level_regex(const Json& value) {  // use_regex of a plain ByteLevel pre-tokenizer
    if (!has(value, {{"type", "ByteLevel"}, {"add_prefix_space", false}})) return {};
    const Json use = value.value("use_regex", Json(true));
    return use.is_boolean() ? std::optional(use.get<bool>()) : std::nullopt;
}

}  // namespace

class TokenizerReader {
   public:
    TokenizerReader(std::string_view text, const std::string& where)
        : where_(where), json_(parse_json(text, where, kTokenizerFile)) {
        require(json_.is_object(), "%s: not a JSON object", where.c_str());
        t_.where_ = where;
        std::fill(std::begin(t_.byte_token_), std::end(t_.byte_token_), -1);
    }

    Tokenizer read(std::string_view config) try {
        const Json& model = json_at(json_, "model", where_);
        read_kind();
        check_model(model);
        read_vocab(json_at(model, "vocab", where_));
        read_added();
        read_bytes();
        read_merges(json_at(model, "merges", where_));
        check_post_processor(json_.value("post_processor", Json()));
        read_bos_eos(config);
        return std::move(t_);
    } catch (const Json::exception& e) {  // a value of another type than expected
        fail("%s: %s", where_.c_str(), e.what());
    }

    // Reads BOS and EOS of a tokenizer.model. If there is a tokenizer.json, transformers follows its template alone.
    static void add_bos_eos(Tokenizer& t, const Json& config, const std::string& where) {
        const Json *bos = json_find(config, "add_bos_token"), *eos = json_find(config, "add_eos_token");
        if (t.bos_ >= 0 && (!bos || json_bool(*bos, "add_bos_token", where))) t.before_ = {t.bos_};
        if (t.eos_ >= 0 && eos && json_bool(*eos, "add_eos_token", where)) t.after_ = {t.eos_};
    }

   private:
    [[noreturn]] void refuse(const char* what, const Json& value) const {
        fail("%s: this %s is not supported: %s", where_.c_str(), what, quote(value).c_str());
    }

    // Normalizer, pre-tokenizer and decoder, recognised together by value.
    void read_kind() {
        const Json normalizer = json_.value("normalizer", Json()), split = json_.value("pre_tokenizer", Json()),
                   decoder = json_.value("decoder", Json());
        if (const Json* n = sequence(normalizer, "normalizers", 2);
            n && split.is_null() && has((*n)[0], {{"type", "Prepend"}, {"prepend", kSpaceMark}}) &&
            has((*n)[1], {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}})) {
            t_.space_ = Tokenizer::Space::kEverySegment;
            t_.normalises_ = true;
        } else if (normalizer.is_null() &&
                   has(split, {{"type", "Metaspace"}, {"replacement", kSpaceMark}, {"split", false}})) {
            const Json scheme = split.value("prepend_scheme", Json());
            if (scheme != "first" && scheme != "always") refuse("pre_tokenizer", split);
            t_.space_ = scheme == "first" ? Tokenizer::Space::kFirstSegment : Tokenizer::Space::kEverySegment;
            t_.prepend_always_ = false;
        } else {
            t_.nfc_ = is_type(normalizer, "NFC");
            if (!normalizer.is_null() && !t_.nfc_) refuse("normalizer", normalizer);
            if (!read_split(split)) refuse("pre_tokenizer", split);
            if (!is_type(decoder, "ByteLevel")) refuse("decoder", decoder);
            return;
        }
        const Json* d = sequence(decoder, "decoders", 4);
        if (!d || !has((*d)[0], {{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}}) ||
            !is_type((*d)[1], "ByteFallback") || !is_type((*d)[2], "Fuse") ||
            !has((*d)[3], {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}))
            refuse("decoder", decoder);
    }

    bool read_split(const Json& split) {
        if (const auto regex = byte_level_regex(split)) {
            t_.split_ = *regex ? PreTokenizer::kGpt2 : PreTokenizer::kNone;
            return true;
        }
        const Json* parts = sequence(split, "pretokenizers", 2);
        const auto regex = parts ? byte_level_regex((*parts)[1]) : std::nullopt;
        if (!regex) return false;
        const Json& first = (*parts)[0];
        if (*regex && has(first, {{"type", "Digits"}, {"individual_digits", true}})) {
            t_.split_ = PreTokenizer::kSmolLm2;
            return true;
        }
        if (*regex || !has(first, {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}})) return false;
        const Json pattern = first.value("pattern", Json());
        for (const auto& [regex_of, kind] : {std::pair(kLlama3Split, PreTokenizer::kLlama3),
                                             {kQwen2Split, PreTokenizer::kQwen2},
                                             {kGpt2Split, PreTokenizer::kGpt2}}) {
            t_.split_ = kind;
            if (pattern == Json{{"Regex", regex_of}}) return true;
        }
        return false;
    }

    void check_model(const Json& model) {
        require(model.is_object(), "%s: model must be a JSON object", where_.c_str());
        const Json type = model.value("type", Json("BPE"));
        require(type == "BPE", "%s: model type %s is not supported, only BPE", where_.c_str(), quote(type).c_str());
        const Json dropout = model.value("dropout", Json());
        if (!dropout.is_null() && dropout != 0) refuse("model.dropout", dropout);
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
            const Json value = model.value(key, Json());
            if (!value.is_null() && value != "") refuse(key, value);
        }
        const bool fallback = json_bool(model.value("byte_fallback", Json(false)), "model.byte_fallback", where_);
        const bool bytes = t_.space_ == Tokenizer::Space::kBytes;
        require(fallback != bytes, "%s: byte_fallback is %s, but a tokenizer of this kind needs %s", where_.c_str(),
                fallback ? "true" : "false", bytes ? "false" : "true");
        t_.ignore_merges_ = json_bool(model.value("ignore_merges", Json(false)), "model.ignore_merges", where_);
    }

    int32_t checked_id(const Json& value, const std::string& token) const {
        const int64_t id = json_int(value, "a token's id", 0, kMaxIds - 1, where_);
        require(id <= most_ids_, "%s: token %s has id %ld, but there are only %ld tokens", where_.c_str(),
                quote(token).c_str(), id, most_ids_);
        return int32_t(id);
    }

    void set_token(int32_t id, std::string bytes, const std::string& name) {
        if (id >= t_.vocab_size()) t_.tokens_.resize(size_t(id) + 1);
        Tokenizer::Token& token = t_.tokens_[size_t(id)];
        require(!token.present || token.bytes == bytes, "%s: id %d belongs to %s and to %s", where_.c_str(), id,
                quote(token.bytes).c_str(), quote(name).c_str());
        token.bytes = std::move(bytes);
        token.present = true;
    }

    void read_vocab(const Json& vocab) {
        require(vocab.is_object() && !vocab.empty(), "%s: model.vocab must be a JSON object of tokens and ids",
                where_.c_str());
        const Json added = json_.value("added_tokens", Json::array());
        // Ids may have gaps, but not so many that a small file asks for much memory.
        most_ids_ = std::min<int64_t>(kMaxIds - 1, 2 * int64_t(vocab.size() + added.size()) + 65536);
        const ByteAlphabet alphabet;
        for (const auto& [name, value] : vocab.items()) {
            const int32_t id = checked_id(value, name);
            require(id >= t_.vocab_size() || !t_.tokens_[size_t(id)].present,
                    "%s: id %d is given to two tokens, %s is one", where_.c_str(), id, quote(name).c_str());
            ids_.emplace(name, id);
            if (t_.space_ != Tokenizer::Space::kBytes) {
                const int byte = Tokenizer::fallback_byte(name);
                if (byte >= 0) t_.byte_token_[byte] = id;
                set_token(id, byte >= 0 ? std::string(1, char(byte)) : replaced(name, kSpaceMark, " "), name);
                t_.vocab_.emplace(name, id);
            } else if (auto bytes = alphabet.decode(name)) {
                t_.vocab_.emplace(*bytes, id);
                set_token(id, std::move(*bytes), name);
            } else {
                set_token(id, name, name);  // cannot be reached by merging
            }
        }
    }

    void read_added() {
        const Json* list = json_find(json_, "added_tokens");
        if (!list) return;
        require(list->is_array(), "%s: added_tokens must be an array", where_.c_str());
        const ByteAlphabet alphabet;
        for (const Json& entry : *list) {
            const std::string content = json_string_at(entry, "content", where_);
            const int32_t id = checked_id(json_at(entry, "id", where_), content);
            for (const char* flag : {"single_word", "lstrip", "rstrip"})
                if (entry.value(flag, Json(false)) != false) refuse(flag, entry);
            require(!content.empty() && content.size() <= kMaxAddedBytes,
                    "%s: an added token must have 1 to %zu bytes: %s", where_.c_str(), kMaxAddedBytes,
                    quote(entry).c_str());
            const auto known = ids_.find(content);
            require(known == ids_.end() || known->second == id,
                    "%s: %s has id %d in the vocabulary and %d as an added token", where_.c_str(),
                    quote(content).c_str(), known == ids_.end() ? 0 : known->second, id);
            const bool special = json_bool(entry.value("special", Json(false)), "special", where_);
            const bool normalised = json_bool(entry.value("normalized", Json(!special)), "normalized", where_);
            const auto [again, first] = t_.added_ids_.emplace(content, id);
            if (!first && again->second != id) refuse("second id of an added token", entry);
            const bool bytes_mean_text = t_.space_ == Tokenizer::Space::kBytes;
            if (!bytes_mean_text && Tokenizer::fallback_byte(content) >= 0) refuse("added token", entry);
            // The reference decodes it to what it is found by, and then does not know it as special.
            const std::string sought = normalised && t_.normalises_ ? t_.with_marks(content, /*first=*/true)
                                       : normalised && t_.nfc_      ? unicode::nfc(content)
                                                                    : content;
            const std::string bytes =
                bytes_mean_text ? alphabet.decode(sought).value_or(sought) : replaced(sought, kSpaceMark, " ");
            if (known != ids_.end()) t_.tokens_[size_t(id)].bytes = bytes;
            set_token(id, bytes, content);
            Tokenizer::Token& token = t_.tokens_[size_t(id)];
            token.special |= special;
            token.shown = sought != content;
            token.content = content;
            token.normalised = normalised;
            const int32_t other = Tokenizer::add_to_trie(normalised ? t_.normalised_ : t_.added_, sought, id);
            if (other >= 0 && other != id) refuse("added token, whose text after normalising is another's,", entry);
        }
    }

    void read_bytes() {
        for (int b = 0; b < 256; ++b) {
            if (t_.space_ == Tokenizer::Space::kBytes) {
                const auto it = t_.vocab_.find(std::string_view(std::string(1, char(b))));
                t_.byte_token_[b] = it == t_.vocab_.end() ? -1 : it->second;
            } else {
                require(t_.byte_token_[b] >= 0, "%s: byte_fallback needs the token <0x%02X>", where_.c_str(), b);
            }
        }
    }

    int32_t merge_part(const std::string& token, const Json& merge) const {
        const auto it = ids_.find(token);
        require(it != ids_.end(), "%s: merge %s: the vocabulary has no token %s", where_.c_str(), quote(merge).c_str(),
                quote(token).c_str());
        return it->second;
    }

    void read_merges(const Json& merges) {
        require(merges.is_array(), "%s: model.merges must be an array", where_.c_str());
        int32_t rank = 0;
        for (const Json& merge : merges) {
            std::string left, right;
            if (merge.is_string()) {
                const auto& both = merge.get_ref<const std::string&>();
                const size_t space = both.find(' ');
                if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
                    refuse("merge", merge);
                left = both.substr(0, space);
                right = both.substr(space + 1);
            } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
                left = merge[0].get<std::string>();
                right = merge[1].get<std::string>();
            } else {
                refuse("merge", merge);
            }
            t_.bpe_.add(merge_part(left, merge), merge_part(right, merge), merge_part(left + right, merge), rank++);
        }
    }

    void check_post_processor(const Json& post) {
        if (post.is_null() || is_type(post, "ByteLevel")) return;
        if (is_type(post, "TemplateProcessing")) return read_template(post);
        const Json* list = is_type(post, "Sequence") ? json_find(post, "processors") : nullptr;
        if (!list || !list->is_array()) refuse("post_processor", post);
        for (const Json& part : *list) {
            if (is_type(part, "Sequence")) refuse("post_processor", post);
            check_post_processor(part);
        }
    }

    // Special tokens around the text: {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    void read_template(const Json& post) {
        const Json single = post.value("single", Json()), known = post.value("special_tokens", Json::object());
        if (!single.is_array() || single.empty()) refuse("post_processor", post);
        std::vector<int32_t> before, after;
        bool seen = false;
        for (const Json& part : single) {
            if (json_find(part, "Sequence") && !seen) {
                seen = true;
                continue;
            }
            const Json* special = json_find(part, "SpecialToken");
            if (!special) refuse("post_processor", post);
            const std::string name = json_string_at(*special, "id", where_);
            const Json& ids = json_at(json_at(known, name.c_str(), where_), "ids", where_);
            if (!ids.is_array()) refuse("post_processor", post);
            for (const Json& id : ids) (seen ? after : before).push_back(checked_id(id, name));
            if (!seen && template_bos_.empty()) template_bos_ = name;
        }
        if (!seen) refuse("post_processor", post);
        t_.before_.insert(t_.before_.begin(), before.begin(), before.end());
        t_.after_.insert(t_.after_.end(), after.begin(), after.end());
    }

    // From tokenizer_config.json; else from the template; else the first known name that the vocabulary has.
    void read_bos_eos(std::string_view config_text) {
        Json config;
        const std::string config_where = where_ + " (tokenizer_config.json)";
        if (!config_text.empty()) {
            config = parse_json(config_text, config_where, kTokenizerFile);
            require(config.is_object(), "%s: not a JSON object", config_where.c_str());
        }
        const auto choose = [&](const char* key, std::initializer_list<std::string> names) -> int32_t {
            if (const Json* value = json_find(config, key)) {
                const Json& name = value->is_object() ? json_at(*value, "content", config_where) : *value;
                const std::string text = json_string(name, key, config_where);
                const int32_t id = t_.find(text);
                require(id >= 0, "%s: %s is %s, which the vocabulary lacks", config_where.c_str(), key,
                        quote(text).c_str());
                return id;
            }
            for (const std::string& name : names)
                if (const int32_t id = name.empty() ? -1 : t_.find(name); id >= 0 && t_.is_special(id)) return id;
            return -1;
        };
        t_.bos_ = choose("bos_token", {template_bos_, "<|begin_of_text|>", "<s>", "<|endoftext|>"});
        t_.eos_ = choose("eos_token", {"<|end_of_text|>", "</s>", "<|endoftext|>"});
    }

    std::string where_;
    Json json_;
    Tokenizer t_;
    std::unordered_map<std::string, int32_t> ids_;  // by the names in the vocabulary
    int64_t most_ids_ = 0;
    std::string template_bos_;
};

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where, std::string_view config) {
    return TokenizerReader(json, where).read(config);
}

Tokenizer Tokenizer::load(const std::string& path) {
    namespace fs = std::filesystem;
    fs::path file = path;
    if (is_folder(path)) {
        file /= "tokenizer.json";
        if (!has_file(path, "tokenizer.json") && has_file(path, "tokenizer.model")) file = path + "/tokenizer.model";
    }
    require(is_file(file),
            "%s: no such tokenizer; data_prep/prepare.py writes one beside the data, and "
            "every Hugging Face model has one",
            file.c_str());
    const std::string folder = parent_folder(file), config = folder + "/tokenizer_config.json";
    const std::string bytes = read_file(file, kTokenizerFile);
    const std::string config_text =
        has_file(folder, "tokenizer_config.json") ? read_file(config, kTokenizerFile) : std::string();
    if (const size_t first = bytes.find_first_not_of(" \t\r\n"); first != std::string::npos && bytes[first] == '{')
        return parse(bytes, file, config_text);
    Tokenizer t = parse_sentencepiece(bytes, file);
    TokenizerReader::add_bos_eos(t, config_text.empty() ? Json() : parse_json(config_text, config, kTokenizerFile),
                                 config);
    return t;
}

}  // namespace rz
