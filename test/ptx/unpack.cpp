#include "test/ptx/unpack.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace ptx {

// LZ4's block format: runs of literals, each followed by a copy of earlier output.
std::string unpack_lz4(const unsigned char* in, size_t bytes, size_t unpacked) {
    std::string out;
    const unsigned char* const end = in + bytes;
    const auto length = [&](size_t n) {
        if (n == 15)
            for (unsigned char more = 255; more == 255 && in < end;) n += more = *in++;
        return n;
    };
    while (in < end) {
        const unsigned char token = *in++;
        const size_t literals = length(token >> 4);
        if (literals > size_t(end - in)) throw std::runtime_error("compressed PTX ends early");
        out.append(reinterpret_cast<const char*>(in), literals), in += literals;
        if (in >= end) break;
        const size_t back = size_t(in[0]) | size_t(in[1]) << 8;
        in += 2;
        const size_t n = length(token & 15) + 4;
        if (back == 0 || back > out.size()) throw std::runtime_error("compressed PTX refers to text before its begin");
        for (size_t i = 0; i < n; i++) out.push_back(out[out.size() - back]);
    }
    if (unpacked && out.size() != unpacked) throw std::runtime_error("compressed PTX has another size than it says");
    return out;
}

namespace {

// nvcc's default since CUDA 12.8. The library comes with every GCC; its header does not.
std::string unpack_zstd(const unsigned char* in, size_t bytes, size_t unpacked) {
    using Decompress = size_t (*)(void*, size_t, const void*, size_t);
    static void* const library = dlopen("libzstd.so.1", RTLD_NOW);
    static const auto decompress = reinterpret_cast<Decompress>(library ? dlsym(library, "ZSTD_decompress") : nullptr);
    if (!decompress)
        throw std::runtime_error(
            "the PTX is compressed with zstd, and libzstd.so.1 is not here\n"
            "  install libzstd1, or compile with NVCCFLAGS=--no-compress");
    std::string out(unpacked, '\0');
    const size_t n = decompress(out.data(), out.size(), in, bytes);
    if (n != unpacked) throw std::runtime_error("the PTX's zstd data can't be decompressed");
    return out;
}

template <class T>
T field(const unsigned char* p, size_t offset) {
    T v;
    memcpy(&v, p + offset, sizeof v);
    return v;
}

}  // namespace

// A header, then entries: a header of its own with kind (1: PTX), sizes and flags, and the data, padded to 8 bytes.
std::vector<std::string> unpack_ptx(const void* fat_binary) {
    constexpr uint64_t kLz4 = 0x2000, kZstd = 0x8000;
    const auto* data = static_cast<const unsigned char*>(fat_binary);
    if (field<uint32_t>(data, 0) != 0xba55ed50) throw std::runtime_error("not a fat binary");
    const auto* p = data + field<uint16_t>(data, 6);
    const auto* const end = p + field<uint64_t>(data, 8);
    std::vector<std::string> texts;
    while (p < end) {
        const auto header = field<uint32_t>(p, 4);
        const auto bytes = field<uint64_t>(p, 8);
        if (field<uint16_t>(p, 0) == 1) {
            const auto flags = field<uint64_t>(p, 40), unpacked = field<uint64_t>(p, 56);
            const unsigned char* const text = p + header;
            const size_t packed = field<uint32_t>(p, 16);
            std::string s = flags & kZstd  ? unpack_zstd(text, packed, unpacked)
                            : flags & kLz4 ? unpack_lz4(text, packed, unpacked)
                                           : std::string(reinterpret_cast<const char*>(text), bytes);
            texts.push_back(s.substr(0, strlen(s.c_str())));
        }
        p += header + bytes;
    }
    return texts;
}

}  // namespace ptx
