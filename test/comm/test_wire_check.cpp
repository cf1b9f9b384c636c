// Sums of messages' bits on both sides: equal where nothing happens; a flipped bit names both ranks and the operation.

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/wire_check.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

struct WireJob {
    int ranks = 3;
    MeshOptions mesh = {};
    int victim = -1;  // the rank whose `nth` arriving message (from 1) loses a bit
    int nth = 0;
    int calls = 1;  // of each operation in a step
};

// A step of every operation on the data axis, and of the links where there is a pipeline. What wire_difference() says
// after each of two steps.
std::vector<std::string> two_steps(const WireJob& job) {
    LoopbackHub hub(job.ranks);
    std::vector<std::vector<std::string>> said(static_cast<size_t>(job.ranks));
    run_processes(hub, [&](Process& process) {
        const int rank = process.rank();
        MeshOptions options = job.mesh;
        int arrived = 0;
        options.check_wire = true;
        options.damage_wire = [&] { return ++arrived == job.nth && rank == job.victim; };
        Mesh mesh(hub, rank, options);
        Collectives& data = mesh.data();
        const int64_t n = 1000;
        const std::vector<int64_t> offsets = even_offsets(n, data.size());
        std::vector<float> x(size_t(n), 1), out(size_t(n), 0);
        std::vector<float> goes(16, 3), comes(16, 0);  // by the links' streams, which do not wait for the others
        Stream& stream = mesh.stream();
        for (int step = 0; step < 2; ++step) {
            for (WireCheck* check : mesh.wire_checks()) check->begin_step();
            for (int call = 0; call < job.calls; ++call) {
                data.all_reduce(stream, {x.data(), x.data(), offsets, DType::f32, DType::f32, 0.5f});
                data.reduce_scatter(stream, {out.data(), x.data(), offsets, DType::f32, DType::bf16, DType::f32});
                data.all_gather(stream, {x.data(), x.data() + offsets[size_t(data.rank())], offsets, DType::f32});
                data.broadcast(stream, x.data(), 37, 0);
                data.barrier(stream);
                const AxisRank pp = mesh.place(Axis::pp);
                if (pp.rank + 1 < pp.size) mesh.link_to(pp.rank + 1).send(goes.data(), 11, "activation");
                if (pp.rank > 0) mesh.link_from(pp.rank - 1).recv(comes.data(), 11, "activation");
            }
            stream.synchronize();
            said[size_t(rank)].push_back(wire_difference(process, stream, mesh.wire_checks()));
        }
    });
    for (const auto& one : said) EXPECT_EQ(one, said[0]);
    return said[0];
}

TEST(WireCheck, SumsOfBothSidesAgree) {
    for (const Algorithm how : {Algorithm::ring, Algorithm::direct}) {
        EXPECT_EQ(two_steps({.mesh = {.algorithms = {.data = how}}}), (std::vector<std::string>{"", ""}));
        EXPECT_EQ(two_steps({.mesh = {.algorithms = {.data = how}}, .calls = 90}), (std::vector<std::string>{"", ""}))
            << "more messages than sums";
    }
    EXPECT_EQ(two_steps({.ranks = 4, .mesh = {.algorithms = {.data = Algorithm::hier}, .ranks_per_node = 2}}),
              (std::vector<std::string>{"", ""}));
    EXPECT_EQ(two_steps({.ranks = 4, .mesh = {.grid = {.pp = 2}}}), (std::vector<std::string>{"", ""}));
}

// Every message of a step in turn; the step after it is good again.
TEST(WireCheck, AFlippedBitNamesRanksAndOperation) {
    const std::regex ring(
        "bits changed between the memories of two ranks: from rank 0 to rank 1 in "
        "(all_reduce|reduce_scatter|all_gather|broadcast|barrier) #[0-9]+ of group data of 0, "
        "message [0-9]+ between them in a step, of [0-9]+ bytes");
    int found = 0;
    for (int nth = 1; nth <= 11; ++nth) {
        const std::vector<std::string> said =
            two_steps({.mesh = {.algorithms = {.data = Algorithm::ring}}, .victim = 1, .nth = nth});
        EXPECT_EQ(said.size(), 2u);
        if (said[0].find("from rank 2") == std::string::npos) {  // the barrier's second round
            EXPECT_TRUE(std::regex_match(said[0], ring)) << said[0];
        }
        EXPECT_EQ(said[1], "") << nth;
        found += !said[0].empty();
    }
    EXPECT_EQ(found, 11);
}

TEST(WireCheck, NamesEachPairOfDirect) {
    const auto after = [](int nth) {
        return two_steps({.mesh = {.algorithms = {.data = Algorithm::direct}}, .victim = 1, .nth = nth})[0];
    };
    EXPECT_TRUE(says(after(1), "to rank 1 in all_reduce #1 of group data"));
    EXPECT_TRUE(says(after(1), "message 1 between them"));
    EXPECT_TRUE(says(after(1) + after(2), "from rank 0 to rank 1"));
    EXPECT_TRUE(says(after(1) + after(2), "from rank 2 to rank 1"));
}

TEST(WireCheck, SaysWhereASumIsShared) {
    const std::string said =
        two_steps({.mesh = {.algorithms = {.data = Algorithm::ring}}, .victim = 1, .nth = 4, .calls = 60})[0];
    EXPECT_TRUE(says(said, "(or another that shares its sum, of "));
}

TEST(WireCheck, LinksOfAPipeline) {
    // Rank 1 of 2 is the second stage; its data group is itself alone.
    const std::string said = two_steps({.ranks = 2, .mesh = {.grid = {.pp = 2}}, .victim = 1, .nth = 1})[0];
    EXPECT_TRUE(says(said, "from rank 0 to rank 1 in activation #1 of group pp 0>1"));
    EXPECT_TRUE(says(said, "of 11 bytes"));
}

}  // namespace
}  // namespace rz
