// libFuzzer target: the safetensors reader. test/fuzz/README.md says how to run it.

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llama/base/safetensors.h"

namespace {

// Promises of an accepted header, checked by its own arithmetic; the ends of every weight tensor are read and
// converted.
void check_accepted(const rz::SafetensorsHeader& header, const std::string& file) {
    int64_t end = 0;
    for (const rz::StoredTensor& t : header.tensors) {
        __int128 elements = 1;
        for (const int64_t extent : t.shape) elements *= extent;
        if (t.begin != end || t.end < t.begin || elements != t.elements) std::abort();
        end = t.end;
        if (!t.dtype() || t.elements == 0) continue;
        if (t.bytes() != t.elements * rz::size_of(*t.dtype())) std::abort();
        const char* data = file.data() + header.data_offset + t.begin;
        float first, last;
        rz::convert(data, *t.dtype(), &first, rz::DType::f32, 1, "first");
        rz::convert(data + t.bytes() - rz::size_of(*t.dtype()), *t.dtype(), &last, rz::DType::f32, 1, "last");
    }
    if (header.data_offset + end != int64_t(file.size())) std::abort();
}

void parse(const std::string& file) {
    try {
        check_accepted(rz::parse_safetensors(file, "fuzz"), file);
    } catch (const rz::SafetensorsError&) {  // the only way out
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string input(reinterpret_cast<const char*>(data), size);
    parse(input);
    // The same bytes as JSON, a zero byte, data: with a true length in front, mutations reach the header's checks.
    const size_t zero = std::min(input.find('\0'), size);
    const uint64_t length = zero;
    parse(std::string(reinterpret_cast<const char*>(&length), 8) + input.substr(0, zero) +
          (zero < size ? input.substr(zero + 1) : ""));
    return 0;
}
