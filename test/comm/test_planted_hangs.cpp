// Jobs of four ranks over TCP, each with a fault planted on rank 1: the verdict must name the rank, the group, the
// operation and the unit. This binary starts itself: the ranks run the disabled test PlantedHangRank.Body.
//
//   RZ_HANGS=all           twenty: five faults on each of four axes; without it, each fault once
//   RZ_HANG_DUMPS=FOLDER   keeps each job's records there, for test/program/test_recorder.py

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "comm/flight.h"
#include "comm/mesh.h"
#include "comm/process.h"
#include "comm/tcp_proof.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

constexpr int kHangRanks = 4, kUnits = 4, kMicroBatches = 2;
constexpr int kPlantedStep = 2, kPlantedMicroBatch = 1, kPlantedUnit = 2;
// Each unit of each micro-batch is one operation of its axis.
constexpr int kPlantedNumber = (kPlantedStep * kMicroBatches + kPlantedMicroBatch) * kUnits + kPlantedUnit + 1;

// A step of what training does on an axis: an operation for each unit, and one over the whole model at the end.
class Rank {
   public:
    Rank(Process& process, const std::string& axis, const std::string& fault)
        : process_(process), mesh_(process, {DeviceKind::cpu, 0}, options(axis)), axis_(axis), fault_(fault) {}

    void step(int64_t step) {
        process_.set_step(step);
        for (int m = 0; m < kMicroBatches; ++m)
            for (int u = 0; u < kUnits; ++u) {
                const bool here = process_.rank() == 1 && step == kPlantedStep && m == kPlantedMicroBatch;
                if (here && fault_ == "swap" && (u == kPlantedUnit || u == kPlantedUnit + 1)) {
                    issue(m, u == kPlantedUnit ? u + 1 : u - 1, 1);
                    continue;
                }
                if (here && u == kPlantedUnit) {
                    if (fault_ == "skip") continue;
                    if (fault_ == "stop") stream().synchronize(), raise(SIGSTOP);  // what it issued before is done
                    if (fault_ == "compute")
                        stream().enqueue_host([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
                }
                issue(m, u, here && u == kPlantedUnit && fault_ == "size" ? 2 : 1);
            }
        stream().synchronize();
        process_.barrier();
    }

   private:
    static MeshOptions options(const std::string& axis) {
        MeshOptions o;
        if (axis == "tp") o.grid.tp = 2;
        if (axis == "cp") o.grid.cp = 2;
        if (axis == "pp") o.grid.pp = 2;
        return o;
    }
    Collectives& group() { return axis_ == "tp" ? mesh_.tp() : axis_ == "cp" ? mesh_.cp() : mesh_.data(); }
    Stream& stream() {
        if (axis_ != "pp") return mesh_.stream();
        return (mesh_.pp().rank() == 0 ? mesh_.link_to(1) : mesh_.link_from(0)).stream();
    }
    void issue(int micro_batch, int unit, int divided) {
        const int64_t n = 4096 * (unit + 1) / divided;  // units differ in size, so that what is out of order shows
        work_scope = {unit, micro_batch, mesh_.pp().rank()};
        if (axis_ == "pp")
            return mesh_.pp().rank() == 0 ? mesh_.link_to(1).send(values_.data(), 4 * n)
                                          : mesh_.link_from(0).recv(values_.data(), 4 * n);
        const auto offsets = even_offsets(n, group().size());
        float* own = values_.data() + offsets[size_t(group().rank())];
        if (axis_ == "data")
            group().all_gather(stream(), all_gather_f32(values_.data(), own, offsets));
        else
            group().reduce_scatter(stream(), reduce_scatter_f32(own, values_.data(), offsets));
    }

    Process& process_;
    std::vector<float> values_ = std::vector<float>(4096 * kUnits, 1.0f);
    Mesh mesh_;
    std::string axis_, fault_;
};

TEST(PlantedHangRank, DISABLED_Body) {
    const char *axis = std::getenv("RZ_AXIS"), *fault = std::getenv("RZ_FAULT"), *folder = std::getenv("RZ_RUN_DIR");
    if (!axis || !fault || !folder) GTEST_SKIP() << "run by the tests below";
    Process process({.timeout_s = 1.5, .start_s = 60, .run_directory = folder});
    const int code = process.run([&] {
        Rank rank(process, axis, fault);
        try {
            for (int64_t step = 0; step < 4; ++step) rank.step(step);
        } catch (const std::exception& error) {  // while the streams stand: their ends would wait
            process.abort(exit_code_of(error), error.what());
        }
        return 0;
    });
    std::fflush(nullptr);
    _exit(code);
}

struct Hang {
    std::string axis, fault;
};

// The ranks of one job, until it has its table; then those that are left are killed.
class Job {
   public:
    Job(const Hang& hang, const std::string& folder) : folder_(folder) {
        std::filesystem::create_directories(folder_);
        const std::string self = std::filesystem::read_symlink("/proc/self/exe");
        const std::string port = std::to_string(free_port()), log = folder_ + "/log";
        for (int r = 0; r < kHangRanks; ++r) {
            std::fflush(nullptr);
            const pid_t pid = fork();
            if (pid == 0) {
                setenv("RZ_AXIS", hang.axis.c_str(), 1), setenv("RZ_FAULT", hang.fault.c_str(), 1);
                setenv("RZ_RUN_DIR", folder_.c_str(), 1), setenv("OMP_NUM_THREADS", "1", 1);
                setenv("RANK", std::to_string(r).c_str(), 1);
                setenv("WORLD_SIZE", std::to_string(kHangRanks).c_str(), 1);
                setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", port.c_str(), 1);
                setenv("RINGZERO_TOKEN", "a secret of this test", 1);
                if (!std::freopen(log.c_str(), "a", stderr) || !std::freopen(log.c_str(), "a", stdout)) _exit(1);
                execl(self.c_str(), self.c_str(), "--gtest_brief=1", "--gtest_also_run_disabled_tests",
                      "--gtest_filter=PlantedHangRank.DISABLED_Body", nullptr);
                _exit(1);
            }
            ranks_.push_back(pid);
        }
    }
    ~Job() {
        for (const pid_t pid : ranks_) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    }
    // Until a rank that is not the planted one has ended, and a moment for the others.
    std::string outcome() {
        for (int tenths = 0; tenths < 400; ++tenths) {
            if (waitpid(ranks_[0], nullptr, WNOHANG) != 0) break;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        return text_in(folder_ + "/failure.txt") + text_in(folder_ + "/log");
    }

   private:
    static int free_port() {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in a{};
        a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof a;
        if (bind(fd, reinterpret_cast<sockaddr*>(&a), size) != 0 ||
            getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) != 0)
            fail("no free port");
        close(fd);
        return ntohs(a.sin_port);
    }
    std::string folder_;
    std::vector<pid_t> ranks_;
};

// The operation as it is called on a rank that issued it; "" for a fault of which the verdict needs another name.
std::string planted_operation(const Hang& h) {
    const std::string op = h.axis == "pp" ? "transfer" : h.axis == "data" ? "all_gather" : "reduce_scatter";
    const std::string group = h.axis == "pp" ? "pp 0>1" : h.axis;
    return format("%s #%d of group %s, unit %d, micro-batch %d", op.c_str(), kPlantedNumber, group.c_str(),
                  kPlantedUnit, kPlantedMicroBatch);
}

std::vector<std::string> expected(const Hang& h) {
    const std::string op = "[" + planted_operation(h);
    if (h.fault == "skip") return {"verdict: missing call: rank 1 left out " + op};
    if (h.fault == "swap") return {"verdict: swapped order: #", op, "rank 1"};
    if (h.fault == "size") return {"verdict: different size: rank ", op, "rank 1 "};
    if (h.fault == "stop") return {"verdict: stopped process: rank 1 ("};
    return {"verdict: a kernel that never ends, or other work of its streams: on rank 1 (", op};
}

TEST(PlantedHangs, TheVerdictNamesRankGroupOperationAndUnit) {
    if (!built_with_proofs()) GTEST_SKIP() << "built without libcrypto";
    const std::string faults[] = {"skip", "swap", "size", "stop", "compute"}, axes[] = {"data", "tp", "pp", "cp"};
    const bool all = std::getenv("RZ_HANGS") && std::getenv("RZ_HANGS") == std::string("all");
    std::vector<Hang> hangs;
    for (size_t f = 0; f < std::size(faults); ++f)
        for (size_t a = 0; a < std::size(axes); ++a)
            if (all || a == f % std::size(axes)) hangs.push_back({axes[a], faults[f]});
    const char* kept = std::getenv("RZ_HANG_DUMPS");
    const TempFolder folder;
    const std::string top = kept ? kept : folder.path;
    constexpr size_t kAtOnce = 5;
    for (size_t first = 0; first < hangs.size(); first += kAtOnce) {
        std::vector<std::unique_ptr<Job>> jobs;
        for (size_t i = first; i < std::min(hangs.size(), first + kAtOnce); ++i)
            jobs.push_back(std::make_unique<Job>(hangs[i], top + "/" + hangs[i].axis + "-" + hangs[i].fault));
        for (size_t i = 0; i < jobs.size(); ++i) {
            const Hang& h = hangs[first + i];
            const std::string text = jobs[i]->outcome();
            const size_t at = text.find("verdict: ");
            const std::string verdict = at == std::string::npos ? "none" : text.substr(at, text.find('\n', at) - at);
            for (const std::string& part : expected(h))
                EXPECT_TRUE(says(verdict, part)) << h.fault << " on " << h.axis << ", in\n" << text;
        }
    }
}

}  // namespace
}  // namespace rz
