// Tokenises texts and ids with our tokenizers, for comparison with other programs.
//
//   build/dev/tokens TOKENIZER < IN.json > OUT.json
//
// IN is {"texts": [TEXT...], "ids": [[ID...]...]}. OUT has `plain`, `special` and `prompt`, the ids of each text
// (special tokens as text, as tokens, and with what a prompt gets around it), and `decoded` and `shown`, the text of
// each list of ids with and without special tokens.

#include <cstdio>
#include <iostream>
#include <iterator>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"
#include "llama/tokenizer/tokenizer.h"

namespace rz {

static void answer(const std::string& tokenizer) {
    const Tokenizer t = Tokenizer::load(tokenizer);
    const Json in = parse_json(std::string(std::istreambuf_iterator<char>(std::cin), {}), "standard input");
    Json out;
    for (const char* key : {"plain", "special", "prompt", "decoded", "shown"}) out[key] = Json::array();
    for (const Json& text : json_at(in, "texts", "standard input")) {
        const std::string s = text;
        out["plain"].push_back(t.encode(s));
        out["special"].push_back(t.encode(s, /*allow_special=*/true));
        out["prompt"].push_back(t.encode_prompt(s));
    }
    for (const Json& list : json_at(in, "ids", "standard input")) {
        const std::vector<int32_t> ids = list;
        out["decoded"].push_back(t.decode(ids));
        out["shown"].push_back(t.decode(ids, /*skip_special=*/true));
    }
    std::cout << out.dump() << "\n";
}

}  // namespace rz

int main(int argc, char** argv) {
    if (argc != 2) return std::fprintf(stderr, "usage: tokens TOKENIZER < IN.json > OUT.json\n"), 2;
    try {
        rz::answer(argv[1]);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "tokens: %s\n", e.what());
        return 1;
    }
}
