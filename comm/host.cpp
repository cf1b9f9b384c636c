#include "comm/host.h"

#include <unistd.h>

namespace rz {

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace rz
