// The PTX in a fat binary
#pragma once

#include <string>
#include <vector>

namespace ptx {

// Every PTX text of a fat binary, as nvcc puts them into objects, decompressed.
std::vector<std::string> unpack_ptx(const void* fat_binary);
std::string unpack_lz4(const unsigned char* in, size_t bytes, size_t unpacked);

}  // namespace ptx
