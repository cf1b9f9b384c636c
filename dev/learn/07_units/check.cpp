#include <algorithm>
#include <vector>

#include "dev/learn/lesson.h"
#include "llama/model/param_table.h"
#include "llama/model/presets.h"

using namespace learn;

void slice(int64_t* begin, int64_t* end, int64_t blocks, int64_t block, int rank, int ranks);
int64_t peak_gathered(const int64_t* unit, int units, int ahead);

static rz::ParamTable table_of(const char* preset) {
    rz::ModelConfig c = rz::find_preset(preset).config;
    c.resolve();
    return rz::ParamTable(c);
}

// Every unit, at several numbers of ranks, against the program's own cut.
static void check_slices(const char* preset) {
    const rz::ParamTable table = table_of(preset);
    int64_t wrong = 0, uneven = 0;
    for (const rz::Unit& u : table.units())
        for (const int ranks : {1, 2, 3, 7, 64}) {
            int64_t at = 0, shortest = INT64_MAX, longest = 0;
            for (int r = 0; r < ranks; ++r) {
                int64_t begin = -1, end = -1;
                slice(&begin, &end, u.blocks(), u.block, r, ranks);
                wrong += begin != at || rz::ElementRange{begin, end} != u.slice(r, ranks);
                at = end;
                shortest = std::min(shortest, end - begin), longest = std::max(longest, end - begin);
            }
            wrong += at != u.padded;
            uneven += longest - shortest > u.block;
        }
    expect(wrong == 0, "%s: %lld slices do not join up or differ from the program's", preset, (long long)wrong);
    expect(uneven == 0, "%s: %lld units whose slices differ by more than a block", preset, (long long)uneven);
}

// Why not one slice of the whole buffer per rank: then one rank would own most of a block and all others wait for it.
static void show_one_slice_per_rank() {
    const rz::ParamTable table = table_of("llama3.1-8b");
    constexpr int kRanks = 8;
    const rz::Unit& block = table.units()[10];
    double most = 0;
    for (int r = 0; r < kRanks; ++r) {
        const double each = double(table.size()) / kRanks;
        const double begin = std::max(double(block.offset), r * each);
        const double end = std::min(double(block.offset + block.padded), (r + 1) * each);
        most = std::max(most, (end - begin) / double(block.padded));
    }
    int64_t begin, end;
    slice(&begin, &end, block.blocks(), block.block, 0, kRanks);
    std::printf(
        "block 9 of Llama 3.1 8B on 8 ranks: the busiest sends %.0f %% of it with one slice of the whole buffer,\n",
        100 * most);
    close("and with a slice of every unit, in %", 100 * double(end - begin) / double(block.padded), 12.5, 0.1);
}

int main() {
    int64_t begin, end;
    slice(&begin, &end, 10, 256, 3, 4);  // 10 blocks on 4 ranks: 3, 3, 2, 2
    expect(begin == 2048 && end == 2560, "10 blocks on 4 ranks: rank 3 owns [2048, 2560), found [%lld, %lld)",
           (long long)begin, (long long)end);
    check_slices("bytes");
    check_slices("smollm2-135m");
    check_slices("llama3.1-8b");

    const int64_t units[5] = {7, 4, 4, 4, 9};
    expect(peak_gathered(units, 5, 0) == 9, "nothing ahead: the largest unit, 9, found %lld",
           (long long)peak_gathered(units, 5, 0));
    expect(peak_gathered(units, 5, 1) == 13, "one ahead: 4 + 9 = 13, found %lld",
           (long long)peak_gathered(units, 5, 1));
    expect(peak_gathered(units, 5, 4) == 28, "all ahead: the whole model, 28, found %lld",
           (long long)peak_gathered(units, 5, 4));
    show_one_slice_per_rank();
    return verdict("cut where the model waits, share each cut among all: every link carries 1/N of every message");
}
