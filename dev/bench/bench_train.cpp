// A whole training step: tokens/s, FLOP/s, MFU, peak memory and where the time goes, at fixed shapes on random tokens.
//
//   build/dev/bench_train                    two small models, fp32 and bf16, on this machine's CPU or GPU
//   build/dev/bench_train --preset medium --batch 16 --seq-len 1024 --dtype bf16 --device cuda --classes
//   build/dev/bench_train --preset medium --layers 8 --fit ...
//                                            other fields than the preset's; fewer layers if they don't fit
//   build/dev/bench_train --curve DIR --steps 200 ...
//                                            trains on a synthetic language; leaves weights and tokens in DIR, from
//                                            which dev/golden/torch_llama.py --curve DIR trains the same model
//
// FLOPs: 6 per matrix parameter and 6 L H D T of causal attention per token; MFU is of the vendor's dense bf16 peak.
// Time: median of the steps after the warm-up, from events between the steps (forward, backward, norm, AdamW), past
// which the host runs ahead as it does in training; data are on the device already. --classes adds steps with an event
// around each op, after the timed ones and slower than they are. Memory: the ledger's peak.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>

#include "dev/common/tool.h"
#include "kernels/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/graph.h"
#include "kernels/runtime/op_timer.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/checkpoint/export_weights.h"
#include "llama/report/device_peak.h"
#include "llama/report/rank_report.h"
#include "llama/base/json.h"
#include "llama/base/text.h"
#include "llama/model/presets.h"
#include "llama/train/train_state.h"
#include "llama/base/version.h"
#include "llama/model/weights.h"

namespace rz {
namespace {

struct Shape {
    std::string name;
    ModelConfig config;
    int64_t B, T;
    DType dtype;
};

struct Settings {
    Device device;
    int steps = 10;
    int64_t logits_bytes = 0;
    Recompute recompute = Recompute::none;
    Fp8Recipe fp8 = Fp8Recipe::none;  // with bf16 only
    bool classes = false, fit = false, graphs = false;
    DType master_dtype = DType::f32, adam_dtype = DType::f32;  // with bf16 only
    std::string curve, json, command;
};

constexpr int kWarmUp = 3, kClassSteps = 3;
constexpr float kCurveRate = 1e-3f;
constexpr int kCurveWarmUp = 20;
constexpr AdamWOptions kAdamW;  // what torch_llama.py uses too

// A model with its optimizer on one device.
struct Bench {
    Bench(const Shape& s, const Settings& o, DType dtype)
        : mesh(o.device),
          core(s.config,
               {.zero = {.param_dtype = dtype,
                         .grad_dtype = dtype,
                         .master_dtype = dtype == DType::f32 ? DType::f32 : o.master_dtype,
                         .adam_dtype = dtype == DType::f32 ? DType::f32 : o.adam_dtype},
                .adamw = kAdamW,
                .stage = {.B = s.B,
                          .T = s.T,
                          .recompute = o.recompute,
                          .logits_bytes = o.logits_bytes,
                          .fp8 = {dtype == DType::bf16 ? o.fp8 : Fp8Recipe::none}},
                .threads = omp_get_max_threads()},
               o.device, mesh) {}

    // inputs: (B, T + 1) ids per step, of which the targets are the next ones
    DeviceBatch batch(const std::vector<int32_t>& ids, int64_t B, int64_t T) {
        const int64_t N = B * T;
        std::vector<int32_t> ints(size_t(5 * N + 1));
        int32_t* p = ints.data();
        for (int64_t b = 0; b < B; ++b)
            for (int64_t t = 0; t < T; ++t) {
                p[b * T + t] = ids[size_t(b * (T + 1) + t)];
                p[N + b * T + t] = ids[size_t(b * (T + 1) + t + 1)];
            }
        const int64_t distinct = embedding_plan(p, N, core.config.vocab, p + 2 * N, p + 3 * N, p + 4 * N + 1);
        const int64_t bytes = int64_t(ints.size()) * 4;
        if (tokens.bytes() != bytes) tokens = Buffer(compute.device(), bytes, MemKind::data, "tokens");
        compute.copy(tokens.data(), ints.data(), bytes);
        compute.synchronize();  // `ints` dies here
        const int32_t* d = tokens.as<int32_t>();
        return {B, T, d, d + N, d + 2 * N, d + 3 * N, d + 4 * N + 1, distinct};
    }

    void step(const DeviceBatch& b, float rate, int64_t step) {
        model.train(b, 1.0f / float(b.B * b.T));
        zero.optimizer.gradient_norm();
        zero.optimizer.update(rate, step);
    }

    Mesh mesh;
    TrainState core;
    const ParamTable& table = core.table;
    Stream& compute = core.compute;
    Zero& zero = core.zero;
    Model& model = core.model;
    Buffer tokens;
};

void append_row(const Settings& o, OrderedJson row) {
    if (o.json.empty()) return;
    row["device"] = o.device.name();
    row["commit"] = build_commit();
    row["command"] = o.command;
    std::ofstream out(o.json, std::ios::app);
    out << row.dump() + "\n" << std::flush;
    require_request(out.good(), "--json %s: can't write there", o.json.c_str());
}

void report_step(const Shape& s, const Settings& o, int64_t layers_asked, double seconds) {
    const double rate = double(s.B * s.T) / seconds, per_token = training_flops_per_token(s.config, s.T);
    const double flops = rate * per_token, peak = peak_flops(o.device);
    const MemoryLedger& ledger = o.device.context->memory;
    const int64_t bytes = ledger.peak(o.device.kind);
    const GemmTuning& tuning = gemm_tuning(*o.device.context);
    if (peak > 0)
        std::printf(
            "# MFU of %s: tokens/s x (6 x %.1f M matrix parameters + 6 x %lld layers x %lld x %lld "
            "tokens) / %.0f TFLOP/s\n",
            s.name.c_str(), 1e-6 * double(s.config.matmul_parameters()), (long long)s.config.layers,
            (long long)s.config.q_rows(), (long long)s.T, peak * 1e-12);
    std::printf("%-12s %-5s %4lld x %-5lld %9.1f ms %10.0f tok/s %10.1f GFLOP/s%s %12s ledger %12s rss\n",
                s.name.c_str(), name_of(s.dtype), (long long)s.B, (long long)s.T, 1e3 * seconds, rate, flops / 1e9,
                peak > 0 ? format(" %5.1f%% MFU", 100 * flops / peak).c_str() : "", human_bytes(bytes).c_str(),
                human_bytes(reserved_bytes(Device{})).c_str());
    std::fflush(stdout);
    OrderedJson memory = OrderedJson::object();
    for (int k = 0; k < int(MemKind::count_); ++k) {
        const int64_t kind_peak = ledger.peak(o.device.kind, MemKind(k));
        if (kind_peak > 0) memory[name_of(MemKind(k))] = kind_peak;
    }
    append_row(o, {{"kind", "train"},
                   {"program", "ringzero"},
                   {"model", s.name},
                   {"layers", s.config.layers},
                   {"layers_asked", layers_asked},
                   {"parameters", s.config.parameter_count()},
                   {"batch", s.B},
                   {"seq_len", s.T},
                   {"dtype", name_of(s.dtype)},
                   {"fp8", s.dtype == DType::bf16 ? name_of(o.fp8) : "none"},
                   {"recompute", name_of(o.recompute)},
                   {"seconds", seconds},
                   {"tokens_per_s", rate},
                   {"flops_per_token", per_token},
                   {"flops", flops},
                   {"mfu", peak > 0 ? OrderedJson(flops / peak) : OrderedJson()},
                   {"peak_flops", peak > 0 ? OrderedJson(peak) : OrderedJson()},
                   {"state", s.dtype == DType::f32 || o.master_dtype == DType::f32 ? "fp32" : "bf16"},
                   {"moments", name_of(s.dtype == DType::f32 ? DType::f32 : o.adam_dtype)},
                   {"peak_bytes", bytes},
                   {"memory", memory},
                   {"cuda_graphs", o.graphs},
                   {"gemm", gemm_library(o.device.kind)},
                   {"gemm_tuned", tuning.measured + tuning.read}});
}

void report_classes(const Shape& s, const Settings& o, Bench& t, const DeviceBatch& batch, int first_step) {
    OpTimer timer;
    t.compute.set_op_timer(&timer);
    const Event begin = t.compute.record(true);
    for (int i = 0; i < kClassSteps; ++i) t.step(batch, 1e-4f, first_step + i);
    const Event end = t.compute.record(true);
    t.compute.set_op_timer(nullptr);
    end.synchronize();
    const double step = end.seconds_since(begin) / kClassSteps;
    std::vector<std::pair<std::string, OpTimer::Total>> ops;
    double in_ops = 0;
    for (const auto& [name, total] : timer.take()) {
        ops.push_back({name, total});
        in_ops += total.seconds / kClassSteps;
    }
    double products = 0;
    for (const auto& [name, total] : ops)
        if (name.starts_with("Gemm")) products += total.seconds / kClassSteps;
    ops.push_back({"(between ops)", {0, std::max(0.0, step - in_ops) * kClassSteps}});
    std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    OrderedJson list = OrderedJson::array();
    std::printf("  %.1f ms a step: %.1f in matrix products, %.1f ms outside\n", 1e3 * step, 1e3 * products,
                1e3 * (step - products));
    std::printf("  %-24s %8s %12s %7s   of a step with events around each op, %.1f ms\n", "op", "calls", "time",
                "share", 1e3 * step);
    for (const auto& [name, total] : ops) {
        const double seconds = total.seconds / kClassSteps;
        const double calls = double(total.calls) / kClassSteps;
        std::printf("  %-24s %8.0f %9.3f ms %6.1f%%\n", name.c_str(), calls, 1e3 * seconds, 100 * seconds / step);
        list.push_back({{"op", name}, {"calls", calls}, {"seconds", seconds}, {"share", seconds / step}});
    }
    append_row(o, {{"kind", "classes"},
                   {"model", s.name},
                   {"batch", s.B},
                   {"seq_len", s.T},
                   {"dtype", name_of(s.dtype)},
                   {"step_seconds", step},
                   {"ops", list}});
}

void measure(const Shape& s, const Settings& o, int64_t layers_asked) {
    o.device.context->memory.reset_peaks();
    Bench t(s, o, s.dtype);
    initialise_weights(t.table, 1, t.compute, t.zero);
    std::mt19937_64 rng(1);
    std::vector<int32_t> ids(size_t(s.B * (s.T + 1)));
    for (int32_t& id : ids) id = int32_t(rng() % uint64_t(s.config.vocab));
    const DeviceBatch batch = t.batch(ids, s.B, s.T);

    std::vector<Event> ends;
    Graph graph;  // of a micro-batch; the first step is enqueued op by op, since GEMM algorithms are chosen in it
    for (int step = 1; step <= kWarmUp + o.steps; ++step) {
        const auto train = [&] { t.model.train(batch, 1.0f / float(s.B * s.T)); };
        if (o.graphs && step == 2) graph = Graph(t.compute, train);
        if (graph)
            graph.launch(t.compute);
        else
            train();
        t.zero.optimizer.gradient_norm();
        t.zero.optimizer.update(1e-4f, step);
        if (step == kWarmUp) t.compute.synchronize();  // what is set up at first use is done
        if (step >= kWarmUp) ends.push_back(t.compute.record(true));
    }
    t.compute.synchronize();
    std::vector<double> times;
    for (size_t i = 1; i < ends.size(); ++i) times.push_back(ends[i].seconds_since(ends[i - 1]));
    report_step(s, o, layers_asked, median(std::move(times)));
    if (o.classes) report_classes(s, o, t, batch, kWarmUp + o.steps + 1);
}

// With --fit, half the layers as long as memory does not suffice; the result names what was left.
void measure_fitting(Shape s, const Settings& o) {
    const int64_t asked = s.config.layers;
    for (;;) {
        try {
            return measure(s, o, asked);
        } catch (const Error& error) {
            const bool memory = std::string(error.what()).find("out of memory") != std::string::npos;
            if (!o.fit || !memory || s.config.layers == 1) throw;
        }
        std::printf("# %s with %lld layers does not fit, trying %lld\n", s.name.c_str(), (long long)s.config.layers,
                    (long long)s.config.layers / 2);
        s.config.layers /= 2;
        s.name = s.name.substr(0, s.name.find(" L")) + format(" L%lld", (long long)s.config.layers);
    }
}

// A language of up to 512 of the vocabulary's tokens in which each is followed by one of four, so that a model has
// something to learn: (steps, B, T + 1).
std::vector<int32_t> synthetic_text(const Shape& s, int steps) {
    const uint64_t used = uint64_t(std::min<int64_t>(512, s.config.vocab));
    std::mt19937_64 rng(7);
    std::vector<int32_t> next(size_t(4 * used)), text;
    for (int32_t& id : next) id = int32_t(rng() % used);
    for (int64_t row = 0; row < steps * s.B; ++row) {
        uint64_t id = rng() % used;
        for (int64_t t = 0; t <= s.T; ++t, id = uint64_t(next[size_t(4 * id + rng() % 4)])) text.push_back(int32_t(id));
    }
    return text;
}

// Weights and tokens go to the folder, for torch_llama.py to start from the same; both masters are the fp32 weights
// there.
void curve(const Shape& s, const Settings& o) {
    const std::string weights = o.curve + "/weights";
    make_folder(weights);
    {
        Bench t(s, o, DType::f32);
        initialise_weights(t.table, 1, t.compute, t.zero);
        Process alone;
        export_weights(weights, s.config, t.table, alone, o.device, t.compute, t.zero, "");
    }
    const std::vector<int32_t> text = synthetic_text(s, o.steps);
    write_file_atomically(o.curve + "/tokens.i32", {reinterpret_cast<const char*>(text.data()), text.size() * 4});
    write_file_atomically(o.curve + "/curve.json", OrderedJson{{"model", s.name},
                                                               {"steps", o.steps},
                                                               {"batch", s.B},
                                                               {"seq_len", s.T},
                                                               {"dtype", name_of(s.dtype)},
                                                               {"lr", kCurveRate},
                                                               {"warmup", kCurveWarmUp},
                                                               {"beta1", kAdamW.beta1},
                                                               {"beta2", kAdamW.beta2},
                                                               {"eps", kAdamW.eps},
                                                               {"weight_decay", kAdamW.weight_decay},
                                                               {"clip", kAdamW.max_norm}}
                                                       .dump(1));
    Bench t(s, o, s.dtype);
    load_weights(weights, t.table, o.device, t.compute, t.zero);
    const size_t per_step = size_t(s.B * (s.T + 1));
    std::vector<double> losses;
    for (int step = 1; step <= o.steps; ++step) {
        const auto first = text.begin() + int64_t(per_step) * (step - 1);
        const DeviceBatch batch = t.batch({first, first + int64_t(per_step)}, s.B, s.T);
        t.model.reset_loss();
        t.step(batch, kCurveRate * std::min(1.0f, float(step) / kCurveWarmUp), step);
        double sum = 0;
        t.compute.copy(&sum, t.model.loss_sum(), 8);
        t.compute.synchronize();
        losses.push_back(sum / double(s.B * s.T));
    }
    std::printf("%-12s %-5s %d steps: loss %.4f to %.4f; weights and tokens are in %s\n", s.name.c_str(),
                name_of(s.dtype), o.steps, losses.front(), losses.back(), o.curve.c_str());
    append_row(o, {{"kind", "curve"},
                   {"program", "ringzero"},
                   {"model", s.name},
                   {"batch", s.B},
                   {"seq_len", s.T},
                   {"dtype", name_of(s.dtype)},
                   {"losses", losses}});
}

struct Flags {
    std::string preset, dtype, device_name = "auto", recompute = "none", fp8 = "none", name, head, gemm_tune = "off",
                               gemm_cache, graphs = "off", master_dtype = "fp32", adam_dtype = "fp32";
    int64_t batch = 8, seq_len = 1024, threads = 0, logits_mib = 0;
    std::map<std::string, int64_t> fields;
};

void add_options(CLI::App& app, Flags& flags, Settings& o) {
    app.add_option("--preset", flags.preset, "Preset to time instead of the two small models.");
    for (const ConfigField& f : config_fields())
        app.add_option("--" + std::string(f.name), flags.fields[f.name], std::string(f.help) + " [as the preset]")
            ->check(CLI::PositiveNumber);
    app.add_option("--head", flags.head, "Output head: tied or untied. [as the preset]")
        ->check(CLI::IsMember({"tied", "untied"}));
    app.add_option("--name", flags.name, "Name of the model in the results. [the preset]");
    app.option_defaults()->always_capture_default();  // the help shows them
    app.add_option("--batch", flags.batch, "Sequences of a micro-batch.")->check(CLI::PositiveNumber);
    app.add_option("--seq-len", flags.seq_len, "Tokens of a sequence.")->check(CLI::PositiveNumber);
    app.add_option("--dtype", flags.dtype, "Data type: fp32, bf16 or fp16; the first two if not given.")
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    app.add_option("--device", flags.device_name, "Device: auto, cuda or cpu.");
    app.add_option("--fp8", flags.fp8, "fp8 recipe with bf16 parameters: none, tensor or block.");
    app.add_option("--recompute", flags.recompute, "Recomputation in the backward pass, as train_llama's.")
        ->check(CLI::IsMember({"none", "mlp", "block"}));
    app.add_option("--steps", o.steps, "Number of timed steps.")->check(CLI::PositiveNumber);
    app.add_option("--threads", flags.threads, "CPU threads. 0: what OpenMP chooses.");
    app.add_option("--logits-mib", flags.logits_mib,
                   "Size of a chunk of logits, in MiB. 0: 1024 on CUDA, 32 on a CPU.");
    app.add_flag("--classes", o.classes, "Time each op, in a few steps of their own.");
    app.add_option("--cuda-graphs", flags.graphs, "Run a micro-batch as one CUDA graph: off or on.")
        ->check(CLI::IsMember({"off", "on"}));
    app.add_option("--master-dtype", flags.master_dtype, "Data type of masters with bf16 parameters: fp32 or bf16.")
        ->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_option("--adam-dtype", flags.adam_dtype, "Data type of m and v with bf16 parameters: fp32 or bf16.")
        ->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_flag("--fit", o.fit, "Halve the layers until the model fits into memory, and say so.");
    app.add_option("--curve", o.curve,
                   "Record losses on synthetic text instead, with weights and tokens in this folder.");
    app.add_option(
           "--gemm-tune", flags.gemm_tune,
           "Time cuBLASLt's algorithms and use the fastest: off, on (of those with the same bits) or bits-free.")
        ->check(CLI::IsMember({"off", "on", "bits-free"}));
    app.add_option("--gemm-cache", flags.gemm_cache, "File of the tuned choices.");
    app.add_option("--json", o.json, "Append one JSON object per result to this file.");
}

// The timed models: one preset, or the two small ones.
std::vector<Shape> shapes_of(const Flags& flags) {
    std::vector<Shape> shapes;
    if (flags.preset.empty()) {
        ModelConfig small = find_preset("bytes").config;
        small.vocab = 512;
        shapes = {{"256x4", small, 8, 256, {}}, {"tiny", find_preset("tiny").config, 4, 128, {}}};
    } else {
        shapes = {{flags.name.empty() ? flags.preset : flags.name,
                   find_preset(flags.preset).config,
                   flags.batch,
                   flags.seq_len,
                   {}}};
    }
    for (Shape& s : shapes) {
        for (const ConfigField& f : config_fields())
            if (const int64_t value = flags.fields.at(f.name); value > 0) s.config.*f.member = value;
        if (!flags.head.empty()) s.config.tied = flags.head == "tied";
        s.config.max_seq_len = std::max(s.config.max_seq_len, s.T);
        s.config.resolve();
    }
    return shapes;
}

int run(int argc, char** argv) {
    Settings o;
    Flags flags;
    CLI::App app{"Times a training step"};
    add_options(app, flags, o);
    CLI11_PARSE(app, argc, argv);
    if (flags.threads > 0)
        omp_set_num_threads(int(flags.threads));  // what the heading shows; each stream is told in TrainState

    std::string note;
    RankContext context;
    o.device = pick_device(parse_name<DeviceChoice>("--device", flags.device_name), 0, &note);
    o.device.context = &context;
    if (!note.empty()) std::printf("# %s\n", note.c_str());
    if (note = set_gemm_tuning(o.device, parse_name<GemmTune>("--gemm-tune", flags.gemm_tune), flags.gemm_cache);
        !note.empty())
        std::printf("# %s\n", note.c_str());
    o.graphs = flags.graphs == "on";
    o.master_dtype = parse_dtype("--master-dtype", flags.master_dtype);
    o.adam_dtype = parse_dtype("--adam-dtype", flags.adam_dtype);
    require_request(!o.graphs || o.device.is_cuda(), "--cuda-graphs on: this is the CPU, which has none");
    o.logits_bytes = (flags.logits_mib > 0 ? flags.logits_mib : o.device.is_cuda() ? 1024 : 32) << 20;
    o.recompute = parse_name<Recompute>("--recompute", flags.recompute);
    o.fp8 = parse_name<Fp8Recipe>("--fp8", flags.fp8);
    o.command = joined(std::vector<std::string>(argv, argv + argc), " ");
    std::printf("# %s, %s, commit %s, %d threads\n# command: %s\n", o.device.name().c_str(),
                gemm_library(o.device.kind), build_commit(), omp_get_max_threads(), o.command.c_str());

    for (Shape& s : shapes_of(flags))
        for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
            s.dtype = t;
            if (flags.dtype.empty() ? t == DType::f16 : flags.dtype != name_of(t)) continue;
            if (o.curve.empty())
                measure_fitting(s, o);
            else
                curve(s, o);
        }
    return 0;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("bench_train", rz::run, argc, argv); }
