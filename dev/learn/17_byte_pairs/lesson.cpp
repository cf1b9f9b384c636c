// Byte-pair encoding: which pairs become tokens, and how a text becomes tokens.
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

using Pair = std::pair<int32_t, int32_t>;

// Every neighbouring (left, right) becomes `merged`, from left to right.
static void merge(std::vector<int32_t>& ids, Pair pair, int32_t merged) {
    size_t n = 0;
    for (size_t i = 0; i < ids.size(); ++n) {
        const bool here = i + 1 < ids.size() && ids[i] == pair.first && ids[i + 1] == pair.second;
        ids[n] = here ? merged : ids[i];
        i += here ? 2 : 1;
    }
    ids.resize(n);
}

// The merges of a vocabulary that is learned from a text of bytes, in order: merge k makes token 256 + k. Each takes
// the pair that is most frequent after the merges before it; of equally frequent ones that which occurs first.
std::vector<Pair> learn_merges(std::vector<int32_t> ids, int merges) {
    std::vector<Pair> learned;
    for (int k = 0; k < merges; ++k) {
        std::map<Pair, int> count;
        for (size_t i = 0; i + 1 < ids.size(); ++i) ++count[{ids[i], ids[i + 1]}];
        Pair best{-1, -1};
        int most = 0;
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
            const Pair pair{ids[i], ids[i + 1]};
            // >>> hole 1: the first of the most frequent
#ifdef HOLE
            if (most == 0) best = pair, most = count[pair];
#else
            if (count[pair] > most) best = pair, most = count[pair];
#endif
            // <<<
        }
        if (most == 0) break;
        learned.push_back(best);
        merge(ids, best, 256 + k);
    }
    return learned;
}

// The tokens of a text of bytes. Training merged in the order of the ranks, so this does: of all pairs that are there
// now the one of lowest rank, and again, until none is left.
std::vector<int32_t> encode(std::vector<int32_t> ids, const std::vector<Pair>& merges) {
    std::map<Pair, int> rank;
    for (size_t k = 0; k < merges.size(); ++k) rank[merges[k]] = int(k);
    for (;;) {
        int lowest = int(merges.size());
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
            const auto found = rank.find({ids[i], ids[i + 1]});
            // >>> hole 2: the lowest rank, wherever it is; not the leftmost pair that has one
#ifdef HOLE
            if (found != rank.end() && lowest == int(merges.size())) lowest = found->second;
#else
            if (found != rank.end() && found->second < lowest) lowest = found->second;
#endif
            // <<<
        }
        if (lowest == int(merges.size())) return ids;
        merge(ids, merges[size_t(lowest)], 256 + lowest);
    }
}
