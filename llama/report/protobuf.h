#pragma once
// Protocol buffers by hand: what TensorBoard's events and W&B's records need of the wire format.

#include <cstdint>
#include <string>
#include <string_view>

namespace rz::protobuf {

enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
void put_raw(std::string& out, T value) {  // little-endian, as every machine that this runs on
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void put_varint(std::string& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(char(value | 0x80));
    out.push_back(char(value));
}

inline void put_tag(std::string& out, int field, Wire wire) { put_varint(out, uint64_t(field) << 3 | wire); }

inline void put_int(std::string& out, int field, int64_t value) {
    put_tag(out, field, kVarint);
    put_varint(out, uint64_t(value));
}

inline void put_bytes(std::string& out, int field, std::string_view bytes) {
    put_tag(out, field, kBytes);
    put_varint(out, bytes.size());
    out.append(bytes);
}

}  // namespace rz::protobuf
