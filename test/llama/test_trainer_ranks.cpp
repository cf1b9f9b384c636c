// The Trainer on ranks that are threads of this process gives the bits that ./train_llama gives under mpirun: every
// part of a run takes its rank, its counters and its waits from the Process that it is given.

#include <cstdlib>
#include <functional>
#include <set>

#include "comm/mpi_transport.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/train/trainer.h"
#include "test/checks.h"
#include "test/comm/ranks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 3;  // with two, any order of summation gives the same bits

class TrainerRanks : public testing::Test {
   protected:
    void SetUp() override {
        if (!built_with_mpi() || std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
        ASSERT_TRUE(fs::exists("train_llama")) << "run make first, and start this in the repository root";
        write_tokens(folder_ / "tokens.bin", 4000);
    }

    std::string flags(const std::string& out, const std::string& more) const {
        return kToyModel + ("--layers 4 --batch 2 --batch-tokens 192 --steps 4 --val-every 2 --val-tokens 96 "
                            "--save-every 3 --threads 1 --lr 1e-2 --timeout 60 --train-data " +
                            folder_.path + "/tokens.bin --val-data " + folder_.path + "/tokens.bin --out " +
                            folder_.path + "/" + out + " " + more);
    }

    // As train_llama.cu's loop. `done` is called at the end.
    static int train(
        const TrainOptions& o, Process& process,
        const std::function<void(const Trainer&)>& done = [](const Trainer&) {}) {
        RunGuard health(o, process);
        Trainer t(o, process, health);
        validate(t, 0);
        for (int64_t s = 1; s <= o.steps; ++s) {
            begin_step(t, s);
            t.core->model.run(t.core->program, t.goal(), [&](int64_t m) { return t.batches->training(s, m); });
            t.core->zero.optimizer.gradient_norm();
            t.core->zero.optimizer.update(float(t.lr.at(s)), s);
            end_step(t, s);
            if (t.validates(s)) validate(t, s);
            if (t.saves(s)) save(t, s);
        }
        const int code = finish(t).exit_code;
        done(t);
        return code;
    }

    std::string read(const std::string& file) const { return text_in(folder_ / file); }
    // The part of the log that does not depend on time.
    std::vector<std::string> numbers(const std::string& out) const {
        std::vector<std::string> rows;
        for (const Json& row : metrics_in(folder_ / out)) {
            std::string text;
            for (const char* key : {"step", "loss", "val_loss", "grad_norm", "lr", "data_hash", "tokens"})
                if (row.contains(key)) text += std::string(key) + " " + row[key].dump() + ", ";
            if (!text.empty()) rows.push_back(text);
        }
        return rows;
    }

    const TempFolder folder_;
};

TEST_F(TrainerRanks, ThreadsGiveTheBitsOfMpirun) {
    for (const std::string more :
         {"--zero 0", "--zero 3 --wire-dtype fp32", "--zero 2 --dtype bf16 --recompute block"}) {
        SCOPED_TRACE(more);
        for (const char* run : {"threads", "processes"}) fs::remove_all(folder_ / run);
        const TrainOptions o = train_options(flags("threads", more));
        run_processes(kRanks, [&](Process& process) { EXPECT_EQ(train(o, process), 0); });

        const std::string line = format("OMP_NUM_THREADS=1 timeout 60 mpirun -n %d ./train_llama %s > %s/log 2>&1",
                                        kRanks, flags("processes", more).c_str(), folder_.path.c_str());
        ASSERT_EQ(std::system(line.c_str()), 0) << read("log");

        const std::vector<std::string> want = numbers("processes");
        EXPECT_GE(want.size(), 4u + 3u);  // steps, validations
        EXPECT_EQ(numbers("threads"), want);
        EXPECT_TRUE(read("threads/final/model.safetensors") == read("processes/final/model.safetensors"));
        for (const std::string file : {"/optimizer/m.safetensors", "/optimizer/v.safetensors"}) {
            const auto saved = [&](const char* run) { return text_in(CheckpointStore(folder_ / run).path(3) + file); };
            EXPECT_TRUE(saved("threads") == saved("processes")) << file;
        }
        // By the collectives, and at the peak by each rank's own ledger: not the whole process's.
        const Json threads = read_json(folder_ / "threads/ranks.json");
        const Json processes = read_json(folder_ / "processes/ranks.json");
        for (size_t r = 0; r < kRanks; ++r)
            for (const char* key : {"bytes_sent", "memory_peak"})
                EXPECT_EQ(threads[r][key], processes[r][key]) << key << " of rank " << r;
    }
}

// The windows of the guards have loss and gradient norm of every step, as this rank judged them.
TEST_F(TrainerRanks, LossNormAndDataAreTheSameOnAllRanksOfEveryLayout) {
    std::set<uint64_t> hashes;  // of the same tokens at every layout
    for (const auto& [ranks, more] : {std::pair<int, std::string>{1, ""},
                                      {4, "--pp 2 --zero 3"},
                                      {4, "--pp 4 --pp-schedule 1f1b"},
                                      {4, "--pp 2 --tp 2"},
                                      {4, "--pp 2 --cp 2"},
                                      {2, "--pp 2 --pp-schedule dualpipev"},
                                      {6, "--pp 2 --zero 2"}}) {
        SCOPED_TRACE(more);
        fs::remove_all(folder_ / "threads");
        const TrainOptions o = train_options(flags("threads", more));
        std::vector<std::string> judged(static_cast<size_t>(ranks));
        std::vector<uint64_t> data(static_cast<size_t>(ranks));
        run_processes(ranks, [&](Process& process) {
            const size_t rank = size_t(process.rank());
            const int code = train(o, process, [&](const Trainer& t) {
                judged[rank] = t.health.state(), data[rank] = t.metrics->data_hash();
            });
            EXPECT_EQ(code, 0);
        });
        EXPECT_EQ(parse_json(judged[0], "guards")["loss"].size(), 4u);
        EXPECT_EQ(parse_json(judged[0], "guards")["norm"].size(), 4u);
        EXPECT_EQ(judged, std::vector<std::string>(size_t(ranks), judged[0]));
        EXPECT_EQ(data, std::vector<uint64_t>(size_t(ranks), data[0]));
        hashes.insert(data[0]);
    }
    EXPECT_EQ(hashes.size(), 1u);
}

}  // namespace
}  // namespace rz
