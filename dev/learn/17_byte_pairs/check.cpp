#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dev/learn/lesson.h"
#include "llama/tokenizer/bpe.h"

using namespace learn;

using Pair = std::pair<int32_t, int32_t>;
std::vector<Pair> learn_merges(std::vector<int32_t> ids, int merges);
std::vector<int32_t> encode(std::vector<int32_t> ids, const std::vector<Pair>& merges);

static std::vector<int32_t> bytes_of(const std::string& text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(uint8_t(c));
    return ids;
}

static std::string text_of(int32_t id, const std::vector<Pair>& merges) {
    if (id < 256) return std::string(1, char(id));
    const Pair& pair = merges[size_t(id - 256)];
    return text_of(pair.first, merges) + text_of(pair.second, merges);
}

static std::string pieces(const std::vector<int32_t>& ids, const std::vector<Pair>& merges) {
    std::string text;
    for (const int32_t id : ids) text += (text.empty() ? "" : "|") + text_of(id, merges);
    return text;
}

static bool learned(const char* what, const std::string& text, const std::vector<std::string>& want) {
    const std::vector<Pair> merges = learn_merges(bytes_of(text), int(want.size()));
    std::string found, expected;
    for (size_t k = 0; k < merges.size(); ++k) found += text_of(256 + int32_t(k), merges) + "|";
    for (const std::string& w : want) expected += w + "|";
    return expect(found == expected, "%s: %s, found %s", what, expected.c_str(), found.c_str());
}

// The first ten merges of GPT-2's published merges.txt, where a space is written as a letter of its own.
static std::vector<Pair> gpt2() {
    enum { th_ = 256, a_, he, in, re, on, the_, er, s_, at };
    return {{' ', 't'}, {' ', 'a'}, {'h', 'e'}, {'i', 'n'}, {'r', 'e'},
            {'o', 'n'}, {th_, he},  {'e', 'r'}, {' ', 's'}, {'a', 't'}};
}

int main() {
    // Wikipedia's example ends as XdXac with X = aaab; of its second merge's equals, aaa and ab, it takes the other.
    learned("aaabdaaabac", "aaabdaaabac", {"aa", "aaa", "aaab"});
    const std::vector<Pair> three = learn_merges(bytes_of("aaabdaaabac"), 3);
    const std::string coded = pieces(encode(bytes_of("aaabdaaabac"), three), three);
    expect(coded == "aaab|d|aaab|a|c", "aaabdaaabac is aaab|d|aaab|a|c, found %s", coded.c_str());
    std::string dictionary;  // Sennrich, Haddow and Birch 2016, algorithm 1; . ends a word
    for (int i = 0; i < 5; ++i) dictionary += "low.";
    for (int i = 0; i < 2; ++i) dictionary += "lower.";
    for (int i = 0; i < 6; ++i) dictionary += "newest.";
    for (int i = 0; i < 3; ++i) dictionary += "widest.";
    learned("low, lower, newest, widest", dictionary, {"es", "est", "est."});

    const std::vector<Pair> merges = gpt2();
    for (const auto& [text, want] : {std::pair<const char*, const char*>{" there", " the|re"},
                                     {"ere", "e|re"},
                                     {" that then", " t|h|at| the|n"},
                                     {" is in", " |i|s| |in"}})
        expect(pieces(encode(bytes_of(text), merges), merges) == want, "GPT-2's first merges: \"%s\" is %s, found %s",
               text, want, pieces(encode(bytes_of(text), merges), merges).c_str());

    // Random texts of four letters, and merges learned from one of them: the program's encoder gives the same tokens.
    std::vector<std::vector<int32_t>> texts(50);
    for (unsigned i = 0; i < 50 * 200; ++i) texts[i / 200].push_back('a' + int32_t((noise(i) + 1) * 2));
    const std::vector<Pair> random = learn_merges(texts[0], 40);
    rz::Bpe bpe;
    for (size_t k = 0; k < random.size(); ++k) bpe.add(random[k].first, random[k].second, 256 + int32_t(k), int32_t(k));
    int wrong = 0, lost = 0;
    size_t tokens = 0;
    for (const std::vector<int32_t>& text : texts) {
        std::vector<int32_t> theirs = text;
        bpe.apply(theirs);
        const std::vector<int32_t> mine = encode(text, random);
        wrong += mine != theirs;
        std::string back;
        for (const int32_t id : mine) back += text_of(id, random);
        lost += bytes_of(back) != text;
        tokens += mine.size();
    }
    expect(random.size() == 40, "40 merges were learned, found %zu", random.size());
    expect(wrong == 0, "%d of 50 texts whose tokens differ from rz::Bpe's", wrong);
    expect(lost == 0, "%d of 50 texts that do not come back whole", lost);
    std::printf("  %.2f bytes per token\n", 50 * 200 / double(tokens));
    return verdict("a token is a frequent pair of tokens; encoding repeats training's merges in training's order");
}
