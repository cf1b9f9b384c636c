// Which operand descriptors wgmma instructions really used, and how often.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ptx {

std::map<std::string, uint64_t>& descriptors();
void count_descriptors(int n, uint64_t a, uint64_t b, bool registers, bool trans_a, bool trans_b);

}  // namespace ptx
