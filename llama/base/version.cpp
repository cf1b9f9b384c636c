#include "llama/base/version.h"

#ifndef RZ_COMMIT
#define RZ_COMMIT "unknown"
#endif

namespace rz {

const char* version() { return "0.1"; }
const char* build_commit() { return RZ_COMMIT; }

}  // namespace rz
