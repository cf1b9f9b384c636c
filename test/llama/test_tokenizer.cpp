#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>

#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/tokenizer/tokenizer.h"
#include "test/llama/helpers.h"

namespace {

namespace fs = std::filesystem;
using namespace rz;
using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string_view>;

// Written by dev/golden/make_tokenizer_golden.py with Hugging Face's tokenizers.
const fs::path kTokenizerGolden = fs::path(__FILE__).parent_path().parent_path() / "golden" / "tokenizer";

Json golden(const std::string& name) { return read_json(kTokenizerGolden / (name + ".json")); }
Tokenizer load(const Json& json, const std::string& config = {}) {
    return Tokenizer::parse(json.dump(), "t.json", config);
}

Json llama2_as_metaspace() {  // newer files write Llama-2's kind with a pre-tokenizer
    Json json = golden("llama2");
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
    return json;
}

Tokenizer golden_tokenizer(const std::string& kind) {
    if (kind == "sentencepiece") return Tokenizer::load(kTokenizerGolden / "sentencepiece.model");
    return load(kind == "metaspace" ? llama2_as_metaspace() : golden(kind));
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, IdsAndTextsEqualTheReferences) {
    const std::string kind = GetParam();
    const Tokenizer t = golden_tokenizer(kind);
    const Json strings = golden("strings"), expected = golden(kind + "_ids");
    ASSERT_GT(strings.size(), 90u);
    ASSERT_EQ(strings.size(), expected.size());
    for (size_t i = 0; i < strings.size(); ++i) {
        const std::string text = strings[i];
        const Ids ids = expected[i][0], special = expected[i][1].is_null() ? ids : expected[i][1].get<Ids>();
        EXPECT_EQ(t.encode(text), ids) << strings[i];
        if (kind != "sentencepiece") {  // which never reads special tokens from text
            EXPECT_EQ(t.encode(text, /*allow_special=*/true), special) << strings[i];
        }
        const std::string decoded = expected[i][2].is_null() ? text : expected[i][2].get<std::string>();
        EXPECT_EQ(t.decode(ids), decoded);
        Tokenizer::Stream stream(t);
        std::string streamed;
        for (const int32_t id : ids) {
            const std::string part = stream.push(id);
            EXPECT_TRUE(valid_utf8(part));
            streamed += part;
        }
        EXPECT_EQ(streamed + stream.finish(), decoded);
    }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Golden,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm2", "llama2", "metaspace", "sentencepiece"),
                         [](const auto& info) { return std::string(info.param); });

// Written by make_tokenizer_golden.py, with unicodedata2's.
TEST(Unicode, NormalisationFormC) {
    for (const Json& row : golden("nfc"))
        EXPECT_EQ(unicode::nfc(row[0].get<std::string>()), row[1].get<std::string>()) << row[0];
    EXPECT_EQ(unicode::nfc("a\xcc\x81 \xff\xcc\x81"
                           "e\xcc"),
              "\xc3\xa1 \xff\xcc\x81"
              "e\xcc");  // around invalid bytes
    EXPECT_EQ(unicode::nfc(""), "");
}

Json with_added_tokens(const std::string& kind) {
    Json json = kind == "metaspace" ? llama2_as_metaspace() : golden(kind);
    int32_t next = int32_t(load(json).vocab_size());
    const Json all = golden("added");
    for (const Json& t : all["tokens"])
        json["added_tokens"].push_back(
            {{"id", next++}, {"content", t[0]}, {"normalized", t[1]}, {"special", t[2]}, {"lstrip", false}});
    return json;
}

class AddedTokens : public testing::TestWithParam<const char*> {};

TEST_P(AddedTokens, AreFoundWhereTheReferenceFindsThem) {
    const Json all = golden("added");
    const Json &strings = all["strings"], &expected = all[GetParam()]["encoded"];
    const Tokenizer t = load(with_added_tokens(GetParam()));
    ASSERT_EQ(strings.size(), expected.size());
    for (size_t i = 0; i < strings.size(); ++i) {
        const std::string text = strings[i];
        EXPECT_EQ(t.encode(text), expected[i][0].get<Ids>()) << text;
        EXPECT_EQ(t.encode(text, /*allow_special=*/true), expected[i][1].get<Ids>()) << text;
    }
}
INSTANTIATE_TEST_SUITE_P(Kinds, AddedTokens, testing::Values("gpt2", "llama3", "qwen2", "llama2", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

class DrawnIds : public testing::TestWithParam<const char*> {};

TEST_P(DrawnIds, DecodeToTheReferencesText) {
    const std::string kind = GetParam();
    const Tokenizer t = kind == "sentencepiece" ? golden_tokenizer(kind) : load(with_added_tokens(kind));
    const Json all = golden("added");
    for (const Json& c : all[kind]["decoded"]) {
        const Ids ids = c[0];
        EXPECT_EQ(t.decode(ids), c[1].get<std::string>()) << c[0];
        EXPECT_EQ(t.decode(ids, /*skip_special=*/true), c[2].get<std::string>()) << c[0];
    }
}
INSTANTIATE_TEST_SUITE_P(Kinds, DrawnIds,
                         testing::Values("gpt2", "llama3", "qwen2", "llama2", "metaspace", "sentencepiece"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, KindsAreRecognised) {
    EXPECT_EQ(load(golden("gpt2")).pre_tokenizer(), PreTokenizer::kGpt2);
    EXPECT_EQ(load(golden("llama3")).pre_tokenizer(), PreTokenizer::kLlama3);
    EXPECT_EQ(load(golden("qwen2")).pre_tokenizer(), PreTokenizer::kQwen2);
    EXPECT_EQ(load(golden("smollm2")).pre_tokenizer(), PreTokenizer::kSmolLm2);
    EXPECT_EQ(load(golden("bytes")).pre_tokenizer(), PreTokenizer::kNone);
    EXPECT_EQ(load(golden("bytes")).vocab_size(), 257);
}

TEST(Tokenizer, BothNotationsOfMergesAreTheSame) {
    Json json = golden("gpt2");
    ASSERT_TRUE(json["model"]["merges"][0].is_string());
    const Tokenizer strings = load(json);
    for (Json& merge : json["model"]["merges"]) {
        const std::string both = merge;
        merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
    }
    const Tokenizer pairs = load(json);
    for (const Json& text : golden("strings"))
        EXPECT_EQ(pairs.encode(text.get<std::string>()), strings.encode(text.get<std::string>()));
}

TEST(Tokenizer, FindsTheBeginAndEndTokens) {
    const Tokenizer guessed = load(golden("llama3"));
    EXPECT_EQ(guessed.bos_id(), guessed.find("<|begin_of_text|>"));
    EXPECT_EQ(guessed.eos_id(), guessed.find("<|end_of_text|>"));
    const Tokenizer told =
        load(golden("llama3"), R"({"bos_token": null, "eos_token": {"content": "<|endoftext|>", "lstrip": false}})");
    EXPECT_EQ(told.eos_id(), told.find("<|endoftext|>"));
    EXPECT_EQ(load(golden("bytes")).bos_id(), 256);
    EXPECT_EQ(load(golden("bytes")).eos_id(), 256);
    EXPECT_EQ(load(golden("llama2")).bos_id(), 1);
    EXPECT_EQ(load(golden("llama2")).eos_id(), 2);
    const auto unknown = error_of([] { load(golden("gpt2"), R"({"eos_token": "<eos>"})"); });
    EXPECT_TRUE(says(unknown, "eos_token is \"<eos>\", which the vocabulary lacks"));
}

TEST(Tokenizer, LongestAddedTokenWinsAndSpecialOnesNeedPermission) {
    Json json = golden("llama3");
    const int32_t next = int32_t(load(json).vocab_size());
    json["added_tokens"].push_back({{"id", next}, {"content", "<|end_of"}, {"special", false}});
    const Tokenizer t = load(json);
    const Ids word = t.encode("x");
    EXPECT_EQ(t.encode("x<|end_of_text|>x", true), (Ids{word[0], t.find("<|end_of_text|>"), word[0]}));
    EXPECT_EQ(t.encode("x<|end_of")[1], next) << "an ordinary added token is always matched";
    for (const int32_t id : t.encode("<|end_of_text|><|begin_of_text|>")) EXPECT_FALSE(t.is_special(id));
    EXPECT_EQ(t.decode(t.encode("a<|end_of_text|>b", true), /*skip_special=*/true), "ab");
}

// A vocabulary may list special tokens too; ignore_merges must not let text reach them.
TEST(Tokenizer, TextNeverMakesASpecialTokenThroughTheVocabulary) {
    Json json = golden("bytes");
    json["model"]["vocab"]["<s>"] = 257;
    json["model"]["ignore_merges"] = true;
    json["added_tokens"].push_back({{"id", 257}, {"content", "<s>"}, {"special", true}});
    EXPECT_EQ(load(json).encode("<s>"), (Ids{'<', 's', '>'}));
    EXPECT_EQ(load(json).encode("<s>", true), Ids{257});
}

TEST(Tokenizer, BytesSurviveWhateverTheyAre) {
    const Tokenizer t = load(golden("bytes")), gpt2 = load(golden("gpt2")), llama3 = load(golden("llama3"));
    std::mt19937 random(5);
    for (int n = 0; n < 300; ++n) {
        std::string text(random() % 40, 0);
        for (char& c : text) c = char(random() % (n % 2 ? 256 : 6) + (n % 2 ? 0 : 0xc0));
        std::string by_gpt2, by_llama3;
        for (const int32_t id : gpt2.encode(text)) by_gpt2 += gpt2.bytes_of(id);
        for (const int32_t id : llama3.encode(text)) by_llama3 += llama3.bytes_of(id);
        EXPECT_EQ(by_gpt2, text);
        EXPECT_EQ(by_llama3, text);
        const Ids bytes = t.encode(text);
        ASSERT_EQ(bytes.size(), text.size());
        for (size_t i = 0; i < text.size(); ++i) EXPECT_EQ(bytes[i], uint8_t(text[i]));
    }
}

TEST(Tokenizer, IllFormedUtf8BecomesReplacementCharacters) {
    const Tokenizer t = load(golden("bytes"));
    for (const Json& c : golden("ill_formed")) {
        const Ids ids = c[0];
        EXPECT_EQ(t.decode(ids), c[1].get<std::string>()) << c;
    }
    Tokenizer::Stream stream(t);
    EXPECT_EQ(stream.push(0xe4), "");
    EXPECT_EQ(stream.push(0xb8), "");
    EXPECT_EQ(stream.push(0xad), "\u4e2d");
    EXPECT_EQ(stream.push(0xe4), "");
    EXPECT_EQ(stream.push('x'), "\ufffdx");
    EXPECT_EQ(stream.push(0xf0), "");
    EXPECT_EQ(stream.finish(), "\ufffd");
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(t.decode(Ids{'a', 999999, -5, 'b'}), "a\ufffd\ufffdb");
}

TEST(Tokenizer, AVocabularyOfAFewSymbolsEncodes) {  // as the synthetic corpus has
    Json json = golden("bytes");
    json["model"]["vocab"] = {{"a", 0}, {"b", 1}};
    json["added_tokens"][0]["id"] = 2;
    const Tokenizer t = load(json);
    EXPECT_EQ(t.encode("abba"), (Ids{0, 1, 1, 0}));
    EXPECT_EQ(t.decode(Ids{2, 0, 1}), "<|endoftext|>ab");
    EXPECT_TRUE(says(error_of([&] { t.encode("abc"); }), "no token for byte 0x63 ('c')"));
}

// A naive merge loop needs n^2 steps: 10^12 for these.
TEST(Tokenizer, LongRunsCostLittle) {
    Json json = golden("gpt2");
    json["pre_tokenizer"]["use_regex"] = false;
    const Tokenizer whole = load(json), llama2 = load(golden("llama2"));
    const std::clock_t begin = std::clock();  // of the processor: other programs may run
    std::string text(1000000, 'a');
    EXPECT_EQ(whole.decode(whole.encode(text)), text);
    EXPECT_EQ(llama2.decode(llama2.encode(text)), text);
    for (size_t i = 0; i < text.size(); i += 3) text[i] = "the \n"[i % 5];
    EXPECT_EQ(whole.decode(whole.encode(text)), text);
    EXPECT_EQ(whole.decode(whole.encode(std::string(1000000, '\n'))), std::string(1000000, '\n'));
    EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 60);
}

// A golden file with another value at a place, "/a/-" behind the last of a list; and what its refusal says.
struct Changed {
    const char *base, *place;
    Json value;
    const char* expected;
};

void expect_refused(const Json& json, const char* expected) {
    const std::string message = error_of([&] { load(json); });
    EXPECT_TRUE(says(message, expected));
    EXPECT_EQ(message.find("t.json"), 0u) << message;
}

void expect_refused(const std::vector<Changed>& rows) {
    for (const Changed& row : rows) {
        Json json = golden(row.base);
        json[Json::json_pointer(row.place)] = row.value;
        expect_refused(json, row.expected);
    }
}

Json without(Json json, const char* in, const char* key) {
    json.at(Json::json_pointer(in)).erase(key);
    return json;
}

TEST(Tokenizer, UnknownKindsAreRefusedByName) {
    const auto type = [](const char* name) { return Json{{"type", name}}; };
    expect_refused({
        {"gpt2", "/pre_tokenizer", type("Whitespace"), R"(this pre_tokenizer is not supported: {"type":"Whitespace"})"},
        {"gpt2", "/pre_tokenizer/add_prefix_space", true, "this pre_tokenizer"},
        {"gpt2", "/pre_tokenizer", nullptr, "this pre_tokenizer"},
        {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{L}+", "this pre_tokenizer"},
        {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed", "this pre_tokenizer"},
        {"smollm2", "/pre_tokenizer/pretokenizers/0/individual_digits", false, "this pre_tokenizer"},
        {"gpt2", "/normalizer", type("NFKC"), R"(this normalizer is not supported: {"type":"NFKC"})"},
        {"llama2", "/decoder", type("ByteLevel"), "this decoder"},
        {"gpt2", "/decoder", nullptr, "this decoder"},
        {"gpt2", "/model/type", "WordPiece", "model type \"WordPiece\""},
        {"gpt2", "/model/dropout", 0.1, "model.dropout"},
        {"gpt2", "/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
        {"gpt2", "/model/byte_fallback", true, "byte_fallback is true"},
        {"llama2", "/model/byte_fallback", false, "byte_fallback is false"},
        {"gpt2", "/post_processor", type("BertProcessing"), "this post_processor"},
        {"gpt2", "/added_tokens/0/lstrip", true, "this lstrip"},
    });
    expect_refused(without(golden("llama2"), "/model/vocab", "<0x41>"), "needs the token <0x41>");
}

TEST(Tokenizer, DamagedFilesAreRefusedByName) {
    const Json gpt2 = golden("gpt2");
    expect_refused({
        {"gpt2", "/added_tokens/0/content", "", "1 to 512 bytes"},
        {"gpt2", "/added_tokens/0/id", 5, "has id 0 in the vocabulary and 5"},
        {"gpt2", "/model/merges/-", "zz top", "the vocabulary has no token \"z"},
        {"gpt2", "/model/merges/-", "abc", "this merge"},
        {"gpt2", "/model/merges/-", Json::array({"a", "b", "c"}), "this merge"},
        {"gpt2", "/model/vocab/a", 1000000, "but there are only"},
        {"gpt2", "/model/vocab/a", gpt2["model"]["vocab"]["b"], "given to two tokens"},
        {"gpt2", "/model/vocab/a", -1, "must be a whole number"},
        {"gpt2", "/model/vocab/a", 1.5, "must be a whole number"},
        {"gpt2", "/model/vocab", Json::array(), "model.vocab"},
        {"gpt2", "/model", 3, "model must be a JSON object"},
        {"gpt2", "/added_tokens", Json::array({3}), "t.json"},
    });
    expect_refused(without(gpt2, "", "model"), "\"model\" is missing");
    Json twins = golden("llama2");
    twins["added_tokens"].push_back({{"id", 900}, {"content", " <q"}, {"normalized", true}});
    twins["added_tokens"].push_back({{"id", 901}, {"content", "\u2581<q"}, {"normalized", true}});
    expect_refused(twins, "whose text after normalising is another's");
    const std::string text = gpt2.dump();
    EXPECT_TRUE(
        says(error_of([&] { Tokenizer::parse(text.substr(0, 1000), "cut.json"); }), "cut.json: not valid JSON"));
    std::string twice = text;
    twice.replace(twice.find("\"vocab\":{"), 9, "\"vocab\":{\"a\":7,");
    EXPECT_TRUE(says(error_of([&] { Tokenizer::parse(twice, "t.json"); }), "duplicate JSON key \"a\""));
}

TEST(Tokenizer, DamagedSentencePieceModelsAreRefused) {
    const std::string good = read_file(kTokenizerGolden / "sentencepiece.model");
    const auto refused = [](const std::string& model) {
        return error_of([&] { Tokenizer::parse_sentencepiece(model, "m"); });
    };
    EXPECT_EQ(refused(good), "");
    EXPECT_TRUE(says(refused(good.substr(0, 1000)), "nor an intact SentencePiece model"));
    EXPECT_TRUE(says(refused("IQ== 0\nIg== 1\n"), "tiktoken"));
    EXPECT_TRUE(says(refused(""), "nor an intact SentencePiece model"));
    std::string unigram = good;  // trainer_spec.model_type = BPE is the bytes 18 02 after the piece list
    const size_t trainer = unigram.rfind(std::string("\x18\x02", 2));
    ASSERT_NE(trainer, std::string::npos);
    unigram[trainer + 1] = 1;
    for (const char* name : {"<0x-1>", "<0x 5>", "<0x+5>", "<0x0a>"}) {  // as scanf would read them, one far beyond 255
        std::string changed = good;
        changed.replace(changed.find("<0x05>"), 6, name);
        EXPECT_TRUE(says(refused(changed), "a name that is no <0xNN>"));
    }
    EXPECT_TRUE(says(refused(unigram), "only SentencePiece models of type BPE"));
    for (size_t at = 0; at < good.size(); at += 13) {  // any byte changed: an error or a tokenizer, never a crash
        std::string changed = good;
        changed[at] = char(changed[at] ^ (1 << at % 8));
        try {
            const Tokenizer t = Tokenizer::parse_sentencepiece(changed, "m");
            t.decode(t.encode("The cat, 12"));
        } catch (const Error&) {
        }
    }
}

TEST(Tokenizer, LoadsFilesAndFolders) {
    const TempFolder folder;
    const fs::path dir = folder.path;
    EXPECT_TRUE(says(error_of([&] { Tokenizer::load(dir); }), "tokenizer.json: no such tokenizer"));
    fs::copy_file(kTokenizerGolden / "sentencepiece.model", dir / "tokenizer.model");
    EXPECT_EQ(Tokenizer::load(dir).eos_id(), 2);
    std::ofstream(dir / "tokenizer.json") << golden("gpt2");
    EXPECT_EQ(Tokenizer::load(dir).eos_id(), 0);
    std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token": "!"})";
    EXPECT_EQ(Tokenizer::load(dir / "tokenizer.json").eos_id(), Tokenizer::load(dir).find("!"));
}

// dev/golden/make_prompt_golden.py: templates, add_bos_token and add_eos_token, special tokens in the text.
TEST(Tokenizer, PromptsAreTokenisedAsTransformersDoes) {
    int prompts = 0;
    for (const Json& c : read_json(kTokenizerGolden.parent_path() / "prompts" / "ids.json")) {
        Json tokenizer = golden(c["tokenizer"]);
        tokenizer["post_processor"] = c["post_processor"];
        const Tokenizer t = Tokenizer::parse(tokenizer.dump(), "tokenizer.json", c["config"].dump());
        for (const Json& prompt : c["prompts"]) {
            EXPECT_EQ(Json(t.encode_prompt(prompt[0].get<std::string>())), prompt[1]) << c["case"] << " " << prompt[0];
            ++prompts;
        }
    }
    EXPECT_GT(prompts, 200);
}

TEST(Tokenizer, DifferencesAreFoundByContent) {
    const Tokenizer bytes = load(golden("bytes")), gpt2 = load(golden("gpt2"));
    EXPECT_EQ(bytes.difference(load(golden("bytes"))), "");
    EXPECT_NE(bytes.difference(gpt2), "");
    Json json = golden("gpt2");
    std::swap(json["model"]["merges"][3], json["model"]["merges"][4]);
    EXPECT_TRUE(says(gpt2.difference(load(json)), "merge in different orders"));
    json = golden("bytes");
    std::swap(json["model"]["vocab"]["a"], json["model"]["vocab"]["b"]);
    EXPECT_TRUE(says(bytes.difference(load(json)), "id 97 is 'a' in"));
    json = golden("bytes");
    Json more = json["added_tokens"][0];
    more["id"] = 257, more["content"] = "<|user|>";
    json["added_tokens"].push_back(more);
    EXPECT_EQ(bytes.difference(load(json)), "") << "a special token more, in the model's";
    EXPECT_NE(load(json).difference(bytes), "") << "a token more, in the data's";
    EXPECT_EQ(load(json).difference(bytes, /*larger=*/true), "");
}

TEST(Pretokenize, SplitsAsGpt2Does) {
    const auto split = [](std::string_view text) { return pretokenize(PreTokenizer::kGpt2, text); };
    EXPECT_EQ(split(""), Pieces{});
    EXPECT_EQ(split("Hello world's  end"), (Pieces{"Hello", " world", "'s", " ", " end"}));
    EXPECT_EQ(split("a  \n b"), (Pieces{"a", "  \n", " b"}));
    EXPECT_EQ(split("x 123abc!? "), (Pieces{"x", " 123", "abc", "!?", " "}));
    EXPECT_EQ(split("IT'S it's'll"), (Pieces{"IT", "'", "S", " it", "'s", "'ll"}));
    EXPECT_EQ(split("e\u0301x"), (Pieces{"e", "\u0301", "x"})) << "a combining mark is no letter";
    EXPECT_EQ(split(" \u4e16\u754c\u3000a"), (Pieces{" \u4e16\u754c", "\u3000", "a"}));
    EXPECT_EQ(split("a\xff\xfe"), (Pieces{"a", "\xff\xfe"}));
}

TEST(Pretokenize, SplitsAsLlama3Does) {
    const auto split = [](std::string_view text) { return pretokenize(PreTokenizer::kLlama3, text); };
    EXPECT_EQ(split("I'm  here,\r\n\r\n  1234567 don't!\n x"),
              (Pieces{"I", "'m", " ", " here", ",\r\n\r\n", " ", " ", "123", "456", "7", " don", "'t", "!\n", " x"}));
    EXPECT_EQ(split("IT'S we'RE"), (Pieces{"IT", "'S", " we", "'RE"}));
    EXPECT_EQ(split("x'\u017f"), (Pieces{"x", "'\u017f"})) << "U+017F folds to s";
    EXPECT_EQ(split(" \n \n  a"), (Pieces{" \n \n", " ", " a"}));
    EXPECT_EQ(split("\tx(y)\n"), (Pieces{"\tx", "(y", ")\n"}));
    EXPECT_EQ(split("a   "), (Pieces{"a", "   "}));
}

TEST(Pretokenize, SplitsAsSmolLm2Does) {
    const auto split = [](std::string_view text) { return pretokenize(PreTokenizer::kSmolLm2, text); };
    EXPECT_EQ(split("a  12 b"), (Pieces{"a", "  ", "1", "2", " b"}));
    EXPECT_EQ(split("\u00bd\u4e00x3"), (Pieces{"\u00bd", "\u4e00x", "3"}));
}

TEST(Pretokenize, CoversTheText) {
    std::mt19937 random(9);
    const std::string alphabet = "aB1 \n\r\t'!s\xc3\xa9\xe4\xb8\xad\xf0\x9f";
    for (const auto kind : {PreTokenizer::kNone, PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kSmolLm2})
        for (int n = 0; n < 2000; ++n) {
            std::string text(random() % 20, 0), joined;
            for (char& c : text) c = alphabet[random() % alphabet.size()];
            for (const auto piece : pretokenize(kind, text)) {
                EXPECT_FALSE(piece.empty());
                joined += piece;
            }
            ASSERT_EQ(joined, text);
        }
}

}  // namespace
