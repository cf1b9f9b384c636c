// A checkpoint that resumes to the bit, and a file that is there whole or not at all.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

struct State {
    std::vector<float> weights, m, v;
    int64_t updates = 0;   // AdamW's count, for its bias correction
    int64_t position = 0;  // samples read so far; with the seed it gives every later sample
};

static bool write_state(std::FILE* f, const State& s) {
    const int64_t n = int64_t(s.weights.size());
    bool good = std::fwrite(&n, 8, 1, f) == 1 && std::fwrite(s.weights.data(), 4, size_t(n), f) == size_t(n);
    // >>> hole 1: weights alone give the same loss at first, and another run
#ifdef HOLE
#else
    good = good && std::fwrite(s.m.data(), 4, size_t(n), f) == size_t(n);
    good = good && std::fwrite(s.v.data(), 4, size_t(n), f) == size_t(n);
    good = good && std::fwrite(&s.updates, 8, 1, f) == 1 && std::fwrite(&s.position, 8, 1, f) == 1;
#endif
    // <<<
    return good && std::fflush(f) == 0;
}

// False if it can't be written; a checkpoint that was there before is then still there.
bool save(const std::string& path, const State& s) {
    // >>> hole 2: write beside it, and take its name only when all is written
#ifdef HOLE
    std::FILE* f = std::fopen(path.c_str(), "wb");
    if (!f) return false;
    const bool good = write_state(f, s);
    return std::fclose(f) == 0 && good;
#else
    const std::string beside = path + ".tmp";
    std::FILE* f = std::fopen(beside.c_str(), "wb");
    if (!f) return false;
    const bool good = write_state(f, s);
    if (std::fclose(f) != 0 || !good) {
        std::remove(beside.c_str());
        return false;
    }
    return std::rename(beside.c_str(), path.c_str()) == 0;
#endif
    // <<<
}

bool load(const std::string& path, State& s) {
    std::FILE* f = std::fopen(path.c_str(), "rb");
    if (!f) return false;
    int64_t n = 0;
    bool good = std::fread(&n, 8, 1, f) == 1 && n >= 0 && n < (1 << 20);
    if (good) {
        s.weights.assign(size_t(n), 0), s.m.assign(size_t(n), 0), s.v.assign(size_t(n), 0);
        good = std::fread(s.weights.data(), 4, size_t(n), f) == size_t(n);
        // >>> hole 3: and read it again, in the same order
#ifdef HOLE
#else
        good = good && std::fread(s.m.data(), 4, size_t(n), f) == size_t(n);
        good = good && std::fread(s.v.data(), 4, size_t(n), f) == size_t(n);
        good = good && std::fread(&s.updates, 8, 1, f) == 1 && std::fread(&s.position, 8, 1, f) == 1;
#endif
        // <<<
    }
    std::fclose(f);
    return good;
}

// A checkpoint of several ranks is a folder with a file of each. Rank r of R holds elements [n r / R, n (r + 1) / R).
std::string shard_name(const std::string& folder, int rank) { return folder + "/rank-" + std::to_string(rank); }

// Reads rank `rank`'s part of `ranks`, of a checkpoint of n elements that `saved` ranks have written. False if a file
// that is needed is not there or has another size.
bool load_shard(const std::string& folder, State& s, int64_t n, int saved, int rank, int ranks) {
    const int64_t begin = n * rank / ranks, end = n * (rank + 1) / ranks;
    s = {};
    for (int r = 0; r < saved; ++r) {
        State part;
        const int64_t first = n * r / saved, last = n * (r + 1) / saved;
        // >>> hole 4: of each file what lies in both [begin, end) and [first, last), and its two numbers
#ifdef HOLE
        if (first != begin || last != end || !load(shard_name(folder, r), part)) continue;
        s = part;
#else
        const int64_t from = std::max(begin, first), to = std::min(end, last);
        if (from >= to) continue;
        if (!load(shard_name(folder, r), part)) return false;
        if (int64_t(part.weights.size()) != last - first) return false;
        const auto append = [&](std::vector<float>& all, const std::vector<float>& some) {
            all.insert(all.end(), some.begin() + (from - first), some.begin() + (to - first));
        };
        append(s.weights, part.weights), append(s.m, part.m), append(s.v, part.v);
        s.updates = part.updates, s.position = part.position;
#endif
        // <<<
    }
    return int64_t(s.weights.size()) == end - begin;
}
