#pragma once

#include <string>

namespace rz {

std::string host_name();

}  // namespace rz
