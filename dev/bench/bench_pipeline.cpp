// Pipeline schedules, measured against their simulation: the real executor over the real transport, with work that
// sleeps for a known time, so that ranks may share cores.
//
//   mpirun -n 4 build/dev/bench_pipeline --micro-batches 8,16 --task 20
//   mpirun -n 2 build/dev/bench_pipeline --micro-batches 16 --baseline
//
// --baseline: the same work naively, in a quarter of the micro-batches, one in flight, compute waiting for each
// message that it sends.
//
// A task of the smallest stage sleeps --task milliseconds times its cost; others in proportion. Utilisation is that of
// the step: busy time of all ranks over ranks x the longest of them. Median of --repeat steps.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "comm/mesh.h"
#include "comm/process.h"
#include "dev/common/tool.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/parallel/executor.h"
#include "llama/parallel/pipeline_program.h"
#include "llama/parallel/telemetry.h"

namespace rz {
namespace {

struct Options {
    std::vector<int> micro_batches{8, 16};
    std::vector<std::string> schedules;
    double task_ms = 20;
    int repeat = 3;
    int64_t bytes = 64 << 10;
    bool baseline = false;
    double link_mbs = 0, link_us = 0;
    std::string json;
};

class Sleeper : public ProgramHost {
   public:
    Sleeper(const RankProgram& rank, const PipelineCosts& costs, double tick_s, int64_t bytes, bool blocks,
            Stream& compute)
        : shape_(rank.shape), costs_(costs), tick_s_(tick_s), bytes_(bytes), blocks_(blocks), compute_(compute) {
        for (const StageSlots& s : rank.program.slots)
            for (int slot = 0; slot < s.forward; ++slot)
                for (const Boundary b : {Boundary::input, Boundary::output, Boundary::gradient})
                    tensors_[{int(b), s.stage, slot}].resize(size_t(bytes));
    }
    void compute(const Instr& i) override {
        const StageUnits& s = shape_.stage(i.stage);
        const bool forward = i.what == Do::forward;
        if (forward ? i.first_unit != s.first_unit : i.last_unit != s.last_unit) return;  // the pass sleeps once
        const size_t at = size_t(i.stage);
        const int64_t ticks = forward                     ? costs_.forward[at]
                              : i.what == Do::input_grad  ? costs_.input[at]
                              : i.what == Do::weight_grad ? costs_.weight[at]
                                                          : costs_.input[at] + costs_.weight[at];
        compute_.enqueue_host([seconds = double(ticks) * tick_s_] {
            std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        });
    }
    void* boundary(Boundary b, int stage, int slot) override { return tensors_.at({int(b), stage, slot}).data(); }
    int64_t boundary_bytes(int) override { return bytes_; }
    void after_message(const Instr& i, Stream& lane) override {
        if (blocks_ && i.what == Do::send) compute_.wait(lane.record());
    }

   private:
    StepShape shape_;
    PipelineCosts costs_;
    double tick_s_;
    int64_t bytes_;
    bool blocks_;
    Stream& compute_;
    std::map<std::tuple<int, int, int>, std::vector<char>> tensors_;
};

PipelineProgramOptions one_block_a_stage(const PipelineSchedule& s) {
    PipelineProgramOptions o;
    o.unit_bytes.assign(size_t(s.stages) + 2, 1);
    for (int stage = 0; stage < s.stages; ++stage)
        o.cut.push_back({stage, stage == 0 ? 0 : stage + 1, stage == s.stages - 1 ? stage + 2 : stage + 1});
    return o;
}

void measure(Process& process, Mesh& mesh, PipelineKind kind, int micro_batches, const Options& o) {
    const int P = process.size();
    if (const std::string why = find_pipeline_refusal(kind, {P, micro_batches}); !why.empty()) {
        if (process.is_root()) std::fprintf(stderr, "no row: %s\n", why.substr(0, why.find('\n')).c_str());
        return;
    }
    constexpr int64_t kTicks = 1000;  // of the forward pass of the smallest stage
    PipelineSchedule s = make_pipeline(kind, {P, micro_batches});
    if (o.baseline) s = limit_in_flight(s, 1);
    // 1 / P of the model is two of the smallest stages, so that all schedules do the same work.
    const int64_t ticks = kTicks * (o.baseline ? 8 : 2);
    const int64_t bytes = o.bytes * (o.baseline ? 4 : 1);
    const double tick_s = o.task_ms / 1e3 / kTicks;
    const double message = o.link_mbs > 0 ? double(bytes) / (1e6 * o.link_mbs) + 1e-6 * o.link_us : 0;
    const PipelineCosts costs = PipelineCosts::even(s, ticks, ticks, ticks, int64_t(message / tick_s));
    const auto programs = pipeline_programs(s, costs, one_block_a_stage(s));
    const PipelineRun predicted = simulate(unfused(s), costs);
    const RankProgram& mine = programs[size_t(process.rank())];
    Stream compute(mesh.stream().device(), "compute");
    Sleeper host(mine, costs, tick_s, bytes, o.baseline, compute);
    Executor executor(compute, &mesh);
    executor.keep_times();
    std::vector<int> places;
    for (int r = 0; r < P; ++r) places.push_back(r);
    std::vector<std::pair<double, PipelineNumbers>> runs;
    for (int n = 0; n <= o.repeat; ++n) {
        process.barrier();
        executor.run(mine, host);
        compute.synchronize();
        const auto all = process.all_gather(pipeline_numbers(task_times(executor.take_times())));
        PipelineNumbers most;
        for (const PipelineNumbers& r : all) {
            most.queue_forward = std::max(most.queue_forward, r.queue_forward);
            most.queue_backward = std::max(most.queue_backward, r.queue_backward);
            most.in_flight = std::max(most.in_flight, r.in_flight);
            most.length = std::max(most.length, r.length);
        }
        if (n > 0) runs.push_back({summarise(all, places).util_step, most});  // the first one warms up
    }
    if (process.is_root() && !o.json.empty()) {
        OrderedJson file{{"seconds", OrderedJson::array()}, {"predicted", tick_s * double(predicted.makespan)}};
        for (const auto& [utilisation, numbers] : runs) file["seconds"].push_back(numbers.length);
        write_file_atomically(o.json, file.dump() + "\n");
    }
    std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto& [utilisation, most] = runs[runs.size() / 2];
    int in_flight = 0;
    for (const auto& r : predicted.ranks) in_flight = std::max(in_flight, r.peak_forward);
    if (!process.is_root()) return;
    std::printf("| %-11s | %d, %2d | %6.2f | %6.2f | %+5.2f | %6.0f | %.3f | %d, %d | %2d of %2d |\n", name_of(kind), P,
                micro_batches, 100 * predicted.util_step(), 100 * utilisation,
                100 * (utilisation / predicted.util_step() - 1), 1e3 * most.length, 1 / most.length, most.queue_forward,
                most.queue_backward, most.in_flight, in_flight);
    std::fflush(stdout);
}

int run(int argc, char** argv) {
    CLI::App app{"Pipeline schedules with sleeping work, beside their simulation"};
    Options o;
    app.add_option("--micro-batches", o.micro_batches, "Micro-batches of a step.")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--pp-schedule", o.schedules, "Schedules. [all]")->delimiter(',');
    app.add_option("--task", o.task_ms, "Milliseconds of a forward pass of the smallest stage.")
        ->check(CLI::Range(1.0, 1e4));
    app.add_option("--repeat", o.repeat, "Number of measured steps.")->check(CLI::Range(1, 1000));
    app.add_option("--bytes", o.bytes, "Bytes of a message.")->check(CLI::Range(int64_t(1), int64_t(1) << 32));
    app.add_option("--link-mbs", o.link_mbs, "MB/s of a link, which the simulation counts. 0: messages take no time.")
        ->check(CLI::Range(0.0, 1e6));
    app.add_option("--link-us", o.link_us, "Microseconds before a message's first byte, likewise.")
        ->check(CLI::Range(0.0, 1e6));
    app.add_option("--json", o.json, "File for the seconds of each step, and of the simulated one: of the last row.");
    app.add_flag("--baseline", o.baseline, "Run large micro-batches, one in flight; compute waits for what it sends.");
    CLI11_PARSE(app, argc, argv);
    Process process;
    return process.run([&] {
        require(process.size() > 1, "a pipeline of one rank has nothing to measure\n  nearest: mpirun -n 2");
        std::string note;
        Mesh mesh(process, process.choose_device(DeviceChoice::cpu, TransportKind::automatic, &note),
                  {.grid = {.pp = process.size()}});
        if (process.is_root())
            std::printf(
                "| schedule    | P, M  | simulated %% | measured %% | off %% | step ms | steps/s "
                "| queues | in flight |\n"
                "|---|---|---|---|---|---|---|---|---|\n");
        for (const int m : o.micro_batches)
            for (const PipelineKind kind : pipeline_kinds())
                if (o.schedules.empty() ||
                    std::find(o.schedules.begin(), o.schedules.end(), name_of(kind)) != o.schedules.end())
                    measure(process, mesh, kind, o.baseline ? m / 4 : m, o);
        return 0;
    });
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("bench_pipeline", rz::run, argc, argv); }
