// The plan's clock beside a real one.
//
//   mpirun -n 4 build/dev/plan_clock links              over the links that are there
//   dev/net/netns_hosts.sh 4 400mbit -- build/dev/plan_clock links        over shaped ones (root)
//   mpirun -n 2 build/dev/plan_clock links --zero 3 --prefetch 0 --json FILE        for dev/bench/harness.cpp
//   build/dev/plan_clock links                          one rank: compute only
//   build/dev/plan_clock steps --preset bytes --batch 4 --seq-len 128 ... training steps on this CPU
//
// links: steps of ZeRO with real buffers, streams, events and messages, in which each unit's forward and backward pass
// sleeps for a known time, so that more ranks than cores do not slow each other down; beside them the same steps on the
// planned device. Latency and rate of the links and of memory are measured first, by a ring of neighbours and a copy.
//
// steps: rates of products, attention and memory are taken from one training step of the flags, op by op (the
// calibration, also written as a machine for `train_llama plan --gpu FILE`); then steps of other batches, lengths and
// widths run in turn, measured and predicted. Ratios are of medians.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "comm/meter.h"
#include "comm/process.h"
#include "dev/common/tool.h"
#include "kernels/embedding.h"
#include "kernels/runtime/op_timer.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/model/weights.h"
#include "llama/parallel/executor.h"
#include "llama/plan/cost.h"
#include "llama/train/batches.h"
#include "llama/train/train_state.h"
#include "llama/train/options.h"
#include "llama/train/plan_memory.h"
#include "llama/train/trainer.h"

namespace rz {
namespace {

// ---- sleeping ops over real links -----------------------------------------------------------------------------------

struct Sleep {
    double seconds;
    const char* label() const { return "sleep"; }
};
void sleep_cpu(const Sleep& s) { std::this_thread::sleep_for(std::chrono::duration<double>(s.seconds)); }

struct LinkOptions {
    int units = 6, micro_batches = 2, repeat = 3, ranks_per_node = 1;
    double unit_mib = 4, forward_ms = 30;
    std::vector<int> stages{0, 1, 2, 3};
    std::string collectives = "ring", wire = "fp32", json;
    ZeroOptions zero = {};  // but for the stage
    bool no_overlap = false;

    MeshOptions mesh() const {
        return {.algorithms = {parse_name<Algorithm>("--collectives", collectives)}, .ranks_per_node = ranks_per_node};
    }
    ZeroOptions with_stage(int stage) const {
        ZeroOptions all = zero;
        all.stage = stage, all.overlap = !no_overlap, all.wire_dtype = wire == "bf16" ? DType::bf16 : DType::f32;
        return all;
    }
};

class Sleeper : public ProgramHost {
   public:
    Sleeper(Zero& zero, Stream& compute, double forward) : zero_(zero), compute_(compute), forward_(forward) {}
    void compute(const Instr& i) override {
        const bool forward = i.what == Do::forward;
        for (int k = 0; k <= i.last_unit - i.first_unit; ++k) {
            const int u = forward ? i.first_unit + k : i.last_unit - k;
            if (forward || u > 0) zero_.params.parameters(u);
            if (!forward) zero_.grads.gradients(u);
            compute_.run(Sleep{(forward ? 1 : 2) * forward_}, sleep_cpu, nullptr);
        }
    }
    void gather(const Instr& i) override { zero_.params.gather(i.first_unit); }
    void release(const Instr& i) override { zero_.params.release(i.first_unit); }
    void reduce(const Instr& i) override { zero_.grads.reduce(i.first_unit, i.last); }

   private:
    Zero& zero_;
    Stream& compute_;
    double forward_;
};

// One rank's ZeRO without a model.
struct Rank {
    Stream compute;
    Zero zero;
    RankProgram program;
    Executor executor;
    Sleeper host;

    static std::vector<UnitLayout> layouts(const LinkOptions& o) {
        std::vector<UnitLayout> all;
        for (int u = 0; u < o.units; ++u)
            all.push_back(make_unit("unit " + std::to_string(u), u ? all.back().offset + all.back().padded : 0,
                                    int64_t(o.unit_mib * (1 << 18))));
        return all;
    }
    static DecaySegments decay(const LinkOptions& o) {
        const std::vector<UnitLayout> all = layouts(o);
        return {{all.back().offset + all.back().padded}, {1}};
    }
    Rank(Device device, Mesh& mesh, int stage, const LinkOptions& o)
        : compute(device, "compute"),
          zero(device, compute, layouts(o), decay(o), o.with_stage(stage), {}, mesh),
          executor(compute, &mesh),
          host(zero, compute, 1e-3 * o.forward_ms) {
        const int at_once = zero.params.gathered_at_once();
        StepShape& s = program.shape;
        s = {.stages = {{0, 0, o.units - 1}},
             .micro_batches = o.micro_batches,
             .shard = {.sharded_parameters = at_once > 0,
                       .reduce_each = zero.grads.reduces_each_micro_batch(),
                       .prefetch = std::max(at_once - 1, 0)}};
        for (const UnitLayout& u : zero.ownership.units()) s.unit_bytes.push_back(4 * u.padded);
        program.program = single_stage_program(s);
        check_program(program.program, s, 0);
    }
    void step(int64_t number) {
        executor.run(program, host);
        zero.optimizer.gradient_norm();
        zero.optimizer.update(0, number);
    }
};

// Seconds of the slowest rank for `bytes` from each to the next of these members, all at once.
double ring_seconds(Process& process, Transport& t, const std::vector<int>& ring, Stream& stream, const Buffer& from,
                    const Buffer& to, int64_t bytes, int times) {
    const size_t n = ring.size(), at = size_t(std::find(ring.begin(), ring.end(), t.rank()) - ring.begin());
    process.barrier();
    const Timer timer;
    for (int i = 0; i < times; ++i) {
        MessageGroup group;
        group.send(from.data(), bytes, ring[(at + 1) % n]);
        group.recv(to.data(), bytes, ring[(at + n - 1) % n]);
        t.exchange(stream, group);
    }
    stream.synchronize();
    return std::ranges::max(process.all_gather(timer.seconds() / times));
}

// Rates of this machine's links and memory just now, one rank a node.
Machine measured_links(Process& process, Mesh& mesh, Device device, int ranks_per_node) {
    Machine m;
    m.ranks_per_node = ranks_per_node, m.cards = 1;
    const int64_t large = int64_t(8) << 20, small = 4 << 10;
    Stream stream(device, "probe");
    const Buffer a(device, large, MemKind::workspace, "probe"), b(device, large, MemKind::workspace, "probe");
    stream.zero(a.data(), large);
    std::vector<double> copies;
    for (int i = 0; i < 9; ++i) {
        stream.synchronize();
        process.barrier();
        const Timer timer;
        stream.copy(b.data(), a.data(), large);
        stream.synchronize();
        copies.push_back(timer.seconds());
    }
    m.memory_gbs = 2e-9 * double(large) / median(copies);
    m.op_us = 10;
    if (process.size() == 1) return m;
    Transport& all = mesh.data().transport();
    const auto node = [&](int r) { return all.world_rank(r) / ranks_per_node; };
    const auto measure = [&](const std::vector<int>& ring, double& gbs, double& us) {
        std::vector<double> few, many;
        for (int i = 0; i < 5; ++i) {
            few.push_back(ring_seconds(process, all, ring, stream, a, b, small, 20));
            many.push_back(ring_seconds(process, all, ring, stream, a, b, large, 1));
        }
        gbs = 1e-9 * double(large - small) / (median(many) - median(few));
        us = 1e6 * median(few);
    };
    // One rank after the other of each node, so that one of a node's ranks sends over its card.
    std::vector<int> ring, inside;
    for (int r = 0; r < all.size(); ++r) {
        ring.push_back(r);
        if (node(r) == node(all.rank())) inside.push_back(r);
    }
    std::stable_sort(ring.begin(), ring.end(), [&](int x, int y) { return node(x) < node(y); });
    measure(ring, m.card_gbs, m.card_us);
    if (inside.size() > 1) measure(inside, m.link_gbs, m.link_us);
    return m;
}

double predicted_step(const Machine& m, int ranks, int stage, const LinkOptions& o) {
    RankContext context;
    const auto cost = [&m](const OpCall& op, const Stream&) {
        if (const Sleep* s = op.as<Sleep>()) return Ticks(std::llround(s->seconds * double(kTicksPerSecond)));
        OpWork w;
        find_work(op, w);
        return Ticks(std::llround(seconds_of(m, w) * double(kTicksPerSecond)));
    };
    context.planned.cost = cost;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device, 0, ranks, make_network(m), o.mesh());
    Rank rank(device, mesh, stage, o);
    rank.step(1);
    const Ticks begin = rank.compute.clock();
    rank.step(2);
    return kSecondsPerTick * double(rank.compute.clock() - begin);
}

int links(const LinkOptions& o) {
    Process process;
    return process.run([&] {
        std::string note;
        const Device device = process.choose_device(DeviceChoice::cpu, TransportKind::automatic, &note);
        Mesh mesh(process, device, o.mesh());
        Machine m = measured_links(process, mesh, device, o.ranks_per_node);
        for (double* one : {&m.card_gbs, &m.card_us, &m.link_gbs, &m.link_us}) process.broadcast(one, 8, 0);
        process.broadcast(&m.memory_gbs, 8, 0);
        if (process.is_root())
            std::printf(
                "%d ranks, %d units of %.1f MiB, %d micro-batches; links measured: %.1f MB/s, %.0f us; memory %.1f "
                "GB/s\n\n| ranks | ZeRO | measured, ms | predicted, ms | predicted : measured |\n"
                "|---|---|---|---|---|\n",
                process.size(), o.units, o.unit_mib, o.micro_batches, 1e3 * m.card_gbs, m.card_us, m.memory_gbs);
        for (const int stage : o.stages) {
            if (process.size() == 1 && stage > 0) break;
            Rank rank(device, mesh, stage, o);
            std::vector<double> seconds;
            for (int n = 0; n <= o.repeat; ++n) {
                rank.compute.synchronize();
                process.barrier();
                const Timer timer;
                rank.step(n + 1);
                rank.compute.synchronize();
                if (n > 0) seconds.push_back(timer.seconds());  // the first one warms up
            }
            const double found = median(process.all_gather(median(seconds))),
                         said = predicted_step(m, process.size(), stage, o);
            if (process.is_root())
                std::printf("| %d | %d | %.1f | %.1f | %.3f |\n", process.size(), stage, 1e3 * found, 1e3 * said,
                            said / found);
            std::fflush(stdout);
            if (process.is_root() && !o.json.empty())
                write_file_atomically(o.json, OrderedJson{{"seconds", seconds}, {"predicted", said}}.dump() + "\n");
        }
        return 0;
    });
}

// ---- real steps -----------------------------------------------------------------------------------------------------

// A model trained on noise, on this CPU.
struct Training {
    Mesh mesh;
    TrainState core;
    int64_t T;
    std::vector<int32_t> tokens, targets, rows, starts, ids;
    DeviceBatch batch{};

    Training(const TrainOptions& o, const ModelConfig& c, Device device, int64_t threads)
        : mesh(device), core(c, with_threads(core_options(o, device, mesh), threads), device, mesh), T(o.seq_len) {
        initialise_weights(core.table, 1, core.compute, core.zero);
        const int64_t N = o.batch * T;
        for (int64_t i = 0; i < N; ++i)
            tokens.push_back(int32_t(i * 7919 % c.vocab)), targets.push_back(int32_t(i % c.vocab));
        rows.resize(size_t(N)), starts.resize(size_t(N) + 1), ids.resize(size_t(N));
        const int64_t distinct = embedding_plan(tokens.data(), N, c.vocab, rows.data(), starts.data(), ids.data());
        batch = {o.batch, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct};
    }
    static CoreOptions with_threads(CoreOptions o, int64_t threads) {
        o.threads = threads;
        return o;
    }
    double step(int64_t number) {
        const Timer timer;
        core.model.run(core.program, {.pass = Pass::train, .grad_scale = 1e-4f}, [&](int64_t) { return batch; });
        core.zero.optimizer.gradient_norm();
        core.zero.optimizer.update(1e-5f, number);
        core.compute.synchronize();
        return timer.seconds();
    }
};

struct Case {
    TrainOptions options;
    ModelConfig config;
};

Case case_of(const std::vector<std::string>& flags, const std::vector<std::string>& change) {
    std::vector<std::string> all = joined_flags(flags, change);
    all.insert(all.begin(), {"--device", "cpu"});
    Command command;
    require(!parse_command_line(all, command) && std::holds_alternative<TrainOptions>(command),
            "plan_clock steps: these are no flags of training");
    Case c{std::get<TrainOptions>(command), {}};
    c.config = model_config(c.options, 0);
    return c;
}

// By op: FLOPs, bytes and calls of a step, and what it is limited by.
struct Work {
    OpWork::Limit limit = OpWork::Limit::bytes;
    DType dtype = DType::f32;
    double flops = 0, bytes = 0;
    int64_t calls = 0;
};

std::map<std::string, Work> work_of(const Case& c) {
    std::map<std::string, Work> all;
    PlannedJob job{.kind = DeviceKind::cpu, .ranks = 1};
    job.cost = [&](const OpCall& op, const Stream& stream) {
        OpWork w;
        if (stream.name() != "compute" || !find_work(op, w)) return Ticks(0);
        Work& sum = all[op.name()];
        sum.limit = w.limit, sum.dtype = w.dtype;
        sum.flops += w.flops, sum.bytes += w.bytes, ++sum.calls;
        return Ticks(0);
    };
    plan_ranks(c.options, c.config, job, 0);
    return all;
}

// Rates from an op timer's totals: the planned run has other numbers of steps, so work is that of a call.
Machine calibrated(const Case& c, Training& t, int steps) {
    const std::map<std::string, Work> work = work_of(c);
    OpTimer timer;
    t.core.compute.set_op_timer(&timer);
    for (int s = 0; s < steps; ++s) t.step(100 + s);
    t.core.compute.set_op_timer(nullptr);
    struct Sum {
        double amount = 0, seconds = 0;
        double rate() const { return seconds > 0 ? amount / seconds : 0; }
    };
    Sum gemm, forward, backward, moved;
    for (const auto& [name, total] : timer.take()) {
        const auto found = work.find(name);
        if (found == work.end()) continue;
        const Work& w = found->second;
        const double calls = double(total.calls) / double(w.calls);
        Sum& sum = w.limit == OpWork::Limit::gemm                 ? gemm
                   : w.limit == OpWork::Limit::attention_forward  ? forward
                   : w.limit == OpWork::Limit::attention_backward ? backward
                                                                  : moved;
        sum.amount += calls * (w.limit == OpWork::Limit::bytes ? w.bytes : w.flops);
        sum.seconds += total.seconds;
    }
    Machine m;
    m.cpu = true;
    m.memory_gib = 16;
    m.gemm_fp32 = m.gemm_bf16 = 1e-12 * gemm.rate();
    m.memory_gbs = 1e-9 * moved.rate();
    m.op_us = 0;
    m.attention_forward_64.assign(4, 1e-12 * forward.rate()), m.attention_forward_128 = m.attention_forward_64;
    m.attention_backward_64.assign(4, 1e-12 * backward.rate()), m.attention_backward_128 = m.attention_backward_64;
    return m;
}

std::string machine_text(const Machine& m, const Case& c, int64_t threads) {
    const auto row = [](const std::vector<double>& rates) {
        return format("[%.6g, %.6g, %.6g, %.6g]", rates[0], rates[1], rates[2], rates[3]);
    };
    std::string flags;
    for (const std::string& a : c.options.arguments) flags += " " + a;
    return format(
        "# Measured on this machine by plan_clock steps%s, %lld threads.\n"
        "about = \"this CPU\"\nkind = \"cpu\"\nmemory-gib = %g\n"
        "gemm-bf16-tflops = %.6g\ngemm-fp32-tflops = %.6g\nmemory-gbs = %.6g\n"
        "attention-forward-128-tflops = %s\nattention-backward-128-tflops = %s\n"
        "attention-forward-64-tflops = %s\nattention-backward-64-tflops = %s\n"
        "ranks-per-node = 1\nlink-gbs = 1\ncard-gbs = 1\n",
        flags.c_str(), (long long)threads, m.memory_gib, m.gemm_bf16, m.gemm_fp32, m.memory_gbs,
        row(m.attention_forward_128).c_str(), row(m.attention_backward_128).c_str(),
        row(m.attention_forward_64).c_str(), row(m.attention_backward_64).c_str());
}

int steps(const std::vector<std::string>& flags, int rounds, const std::string& out) {
    RankContext context;
    const Device device{DeviceKind::cpu, 0, &context};
    const int64_t threads = std::max(1u, std::thread::hardware_concurrency());
    const Case base = case_of(flags, {});
    const auto scaled = [&](const char* flag, double factor, int64_t value) {
        return std::vector<std::string>{flag, std::to_string(int64_t(factor * double(value)))};
    };
    const int64_t B = base.options.batch, T = base.options.seq_len, L = base.config.layers, F = base.config.ffn;
    const std::vector<std::pair<std::string, std::vector<std::string>>> changes = {
        {"the calibrated one", {}},
        {"twice the sequences", scaled("--batch", 2, B)},
        {"half the length", scaled("--seq-len", 0.5, T)},
        {"half the blocks", scaled("--layers", 0.5, L)},
        {"one and a half times the ffn", scaled("--ffn", 1.5, F)},
        {"blocks recomputed", {"--recompute", "block"}}};
    std::vector<Case> cases;
    std::vector<std::unique_ptr<Training>> runs;
    for (const auto& [name, change] : changes) {
        cases.push_back(case_of(flags, change));
        runs.push_back(std::make_unique<Training>(cases.back().options, cases.back().config, device, threads));
        runs.back()->step(1);
    }
    // In turn: calibration and all cases once in each round, so that a machine that gets busy is unfair to none.
    std::vector<std::vector<double>> measured(cases.size()), predicted(cases.size());
    UnknownOps unknown;
    Machine last;
    for (int r = 0; r < rounds; ++r) {
        last = calibrated(cases[0], *runs[0], 2);
        for (size_t i = 0; i < cases.size(); ++i) {
            measured[i].push_back(runs[i]->step(2 + r));
            PlannedJob job{.kind = DeviceKind::cpu, .ranks = 1, .cost = make_cost(last, unknown)};
            predicted[i].push_back(kSecondsPerTick *
                                   double(plan_ranks(cases[i].options, cases[i].config, job, 0)[0].step));
        }
    }
    std::printf("| training step | measured, ms | predicted, ms | predicted : measured |\n|---|---|---|---|\n");
    for (size_t i = 0; i < cases.size(); ++i)
        std::printf("| %s | %.1f | %.1f | %.3f |\n", changes[i].first.c_str(), 1e3 * median(measured[i]),
                    1e3 * median(predicted[i]), median(predicted[i]) / median(measured[i]));
    if (!out.empty()) write_file_atomically(out, machine_text(last, cases[0], threads));
    return 0;
}

int run(int argc, char** argv) {
    CLI::App app("The plan's clock beside a real one: sleeping ops over real links, or training steps on this CPU.");
    app.require_subcommand(1);
    LinkOptions o;
    CLI::App* over = app.add_subcommand("links", "Sleeping ops over the links of this job");
    over->option_defaults()->always_capture_default();  // the help shows them
    over->add_option("--units", o.units, "Units of the model")->check(CLI::Range(2, 1000));
    over->add_option("--unit-mib", o.unit_mib, "MiB of each, in fp32")->check(CLI::PositiveNumber);
    over->add_option("--forward-ms", o.forward_ms, "Forward pass of one, in ms; the backward pass takes twice that")
        ->check(CLI::PositiveNumber);
    over->add_option("--micro-batches", o.micro_batches, "Micro-batches of a step")->check(CLI::Range(1, 1000));
    over->add_option("--zero", o.stages, "ZeRO stages")->delimiter(',')->check(CLI::Range(0, 3));
    over->add_option("--repeat", o.repeat, "Measured steps")->check(CLI::Range(1, 1000));
    over->add_option("--collectives", o.collectives, "ring, direct or hier");
    over->add_option("--ranks-per-node", o.ranks_per_node, "Ranks that share a link, the first ones")
        ->check(CLI::Range(1, 1000));
    over->add_option("--wire-dtype", o.wire, "Gradients on the wire")->check(CLI::IsMember({"fp32", "bf16"}));
    over->add_option("--prefetch", o.zero.prefetch, "Units gathered ahead")->check(CLI::Range(0, 1000));
    double bucket_mib = 0;
    over->add_option("--bucket-mib", bucket_mib, "Gradients reduced together")->check(CLI::Range(0.0, 1e6));
    over->add_flag("--no-overlap", o.no_overlap, "Compute waits for each collective");
    over->add_flag("--accumulate-locally", o.zero.accumulate_locally, "Reduce gradients once an update");
    over->add_option("--json", o.json, "File for the seconds of each step, and of the predicted one");
    int rounds = 7;
    std::string out;
    CLI::App* real = app.add_subcommand("steps", "Training steps on this CPU; further flags are those of training");
    real->option_defaults()->always_capture_default();
    real->add_option("--rounds", rounds, "Measurements of each, in turn")->check(CLI::Range(1, 1000));
    real->add_option("--machine", out, "File for what was measured, as train_llama plan reads it");
    real->allow_extras();
    CLI11_PARSE(app, argc, argv);
    o.zero.bucket_bytes = int64_t(bucket_mib * (1 << 20));
    return over->parsed() ? links(o) : steps(real->remaining(), rounds, out);
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("plan_clock", rz::run, argc, argv); }
