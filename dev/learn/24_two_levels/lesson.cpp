// An all-reduce on several nodes: fast links inside each, one network card per rank between them.
#include <cstdint>
#include <functional>
#include <vector>

// Ranks that reduce among themselves; data is cut into as many even slices as the group has ranks.
struct Group {
    int rank, size;
    std::function<void(float* data, int64_t n)> reduce_scatter;  // rank r's slice r becomes the sum of all ranks'
    std::function<void(float* data, int64_t n)> all_reduce;
    std::function<void(float* data, int64_t n)> all_gather;  // rank r's slice r goes to all
};

// Rank = node * locals + local. The ranks that a rank shares its node with, or its number on the nodes with.
std::vector<int> node_of(int rank, int /*nodes*/, int locals) {
    std::vector<int> members;
    for (int local = 0; local < locals; ++local) members.push_back(rank / locals * locals + local);
    return members;
}
std::vector<int> column_of(int rank, int nodes, int locals) {
    std::vector<int> members;
    // >>> hole 1: one of each node, so that every card of a node has a column of its own
#ifdef HOLE
    for (int node = 0; node < nodes; ++node) members.push_back((rank / locals * nodes + node) % (nodes * locals));
#else
    for (int node = 0; node < nodes; ++node) members.push_back(node * locals + rank % locals);
#endif
    // <<<
    return members;
}

// data (n) becomes the sum over all ranks of all nodes; n is a multiple of all ranks.
void all_reduce_two_levels(float* data, int64_t n, const Group& node, const Group& column) {
    node.reduce_scatter(data, n);
    // >>> hole 2: only the slice that this rank now has the node's sum of need cross the network
#ifdef HOLE
    column.all_reduce(data, n);
#else
    const int64_t slice = n / node.size;
    column.all_reduce(data + node.rank * slice, slice);
#endif
    // <<<
    node.all_gather(data, n);
}

// Bytes that the busiest network card sends, and so what the time between the nodes depends on. A flat ring goes
// through the ranks node by node: the last of each node sends to the next node all that it sends.
double busiest_card_flat(double bytes, int nodes, int locals) {
    const int ranks = nodes * locals;
    return 2.0 * (ranks - 1) / ranks * bytes;
}
double busiest_card_two_levels(double bytes, int nodes, int locals) {
    // >>> hole 3: an all-reduce of a slice on one rank of each node
#ifdef HOLE
    return 2.0 * (nodes - 1) / nodes * bytes;
#else
    return 2.0 * (nodes - 1) / nodes * bytes / locals;
#endif
    // <<<
}
