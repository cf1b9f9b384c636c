#pragma once
// Shared by the microbenchmarks: flags, data, validation, timing, the roofline of the spot, and the table.
//
// A row names an op and how its arguments are made in a Memory, mostly by a case of dev/bench/ops.h. The op first runs
// on fresh data on the measured device and, from the same bits, as the CPU op compiled for the baseline instruction
// set; elements that differ by more than the case allows, as in the kernels' tests, are counted as wrong. Then it is
// timed: warm up, flush the caches, run, median. Rates count only the bytes or operations that cannot be avoided, which
// are the planner's (llama/plan/cost.h) unless the row says others; `of peak` compares them with a copy of 2 x 256 MB,
// or with the biggest GEMM of the same type, measured in the same run. On a GPU only shapes that the CPU computes in a
// second or so are checked: the kernels have tests of their own, and the GPU's time is dear.
//
// --profile runs each op once between cudaProfilerStart and cudaProfilerStop, after a first time outside, and measures
// nothing: for  ncu --profile-from-start off.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dev/bench/ops.h"
#include "dev/common/tool.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/memory.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/runtime/request.h"
#include "llama/base/text.h"
#include "llama/base/version.h"
#include "llama/plan/cost.h"

#ifdef RZ_CUDA
#include <cuda_profiler_api.h>
#endif

namespace rz::bench {

// One device's tensors. The same calls on two devices give the same bits, unless they are only to be timed: then the
// device itself makes the numbers, which is quicker.
class Memory : public ops::Tensors {
   public:
    explicit Memory(Device device, bool only_timed = false)
        : device_(device), stream_(device, "bench"), on_device_(only_timed) {}

    Device device() const { return device_; }
    Stream& stream() override { return stream_; }
    ops::Placed in(int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        return inout("", n, dtype, seed, std, mean);
    }
    ops::Placed inout(ops::Output x, int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) override {
        RandomNormal numbers{.x = nullptr, .n = n, .seed = seed, .stream = 0, .mean = mean, .std = std, .dtype = dtype};
        if (on_device_) {
            numbers.x = scratch(n * size_of(dtype));
            random_normal(stream_, numbers);
            return {numbers.x};
        }
        std::vector<char> host(size_t(n * size_of(dtype)));
        numbers.x = host.data();
        random_normal_cpu(numbers);
        return place(host.data(), n, dtype, x);
    }
    ops::Placed out(ops::Output x, int64_t n, DType dtype) override {
        const std::vector<char> host(size_t(n * size_of(dtype)), char(0xff));
        return place(host.data(), n, dtype, x);
    }
    ops::Placed scratch(int64_t bytes) override {
        return {buffers_.emplace_back(device_, bytes, MemKind::workspace, "benchmark").data()};
    }

    struct Values {
        std::optional<ops::Tolerance> close;
        std::vector<float> x;
    };
    // The named tensors' values, on the host
    std::map<std::string, Values> named() {
        std::map<std::string, Values> all;
        for (const Named& t : named_) {
            std::vector<char> raw(size_t(t.n * size_of(t.dtype)));
            stream_.copy(raw.data(), t.data, int64_t(raw.size()));
            stream_.synchronize();
            std::vector<float>& x = (all[t.name] = {t.close, std::vector<float>(size_t(t.n))}).x;
            cast_cpu({.out = x.data(), .x = raw.data(), .n = t.n, .out_dtype = DType::f32, .dtype = t.dtype});
        }
        return all;
    }

   private:
    struct Named {
        std::string name;
        std::optional<ops::Tolerance> close;
        void* data;
        int64_t n;
        DType dtype;
    };

    ops::Placed copy_of(const void* host, int64_t bytes) override {
        const ops::Placed to = scratch(bytes);
        stream_.copy(to, host, bytes);
        stream_.synchronize();
        return to;
    }
    ops::Placed place(const void* host, int64_t n, DType dtype, const ops::Output& x) {
        const ops::Placed to = copy_of(host, n * size_of(dtype));
        if (*x.name) named_.push_back({x.name, x.close, to, n, dtype});
        return to;
    }

    Device device_;
    Stream stream_;
    bool on_device_;
    std::list<Buffer> buffers_;
    std::vector<Named> named_;
};

using Launch = std::function<void(Stream&)>;
using Op = std::function<Launch(Memory&)>;

// The op's arguments, and a place for the magnitude of what it writes, as quantisation to fp8 asks for it
template <class Args>
Args with_magnitude(Memory& m, Args a) {
    a.amax = m.scratch(16);
    return a;
}

struct Row {
    std::string op, shape = {};   // shape: the one that is being measured, unless another is given
    double bytes = 0, flops = 0;  // that the op can't avoid; the one that is not zero gives the rate
    // If no case says how close: relative, and absolute times part of the largest value; 0: two roundings to the type
    double tolerance = 0;
    bool check = true;
    double part = 0.05;  // small values may be differences of large ones
};

// "8192x4096"
inline std::string joined(const std::vector<int64_t>& shape) { return rz::joined(shape, "x"); }

class Bench {
   public:
    // dims names the numbers of a shape, "N,C"; --shape 8192x4096 may be given several times.
    Bench(const char* what, const char* dims, std::vector<std::string> cpu_shapes, std::vector<std::string> cuda_shapes)
        : app_(what), dims_(dims), cpu_shapes_(std::move(cpu_shapes)), cuda_shapes_(std::move(cuda_shapes)) {}

    CLI::App& app() { return app_; }  // for flags of a benchmark's own
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }

    int run(int argc, char** argv, const std::function<void(Bench&, const std::vector<int64_t>&)>& rows) {
        try {
            std::string dtype = "bf16", device = "auto", note;
            std::vector<std::string> shapes;
            app_.add_option("--shape", shapes, dims_ + ", joined by x; may be given several times");
            app_.option_defaults()->always_capture_default();  // the help shows them
            app_.add_option("--dtype", dtype, "Data type: fp32, bf16 or fp16.");
            app_.add_option("--device", device, "Device: auto, cuda or cpu.");
            app_.add_option("--iters", iterations_, "Number of timed runs.")->check(CLI::PositiveNumber);
            app_.add_flag("--best", best_,
                          "Report the fastest run instead of the median: for a machine that others use too.");
            app_.add_flag("--profile", profile_, "Run each op once under the profiler instead of timing it.");
            std::string gemm_tune = "off", gemm_cache;
            app_.add_option("--gemm-tune", gemm_tune,
                            "Time cuBLASLt's algorithms at each new shape and use the fastest: off, on (of those with "
                            "the same bits) or bits-free.")
                ->check(CLI::IsMember({"off", "on", "bits-free"}));
            app_.add_option("--gemm-cache", gemm_cache, "File of the tuned choices.");
            app_.add_option("--json", json_, "Append one JSON object per row to this file.");
            CLI11_PARSE(app_, argc, argv);
            dtype_ = parse_dtype("--dtype", dtype);
            device_ = pick_device(parse_name<DeviceChoice>("--device", device), 0, &note);
            device_.context = &context_;
            device_.make_current();
            if (!note.empty()) std::printf("# %s\n", note.c_str());
            if (note = set_gemm_tuning(device_, parse_name<GemmTune>("--gemm-tune", gemm_tune), gemm_cache);
                !note.empty())
                std::printf("# %s\n", note.c_str());
            if (shapes.empty()) shapes = device_.is_cuda() ? cuda_shapes_ : cpu_shapes_;
            header(argc, argv);
            for (const std::string& text : shapes) {
                const std::vector<int64_t> shape = parse_shape(text);
                shape_ = joined(shape);
                rows(*this, shape);
            }
            return wrong_ ? 1 : 0;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s\n", error.what());
            return 2;
        }
    }

    // One op, whose arguments `make` makes in a Memory
    template <class Args, class Make>
    void measure(Row row, void (*op)(Stream&, const Args&), Make make) {
        if (row.bytes == 0 && row.flops == 0) {
            Memory memory(device_, /*only_timed=*/true);
            const Args args = make(memory);
            OpWork work;
            require(find_work({.type = &typeid(Args), .args = &args}, work), "%s is not planned", row.op.c_str());
            (work.limit == OpWork::Limit::bytes ? row.bytes : row.flops) =
                work.limit == OpWork::Limit::bytes ? work.bytes : work.flops;
        }
        measure(std::move(row), [=](Memory& m) -> Launch {
            const Args args = make(m);
            return [op, args](Stream& s) { op(s, args); };
        });
    }
    void measure(Row row, const Op& op) {
        row.shape = (row.shape.empty() ? shape_ : row.shape) + " " + name_of(dtype_);
        if (profile_) return profile(row, op);
        const bool affordable = !device_.is_cuda() || (row.bytes <= 6e8 && row.flops <= 2e10);
        const int64_t wrong = row.check && affordable ? count_wrong(row, op) : -1;
        wrong_ += std::max<int64_t>(wrong, 0);
        Memory memory(device_, /*only_timed=*/true);
        const double seconds = median_seconds(memory, op(memory));
        const bool by_bytes = row.bytes > 0;
        const double rate = (by_bytes ? row.bytes : row.flops) / seconds * 1e-9;
        const double peak = by_bytes ? copy_rate() : gemm_rate();
        const std::string count = wrong < 0 ? "-" : std::to_string(wrong);
        std::printf("%-24s %-30s %10.2f us %9.1f %-8s %6.1f%% %8s\n", row.op.c_str(), row.shape.c_str(), seconds * 1e6,
                    rate, by_bytes ? "GB/s" : "GFLOP/s", 100 * rate / peak, count.c_str());
        std::fflush(stdout);
        append_row(
            format("\"kind\": \"kernel\", \"op\": \"%s\", \"shape\": \"%s\", \"seconds\": %.9g, \"rate\": %.6g, "
                   "\"unit\": \"%s\", \"of_peak\": %.4f, \"wrong\": %lld",
                   row.op.c_str(), row.shape.c_str(), seconds, rate, by_bytes ? "GB/s" : "GFLOP/s", rate / peak,
                   (long long)wrong));
    }

   private:
    void append_row(const std::string& members) {
        if (json_.empty()) return;
        std::ofstream out(json_, std::ios::app);
        out << format("{%s, \"device\": \"%s\", \"commit\": \"%s\"}\n", members.c_str(), device_.name().c_str(),
                      build_commit())
            << std::flush;
        require_request(out.good(), "--json %s: can't write there", json_.c_str());
    }

    std::vector<int64_t> parse_shape(const std::string& text) const {
        const size_t wanted = size_t(std::count(dims_.begin(), dims_.end(), ',')) + 1;
        std::vector<int64_t> shape;
        bool good = true;
        for (size_t at = 0; good && at <= text.size();) {
            const size_t end = std::min(text.find('x', at), text.size());
            const std::string number = text.substr(at, end - at);
            good = !number.empty() && number.size() < 12 && number.find_first_not_of("0123456789") == std::string::npos;
            if (good) shape.push_back(std::stoll(number));
            good = good && shape.back() > 0;
            at = end + 1;
        }
        require_request(good && shape.size() == wanted,
                        "--shape %s: give %zu positive numbers (%s) joined by x, such as %s", text.c_str(), wanted,
                        dims_.c_str(), cpu_shapes_[0].c_str());
        return shape;
    }

    void header(int argc, char** argv) {
        const std::string command = rz::joined(std::vector<std::string>(argv, argv + argc), " ");
        std::printf("# %s; %s; commit %s\n# %s\n", device_.name().c_str(),
                    device_.is_cuda() ? gemm_library(DeviceKind::cuda)
                                      : format("%s, %s", name_of(simd_level()), gemm_library(DeviceKind::cpu)).c_str(),
                    build_commit(), command.c_str());
        std::printf("%-24s %-30s %13s %18s %7s %8s\n", "op", format("shape (%s) type", dims_.c_str()).c_str(), "time",
                    "rate", "of peak", "wrong");
    }

    void profile(const Row& row, const Op& op) {
        Memory memory(device_, /*only_timed=*/true);
        const Launch launch = op(memory);
        launch(memory.stream());
        memory.stream().synchronize();
        profiler(true);
        launch(memory.stream());
        memory.stream().synchronize();
        profiler(false);
        std::printf("%-24s %-30s profiled\n", row.op.c_str(), row.shape.c_str());
    }

    void profiler([[maybe_unused]] bool on) const {
#ifdef RZ_CUDA
        if (device_.is_cuda())
            require((on ? cudaProfilerStart() : cudaProfilerStop()) == cudaSuccess,
                    "--profile: the profiler can't be told");
#endif
    }

    // Elements that differ by more than is allowed; -1: no output has a name
    int64_t count_wrong(const Row& row, const Op& op) {
        Memory got(device_), want(Device{});
        op(got)(got.stream());
        got.stream().synchronize();
        const SimdLevel level = simd_level();
        set_simd_level(SimdLevel::baseline);
        const Launch reference = op(want);
        reference(want.stream());
        want.stream().synchronize();
        set_simd_level(level);
        const double rounding = dtype_ == DType::f32 ? 0x1p-18 : dtype_ == DType::bf16 ? 0x1p-7 : 0x1p-10;
        const double relative = row.tolerance > 0 ? row.tolerance : 1.01 * rounding;
        const auto expected = want.named();
        if (expected.empty()) return -1;
        int64_t wrong = 0;
        for (const auto& [name, found] : got.named()) {
            const std::vector<float>&x = found.x, &y = expected.at(name).x;
            double largest = 0;
            for (float v : y) largest = std::max(largest, double(std::abs(v)));
            const ops::Tolerance close = found.close.value_or(ops::Tolerance{relative, relative * row.part * largest});
            for (size_t i = 0; i < x.size(); ++i)
                wrong += !(std::abs(double(x[i]) - double(y[i])) <= close.allowed(y[i]));
        }
        return wrong;
    }

    double median_seconds(Memory& memory, const Launch& launch) {
        Stream& stream = memory.stream();
        if (!flush_) flush_ = Buffer(device_, kFlushBytes, MemKind::workspace, "cache flush");
        std::vector<double> times;
        for (int i = -3; i < iterations_; ++i) {
            stream.zero(flush_.data(), kFlushBytes);
            const Event start = stream.record(true);
            launch(stream);
            const Event stop = stream.record(true);
            stream.synchronize();
            if (i >= 0) times.push_back(stop.seconds_since(start));
        }
        return best_ ? std::ranges::min(times) : median(std::move(times));
    }

    double copy_rate() {
        if (copy_rate_ > 0) return copy_rate_;
        Memory memory(device_, true);
        const int64_t n = 64 << 20;
        void *from = memory.scratch(4 * n), *to = memory.scratch(4 * n);
        random_normal(memory.stream(), {.x = from, .n = n, .seed = 1, .stream = 0, .std = 1, .dtype = DType::f32});
        copy_rate_ = 8.0 * double(n) * 1e-9 / median_seconds(memory, [=](Stream& s) {
                         cast(s, {.out = to, .x = from, .n = n, .out_dtype = DType::f32, .dtype = DType::f32});
                     });
        std::printf("# copy of 2 x %lld MB: %.1f GB/s\n", (long long)(4 * n >> 20), copy_rate_);
        append_row(
            format("\"kind\": \"ceiling\", \"what\": \"copy, read and write, 2 x %lld MB\", \"rate\": %.6g, "
                   "\"unit\": \"GB/s\"",
                   (long long)(4 * n >> 20), copy_rate_));
        return copy_rate_;
    }

    double gemm_rate() {
        if (gemm_rate_ > 0) return gemm_rate_;
        Memory memory(device_, true);
        const int64_t n = device_.is_cuda() ? 8192 : 1536;
        const void* a = memory.in(n * n, dtype_, 1);
        const void* b = memory.in(n * n, dtype_, 2);
        void* c = memory.scratch(n * n * size_of(dtype_));
        gemm_rate_ = 2.0 * double(n) * double(n) * double(n) * 1e-9 / median_seconds(memory, [=, this](Stream& s) {
                         gemm(s, {.c = c,
                                  .a = a,
                                  .b = b,
                                  .M = n,
                                  .N = n,
                                  .K = n,
                                  .trans_b = true,
                                  .dtype = dtype_,
                                  .c_dtype = dtype_});
                     });
        std::printf("# GEMM %lld^3 %s: %.1f GFLOP/s\n", (long long)n, name_of(dtype_), gemm_rate_);
        append_row(
            format("\"kind\": \"ceiling\", \"what\": \"GEMM %lld^3 %s, %s\", \"rate\": %.6g, \"unit\": \"GFLOP/s\"",
                   (long long)n, name_of(dtype_), gemm_library(device_.kind), gemm_rate_));
        return gemm_rate_;
    }

    static constexpr int64_t kFlushBytes = 128 << 20;  // more than any last-level cache here

    CLI::App app_;
    std::string dims_, json_, shape_;
    std::vector<std::string> cpu_shapes_, cuda_shapes_;
    int iterations_ = 15;
    bool best_ = false, profile_ = false;
    DType dtype_ = DType::bf16;
    RankContext context_;
    Device device_;
    Buffer flush_;
    double copy_rate_ = 0, gemm_rate_ = 0;
    int64_t wrong_ = 0;
};

}  // namespace rz::bench
