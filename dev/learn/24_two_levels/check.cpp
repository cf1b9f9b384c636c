#include <algorithm>
#include <functional>
#include <vector>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "dev/learn/lesson.h"

using namespace learn;

struct Group {
    int rank, size;
    std::function<void(float* data, int64_t n)> reduce_scatter;
    std::function<void(float* data, int64_t n)> all_reduce;
    std::function<void(float* data, int64_t n)> all_gather;
};
std::vector<int> node_of(int rank, int nodes, int locals);
std::vector<int> column_of(int rank, int nodes, int locals);
void all_reduce_two_levels(float* data, int64_t n, const Group& node, const Group& column);
double busiest_card_flat(double bytes, int nodes, int locals);
double busiest_card_two_levels(double bytes, int nodes, int locals);

// The program's ring of one group.
struct Ring {
    std::unique_ptr<rz::Transport> transport;
    std::unique_ptr<rz::Collectives> collectives;
    std::vector<int> members;

    Ring(rz::LoopbackHub& hub, int rank, std::vector<int> ranks)
        : transport(hub.subgroup(rank, ranks, "group", name_of(ranks))),
          collectives(rz::make_collectives(rz::Algorithm::ring, *transport)),
          members(std::move(ranks)) {}
    static std::string name_of(const std::vector<int>& ranks) {
        std::string name;
        for (const int r : ranks) name += std::to_string(r) + " ";
        return name;
    }
    Group group(rz::Stream& s) {
        const int size = int(members.size()), rank = transport->rank();
        rz::Collectives& c = *collectives;
        constexpr auto kF32 = rz::DType::f32;
        return {rank, size,
                [&s, &c, size, rank](float* data, int64_t n) {
                    const auto at = rz::even_offsets(n, size);
                    c.reduce_scatter(s, {.out = data + at[size_t(rank)],
                                         .in = data,
                                         .offsets = at,
                                         .dtype = kF32,
                                         .wire = kF32,
                                         .out_dtype = kF32});
                    s.synchronize();
                },
                [&s, &c, size](float* data, int64_t n) {
                    const auto at = rz::even_offsets(n, size);
                    c.all_reduce(s, {.out = data, .in = data, .offsets = at, .dtype = kF32, .wire = kF32});
                    s.synchronize();
                },
                [&s, &c, size, rank](float* data, int64_t n) {
                    const auto at = rz::even_offsets(n, size);
                    c.all_gather(s, {.out = data, .in = data + at[size_t(rank)], .offsets = at, .dtype = kF32});
                    s.synchronize();
                }};
    }
};

// True: these are proper groups: equally large, each with this rank, every rank in one.
static bool partition(std::vector<int> (*members)(int, int, int), int nodes, int locals, int size) {
    std::vector<int> seen(size_t(nodes * locals));
    for (int r = 0; r < nodes * locals; ++r) {
        const std::vector<int> m = members(r, nodes, locals);
        if (int(m.size()) != size || std::find(m.begin(), m.end(), r) == m.end()) return false;
        for (const int other : m) {
            if (other < 0 || other >= nodes * locals || members(other, nodes, locals) != m) return false;
            ++seen[size_t(other)];
        }
    }
    return std::all_of(seen.begin(), seen.end(), [&](int times) { return times == size; });
}

static void run(int nodes, int locals) {
    std::printf("%d nodes of %d ranks:\n", nodes, locals);
    const int ranks = nodes * locals;
    const int64_t n = 1000 * ranks;
    bool good = expect(partition(node_of, nodes, locals, locals) && partition(column_of, nodes, locals, nodes),
                       "nodes and columns part the ranks");
    for (int r = 0; good && r < ranks; ++r) {
        std::vector<int> on_node(static_cast<size_t>(nodes));
        for (const int other : column_of(r, nodes, locals)) ++on_node[size_t(other / locals)];
        good = *std::max_element(on_node.begin(), on_node.end()) == 1;
    }
    if (!expect(good, "a column has one rank of each node")) return;
    rz::LoopbackHub hub(ranks, /*timeout_s=*/10);
    std::vector<int64_t> inside(static_cast<size_t>(ranks)), across(inside), wrong(inside);
    hub.run([&](int rank) {
        rz::Stream stream(rz::Device{}, "two levels");
        Ring node(hub, rank, node_of(rank, nodes, locals)), column(hub, rank, column_of(rank, nodes, locals));
        std::vector<float> data(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) data[size_t(i)] = float((rank + 1) * (i % 97));
        all_reduce_two_levels(data.data(), n, node.group(stream), column.group(stream));
        for (int64_t i = 0; i < n; ++i)
            wrong[size_t(rank)] += data[size_t(i)] != float(ranks * (ranks + 1) / 2 * (i % 97));
        inside[size_t(rank)] = node.transport->bytes_sent(), across[size_t(rank)] = column.transport->bytes_sent();
    });
    expect(*std::max_element(wrong.begin(), wrong.end()) == 0, "whole numbers: every sum on every rank is right");
    close("bytes across nodes of the busiest card, counted", busiest_card_two_levels(double(n) * 4, nodes, locals),
          double(*std::max_element(across.begin(), across.end())), 0.5);
    close("bytes inside the node: (L - 1) / L of the data, twice", double(inside[0]),
          2.0 * (locals - 1) / locals * double(n) * 4, 0.5);
}

// A flat ring of the program, rank by rank: what the last rank of a node sends crosses the network.
static void check_flat(int nodes, int locals) {
    const int ranks = nodes * locals;
    const int64_t n = 1000 * ranks;
    rz::LoopbackHub hub(ranks, /*timeout_s=*/10);
    std::vector<int64_t> sent(static_cast<size_t>(ranks));
    hub.run([&](int rank) {
        rz::Stream stream(rz::Device{}, "flat");
        std::vector<int> all;
        for (int r = 0; r < ranks; ++r) all.push_back(r);
        Ring ring(hub, rank, all);
        std::vector<float> data(static_cast<size_t>(n), 1);
        ring.group(stream).all_reduce(data.data(), n);
        sent[size_t(rank)] = ring.transport->bytes_sent();
    });
    close("a flat ring: bytes that the last rank of a node sends, counted", double(sent[size_t(locals - 1)]),
          busiest_card_flat(double(n) * 4, nodes, locals), 0.5);
}

int main() {
    for (const auto& [nodes, locals] : {std::pair{2, 2}, {2, 4}, {4, 2}, {3, 2}}) run(nodes, locals);
    check_flat(2, 4);
    // 4 nodes of 8 GPUs, 1 GB: 1.94 GB over one card, or 0.19 over each of eight
    close("4 nodes of 8: GB over the busiest card, flat", busiest_card_flat(1, 4, 8), 1.9375, 1e-9);
    close("4 nodes of 8: GB over the busiest card, two levels", busiest_card_two_levels(1, 4, 8), 0.1875, 1e-9);
    return verdict("reduce inside the node first: then every card carries its own slice, and one rank's worth of it");
}
