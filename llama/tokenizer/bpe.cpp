#include "llama/tokenizer/bpe.h"

#include <algorithm>
#include <tuple>
#include <queue>
#include <tuple>

namespace rz {

void Bpe::add(int32_t left, int32_t right, int32_t merged, int32_t rank) {
    merges_[uint64_t(uint32_t(left)) << 32 | uint32_t(right)] = {rank, merged};
}

// The symbols are a linked list in place; candidates wait in a heap and are checked again when their turn comes.
void Bpe::apply(std::vector<int32_t>& symbols) const {
    const int64_t n = int64_t(symbols.size());
    if (n < 2 || merges_.empty()) return;
    struct Candidate {
        int32_t rank;
        int64_t at;  // of the left symbol
        int32_t left, right, merged;
        bool operator<(const Candidate& o) const { return std::tie(rank, at) > std::tie(o.rank, o.at); }
    };
    std::vector<int64_t> next(n), previous(n);
    std::priority_queue<Candidate> heap;
    const auto offer = [&](int64_t at) {
        if (at < 0 || next[at] >= n) return;
        const int32_t left = symbols[at], right = symbols[next[at]];
        if (const Merge* m = find(left, right)) heap.push({m->rank, at, left, right, m->merged});
    };
    for (int64_t i = 0; i < n; ++i) next[i] = i + 1, previous[i] = i - 1;
    for (int64_t i = 0; i + 1 < n; ++i) offer(i);
    constexpr int32_t kGone = -1;
    while (!heap.empty()) {
        const Candidate c = heap.top();
        heap.pop();
        if (symbols[c.at] != c.left || next[c.at] >= n || symbols[next[c.at]] != c.right) continue;
        const int64_t gone = next[c.at];
        symbols[c.at] = c.merged;
        symbols[gone] = kGone;
        next[c.at] = next[gone];
        if (next[gone] < n) previous[next[gone]] = c.at;
        offer(previous[c.at]);
        offer(c.at);
    }
    symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

std::vector<Bpe::Pair> Bpe::pairs() const {
    std::vector<Pair> all;
    for (const auto& [pair, merge] : merges_)
        all.push_back({int32_t(pair >> 32), int32_t(pair & 0xffffffff), merge.merged, merge.rank});
    std::sort(all.begin(), all.end(), [](const Pair& a, const Pair& b) {
        return std::tie(a.rank, a.left, a.right) < std::tie(b.rank, b.left, b.right);
    });
    return all;
}

}  // namespace rz
