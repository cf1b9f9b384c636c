// A whole training step: tokens/s, GFLOP/s (or TFLOP/s) and peak memory, at fixed shapes on random tokens.
//
//   build/dev/bench_train                                two small models, fp32 and bf16, on this machine's CPU or GPU
//   build/dev/bench_train --preset medium --batch 8 --seq-len 2048 --dtype bf16 --device cuda
//
// FLOPs: 6 per matrix parameter and 6 L H D T of causal attention per token. Time: median of the steps after the warm-up, from
// events around each step (forward, backward, norm, AdamW); data are on the device already.

#include <omp.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <random>

#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "llama/model.h"
#include "llama/presets.h"
#include "llama/version.h"

namespace rz {
namespace {

struct Shape {
    std::string name;
    ModelConfig config;
    int64_t B, T;
    DType dtype;
};

int64_t peak_rss() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss) * 1024;
}

void measure(const Shape& s, Device device, int steps, int64_t logits_bytes) {
    const ParamTable table(s.config);
    Stream compute(device, "compute");
    if (!device.is_cuda()) compute.enqueue_host([n = omp_get_max_threads()] { omp_set_num_threads(n); });
    Mesh mesh(device);
    Zero zero(device, compute, unit_layouts(table), decay_segments(table), {.param_dtype = s.dtype, .grad_dtype = s.dtype}, {},
              mesh);
    Model model(s.config, table,
                {.B = s.B, .T = s.T, .dtype = s.dtype, .grad_dtype = s.dtype, .logits_bytes = logits_bytes}, device, compute,
                zero);
    initialise_weights(table, 1, compute, zero);

    const int64_t N = s.B * s.T;
    std::mt19937_64 rng(1);
    std::vector<int32_t> ints(size_t(5 * N + 1));
    for (int64_t i = 0; i < 2 * N; ++i) ints[size_t(i)] = int32_t(rng() % uint64_t(s.config.vocab));
    int32_t* p = ints.data();
    const int64_t distinct = embedding_plan(p, N, s.config.vocab, p + 2 * N, p + 3 * N, p + 4 * N + 1);
    Buffer on_device(device, int64_t(ints.size()) * 4, MemKind::data, "tokens");
    compute.copy(on_device.data(), ints.data(), on_device.bytes());
    const int32_t* d = on_device.as<int32_t>();
    const DeviceBatch batch{s.B, s.T, d, d + N, d + 2 * N, d + 3 * N, d + 4 * N + 1, distinct};

    constexpr int kWarmUp = 3;
    std::vector<double> times;
    Event last = compute.record(true);
    for (int step = 1; step <= kWarmUp + steps; ++step) {
        model.train(batch, 1.0f / float(N));
        zero.update(1e-4f, step);
        const Event now = compute.record(true);
        if (step > kWarmUp) {
            now.synchronize();
            times.push_back(now.seconds_since(last));
        }
        last = now;
    }
    compute.synchronize();
    std::sort(times.begin(), times.end());
    const double t = times[times.size() / 2], rate = double(N) / t;
    std::printf("%-10s %-5s %4lld x %-5lld %9.1f ms %10.0f tok/s %10.1f GFLOP/s %12s ledger %12s rss\n", s.name.c_str(),
                name_of(s.dtype), (long long)s.B, (long long)s.T, 1e3 * t, rate,
                rate * training_flops_per_token(s.config, s.T) / 1e9,
                human_bytes(MemoryLedger::get().peak(device.kind)).c_str(), human_bytes(peak_rss()).c_str());
    std::fflush(stdout);
    MemoryLedger::get().reset_peaks();
}

int run(int argc, char** argv) {
    std::string preset, dtype, device_name = "auto";
    int64_t batch = 8, seq_len = 1024, threads = 0, logits_mib = 0;
    int steps = 10;
    CLI::App app{"Times a training step"};
    app.add_option("--preset", preset, "A preset instead of the two small models");
    app.add_option("--batch", batch, "Sequences")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--seq-len", seq_len, "Tokens per sequence")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--dtype", dtype, "fp32 or bf16; both if not given")->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_option("--device", device_name, "auto, cuda or cpu")->capture_default_str();
    app.add_option("--steps", steps, "Timed steps")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--threads", threads, "CPU threads; 0: what OpenMP chooses")->capture_default_str();
    app.add_option("--logits-mib", logits_mib, "Chunk of logits; 0: 1024 on CUDA, 32 on a CPU")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (threads > 0) omp_set_num_threads(int(threads));  // what the heading shows; each stream is told in measure()

    std::string note;
    const Device device = pick_device(device_name, 0, &note);
    std::printf("# %s, %s, commit %s, %d threads\n# command:", device.name().c_str(), gemm_library(device.kind), build_commit(),
                omp_get_max_threads());
    for (int i = 0; i < argc; ++i) std::printf(" %s", argv[i]);
    std::printf("\n");
    const int64_t logits = (logits_mib > 0 ? logits_mib : device.is_cuda() ? 1024 : 32) << 20;

    std::vector<std::pair<ModelConfig, std::string>> models;
    std::vector<std::pair<int64_t, int64_t>> shapes;
    if (preset.empty()) {
        ModelConfig small = find_preset("bytes").config;
        small.vocab = 512;
        models = {{small, "256x4"}, {find_preset("tiny").config, "tiny"}};
        shapes = {{8, 256}, {4, 128}};
    } else {
        models = {{find_preset(preset).config, preset}};
        shapes = {{batch, seq_len}};
    }
    for (size_t i = 0; i < models.size(); ++i) {
        models[i].first.resolve();
        for (DType t : {DType::f32, DType::bf16})
            if (dtype.empty() || dtype == name_of(t))
                measure({models[i].second, models[i].first, shapes[i].first, shapes[i].second, t}, device, steps, logits);
    }
    return 0;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    try {
        return rz::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_train: %s\n", error.what());
        return 1;
    }
}
