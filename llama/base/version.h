#pragma once

namespace rz {

const char* version();       // "0.1"
const char* build_commit();  // short hash of the commit this program was built from, or "unknown"

}  // namespace rz
