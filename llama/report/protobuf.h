#pragma once
// Protocol buffers by hand: what TensorBoard's events and W&B's records need of the wire format.

#include <cstdint>
#include <string>
#include <string_view>

namespace rz::protobuf {

enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string raw(T value) {  // little-endian, as every machine that this runs on
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out.push_back(char(value | 0x80));
    return out + char(value);
}

inline std::string tag(int field, Wire wire) { return varint(uint64_t(field) << 3 | wire); }

inline std::string whole(int field, int64_t value) { return tag(field, kVarint) + varint(uint64_t(value)); }

inline std::string real(int field, double value) { return tag(field, kFixed64) + raw(value); }

inline std::string real(int field, float value) { return tag(field, kFixed32) + raw(value); }

// A text, or a message.
inline std::string bytes(int field, std::string_view content) {
    return tag(field, kBytes) + varint(content.size()).append(content);
}

}  // namespace rz::protobuf
