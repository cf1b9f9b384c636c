// Predicts a training step, op by op, from FLOPs and bytes of the planned step and the rates of a GPU; beside
// what bench_train measured.
//
//   build/dev/predict_step --preset medium --batch 16 --seq-len 1024                 on an H200, in bf16
//   build/dev/predict_step --preset llama3.1-8b --layers 8 --seq-len 4096 --batch 2 --gpu h100 --gemm 745 --copy 2.9
//   build/dev/predict_step --preset medium --batch 16 --seq-len 1024 --measured rows.json
//                                            rows.json: from bench_train --classes --json of the same model and batch
//
// Two predictions: at the ceilings (what cuBLASLt and a plain copy reach, and the best published attention) and at the
// goals (92 % of the GEMM ceiling, 90 % of the copy, 85 % of that attention). Nothing overlaps, launches cost nothing.
// Bytes are those that can't be avoided: every operand once, nothing kept in L2. Attention's rates are the published
// ones of llama/configs/machines/h200-141g.toml, as the plan takes them.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "dev/common/tool.h"
#include "kernels/runtime/request.h"
#include "llama/base/json.h"
#include "llama/model/model.h"
#include "llama/plan/cost.h"
#include "llama/train/batches.h"
#include "llama/train/options.h"
#include "llama/train/plan_memory.h"

namespace rz {
namespace {

using Limit = OpWork::Limit;

struct Op {
    std::string name;  // as bench_train --classes calls it
    Limit limit;
    double calls;
    double work;  // of all calls: FLOPs, or bytes where they limit
};

struct Rates {
    double gemm, copy, attention_forward, attention_backward;  // FLOP/s, bytes/s
    double of(Limit l) const {
        return l == Limit::gemm                ? gemm
               : l == Limit::bytes             ? copy
               : l == Limit::attention_forward ? attention_forward
                                               : attention_backward;
    }
};

// Rates that the machine's file has, attention's for sequences of T tokens
Rates rates_of(Machine m, int64_t T, int64_t head_dim) {
    m.op_us = 0;
    const auto rate = [&](Limit limit) {
        const OpWork work{.limit = limit, .flops = 1e15, .dtype = DType::bf16, .T = T, .head_dim = head_dim};
        return work.flops / seconds_of(m, work);
    };
    return {rate(Limit::gemm), 1e9 * m.memory_gbs, rate(Limit::attention_forward), rate(Limit::attention_backward)};
}

// Ops of a step on a planned GPU: `train_llama plan` costs the same.
std::vector<Op> ops_of(const TrainOptions& o, const ModelConfig& c) {
    constexpr double kUnit = 1000;  // FLOPs or bytes in a tick, so that a step of any size has enough ticks
    std::map<std::string, Limit> limits;
    PlannedJob job{.kind = DeviceKind::cuda, .ranks = 1, .finishes = false};
    job.cost = [&](const OpCall& op, const Stream&) {
        OpWork w;
        require(find_work(op, w), "%s: its work is not known", op.name().c_str());
        limits[op.name()] = w.limit;
        return Ticks(std::llround((w.limit == Limit::bytes ? w.bytes : w.flops) / kUnit));
    };
    std::vector<Op> ops;
    const std::vector<PlannedRank> planned = plan_ranks(o, c, job, 0);
    for (const PlannedOp& op : planned[0].ops)
        if (op.time > 0) ops.push_back({op.name, limits.at(op.name), double(op.calls), kUnit * double(op.time)});
    std::stable_sort(ops.begin(), ops.end(), [](const Op& x, const Op& y) { return x.limit < y.limit; });
    return ops;
}

// Seconds per step by op, of the last row of bench_train's --classes in the file.
std::map<std::string, double> read_measured(const std::string& file, double B, double T) {
    std::map<std::string, double> seconds;
    std::ifstream in(file);
    require_request(in.good(), "--measured %s: it cannot be opened", file.c_str());
    for (std::string line; std::getline(in, line);) {
        const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!row.is_object() || row.value("kind", "") != "classes") continue;
        if (row.value("batch", 0.0) != B || row.value("seq_len", 0.0) != T) continue;
        seconds.clear();
        for (const Json& op : row.at("ops")) seconds[op.at("op")] = op.at("seconds");
    }
    require_request(!seconds.empty(),
                    "--measured %s holds no row of bench_train --classes with --batch %g --seq-len %g", file.c_str(), B,
                    T);
    return seconds;
}

void print_table(const std::vector<Op>& ops, const Rates& ceiling, const Rates& goal,
                 const std::map<std::string, double>& measured) {
    double at_ceiling = 0, at_goal = 0;
    for (const Op& op : ops) at_ceiling += op.work / ceiling.of(op.limit), at_goal += op.work / goal.of(op.limit);
    std::printf("| op | calls | work | at the ceiling, ms | at the goal, ms | share |%s\n|---|---|---|---|---|---|%s\n",
                measured.empty() ? "" : " measured, ms | of the goal's rate |", measured.empty() ? "" : "---|---|");
    std::map<std::string, double> left = measured;
    for (const Op& op : ops) {
        const double seconds = op.work / goal.of(op.limit);
        std::printf("| %s | %.0f | %.1f %s | %.3f | %.3f | %.1f %% |", op.name.c_str(), op.calls,
                    op.work / (op.limit == Limit::bytes ? 1e9 : 1e12), op.limit == Limit::bytes ? "GB" : "TFLOP",
                    1e3 * op.work / ceiling.of(op.limit), 1e3 * seconds, 100 * seconds / at_goal);
        if (auto found = left.find(op.name); found != left.end()) {
            std::printf(" %.3f | %.0f %% |", 1e3 * found->second, 100 * seconds / found->second);
            left.erase(found);
        }
        std::printf("\n");
    }
    for (const auto& [name, seconds] : left) std::printf("| %s | | | | | | %.3f | |\n", name.c_str(), 1e3 * seconds);
    std::printf("| **all** | | | **%.2f** | **%.2f** | |\n", 1e3 * at_ceiling, 1e3 * at_goal);
}

int run(int argc, char** argv) {
    std::string gpu = "h200", measured;
    double gemm = 788, copy = 0, forward = 0, backward = 0;
    int64_t micro_batches = 1;
    CLI::App app{"Predicts a training step in bf16, op by op"};
    app.add_option("--micro-batches", micro_batches, "Micro-batches per update.")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--gpu", gpu, "Machine whose rates stand in for those below that are not given: h200 or h100.")
        ->capture_default_str()
        ->check(CLI::IsMember({"h200", "h100"}));
    app.add_option("--gemm", gemm, "bf16 TFLOP/s of cuBLASLt.")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--copy", copy, "TB/s of a copy, read and written. [h200: 4.3, h100: 3.0]")
        ->check(CLI::PositiveNumber);
    app.add_option("--attention-forward", forward, "TFLOP/s of attention. [published, by length and head]")
        ->check(CLI::PositiveNumber);
    app.add_option("--attention-backward", backward, "TFLOP/s of attention. [published, by length and head]")
        ->check(CLI::PositiveNumber);
    app.add_option("--measured", measured, "File with rows of bench_train --classes --json, shown beside.");
    app.allow_extras()->footer(
        "Other flags are those of training, its model's too: --recompute block, --layers 8 ...; where they are not "
        "given --preset medium, --batch 8 and --seq-len 1024.");
    CLI11_PARSE(app, argc, argv);

    std::vector<std::string> flags =
        joined_flags({"--preset", "medium", "--batch", "8", "--seq-len", "1024"}, app.remaining());
    flags.insert(flags.end(), {"--device", "cuda", "--dtype", "bf16", "--grad-accum", std::to_string(micro_batches)});
    Command command;
    if (const std::optional<int> code = parse_command_line(flags, command)) return *code;
    const auto* o = std::get_if<TrainOptions>(&command);
    require(o && !o->fp8.on(), "predict_step: a training step without fp8, whose rates are not known here");
    const ModelConfig c = model_config(*o, 0);
    const double N = double(o->batch * o->seq_len * micro_batches), per_token = training_flops_per_token(c, o->seq_len);
    const std::vector<Op> ops = ops_of(*o, c);
    double counted = 0;  // attention's backward pass computes 2.5 times the forward's, and is counted as twice
    for (const Op& op : ops)
        if (op.limit != Limit::bytes) counted += op.limit == Limit::attention_backward ? op.work * 0.8 : op.work;
    require(o->recompute != Recompute::none || std::abs(counted / (N * per_token) - 1) < 1e-6,
            "the ops have %g FLOPs, the model %g", counted, N * per_token);

    Machine machine = load_machine("h200-141g");
    machine.gemm_bf16 = gemm;
    if (copy > 0 || gpu == "h100") machine.memory_gbs = 1e3 * (copy > 0 ? copy : 3.0);
    Rates ceiling = rates_of(machine, o->seq_len, c.head_dim);
    if (forward > 0) ceiling.attention_forward = 1e12 * forward;
    if (backward > 0) ceiling.attention_backward = 1e12 * backward;
    const Rates goal{0.92 * ceiling.gemm, 0.9 * ceiling.copy, 0.85 * ceiling.attention_forward,
                     0.85 * ceiling.attention_backward};
    std::printf(
        "%s\nbatch %lld x %lld, %lld micro-batch%s; GEMM %.0f TFLOP/s, copy %.2f TB/s, attention %.0f and %.0f "
        "TFLOP/s\n\n",
        summary(c).c_str(), (long long)o->batch, (long long)o->seq_len, (long long)micro_batches,
        micro_batches == 1 ? "" : "es", ceiling.gemm / 1e12, ceiling.copy / 1e12, ceiling.attention_forward / 1e12,
        ceiling.attention_backward / 1e12);
    print_table(ops, ceiling, goal,
                measured.empty() ? std::map<std::string, double>()
                                 : read_measured(measured, double(o->batch), double(o->seq_len)));
    for (const auto& [name, rates] : {std::pair<const char*, const Rates*>{"ceilings", &ceiling}, {"goals", &goal}}) {
        double seconds = 0;
        for (const Op& op : ops) seconds += op.work / rates->of(op.limit);
        std::printf("\n%-8s %8.0f tok/s, %.1f %% MFU of 989 TFLOP/s", name, N / seconds,
                    100 * N * per_token / seconds / 989e12);
    }
    std::printf("\n");
    return 0;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("predict_step", rz::run, argc, argv); }
