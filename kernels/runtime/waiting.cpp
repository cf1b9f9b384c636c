#include "kernels/runtime/waiting.h"

#include <unistd.h>

#include <cstdlib>

namespace rz {

void sleep_while_waiting(char** argv) {
    if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);  // where it fails, threads spin
}

}  // namespace rz
