#include <algorithm>
#include <functional>
#include <vector>

#include "dev/learn/toy.h"

using namespace learn;

void slice(int64_t* begin, int64_t* end, int64_t blocks, int64_t block, int rank, int ranks);
int64_t peak_gathered(const int64_t* unit, int units, int ahead);
struct Model {
    int units, T, C, V;
    std::function<void(int unit)> gather, release;
    std::function<void(double* x, const int* tokens)> embed;
    std::function<void(int unit, double* x)> block;
    std::function<void(double* logits, const double* x)> head;
};
double forward(const Model& m, const int* tokens);

// Every unit, at several numbers of ranks, against the program's own cut.
static void check_slices(const char* name) {
    const rz::ParamTable table(preset(name));
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
    expect(wrong == 0, "%s: %lld slices do not join up or differ from the program's", name, (long long)wrong);
    expect(uneven == 0, "%s: %lld units whose slices differ by more than a block", name, (long long)uneven);
}

// Why not one slice of the whole buffer per rank: then one rank would own most of a block and all others wait for it.
static void show_one_slice_per_rank() {
    const rz::ParamTable table(preset("llama3.1-8b"));
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

// A model that knows what comes next: x is one-hot, each block permutes it, and the head gives kSure to where it ends.
// Every token of the sequence is what three blocks in their order make of the one before it.
static void check_forward() {
    constexpr int kUnits = 5, T = 20, V = 11;
    constexpr double kSure = 6;
    const auto next = [](int block, int v) { return block == 2 ? (7 * v) % V : (v + block) % V; };
    bool there[kUnits] = {};
    int held = 0, most = 0, not_there = 0, not_ahead = 0, used = 0;
    const auto use = [&](int u) {
        not_there += !there[u];
        not_ahead += u + 1 < kUnits && !there[u + 1];
        ++used;
    };
    const Model m{kUnits,
                  T,
                  V,
                  V,
                  [&](int u) {
                      held += !there[u];
                      there[u] = true;
                      most = std::max(most, held);
                  },
                  [&](int u) {
                      held -= there[u];
                      there[u] = false;
                  },
                  [&](double* x, const int* tokens) {
                      use(0);
                      for (int t = 0; t < T; ++t)
                          for (int v = 0; v < V; ++v) x[t * V + v] = v == tokens[t];
                  },
                  [&](int u, double* x) {
                      use(u);
                      for (int t = 0; t < T; ++t) {
                          double row[V];
                          for (int v = 0; v < V; ++v) row[next(u, v)] = x[t * V + v];
                          std::copy(row, row + V, x + t * V);
                      }
                  },
                  [&](double* logits, const double* x) {
                      use(kUnits - 1);
                      for (int i = 0; i < T * V; ++i) logits[i] = kSure * x[i];
                  }};
    int tokens[T] = {4};
    for (int t = 1; t < T; ++t) {
        tokens[t] = tokens[t - 1];
        for (int block = 1; block < kUnits - 1; ++block) tokens[t] = next(block, tokens[t]);
    }
    close("a model that knows the next token: log(1 + 10 exp(-6))", forward(m, tokens),
          std::log(1 + (V - 1) * std::exp(-kSure)), 1e-12);
    expect(used == kUnits && not_there == 0, "5 units are used, found %d; %d of them not gathered", used, not_there);
    expect(not_ahead == 0 && most == 2 && held == 0,
           "one unit ahead: %d times it was not, at most %d are there, %d at the end", not_ahead, most, held);
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
    check_forward();
    return verdict("cut where the model waits, share each cut among all: every link carries 1/N of every message");
}
