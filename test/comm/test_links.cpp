// Links: every pair once, bytes checked, and what is named as odd.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "dev/common/links.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

std::unique_ptr<Transport> all_of(Process& process) {
    const Device device = process.choose_device(DeviceChoice::automatic, TransportKind::automatic, nullptr);
    return process.make_transport(TransportKind::automatic, device, 0, process.rank(), "world");
}

TEST(Links, EveryPairAndEachHostsRingAreMeasuredWithTheirBytes) {
    for (const int ranks : {2, 5}) {
        run_processes(ranks, [&](Process& process) {
            std::vector<std::string> hosts;
            for (int r = 0; r < ranks; ++r) hosts.push_back(r < 3 ? "a" : "b");
            const Links links = measure_links(process, *all_of(process), hosts, 10000, 1);
            std::set<std::pair<int, int>> pairs;
            for (const LinkResult& l : links.pairs) {
                EXPECT_LT(l.a, l.b);
                EXPECT_EQ(l.same_host, (l.a < 3) == (l.b < 3));
                EXPECT_EQ(l.wrong, 0);
                EXPECT_GT(l.gb_s, 0);
                pairs.insert({l.a, l.b});
            }
            EXPECT_EQ(int(pairs.size()), ranks * (ranks - 1) / 2);
            EXPECT_EQ(pairs.size(), links.pairs.size());
            EXPECT_EQ(int(links.rings.size()), ranks) << "3 links on host a, 2 on host b";
            EXPECT_FALSE(any_wrong(links.rings));
        });
    }
}

// A transport that damages a byte of what rank 0 receives.
class Damaging : public Transport {
   public:
    explicit Damaging(Transport& inner)
        : Transport("world", inner.rank(), {0, 1}, inner.device(), nullptr), inner_(inner) {}
    const char* name() const override { return "damaging"; }

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override {
        for (const Message& m : group.messages)
            if (!m.is_send) last_ = m;
        return inner_.start(stream, group);
    }
    void do_finish(Stream& stream, const Transfer& transfer) override {
        inner_.finish(stream, transfer);
        if (rank() == 0) stream.enqueue_host([m = last_] { static_cast<char*>(m.data)[m.bytes / 2] ^= 1; });
    }

   private:
    Transport& inner_;
    Message last_ = {};
};

TEST(Links, ADamagedByteIsFound) {
    run_processes(2, [](Process& process) {
        const auto transport = all_of(process);
        Damaging damaging(*transport);
        const Links links = measure_links(process, damaging, {"a", "a"}, 1000, 2);
        EXPECT_EQ(links.pairs.at(0).wrong, 1);
        EXPECT_TRUE(any_wrong(links.pairs));
    });
}

LinkResult link(int a, int b, bool same_host, double gb_s) { return {a, b, same_host, gb_s, 1e-6, 0}; }

TEST(Links, ASlowPairIsNamed) {
    const std::vector<std::string> hosts(4, "a");
    std::vector<LinkResult> links;
    for (int a = 0; a < 4; ++a)
        for (int b = a + 1; b < 4; ++b) links.push_back(link(a, b, true, a == 1 && b == 3 ? 4 : 10));
    const auto lines = odd_links(links, hosts, false);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0], "ranks 1 and 3 (a, a): 4.00 GB/s, the median within a host is 10.00");
    EXPECT_EQ(link_table(links)[0],
              "6 links within a host: 4.00 GB/s at least, median 10.00, 10.00 at most; 1.0 us; 0 wrong bytes");
}

TEST(Links, AHostWithASlowCardIsNamedOnce) {
    const std::vector<std::string> hosts = {"a", "b", "c", "d"};
    std::vector<LinkResult> links;
    for (int a = 0; a < 4; ++a)
        for (int b = a + 1; b < 4; ++b) links.push_back(link(a, b, false, b == 3 ? 1 : 12));
    links.push_back(link(0, 1, false, 12));
    const auto lines = odd_links(links, hosts, false);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0],
              "rank 3 on d: all 3 links between hosts are below half the median: look at this host's network card");
}

TEST(Links, WrongBytesAndASilentFallbackToSocketsAreNamed) {
    std::vector<LinkResult> links = {link(0, 1, true, 3)};
    EXPECT_TRUE(odd_links(links, {"a", "a"}, false).empty());
    EXPECT_TRUE(says(odd_links(links, {"a", "a"}, true).at(0), "NET/Socket"));
    EXPECT_FALSE(any_wrong(links));
    links[0].wrong = 2;
    EXPECT_TRUE(any_wrong(links));
    EXPECT_EQ(odd_links(links, {"a", "a"}, false).at(0), "ranks 0 and 1: 2 bytes came other than they were sent");
}

}  // namespace
}  // namespace rz
