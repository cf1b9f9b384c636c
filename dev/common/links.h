#pragma once
// Every link of a job, by itself: bandwidth, latency and whether the bytes that come are those that were sent. For
// build/dev/sanity --links, before a run is trusted to a cluster.

#include <string>
#include <vector>

#include "comm/transport.h"

namespace rz {

class Process;

struct LinkResult {
    int a = 0, b = 0;  // ranks of the job, a < b in a pair; a sends to b in a ring
    bool same_host = false;
    double gb_s = 0;       // sent by each of the two, both at once
    double latency_s = 0;  // of an exchange of one byte
    int64_t wrong = 0;     // bytes
};

// All pairs, in rounds of pairs that have no rank in common, the best of `repeats` exchanges of `bytes`; then the ring
// of each host's ranks, all links at once. Collective over a transport of all ranks; rank 0 gets the results.
struct Links {
    std::vector<LinkResult> pairs, rings;
};
Links measure_links(Process& process, Transport& transport, const std::vector<std::string>& hosts, int64_t bytes,
                    int repeats);

// Links worth a line: a link with wrong bytes; one below half the median rate of its kind (within a host, between
// hosts); a rank all of whose links are, named once; rates inside a host of GPUs that only sockets explain.
std::vector<std::string> odd_links(const std::vector<LinkResult>& links, const std::vector<std::string>& hosts,
                                   bool gpus);
bool any_wrong(const std::vector<LinkResult>& links);

// A line for each kind: how many links, least, median and most.
std::vector<std::string> link_table(const std::vector<LinkResult>& links);

}  // namespace rz
