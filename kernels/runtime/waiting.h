#pragma once

namespace rz {

// Lets OpenMP's threads sleep while they wait for one another. By default they spin for milliseconds, which on cores
// that others use costs more than it gains. The runtime reads its variables before main, so the program is started once
// more in its place, with OMP_WAIT_POLICY=passive. Where that, or GOMP_SPINCOUNT, is set already, nothing is done.
// Nothing may have been read or opened before.
void sleep_while_waiting(char** argv);

}  // namespace rz
