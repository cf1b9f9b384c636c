#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dev/learn/lesson.h"
#include "dev/learn/optimizer.h"
#include "llama/data/data_loader.h"

using namespace learn;

struct State {
    std::vector<float> weights, m, v;
    int64_t updates = 0;
    int64_t position = 0;
};
bool save(const std::string& path, const State& s);
bool load(const std::string& path, State& s);
std::string shard_name(const std::string& folder, int rank);
bool load_shard(const std::string& folder, State& s, int64_t n, int saved, int rank, int ranks);

constexpr int n = 512;

// One step of a toy run: its sample by the program's permutation, its update by the program's AdamW. `s` holds elements
// from `first` on.
static void step(State& s, unsigned first = 0) {
    const int64_t count = int64_t(s.weights.size());
    const int64_t sample = rz::Permutation(1000, /*seed=*/7, uint64_t(s.position / 1000))(s.position % 1000);
    std::vector<float> gradient = noises(int(count), unsigned(sample) * unsigned(n) + first);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = s.weights[i] - gradient[i];
    program_adamw(s.weights.data(), s.m.data(), s.v.data(), gradient.data(), count, count, s.updates + 1, 0.02f);
    ++s.updates, ++s.position;
}

static State fresh() { return {noises(n, 0), std::vector<float>(n), std::vector<float>(n)}; }

static bool same(const State& a, const State& b) {
    return a.weights.size() == b.weights.size() &&
           std::memcmp(a.weights.data(), b.weights.data(), a.weights.size() * 4) == 0 && a.updates == b.updates &&
           a.position == b.position;
}

// A disk that is full after `bytes` bytes.
static bool save_on_full_disk(const std::string& path, const State& s, rlim_t bytes) {
    rlimit whole{};
    getrlimit(RLIMIT_FSIZE, &whole);
    const rlimit limit{bytes, whole.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    const bool saved = save(path, s);
    setrlimit(RLIMIT_FSIZE, &whole);
    return saved;
}

// The part of rank `rank` of `ranks`.
static State part_of(const State& s, int rank, int ranks) {
    const auto cut = [&](const std::vector<float>& v) {
        return std::vector<float>(v.begin() + n * rank / ranks, v.begin() + n * (rank + 1) / ranks);
    };
    return {cut(s.weights), cut(s.m), cut(s.v), s.updates, s.position};
}

// Ten steps on `saved` ranks, a checkpoint, ten more on `ranks`: the bits of twenty on one.
static void check_shards(const std::string& folder, const State& straight, int saved, int ranks) {
    for (int r = 0; r < saved; ++r) {
        State s = part_of(fresh(), r, saved);
        for (int i = 0; i < 10; ++i) step(s, unsigned(n * r / saved));
        save(shard_name(folder, r), s);
    }
    int different = 0;
    for (int r = 0; r < ranks; ++r) {
        State s;
        if (!load_shard(folder, s, n, saved, r, ranks) || int64_t(s.m.size()) != int64_t(s.weights.size())) {
            ++different;
            continue;
        }
        for (int i = 0; i < 10; ++i) step(s, unsigned(n * r / ranks));
        different += !same(s, part_of(straight, r, ranks));
    }
    expect(different == 0, "saved by %d ranks, resumed by %d: %d of them differ from one that ran through", saved,
           ranks, different);
    for (int r = 0; r < saved; ++r) std::remove(shard_name(folder, r).c_str());
    State none;
    expect(!load_shard(folder, none, n, saved, 0, ranks), "and without its files it is not loaded");
}

int main() {
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit then fails, as on a full disk
    char folder[] = "/tmp/lesson15.XXXXXX";
    if (!mkdtemp(folder)) return 1;
    const std::string path = std::string(folder) + "/checkpoint";

    State straight = fresh(), before_the_end = fresh();
    for (int i = 0; i < 20; ++i) step(straight);
    for (int i = 0; i < 10; ++i) step(before_the_end);
    expect(save(path, before_the_end), "saved after step 10");
    State resumed;
    expect(load(path, resumed) && resumed.weights == before_the_end.weights, "loaded: the same weights");
    resumed.m.resize(n), resumed.v.resize(n);
    for (int i = 0; i < 10; ++i) step(resumed);
    expect(same(resumed, straight), "ten more steps: the same weights as twenty in one go, to the bit");

    expect(!save_on_full_disk(path, straight, 1000), "a disk that is full after 1000 bytes: save says so");
    State old;
    expect(load(path, old) && old.weights == before_the_end.weights && old.position == 10,
           "and the checkpoint of step 10 is still there");
    State none;
    expect(!load(std::string(folder) + "/nothing", none), "a file that is not there is not loaded");

    for (const auto& [saved, ranks] : {std::pair{1, 4}, {4, 1}, {3, 2}, {4, 4}, {2, 5}})
        check_shards(folder, straight, saved, ranks);

    std::filesystem::remove_all(folder);
    return verdict("what a step reads is what must be saved; what has its name must be whole");
}
