// Collectives: op x size x algorithm, checked before it is timed.
//
//   mpirun -n 4 build/dev/bench_collectives --op all_reduce --min 1M --max 64M
//
// As in nccl-tests (doc/PERFORMANCE.md): algbw = size / time, busbw = algbw x 2(N-1)/N for all_reduce, (N-1)/N for
// reduce_scatter and all_gather, 1 for broadcast; size is the whole range for all of them. The algorithms are timed in
// turn, so that a busy machine is unfair to none; time is the median over iterations of the slowest rank (--best: the
// shortest, which other programs disturb least).
//
//   symmetric  on buffers in memory that the ranks map; staged: the same on any memory
//   common     all_gather only: the owner's slice is read where it is, nothing moves (ZeRO-1 and 2 after the update)
//   copy       no collective: every rank copies the bytes that a ring would send from it, within its own memory. busbw
//              is then the rate of a copy, which bounds the others where ranks share a machine

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/collectives.h"
#include "comm/mesh.h"
#include "comm/meter.h"
#include "comm/process.h"
#include "kernels/runtime/request.h"

namespace rz {
namespace {

struct Options {
    std::vector<std::string> ops{"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
    std::vector<std::string> algorithms{"ring", "direct", "library", "symmetric", "staged", "common", "copy"};
    int64_t min_bytes = 1 << 20, max_bytes = 64 << 20, factor = 4;
    int iterations = 11, warmup = 2;
    bool best = false;
    CollectiveOptions collectives;
    std::string device = "cpu", transport = "auto", type = "fp32", json, shaped_rate;
};

struct Result {
    double seconds = 0;
    int64_t wrong = 0;
};

DType parse_type(const std::string& name) {
    for (DType t : {DType::f32, DType::bf16, DType::f16})
        if (name == name_of(t)) return t;
    refuse("--type %s: it must be fp32, bf16 or fp16", name.c_str());
}

double bus_factor(const std::string& op, int N) {
    if (op == "all_reduce") return 2.0 * (N - 1) / N;
    return op == "broadcast" ? 1.0 : double(N - 1) / N;
}

// Exact in every type and order of summation, for up to 32 ranks.
float value(int rank, int64_t i) { return float((i + rank * 3) % 9 - 4); }

class Bench {
   public:
    Bench(Process& process, Device device, const Options& o)
        : process_(process),
          o_(o),
          device_(device),
          stream_(make_comm_stream(device)),
          type_(parse_type(o.type)),
          transport_(process.make_transport(parse_name<TransportKind>("--transport", o.transport), device, 0,
                                            process.rank(), "world")) {
        for (const std::string& name : o.algorithms) {
            const bool shares = name == "symmetric" || name == "staged" || name == "common";
            const Algorithm algorithm = shares           ? Algorithm::symmetric
                                        : name == "copy" ? Algorithm::ring
                                                         : parse_name<Algorithm>("--algo", name);
            algorithms_[name] = make_collectives(algorithm, *transport_, o.collectives);
            if (!shares || name == "staged") continue;
            for (SharedMemory*& window : windows_[name])
                window = algorithms_[name]->allocate(o.max_bytes, name == "common" ? Alloc::shared : Alloc::per_rank);
        }
    }

    bool does(const std::string& algo, const std::string& op, bool in_place) const {
        return algo != "common" || (op == "all_gather" && in_place);
    }

    Transport& transport() { return *transport_; }
    const CollectiveOptions& options() const { return algorithms_.begin()->second->options(); }

    // Median seconds of each algorithm, after a check of its result.
    std::map<std::string, Result> measure(const std::string& op, int64_t bytes, bool in_place) {
        const int64_t n = bytes / size_of(type_), N = process_.size();
        offsets_ = even_offsets(n, int(N), 64);
        in_ = Buffer(device_, n * size_of(type_), MemKind::workspace, "input");
        out_ = in_place ? Buffer() : Buffer(device_, n * size_of(type_), MemKind::workspace, "output");
        std::map<std::string, Result> results;
        for (auto& [name, how] : algorithms_) {
            if (!does(name, op, in_place)) continue;
            use_memory_of(name);
            fill(op, name == "common");
            run(name, op);
            const int64_t wrong = name == "copy" ? 0 : count_wrong(op);
            results[name].wrong = int64_t(process_.sum(double(wrong)));
        }
        std::map<std::string, std::vector<double>> times;
        for (int i = -o_.warmup; i < o_.iterations; ++i)
            for (auto& [name, how] : algorithms_) {
                if (!does(name, op, in_place)) continue;
                use_memory_of(name);
                stream_->synchronize();
                process_.barrier();
                Timer timer;
                run(name, op);
                stream_->synchronize();
                const int64_t slowest = process_.max(int64_t(1e9 * timer.seconds()));
                if (i >= 0) times[name].push_back(1e-9 * double(slowest));
            }
        for (auto& [name, list] : times) {
            std::sort(list.begin(), list.end());
            results[name].seconds = list[o_.best ? 0 : list.size() / 2];
        }
        return results;
    }

   private:
    bool in_place() const { return !out_; }
    char* out() const { return in_place() ? in_at_ : out_at_; }
    // Puts the input and the output of the next call into the algorithm's own memory, if it has some.
    void use_memory_of(const std::string& name) {
        const auto window = windows_.find(name);
        const bool own = window != windows_.end() && window->second[0];
        in_at_ = own ? window->second[0]->part(process_.rank()) : in_.bytes_at(0);
        out_at_ = own ? window->second[1]->part(process_.rank()) : in_place() ? nullptr : out_.bytes_at(0);
    }
    int64_t first(int r) const { return offsets_[size_t(r)]; }
    int64_t own_count() const { return first(process_.rank() + 1) - first(process_.rank()); }

    // In memory that all have in common a rank writes its slice only.
    void fill(const std::string& op, bool common) {
        std::vector<char> host(static_cast<size_t>(in_.bytes()));
        with_dtype(type_, [&]<class T>() {
            T* p = reinterpret_cast<T*>(host.data());
            for (int64_t i = 0; i < offsets_.back(); ++i) p[i] = T(value(process_.rank(), i));
        });
        const int64_t from = common ? first(process_.rank()) * size_of(type_) : 0;
        stream_->copy(in_at_ + from, host.data() + from, common ? own_count() * size_of(type_) : in_.bytes());
        if (op == "broadcast" && !in_place()) stream_->copy(out_at_, host.data(), in_.bytes());
        stream_->synchronize();
    }

    // The bytes that a ring sends from this rank, from one place of its memory to another.
    void copy(const std::string& op) {
        const int64_t bytes = int64_t(double(in_.bytes()) * bus_factor(op, process_.size())), half = in_.bytes() / 2;
        for (int64_t at = 0; at < bytes; at += half)
            if (in_place())
                stream_->copy(in_at_, in_at_ + half, std::min(half, bytes - at));
            else
                stream_->copy(out_at_, in_at_, std::min(half, bytes - at));
    }

    void run(const std::string& name, const std::string& op) {
        if (name == "copy") return copy(op);
        Collectives& how = *algorithms_.at(name);
        const int64_t at = first(process_.rank()) * size_of(type_);
        if (op == "all_reduce")
            how.all_reduce(*stream_, {.out = out(), .in = in_at_, .offsets = offsets_, .dtype = type_, .wire = type_});
        else if (op == "reduce_scatter")
            how.reduce_scatter(*stream_, {.out = out() + (in_place() ? at : 0),
                                          .in = in_at_,
                                          .offsets = offsets_,
                                          .dtype = type_,
                                          .wire = type_,
                                          .out_dtype = type_});
        else if (op == "all_gather")
            how.all_gather(*stream_, {.out = out(), .in = in_at_ + at, .offsets = offsets_, .dtype = type_});
        else
            how.broadcast(*stream_, out(), in_.bytes(), 0);
    }

    int64_t count_wrong(const std::string& op) {
        const int64_t n = op == "reduce_scatter" ? own_count() : offsets_.back();
        const int64_t start = op == "reduce_scatter" ? first(process_.rank()) : 0;
        std::vector<char> host(static_cast<size_t>(n * size_of(type_)));
        stream_->copy(host.data(), out() + (op == "reduce_scatter" && in_place() ? start * size_of(type_) : 0),
                      n * size_of(type_));
        stream_->synchronize();
        int64_t wrong = 0;
        int owner = 0;
        with_dtype(type_, [&]<class T>() {
            const T* p = reinterpret_cast<const T*>(host.data());
            for (int64_t i = 0; i < n; ++i) {
                float want = 0;
                if (op == "all_gather") {
                    while (i >= first(owner + 1)) ++owner;
                    want = value(owner, i);
                } else if (op == "broadcast") {
                    want = value(0, i);
                } else {
                    for (int r = 0; r < process_.size(); ++r) want += value(r, start + i);
                }
                wrong += !(float(p[i]) == want);
            }
        });
        return wrong;
    }

    Process& process_;
    const Options& o_;
    Device device_;
    std::unique_ptr<Stream> stream_;
    DType type_;
    std::unique_ptr<Transport> transport_;
    std::map<std::string, std::unique_ptr<Collectives>> algorithms_;
    std::vector<int64_t> offsets_;
    Buffer in_, out_;
    char *in_at_ = nullptr, *out_at_ = nullptr;
    std::map<std::string, std::array<SharedMemory*, 2>> windows_;
};

nlohmann::json figures(const Result& r, int64_t bytes, double factor) {
    const double rate = 1e-9 * double(bytes) / r.seconds;
    return {{"time", 1e6 * r.seconds}, {"alg_bw", rate}, {"bus_bw", rate * factor}, {"nwrong", r.wrong}};
}

int64_t run_all(Process& process, const Options& o) {
    std::string note;
    const Device device = process.choose_device(parse_name<DeviceChoice>("--device", o.device),
                                                parse_name<TransportKind>("--transport", o.transport), &note);
    Bench bench(process, device, o);
    const int N = process.size();
    nlohmann::json rows = nlohmann::json::array();
    if (process.is_root()) {
        std::printf("# %d ranks on %s, transport %s, chunks of %s in %d lanes\n", N, device.name().c_str(),
                    bench.transport().name(), human_bytes(bench.options().chunk_bytes).c_str(), bench.options().lanes);
        if (!note.empty()) std::printf("# %s\n", note.c_str());
        std::printf("# %-14s %-8s %12s %5s  %10s %8s %8s %7s  %10s %8s %8s %7s\n", "op", "algo", "size (B)", "type",
                    "time (us)", "algbw", "busbw", "#wrong", "in place", "algbw", "busbw", "#wrong");
    }
    double total_bus = 0;
    int64_t wrong = 0;
    for (const std::string& op : o.ops)
        for (int64_t bytes = o.min_bytes; bytes <= o.max_bytes; bytes *= o.factor) {
            auto apart = bench.measure(op, bytes, false), in_place = bench.measure(op, bytes, true);
            const double factor = bus_factor(op, N);
            for (const std::string& algo : o.algorithms) {
                if (!bench.does(algo, op, true)) continue;
                if (!apart.count(algo)) apart[algo] = in_place[algo];  // common has no other form
                const nlohmann::json a = figures(apart[algo], bytes, factor),
                                     b = figures(in_place[algo], bytes, factor);
                wrong += apart[algo].wrong + in_place[algo].wrong;
                total_bus += a["bus_bw"].get<double>() + b["bus_bw"].get<double>();
                rows.push_back({{"op", op},
                                {"algo", algo},
                                {"size", bytes},
                                {"count", bytes / size_of(parse_type(o.type))},
                                {"type", o.type},
                                {"redop", op == "all_reduce" || op == "reduce_scatter" ? "sum" : "none"},
                                {"root", op == "broadcast" ? 0 : -1},
                                {"out_of_place", a},
                                {"in_place", b}});
                if (!process.is_root()) continue;
                std::printf("  %-14s %-8s %12lld %5s  %10.1f %8.3f %8.3f %7lld  %10.1f %8.3f %8.3f %7lld\n", op.c_str(),
                            algo.c_str(), (long long)bytes, o.type.c_str(), a["time"].get<double>(),
                            a["alg_bw"].get<double>(), a["bus_bw"].get<double>(), (long long)apart[algo].wrong,
                            b["time"].get<double>(), b["alg_bw"].get<double>(), b["bus_bw"].get<double>(),
                            (long long)in_place[algo].wrong);
                std::fflush(stdout);
            }
        }
    if (process.is_root() && !o.json.empty()) {
        nlohmann::json report = {{"config",
                                  {{"ranks", N},
                                   {"ranks_per_host", process.local_size()},
                                   {"transport", bench.transport().name()},
                                   {"chunk_bytes", bench.options().chunk_bytes},
                                   {"segments", bench.options().lanes},
                                   {"iterations", o.iterations},
                                   {"statistic", o.best ? "best" : "median"},
                                   {"ranks_per_gpu", device.is_cuda() && !note.empty() ? N : 1},
                                   {"shaped_rate", o.shaped_rate}}},
                                 {"devices", {device.name()}},
                                 {"results", rows},
                                 {"average_bus_bandwidth", rows.empty() ? 0 : total_bus / (2 * double(rows.size()))}};
        std::ofstream(o.json) << report.dump(2) << "\n";
    }
    return wrong;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) {
    rz::Options o;
    CLI::App app("times the collectives; start it with mpirun -n N");
    app.add_option("--op", o.ops, "Operations: all_reduce, reduce_scatter, all_gather, broadcast.")
        ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast"}))
        ->delimiter(',');
    app.add_option("--algo", o.algorithms,
                   "Algorithms: ring, direct, library, hier (one node), symmetric, staged, common, copy.")
        ->check(CLI::IsMember({"ring", "direct", "library", "hier", "symmetric", "staged", "common", "copy"}))
        ->delimiter(',');
    app.add_option("--min", o.min_bytes, "Smallest size in bytes, such as 64K or 1M.")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::PositiveNumber);
    app.add_option("--max", o.max_bytes, "Largest size in bytes.")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::PositiveNumber);
    app.add_option("--factor", o.factor, "Factor between sizes.")->check(CLI::Range(2, 1024))->capture_default_str();
    app.add_option("--iterations", o.iterations, "Number of timed runs, of each algorithm in turn.")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_flag("--best", o.best, "Report the shortest time instead of the median.");
    app.add_option("--warmup", o.warmup, "Number of warm-up runs, which are not timed.")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--ring-chunk", o.collectives.chunk_bytes, "Bytes of one hop. Default: what suits the transport.")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::PositiveNumber);
    app.add_option("--lanes", o.collectives.lanes, "Chunks under way at once. Default: what suits the transport.")
        ->check(CLI::Range(1, 16));
    app.add_option("--type", o.type, "Data type: fp32, bf16 or fp16.")->capture_default_str();
    app.add_option("--device", o.device, "Device: cpu, cuda or auto.")->capture_default_str();
    app.add_option("--transport", o.transport, "auto, mpi, nccl, nccl-shared (NCCL between ranks that share a GPU)")
        ->capture_default_str();
    app.add_option("--shaped-rate", o.shaped_rate, "Rate that the link was throttled to; noted in the JSON.");
    app.add_option("--json", o.json, "Write the figures to this file, under nccl-tests' key names.");
    CLI11_PARSE(app, argc, argv);
    rz::Process process;
    return process.run([&] {
        const int64_t wrong = rz::run_all(process, o);
        require(wrong == 0, "%lld wrong elements", (long long)wrong);
        return 0;
    });
}
