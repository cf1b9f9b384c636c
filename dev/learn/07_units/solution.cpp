// Units: how finely the flat buffer is cut for communication, and who owns which part of a unit.
#include <cstdint>

// Rank r's part of a unit of `blocks` blocks of `block` elements: whole blocks in rank order, and ranks differ by one
// block at most, the first ones having the longer parts. Offsets are within the unit.
void slice(int64_t* begin, int64_t* end, int64_t blocks, int64_t block, int rank, int ranks) {
    // >>> hole 1: blocks / ranks each, and the first blocks % ranks ranks one more
    const int64_t each = blocks / ranks, extra = blocks % ranks;
    const int64_t first = rank * each + (rank < extra ? rank : extra);
    *begin = first * block;
    *end = (first + each + (rank < extra ? 1 : 0)) * block;
    // <<<
}

// The most elements that are gathered at once when units 0, 1, ... are used one after the other and `ahead` more are
// already being gathered while one is used.
int64_t peak_gathered(const int64_t* unit, int units, int ahead) {
    int64_t most = 0;
    for (int u = 0; u < units; ++u) {
        // >>> hole 2: the one in use and those ahead of it
        int64_t held = 0;
        for (int i = u; i < units && i <= u + ahead; ++i) held += unit[i];
        most = held > most ? held : most;
        // <<<
    }
    return most;
}
