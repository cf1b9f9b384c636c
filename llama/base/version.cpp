#include "llama/base/version.h"

#ifndef RZ_COMMIT
#define RZ_COMMIT "unknown"
#endif
#ifndef RZ_VERSION
#define RZ_VERSION "0.1"
#endif

namespace rz {

const char* version() { return RZ_VERSION; }
const char* build_commit() { return RZ_COMMIT; }

}  // namespace rz
