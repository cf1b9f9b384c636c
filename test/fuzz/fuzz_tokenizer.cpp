// Fuzzes the tokenizer reader and both directions of the tokenizer. Input: a tokenizer.json, a NUL, a text. Without NUL
// the input is a text for a tokenizer that is known to be good (the file named by RZ_FUZZ_TOKENIZER), if there is one.
// An input that begins with 0x0a, as SentencePiece models do, is read as one. test/fuzz/README.md says how to run it.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"
#include "llama/tokenizer/tokenizer.h"

namespace {

void both_directions(const rz::Tokenizer& tokenizer, std::string_view text) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids)
        if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
    tokenizer.encode(text, true);
    rz::Tokenizer::Stream stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    if (!rz::valid_utf8(streamed) || streamed != tokenizer.decode(ids)) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t nul = input.find('\0');
    try {
        if (input.starts_with('\n')) {
            both_directions(rz::Tokenizer::parse_sentencepiece(input, "fuzz"), "The cat, 12 \u4e16\xff");
        } else if (nul != std::string_view::npos) {
            both_directions(rz::Tokenizer::parse(input.substr(0, nul), "fuzz"), input.substr(nul + 1));
        } else if (const char* path = std::getenv("RZ_FUZZ_TOKENIZER")) {
            static const rz::Tokenizer known = rz::Tokenizer::load(path);
            both_directions(known, input);
        }
    } catch (const rz::Error&) {
    }
    return 0;
}
