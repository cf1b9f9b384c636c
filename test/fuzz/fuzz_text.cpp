// libFuzzer target: text that is printed, and a TOML file. test/fuzz/README.md says how to run it.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"
#include "llama/base/toml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const std::string shown = rz::printable(text);
    if (!rz::valid_utf8(shown) || rz::printable(shown) != shown) std::abort();
    for (const char c : shown)
        if ((uint8_t(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) std::abort();
    if (rz::printable_line(text).find_first_of("\n\t") != std::string::npos) std::abort();
    // In any two pieces it is the same.
    const size_t cut = size == 0 ? 0 : data[0] % (size + 1);
    rz::PrintablePieces pieces;
    std::string together = pieces.feed(text.substr(0, cut));
    together += pieces.feed(text.substr(cut));
    if (together + pieces.finish() != shown) std::abort();
    try {
        rz::parse_toml(text, "fuzz");
    } catch (const rz::Error&) {
    }
    return 0;
}
