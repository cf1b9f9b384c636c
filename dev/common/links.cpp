#include "dev/common/links.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "comm/meter.h"
#include "comm/process.h"
#include "dev/common/tool.h"
#include "kernels/runtime/memory.h"

namespace rz {

namespace {

// Value of byte i on the way from one rank to another: the same nowhere else.
uint8_t byte_of(int from, int to, int64_t i) {
    uint64_t x = uint64_t(i / 8) * 0x9e3779b97f4a7c15ull + uint64_t(from + 1) * 0xd1b54a32d192ed03ull +
                 uint64_t(to + 1) * 0x8cb92ba72f3d8dd7ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return uint8_t(x >> (8 * (i % 8)));
}

class Prober {
   public:
    Prober(Transport& transport, int64_t bytes, int repeats)
        : transport_(transport),
          stream_(transport.device(), "links"),
          bytes_(bytes),
          repeats_(repeats),
          out_(transport.device(), bytes, MemKind::comm, "link test"),
          in_(transport.device(), bytes, MemKind::comm, "link test"),
          host_(Buffer::host_for(transport.device(), bytes, MemKind::comm, "link test")) {}

    // This rank sends to one and receives from another; -1: it takes no part.
    LinkResult exchange(int to, int from) {
        LinkResult result;
        if (to < 0) return result;
        const int rank = transport_.rank();
        for (int64_t i = 0; i < bytes_; ++i) host_.as<uint8_t>()[i] = byte_of(rank, to, i);
        stream_.copy(out_.data(), host_.data(), bytes_);
        stream_.zero(in_.data(), bytes_);
        result.latency_s = best_of(to, from, 1);
        result.gb_s = 1e-9 * double(bytes_) / best_of(to, from, bytes_);
        stream_.copy(host_.data(), in_.data(), bytes_);
        stream_.synchronize();
        for (int64_t i = 0; i < bytes_; ++i) result.wrong += host_.as<uint8_t>()[i] != byte_of(from, rank, i);
        return result;
    }

   private:
    double best_of(int to, int from, int64_t bytes) {
        double best = 1e30;
        for (int n = 0; n <= repeats_; ++n) {  // the first connects
            stream_.synchronize();
            const Timer timer;
            MessageGroup group;
            group.send(out_.data(), bytes, to);
            group.recv(in_.data(), bytes, from);
            transport_.exchange(stream_, group);
            stream_.synchronize();
            if (n > 0) best = std::min(best, timer.seconds());
        }
        return best;
    }

    Transport& transport_;
    Stream stream_;
    int64_t bytes_;
    int repeats_;
    Buffer out_, in_, host_;
};

// The partner of `rank` in a round of a tournament of an even number of players; the last stays, the others turn.
int partner(int rank, int round, int players) {
    const int last = players - 1;
    if (rank == last) return (round * players / 2) % last;
    const int other = ((round - rank) % last + last) % last;
    return other == rank ? last : other;
}

double median_rate(const std::vector<LinkResult>& links, bool same_host) {
    std::vector<double> rates;
    for (const LinkResult& l : links)
        if (l.same_host == same_host) rates.push_back(l.gb_s);
    return median(rates);
}

const char* kind_of(bool same_host) { return same_host ? "within a host" : "between hosts"; }

// Joins what each rank found, by pairs: the slower of the two directions, the wrong bytes of both.
std::vector<LinkResult> join(const std::vector<LinkResult>& found) {
    std::map<std::pair<int, int>, LinkResult> pairs;
    for (const LinkResult& one : found) {
        if (one.a == one.b) continue;
        const auto [it, is_new] = pairs.insert({{one.a, one.b}, one});
        if (is_new) continue;
        it->second.gb_s = std::min(it->second.gb_s, one.gb_s);
        it->second.latency_s = std::max(it->second.latency_s, one.latency_s);
        it->second.wrong += one.wrong;
    }
    std::vector<LinkResult> list;
    for (const auto& [ends, link] : pairs) list.push_back(link);
    return list;
}

}  // namespace

Links measure_links(Process& process, Transport& transport, const std::vector<std::string>& hosts, int64_t bytes,
                    int repeats) {
    const int size = process.size(), rank = process.rank();
    const auto same_host = [&](int a, int b) { return hosts[size_t(a)] == hosts[size_t(b)]; };
    Prober prober(transport, bytes, repeats);
    Links links;
    std::vector<LinkResult> found;
    const int players = size + size % 2;
    for (int round = 0; size > 1 && round < players - 1; ++round) {
        int peer = partner(rank, round, players);
        if (peer >= size || peer == rank) peer = -1;
        process.barrier();
        LinkResult own = prober.exchange(peer, peer);
        if (peer >= 0) {
            own.a = std::min(rank, peer), own.b = std::max(rank, peer);
            own.same_host = same_host(rank, peer);
        }
        for (const LinkResult& one : process.all_gather(own)) found.push_back(one);
    }
    links.pairs = join(found);

    std::vector<int> local;  // the ranks of this host, in order
    for (int r = 0; r < size; ++r)
        if (same_host(r, rank)) local.push_back(r);
    const size_t place = size_t(std::find(local.begin(), local.end(), rank) - local.begin()), n = local.size();
    const int to = n > 1 ? local[(place + 1) % n] : -1, from = n > 1 ? local[(place + n - 1) % n] : -1;
    process.barrier();
    LinkResult own = prober.exchange(to, from);
    if (to >= 0) own.a = from, own.b = rank, own.same_host = true;
    for (const LinkResult& one : process.all_gather(own))
        if (one.a != one.b) links.rings.push_back(one);
    return links;
}

bool any_wrong(const std::vector<LinkResult>& links) {
    return std::any_of(links.begin(), links.end(), [](const LinkResult& l) { return l.wrong > 0; });
}

std::vector<std::string> odd_links(const std::vector<LinkResult>& links, const std::vector<std::string>& hosts,
                                   bool gpus) {
    std::vector<std::string> lines;
    const double within = median_rate(links, true), between = median_rate(links, false);
    const auto slow = [&](const LinkResult& l) { return l.gb_s < 0.5 * (l.same_host ? within : between); };
    std::map<std::pair<int, bool>, std::pair<int, int>> of_rank;  // by rank and kind: slow links, all links
    for (const LinkResult& l : links)
        for (const int r : {l.a, l.b}) {
            of_rank[{r, l.same_host}].first += slow(l);
            ++of_rank[{r, l.same_host}].second;
        }
    const auto all_slow = [&](int r, bool same_host) {
        const auto [bad, all] = of_rank.at({r, same_host});
        return all > 1 && bad == all;
    };
    for (const auto& [key, counts] : of_rank)
        if (all_slow(key.first, key.second))
            lines.push_back(format("rank %d on %s: all %d links %s are below half the median: look at this %s",
                                   key.first, hosts[size_t(key.first)].c_str(), counts.second, kind_of(key.second),
                                   key.second ? "rank's device or cores" : "host's network card"));
    for (const LinkResult& l : links) {
        if (l.wrong > 0)
            lines.push_back(
                format("ranks %d and %d: %lld bytes came other than they were sent", l.a, l.b, (long long)l.wrong));
        if (slow(l) && !all_slow(l.a, l.same_host) && !all_slow(l.b, l.same_host))
            lines.push_back(format("ranks %d and %d (%s, %s): %.2f GB/s, the median %s is %.2f", l.a, l.b,
                                   hosts[size_t(l.a)].c_str(), hosts[size_t(l.b)].c_str(), l.gb_s, kind_of(l.same_host),
                                   l.same_host ? within : between));
    }
    // The slowest PCIe link of today's GPUs carries 12 GB/s, sockets within a host about 5.
    if (gpus && within > 0 && within < 6)
        lines.push_back(
            format("%.2f GB/s within a host is what sockets give: NCCL_DEBUG=INFO says whether NCCL uses NET/Socket "
                   "where P2P or SHM should be",
                   within));
    return lines;
}

std::vector<std::string> link_table(const std::vector<LinkResult>& links) {
    std::vector<std::string> lines;
    for (const bool same_host : {true, false}) {
        std::vector<double> rates, latencies;
        int64_t wrong = 0;
        for (const LinkResult& l : links)
            if (l.same_host == same_host) {
                rates.push_back(l.gb_s);
                latencies.push_back(l.latency_s);
                wrong += l.wrong;
            }
        if (rates.empty()) continue;
        const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
        const auto rate = [](double gb_s) { return format(gb_s < 1 ? "%.4f" : "%.2f", gb_s); };
        lines.push_back(format("%zu links %s: %s GB/s at least, median %s, %s at most; %.1f us; %lld wrong bytes",
                               rates.size(), kind_of(same_host), rate(*least).c_str(), rate(median(rates)).c_str(),
                               rate(*most).c_str(), 1e6 * median(latencies), (long long)wrong));
    }
    return lines;
}

}  // namespace rz
