// Several hosts on one machine: the ring between network namespaces, and the bytes that really crossed the wire.
// Skipped where namespaces can't be made (no root). This binary starts itself under dev/net/netns_hosts.sh.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/collectives.h"
#include "comm/mpi_transport.h"
#include "comm/process.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

constexpr int kHosts = 3, kRounds = 8;
constexpr int64_t kElements = 3 << 18;

TEST(CommNetnsRank, DISABLED_Body) {
    const char* algorithm = std::getenv("RZ_NETNS");
    if (!algorithm) GTEST_SKIP() << "run by the test below";
    Process process({.timeout_s = 30});
    const int code = process.run([&] {
        require(process.local_size() == process.size() || process.local_size() == 1, "unexpected ranks per host");
        const Device cpu{DeviceKind::cpu, 0};
        auto transport = process.make_transport(TransportKind::mpi, cpu, 0, process.rank(), "world");
        auto how = make_collectives(parse_name<Algorithm>("RZ_NETNS", algorithm), *transport);
        Stream stream(cpu, "comm");
        const auto offsets = even_offsets(kElements, process.size());
        std::vector<float> x(kElements);
        for (int round = 0; round < kRounds; ++round) {
            std::fill(x.begin(), x.end(), float(process.rank() + round));
            how->all_reduce(stream, sum_in_place(x.data(), offsets));
            stream.synchronize();
            for (float v : x)
                require(v == float(kHosts * (kHosts - 1) / 2 + kHosts * round), "a wrong sum: %g", double(v));
        }
        return 0;
    });
    std::fflush(nullptr);
    _exit(code);
}

TEST(CommNetns, BytesOnTheWireAreTheFormulas) {
    if (!built_with_mpi()) GTEST_SKIP() << "built without MPI";
    if (!std::filesystem::exists("dev/net/netns_hosts.sh")) GTEST_SKIP() << "not started in the repository root";
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    for (const char* algorithm : {"ring", "direct"}) {
        const TempFolder folder;
        const std::string counts = folder / "counts";
        const std::string command = format(
            "COUNTS=%s OMP_NUM_THREADS=1 RZ_NETNS=%s dev/net/netns_hosts.sh %d -- %s --gtest_brief=1 "
            "--gtest_also_run_disabled_tests --gtest_filter=CommNetnsRank.DISABLED_Body > %s.log 2>&1",
            counts.c_str(), algorithm, kHosts, self.c_str(), counts.c_str());
        const int status = std::system(command.c_str());
        const std::string output = text_in(counts + ".log");
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << output;
        ASSERT_EQ(status, 0) << output;
        const double want = kRounds * 2.0 * (kHosts - 1) / kHosts * kElements * 4;
        std::ifstream lines(counts);
        std::string line;
        int hosts = 0;
        while (std::getline(lines, line)) {
            long long host = 0, sent = 0;
            ASSERT_EQ(std::sscanf(line.c_str(), "# host %lld sent %lld bytes", &host, &sent), 2) << line;
            EXPECT_NEAR(double(sent), want, 0.02 * want)
                << algorithm << ", host " << host;  // 2 %: headers and start-up
            ++hosts;
        }
        EXPECT_EQ(hosts, kHosts);
    }
}

}  // namespace
}  // namespace rz
