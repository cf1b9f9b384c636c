#include "test/ptx/counts.h"

#include <algorithm>
#include <vector>

namespace ptx {
namespace {

// Shared memory: 32 banks of 4 bytes. Requests of 8 and 16 bytes go in two and four parts of 16 and 8 lanes.
uint64_t wavefronts(std::vector<uint32_t> words) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    uint64_t bank[32] = {}, most = 0;
    for (uint32_t w : words) most = std::max(most, ++bank[w % 32]);
    return most;
}

}  // namespace

void Counts::access(const Warp&, const Inst& i, Space space, const uint64_t* base, uint64_t offset, uint32_t bytes,
                    uint32_t lanes, bool) {
    const bool shared =
        space == Space::shared || (space == Space::generic && (base[first_lane(lanes)] & kWindow) == kSharedWindow);
    if (!shared && space != Space::global && space != Space::generic) return;  // parameters, local memory
    MemoryCount& c = memory[&i];
    c.requests++, c.bytes += uint64_t(bytes) * count_lanes(lanes);
    if (!shared) {
        std::vector<uint64_t> sectors;
        each(lanes, [&](uint32_t l) {
            for (uint64_t a = (base[l] + offset) / 32; a <= (base[l] + offset + bytes - 1) / 32; a++)
                sectors.push_back(a);
        });
        std::sort(sectors.begin(), sectors.end());
        c.sectors += uint64_t(std::unique(sectors.begin(), sectors.end()) - sectors.begin());
        return;
    }
    const uint32_t at_once = bytes <= 4 ? 32 : 128 / bytes;
    uint32_t all = 0;
    for (uint32_t first = 0; first < 32; first += at_once) {
        std::vector<uint32_t> words;
        for (uint32_t l = first; l < first + at_once; l++)
            if (lanes >> l & 1)
                for (uint32_t b = 0; b < bytes; b += 4) words.push_back(uint32_t(base[l] + offset + b) / 4);
        all += uint32_t(words.size());
        c.wavefronts += wavefronts(std::move(words));
    }
    c.ideal += std::max(1u, (all + 31) / 32);
}

// ldmatrix and stmatrix: eight rows of 16 bytes at a time
void Counts::matrix(const Inst& i, const uint32_t* addresses, uint32_t rows) {
    MemoryCount& c = memory[&i];
    c.requests++, c.bytes += uint64_t(rows) * 16;
    for (uint32_t first = 0; first < rows; first += 8) {
        std::vector<uint32_t> words;
        for (uint32_t r = first; r < first + 8; r++)
            for (uint32_t b = 0; b < 16; b += 4) words.push_back((addresses[r] + b) / 4);
        c.wavefronts += wavefronts(std::move(words)), c.ideal++;
    }
}

void Counts::bulk(const Inst& i, uint64_t bytes) {
    MemoryCount& c = memory[&i];
    c.requests++, c.bytes += bytes;
}

}  // namespace ptx
