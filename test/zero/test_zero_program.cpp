// The real program on several ranks: what every ZeRO stage sends, by the program's own count exactly and by the network
// interfaces' counters within 2 % (between network namespaces; skipped where those can't be made), and the numbers that
// it computes from that.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "comm/mpi_transport.h"
#include "llama/model/param_table.h"
#include "test/llama/toy_run.h"
#include "test/llama/helpers.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

struct Split {
    int stage, hosts, shard, micro_batches;
    const char* collectives = "ring";  // hosts would choose hier
    bool direct() const { return collectives != std::string("ring"); }
    std::string flags() const {
        return format("--zero %d --shard-size %d --batch-tokens %d --collectives %s", stage, shard,
                      kTokens * hosts * micro_batches, collectives);
    }
    static constexpr int kTokens = 16;  // of a micro-batch of one rank: little compute, and bytes don't depend on it
};

// ---- the formulas ---------------------------------------------------------------------------------------------------

// Per step, to the byte. fp32 throughout. In a direct all-gather a rank sends its own slice to each of the others.
int64_t formula(const std::vector<UnitLayout>& units, const Split& s, int rank) {
    const int member = rank % s.shard, row = rank / s.shard, rows = s.hosts / s.shard;
    const int64_t M = s.micro_batches;
    int64_t scatters = 0, gathers = 0, block_gathers = 0, across = 0;
    std::vector<int64_t> blocks(size_t(s.shard) + 1, 0);  // of the norm: where each member's begin
    for (size_t u = 0; u < units.size(); ++u) {
        const auto slices = units[u].slice_offsets(s.shard);
        scatters += sent_by_scatter(slices, member, 4);
        gathers +=
            s.direct() ? 4 * (s.shard - 1) * units[u].slice(member, s.shard).size() : sent_by_gather(slices, member, 4);
        if (u > 0 && u + 1 < units.size()) block_gathers += sent_by_gather(slices, member, 4);
        if (rows > 1) {
            const auto parts = even_offsets(units[u].slice(member, s.shard).size(), rows);
            across += sent_by_scatter(parts, row, 4) + sent_by_gather(parts, row, 4);
        }
        for (int r = 0; r <= s.shard; ++r) blocks[size_t(r)] += slices[size_t(r)] / units[u].block;
    }
    const int64_t norm = sent_by_gather(blocks, member, sizeof(double));
    switch (s.stage) {
        case 0:
            return scatters + gathers;
        case 1:
            return scatters + gathers + norm + across;
        case 2:
            return M * scatters + gathers + norm + across;
        default:
            return M * (gathers + block_gathers + scatters) + norm + across;
    }
}

// The table in zero/zero.h: passes over the parameters, each (S - 1) / S of them; embedding and head once in stage 3's
// forward pass only; and what the columns of hybrid sharding add.
double table(const ParamTable& params, const Split& s) {
    const double M = s.micro_batches, f = double(s.shard - 1) / s.shard, rows = double(s.hosts) / s.shard;
    const double P = double(params.parameters());
    const double once = double(params.units().front().size + params.units().back().size);
    const double passes[4] = {2 * P, 2 * P, (M + 1) * P, M * (3 * P - once)};
    return 4 * (f * passes[s.stage] + 2 * (rows - 1) / rows * P / s.shard * (rows > 1));
}

// ---- runs -----------------------------------------------------------------------------------------------------------

struct Measured {
    std::vector<double> wire;               // bytes that each host sent, start-up and all
    std::vector<int64_t> first_rank_steps;  // that rank 0 counted, step by step
    std::vector<double> norms;              // of the gradients, step by step
    Json ranks;                             // ranks.json
};

class ZeroProgram : public testing::Test {
   protected:
    void SetUp() override {
        if (!built_with_mpi()) GTEST_SKIP() << "built without MPI";
        ASSERT_TRUE(fs::exists("dev/net/netns_hosts.sh") && fs::exists("train_llama"))
            << "run make first, and start this in the repository root";
        write_tokens(folder_ / "tokens.bin", 20000);
    }

    // The exit code of `launcher` ./train_llama ...; what it said is in log().
    int run(const std::string& launcher, const std::string& flags, int steps, Measured& out) {
        const std::string counts = folder_ / "counts", dir = folder_ / "out";
        fs::remove(counts);
        fs::remove_all(dir);
        const std::string command = format(
            "COUNTS=%s OMP_NUM_THREADS=1 timeout 60 %s ./train_llama --device cpu --preset bytes --train-data "
            "%s/tokens.bin --batch 1 --seq-len %d --val-every 0 --steps %d --timeout 30 --out %s %s > %s/log 2>&1",
            counts.c_str(), launcher.c_str(), folder_.path.c_str(), Split::kTokens, steps, dir.c_str(), flags.c_str(),
            folder_.path.c_str());
        const int status = std::system(command.c_str());
        if (status != 0) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        std::ifstream lines(counts);
        for (std::string line; std::getline(lines, line);) {
            long long host = 0, bytes = 0;
            if (std::sscanf(line.c_str(), "# host %lld sent %lld bytes", &host, &bytes) == 2)
                out.wire.push_back(double(bytes));
        }
        out.ranks = read_json(dir + "/ranks.json");
        for (const Json& row : metrics_in(dir))
            if (row.contains("loss")) {
                out.first_rank_steps.push_back(row["bytes_sent"].get<int64_t>());
                out.norms.push_back(row["grad_norm"].get<double>());
            }
        return 0;
    }

    std::string log() const { return text_in(folder_ / "log"); }

    const TempFolder folder_;
};

TEST_F(ZeroProgram, EveryStageSendsWhatTheTableSays) {
    const ParamTable params(resolved_preset("bytes"));
    const std::vector<UnitLayout> units(params.units().begin(), params.units().end());
    constexpr int kFew = 1, kMore = 5;
    std::map<int, std::vector<double>> norms;  // by sequences of a step, however they are shared out
    for (const Split& s : {Split{0, 3, 3, 1}, Split{1, 3, 3, 1}, Split{2, 3, 3, 1}, Split{3, 3, 3, 1},
                           Split{2, 3, 3, 2}, Split{3, 3, 3, 2}, Split{3, 4, 2, 1}, Split{0, 3, 3, 1, "direct"}}) {
        SCOPED_TRACE(s.flags());
        const std::string launcher = format("dev/net/netns_hosts.sh %d --", s.hosts);
        Measured few, more;
        const int code = run(launcher, s.flags(), kFew, few);
        if (code == 77) GTEST_SKIP() << log();
        ASSERT_EQ(code, 0) << log();
        ASSERT_EQ(run(launcher, s.flags(), kMore, more), 0) << log();
        ASSERT_EQ(int(more.ranks.size()), s.hosts);
        ASSERT_EQ(int(more.wire.size()), s.hosts);
        ASSERT_EQ(int(few.wire.size()), s.hosts);
        for (int64_t bytes : more.first_rank_steps) EXPECT_EQ(bytes, formula(units, s, 0));
        EXPECT_EQ(int(more.first_rank_steps.size()), kMore);
        const std::vector<double>& want_norms = norms.try_emplace(s.hosts * s.micro_batches, more.norms).first->second;
        for (int i = 0; i < kMore; ++i) EXPECT_NEAR(more.norms[size_t(i)], want_norms[size_t(i)], 1e-5 * want_norms[0]);
        for (int r = 0; r < s.hosts; ++r) {
            SCOPED_TRACE(format("rank %d", r));
            const int64_t want = formula(units, s, r);
            EXPECT_EQ(more.ranks[size_t(r)]["bytes_sent"].get<int64_t>(), kMore * want);
            // Padding, slices that are a block longer or shorter, and the sums of the gradient norm: below 2 % here.
            EXPECT_NEAR(double(want), table(params, s), 0.02 * table(params, s));
            // Start-up, saving and shutdown are the same in both runs. What is left above the payload: TCP, IP and
            // Ethernet headers (66 bytes per segment of up to 64 KiB), acknowledgements, the loss's few bytes.
            const double on_wire = (more.wire[size_t(r)] - few.wire[size_t(r)]) / (kMore - kFew);
            EXPECT_NEAR(on_wire, table(params, s), 0.02 * table(params, s));
            std::printf("  %-42s rank %d: %9.0f bytes on the wire, %9lld of payload (%.3f), table %9.0f\n",
                        s.flags().c_str(), r, on_wire, (long long)want, on_wire / double(want), table(params, s));
        }
    }
}

}  // namespace
}  // namespace rz
