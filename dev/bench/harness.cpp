// Runs benchmarks as pairs of a baseline and what is meant to be better, and says whether it is.
//
//   build/dev/harness list-targets [--group ddp]
//   build/dev/harness run --targets all --profile minimal --out runs/harness
//   build/dev/harness run --targets zero:zero3,pipeline --ranks 2,4 --target-extra-arg zero3="--prefetch 2" --summary
//   build/dev/harness run --compute sleep --link 200mbit --summary      known times, shaped links (root)
//   build/dev/harness compare runs/before runs/after [--html compare.html]
//   build/dev/harness table runs/harness             what the field prints, as Markdown
//
// A target's repeats are not run one after the other but in turn with those of all others, so that a machine that gets
// busy is unfair to none. Each run has its folder in --out: command, log, metrics, and a trace of a step of its warm-up
// (of two with --profile deep or roofline). --out gets results.json (rewritten after each run) and report.html. Exit
// code 1: some run failed.

#include <fcntl.h>
#include <signal.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <thread>

#include "comm/host.h"
#include "comm/meter.h"
#include "dev/bench/harness_targets.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/gemm/gemm.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/json.h"
#include "llama/base/text.h"
#include "llama/base/version.h"
#include "dev/common/bench_result.h"
#include "llama/report/log.h"
#include "dev/common/run_record.h"
#include "dev/common/tool.h"

namespace rz {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct RunOptions {
    Words targets{"all"}, extra;
    std::string profile = "minimal", out, device = "auto", base, launcher = "mpirun", build;
    Words launcher_args;
    std::vector<int> ranks;
    int repeats = 0, steps = 0;
    double timeout = 300;
    bool summary = false;
    std::string compute = "real", link;
    std::string command;

    bool sleeps() const { return compute == "sleep"; }
};

struct Profile {
    int repeats, steps, warm_up;
    int trace_steps;  // from the third on: they belong to the warm-up, since a trace takes time
};
Profile profile_of(const RunOptions& o) {
    Profile p = o.profile == "minimal" ? Profile{2, 8, 3, 1}
                : o.profile == "deep"  ? Profile{5, 30, 5, 2}
                                       : Profile{3, 12, 4, 2};
    if (o.repeats > 0) p.repeats = o.repeats;
    if (o.steps > 0) p.steps = o.steps, p.warm_up = std::min(p.warm_up, o.steps - 1);
    p.trace_steps = std::clamp(p.warm_up - 2, 0, p.trace_steps);
    return p;
}

Words words_of(const std::string& text) {
    std::istringstream in(text);
    Words all;
    for (std::string word; in >> word;) all.push_back(word);
    return all;
}

// As a shell takes them: words with spaces or signs of its own stand in quotes.
std::string for_shell(const Words& words) {
    std::string text;
    for (const std::string& w : words) {
        const bool plain = !w.empty() && w.find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_-+=:,./@%") == std::string::npos;
        text += text.empty() ? "" : " ";
        if (plain) {
            text += w;
            continue;
        }
        text += "'";
        for (const char c : w) text += c == '\'' ? "'\\''" : std::string(1, c);
        text += "'";
    }
    return text;
}

// Rates in tc's notation. A link carries 1538 bytes a packet, of which 1448 are a message's.
double megabytes_per_second(const std::string& rate) {
    const size_t digits = rate.find_first_not_of("0123456789");
    const std::string unit = digits == std::string::npos ? "" : rate.substr(digits);
    const double factor = unit == "kbit" ? 1e-3 : unit == "mbit" ? 1 : unit == "gbit" ? 1e3 : 0;
    require_request(digits > 0 && digits < 10 && factor > 0,
                    "--link %s: a rate is a number with kbit, mbit or gbit\n  nearest: --link 200mbit", rate.c_str());
    return std::stod(rate) * factor / 8 * 1448 / 1538;
}

double load_average() {
    double load = 0;
    return getloadavg(&load, 1) == 1 ? load : 0;
}

// ---- processes ------------------------------------------------------------------------------------------------------

// Output goes to the file. Returns the exit code, 128 + the signal that ended it, or 124 if it took too long.
int run_process(const Words& words, const std::string& log, double timeout) {
    std::vector<char*> argv;
    for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    const pid_t child = fork();
    require(child >= 0, "fork: %m");
    if (child == 0) {
        const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), null = open("/dev/null", O_RDONLY);
        if (file < 0 || null < 0 || dup2(null, 0) < 0 || dup2(file, 1) < 0 || dup2(file, 2) < 0) _exit(126);
        execvp(argv[0], argv.data());
        dprintf(2, "%s: %s\n", argv[0], std::strerror(errno));
        _exit(127);
    }
    const Timer timer;
    for (int tries = 0, status = 0;;) {
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (timer.seconds() < timeout + 10 * tries) continue;
        if (tries == 2) {
            waitpid(child, &status, 0);
            return 124;
        }
        kill(child, tries++ == 0 ? SIGTERM : SIGKILL);  // a launcher passes the first on
    }
}

// The command's output, in one line; empty if it can't be run.
std::string output_of(const std::string& command) {
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (!pipe) return "";
    std::string text;
    char part[512];
    while (text.size() < 4096 && std::fgets(part, sizeof part, pipe)) text += part;
    pclose(pipe);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    std::replace(text.begin(), text.end(), '\n', ';');
    return text;
}

// The last lines, for an error message.
std::string tail_of(const std::string& file) {
    if (!path_exists(file)) return "";
    const std::string text = read_file(file);
    return text.size() <= 1500 ? text : "..." + text.substr(text.size() - 1500);
}

// ---- the environment ------------------------------------------------------------------------------------------------

double seconds_of_best(Stream& stream, const std::function<void()>& launch) {
    double best = INFINITY;
    for (int i = 0; i < 5; ++i) {
        const Event start = stream.record(/*timing=*/true);
        launch();
        const Event stop = stream.record(/*timing=*/true);
        stream.synchronize();
        if (i > 0) best = std::min(best, stop.seconds_since(start));
    }
    return best;
}

// Rates that this machine reaches just now: a copy and products of matrices.
void add_ceilings(Device device, std::map<std::string, std::string>& to) {
    Stream stream(device, "ceilings");
    const int64_t n = device.is_cuda() ? 8192 : 1024, bytes = device.is_cuda() ? int64_t(1) << 30 : int64_t(128) << 20;
    {
        Buffer a(device, bytes, MemKind::workspace, "copy from"), b(device, bytes, MemKind::workspace, "copy to");
        stream.zero(a.data(), bytes);
        const double seconds = seconds_of_best(stream, [&] { stream.copy(b.data(), a.data(), bytes); });
        to["measured copy"] = format("%.1f GB/s, read and write", 2e-9 * double(bytes) / seconds);
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const int64_t each = n * n * size_of(dtype);
        Buffer a(device, each, MemKind::workspace, "a"), b(device, each, MemKind::workspace, "b"),
            c(device, each, MemKind::workspace, "c");
        stream.zero(a.data(), each);
        stream.zero(b.data(), each);
        const Gemm product{.c = c.data(),
                           .a = a.data(),
                           .b = b.data(),
                           .M = n,
                           .N = n,
                           .K = n,
                           .trans_b = true,
                           .dtype = dtype,
                           .c_dtype = dtype};
        const double seconds = seconds_of_best(stream, [&] { gemm(stream, product); });
        to[format("measured GEMM %s", name_of(dtype))] =
            format("%.4g TFLOP/s at %lld^3", 2e-12 * std::pow(double(n), 3) / seconds, (long long)n);
    }
}

std::map<std::string, std::string> environment_of(const RunOptions& o, Device device) {
    std::map<std::string, std::string> e;
    utsname os{};
    uname(&os);
    e["date"] = utc_text(kTimeForm);
    e["commit"] = build_commit();
    e["version"] = version();
    e["command"] = o.command;
    e["profile"] = o.profile;
    e["compute"] = o.sleeps() ? "sleep: passes take known times" : "real";
    if (!o.link.empty()) e["link"] = o.link + ", each host's, in network namespaces";
    e["host"] = host_name();
    e["os"] = std::string(os.sysname) + " " + os.release;
    e["compiler"] = __VERSION__;
    e["cpu"] = Device{}.name();
    e["memory"] = human_bytes(Device{}.total_bytes());
    e["clock"] = output_of("awk '/^cpu MHz/{print $4; n++} n == 1 {exit}' /proc/cpuinfo") + " MHz at the start";
    e["load at the start"] = format("%.1f", load_average());
    e["simd"] = name_of(simd_level());
    e["gemm"] = gemm_library(device.kind);
    const std::string launcher = for_shell({o.launcher});
    e["mpi"] = output_of(launcher + " --version | grep -m1 -i version || " + launcher + " --version | head -n 1");
    e["OMP_NUM_THREADS"] = std::getenv("OMP_NUM_THREADS") ? std::getenv("OMP_NUM_THREADS") : "not set";
    e["device"] = device.name();
    if (device.is_cuda())
        e["gpu"] = output_of(
            "nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,"
            "temperature.gpu --format=csv,noheader");
    for (auto it = e.begin(); it != e.end();) it = it->second.empty() ? e.erase(it) : std::next(it);
    return e;
}

// ---- a run ----------------------------------------------------------------------------------------------------------

struct Job {
    const BenchTarget* target;
    int ranks;
    Words command;  // without what differs from repeat to repeat
};

class Harness {
   public:
    explicit Harness(const RunOptions& o) : o_(o), profile_(profile_of(o)), targets_(bench_targets()) {
        std::string note;
        device_ = pick_device(parse_name<DeviceChoice>("--device", o.device), 0, &note);
        device_.context = &context_;
        device_.make_current();
        report_.environment = environment_of(o, device_);
    }

    int run() {
        const std::vector<Job> jobs = jobs_of();
        add_ceilings(device_, report_.environment);
        add_links(jobs);
        make_folder(o_.out);
        for (const auto& [key, value] : report_.environment) std::printf("# %s: %s\n", key.c_str(), value.c_str());
        const Timer timer;
        const size_t all = jobs.size() * size_t(profile_.repeats);
        size_t done = 0, failed = 0;
        for (int repeat = 0; repeat < profile_.repeats; ++repeat)
            for (const Job& job : jobs) {
                const std::string what = format("%s, %d rank%s, repeat %d", job.target->name.c_str(), job.ranks,
                                                job.ranks == 1 ? "" : "s", repeat + 1);
                const std::string problem = run_one(job, repeat);
                failed += !problem.empty();
                ++done;
                std::printf("[%zu/%zu] %s: %s | eta %s\n", done, all, what.c_str(),
                            problem.empty() ? "ok" : ("FAILED: " + problem).c_str(),
                            duration(timer.seconds() / double(done) * double(all - done)).c_str());
                std::fflush(stdout);
                write();
            }
        std::printf("\n%s", bench_table(report_).c_str());
        if (o_.summary) std::printf("\n%s", bench_summary(report_).c_str());
        std::printf("\n%s/results.json, %s/report.html\n", o_.out.c_str(), o_.out.c_str());
        return failed > 0;
    }

   private:
    // Between as many ranks as the largest job has, by the tool that tries links.
    void add_links(const std::vector<Job>& jobs) {
        int ranks = 1;
        for (const Job& job : jobs) ranks = std::max(ranks, job.ranks);
        const std::string tool = o_.build + "/dev/sanity";
        if (ranks == 1 || !path_exists(tool)) return;
        Words words = launched(ranks, 1);
        words.insert(words.end(), {tool, "--links", "--device", device_.is_cuda() ? "cuda" : "cpu"});
        const std::string found = output_of(for_shell(words) + " | sed -n '/ring/,$s/^ *\\([0-9]* links.*\\)/\\1/p'");
        if (!found.empty()) report_.environment["measured links"] = format("%d ranks in a ring: ", ranks) + found;
    }

    static bool is_named(const BenchTarget& t, const std::string& asked) {
        return t.name == asked || t.name.substr(0, t.name.find(':')) == asked;
    }

    std::vector<Job> jobs_of() const {
        std::vector<const BenchTarget*> chosen;
        const auto take = [&](const BenchTarget& t) {
            if (!std::ranges::count(chosen, &t)) chosen.push_back(&t);
        };
        for (const std::string& asked : o_.targets) {
            bool known = asked == "all";
            for (const BenchTarget& t : targets_)
                if (t.sleeps() == o_.sleeps() &&
                    (asked == "all" || is_named(t, asked) || (t.sleeps() && is_named(t, "sleep-" + asked)))) {
                    known = true;
                    for (const BenchTarget& base : targets_)
                        if (base.name == t.baseline) take(base);  // nothing is measured without it
                    take(t);
                }
            Words names;
            for (const BenchTarget& t : targets_)
                if (t.sleeps() == o_.sleeps()) names.push_back(t.name);
            require_request(known,
                            "--targets %s: there is none of that name\n  nearest: %s; harness list-targets shows all",
                            asked.c_str(), nearest_name(asked, names).c_str());
        }
        std::vector<Job> jobs;
        for (const BenchTarget* t : chosen) {
            const bool alone = t->tool != "train_llama" && t->ranks == 1;  // a microbenchmark of one process
            std::vector<int> ranks = o_.ranks.empty() || alone ? std::vector<int>{t->ranks} : o_.ranks;
            // A baseline runs where what is measured against it runs.
            if (o_.ranks.empty())
                for (const BenchTarget* other : chosen)
                    if (other->baseline == t->name && !std::ranges::count(ranks, other->ranks))
                        ranks.push_back(other->ranks);
            if (emulates(*t) && !path_exists(emulator())) {
                std::printf("# left out: %s, which needs a GPU, or its emulator: make train_llama_simt\n",
                            t->name.c_str());
                continue;
            }
            if (t->host && device_.is_cuda()) {
                std::printf("# left out: %s, whose ranks map each other's host memory\n", t->name.c_str());
                continue;
            }
            for (const int n : ranks)
                if (n % t->needs == 0) jobs.push_back({t, n, command_of(*t, n)});
        }
        require_request(
            !jobs.empty(),
            "--ranks: no target that is asked for runs on so many ranks; harness list-targets shows what each needs");
        return jobs;
    }

    bool emulates(const BenchTarget& t) const { return t.gpu && !device_.is_cuda(); }
    std::string emulator() const {
        return (fs::path(o_.build).parent_path().parent_path() / "train_llama_simt").string();
    }

    // Words before a program of so many ranks.
    Words launched(int ranks, int per_host) const {
        if (ranks == 1) return {};
        if (!o_.link.empty()) {  // a small burst: what passes unshaped makes short messages seem faster than the link
            Words words = words_of(format("env RANKS_PER_HOST=%d BURST=16kb LATENCY=4000ms", per_host));
            words.push_back((fs::path(o_.build).parent_path().parent_path() / "dev/net/netns_hosts.sh").string());
            for (const std::string& w : words_of(format("%d %s -- env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive",
                                                        ranks / per_host, o_.link.c_str())))
                words.push_back(w);
            return words;
        }
        Words words = {o_.launcher, "-n", std::to_string(ranks)};
        words.insert(words.end(), o_.launcher_args.begin(), o_.launcher_args.end());
        return words;
    }

    Words command_of(const BenchTarget& t, int ranks) const {
        Words words = launched(ranks, t.per_host);
        const bool trains = t.tool == "train_llama";
        words.push_back(emulates(t) ? emulator() : trains ? o_.build + "/train_llama" : o_.build + "/dev/" + t.tool);
        std::string base, more = t.flags;
        if (trains) {
            base = !o_.base.empty() ? o_.base : emulates(t) ? emulated_flags() : base_flags(device_.is_cuda());
            if (emulates(t)) base += " --transport mpi";
            base += format(" --steps %d --warmup 2 --val-every 0 --val-tokens 128 --save-every 0", profile_.steps);
            if (profile_.trace_steps > 0) base += format(" --trace-steps %d", profile_.trace_steps);
        }
        if (t.sleeps()) {
            base = sleeping_flags(t.tool) + format(" --repeat %d", profile_.steps);
            if (t.tool == "bench_pipeline" && !o_.link.empty())
                base += format(" --link-mbs %.4g --link-us 200", megabytes_per_second(o_.link));
        } else
            base += device_.is_cuda() || emulates(t) ? " --device cuda" : " --device cpu";
        for (const std::string& extra : o_.extra) {
            const size_t equals = extra.find('=');
            const std::string name = extra.substr(0, equals);
            if (name == t.name || name == t.name.substr(t.name.find(':') + 1)) more += " " + extra.substr(equals + 1);
        }
        const Words flags = joined_flags(words_of(base), words_of(more));
        words.insert(words.end(), flags.begin(), flags.end());
        return words;
    }

    BenchResult& result(const std::string& target, const std::string& baseline, const Job& job) {
        for (BenchResult& r : report_.results)
            if (r.target == target && r.ranks == job.ranks) return r;
        report_.results.push_back({target, baseline, job.target->about, joined(job.command, " "), job.ranks, {}});
        return report_.results.back();
    }

    // The error; empty: none.
    std::string run_one(const Job& job, int repeat) {
        std::string name = job.target->name;
        std::replace(name.begin(), name.end(), ':', '/');
        const std::string below = format("%s/%d-ranks/repeat-%d", name.c_str(), job.ranks, repeat + 1),
                          folder = o_.out + "/" + below, log = folder + "/log";
        fs::remove_all(folder);
        make_folder(folder);
        const bool trains = job.target->tool == "train_llama";
        Words command = job.command;
        command.push_back(trains ? "--out" : "--json");
        command.push_back(trains ? folder + "/run" : folder + "/rows.json");
        write_file_atomically(folder + "/command", for_shell(command) + "\n");
        BenchRepeat one{.folder = below, .problem = ""};
        one.load = load_average();
        const Timer timer;
        const int code = run_process(command, log, o_.timeout);
        one.wall_seconds = timer.seconds();
        if (code == 124)
            one.problem = format("took more than %.0f s (--timeout)", o_.timeout);
        else if (code != 0)
            one.problem = format("exit code %d: %s", code, tail_of(log).c_str());
        else
            try {
                if (trains)
                    read_training(folder + "/run", one);
                else
                    return read_rows(job, folder + "/rows.json", one), "";
            } catch (const Error& error) {
                one.problem = error.what();
            }
        const std::string problem = one.problem;
        result(job.target->name, job.target->baseline, job).repeats.push_back(std::move(one));
        return problem.substr(0, problem.find('\n'));
    }

    void read_training(const std::string& folder, BenchRepeat& to) const {
        const RunRecord run = read_run(folder);
        const auto later = [&](const std::string& key) {  // without the warm-up
            std::vector<double> values;
            if (const Curve* c = run.find(key))
                for (const auto& [step, value] : c->points)
                    if (step > profile_.warm_up) values.push_back(value);
            return values;
        };
        to.seconds = later("seconds");
        require(!to.seconds.empty(), "%s/metrics.jsonl: no steps after the warm-up of %d", folder.c_str(),
                profile_.warm_up);
        const auto note = [&](const char* name, const std::string& key, double factor = 1) {
            if (const std::vector<double> values = later(key); !values.empty())
                to.numbers[name] = factor * spread_of(values).median;
        };
        const Json ranks = read_json(folder + "/ranks.json");
        for (const Json& rank : ranks) {
            to.used.push_back(json_int(json_at(json_at(rank, "memory_peak", folder), "total", folder), "total", 0,
                                       INT64_MAX, folder));
            to.reserved.push_back(
                json_int(json_at(rank, "memory_reserved", folder), "memory_reserved", 0, INT64_MAX, folder));
        }
        note("tokens_per_second", "tokens_per_second");
        to.numbers["steps_per_second"] = 1 / spread_of(to.seconds).median;
        note("tflops", "flops", 1e-12);
        note("tflops_per_rank", "flops", 1e-12 / double(std::max<size_t>(1, ranks.size())));
        note("overlap", "overlap_efficiency");
        note("bytes_sent", "bytes_sent");
        note("comm_seconds", "comm_seconds");
        if (const std::vector<double> exposed = later("exposed_seconds"); exposed.size() == to.seconds.size()) {
            std::vector<double> share;
            for (size_t i = 0; i < exposed.size(); ++i) share.push_back(exposed[i] / to.seconds[i]);
            to.numbers["exposed_share"] = spread_of(share).median;
        }
        note("utilisation", "pipeline/util_step");
        for (const auto& [key, curve] : run.curves)
            for (const char* queue : {"pipeline/queue_forward/", "pipeline/queue_backward/"})
                if (key.starts_with(queue))
                    for (const auto& point : curve.points)
                        to.numbers["queue"] = std::max(to.numbers["queue"], point.second);
        for (const char* phase : {"forward", "backward", "optimizer", "data_wait"})
            note((std::string(phase) + "_seconds").c_str(), "phases/" + std::string(phase));
        if (const double loss = run.last("loss"); std::isfinite(loss)) to.numbers["loss"] = loss;
    }

    // A microbenchmark's rows: each is a result of its own.
    void read_rows(const Job& job, const std::string& file, const BenchRepeat& each) {
        const std::string& name = job.target->name;
        const auto add = [&](const std::string& row, const std::string& baseline, double seconds,
                             const std::map<std::string, double>& numbers) {
            BenchRepeat one = each;
            one.seconds = {seconds};
            one.numbers = numbers;
            result(name + "/" + row, baseline, job).repeats.push_back(std::move(one));
        };
        const auto text = [&](const Json& of, const char* key) {
            return json_string(json_at(of, key, file), key, file);
        };
        const auto number = [&](const Json& of, const char* key, double most) {
            return json_number(json_at(of, key, file), key, 0, most, file);
        };
        const auto whole = [&](const Json& of, const char* key, int64_t least) {
            return json_int(json_at(of, key, file), key, least, INT64_MAX, file);
        };
        if (job.target->sleeps()) {
            const Json json = read_json(file);
            BenchRepeat one = each;
            for (const Json& seconds : json_at(json, "seconds", file))
                one.seconds.push_back(json_number(seconds, "seconds", 0, 1e12, file));
            one.numbers["predicted"] = number(json, "predicted", 1e12);
            result(name, job.target->baseline, job).repeats.push_back(std::move(one));
            return;
        }
        if (job.target->tool == "bench_collectives") {
            const Json json = read_json(file);
            for (const Json& row : json_at(json, "results", file)) {
                const std::string op = text(row, "op"), algo = text(row, "algo"),
                                  size = human_bytes(whole(row, "size", 1));
                const Json& found = json_at(row, "out_of_place", file);
                require(whole(found, "nwrong", 0) == 0, "%s %s gives wrong numbers", algo.c_str(), op.c_str());
                add(op + " " + size + " " + algo, algo == "library" ? "" : name + "/" + op + " " + size + " library",
                    1e-6 * number(found, "time", 1e12), {{"rate", number(found, "bus_bw", 1e6)}});
            }
            return;
        }
        std::istringstream lines(read_file(file));
        for (std::string line; std::getline(lines, line);) {
            const Json row = parse_json(line, file);
            if (text(row, "kind") == "ceiling") {
                report_.environment["measured " + text(row, "what")] =
                    format("%.4g %s", number(row, "rate", 1e12), text(row, "unit").c_str());
                continue;
            }
            require(whole(row, "wrong", -1) <= 0, "%s: wrong numbers", name.c_str());
            add(text(row, "op") + " " + text(row, "shape"), "", number(row, "seconds", 1e12),
                {{"rate", number(row, "rate", 1e12)}, {"of_peak", number(row, "of_peak", 1e6)}});
        }
    }

    void write() const {
        write_file_atomically(o_.out + "/results.json", to_json(report_));
        write_file_atomically(o_.out + "/report.html", bench_page(report_, nullptr));
    }

    const RunOptions& o_;
    Profile profile_;
    std::vector<BenchTarget> targets_;
    RankContext context_;
    Device device_;
    BenchReport report_;
};

// ---- commands -------------------------------------------------------------------------------------------------------

int list_targets(const std::string& group) {
    bool any = false;
    std::printf("%-28s %5s  %-26s %s\n", "target", "ranks", "measured against", "what");
    for (const BenchTarget& t : bench_targets()) {
        if (!group.empty() && t.name.substr(0, t.name.find(':')) != group) continue;
        any = true;
        std::printf("%-28s %5d  %-26s %s\n", t.name.c_str(), t.ranks, t.baseline.c_str(), t.about.c_str());
    }
    require_request(any, "--group %s: there is none of that name", group.c_str());
    return 0;
}

// A report's folder, or its results.json.
BenchReport report_at(const std::string& path) {
    return read_bench_report(fs::is_directory(path) ? path + "/results.json" : path);
}

void add_run_options(CLI::App* run, RunOptions& o) {
    run->add_option("--targets", o.targets, "all, groups, or GROUP:NAME, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    run->add_option("--profile", o.profile,
                    "minimal: 2 repeats of 8 steps, one of the warm-up traced; deep: 5 of 30, two traced; roofline: 3 "
                    "of 12, two traced, beside the machine's ceilings, which all measure")
        ->check(CLI::IsMember({"minimal", "deep", "roofline"}))
        ->capture_default_str();
    run->add_option("--out", o.out, "Folder for results [runs/harness-DATE]");
    run->add_option("--ranks", o.ranks, "Numbers of ranks instead of each target's own: 1,2,4")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 20));
    run->add_option("--repeats", o.repeats, "Repeats instead of the profile's")->check(CLI::Range(1, 1000));
    run->add_option("--steps", o.steps, "Steps instead of the profile's")->check(CLI::Range(2, 1000000));
    run->add_option("--device", o.device, "auto, cpu or cuda")->capture_default_str();
    run->add_option("--base", o.base, "Flags of model and batch instead of the harness's own");
    run->add_option("--target-extra-arg", o.extra,
                    "NAME=\"--flag value\": more flags of a target; may be given several times")
        ->check([](const std::string& text) {
            return text.find('=') == std::string::npos || text[0] == '=' ? "it must be NAME=\"--flag value\""
                                                                         : std::string();
        });
    run->add_option("--launcher", o.launcher, "Program that starts several ranks")->capture_default_str();
    run->add_option(
        "--launcher-arg", o.launcher_args,
        "One more argument of it; may be given several times: --launcher-arg=--bind-to --launcher-arg=core");
    run->add_option("--timeout", o.timeout, "Seconds that one run may take")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    run->add_option("--compute", o.compute,
                    "real, or sleep: passes take known times, so that ranks may share cores; each pair predicts its "
                    "ratio")
        ->check(CLI::IsMember({"real", "sleep"}))
        ->capture_default_str();
    run->add_option("--link", o.link,
                    "Put each rank behind a link of this rate, such as 200mbit, in a network namespace; needs root");
    run->add_flag("--summary", o.summary, "Show each target beside its baseline");
}

int harness(int argc, char** argv) {
    CLI::App app("Benchmarks in pairs: a baseline, and what is meant to be better.");
    app.require_subcommand(1);
    std::string group, a, b, html, of;
    CLI::App* list = app.add_subcommand("list-targets", "Show what can be run");
    list->add_option(
        "--group", group,
        "ddp, zero, fsdp, pipeline, tensor, context, symmetric, wire, offload, recompute, precision, collectives, "
        "kernels, or sleep-ddp, sleep-zero, sleep-link, sleep-wire, sleep-hier, sleep-pipeline");

    RunOptions o;
    CLI::App* run = app.add_subcommand("run", "Run targets and write their results");
    add_run_options(run, o);

    CLI::App* compare = app.add_subcommand("compare", "Two reports of this harness, and what differs between them");
    compare->add_option("A", a, "Folder of the earlier run, or its results.json")->required();
    compare->add_option("B", b, "Folder of the later run, or its results.json")->required();
    compare->add_option("--html", html, "Page of B beside A");
    CLI::App* table = app.add_subcommand("table", "Ranks x method x tokens/s x memory x efficiency, as Markdown");
    table->add_option("DIR", of, "Folder of a run")->required();
    CLI11_PARSE(app, argc, argv);

    if (list->parsed()) return list_targets(group);
    if (table->parsed()) {
        const BenchReport report = report_at(of);
        for (const char* key : {"date", "cpu", "gpu", "commit", "command", "load at the start"})
            if (report.environment.count(key)) std::printf("%s: %s  \n", key, report.environment.at(key).c_str());
        std::printf("\n%s", bench_markdown(report).c_str());
        return 0;
    }
    if (compare->parsed()) {
        const BenchReport before = report_at(a), after = report_at(b);
        std::printf("%s", compare_text(before, after).c_str());
        if (!html.empty()) write_file_atomically(html, bench_page(after, &before));
        return 0;
    }
    if (!o.link.empty()) {
        megabytes_per_second(o.link);
        require_request(o.launcher == "mpirun" && o.launcher_args.empty(),
                        "--link %s starts ranks itself\n  nearest: leave --launcher and --launcher-arg out",
                        o.link.c_str());
        require_request(geteuid() == 0, "--link %s: network namespaces need root\n  nearest: sudo", o.link.c_str());
    }
    o.command = joined(Words(argv, argv + argc), " ");
    o.build = fs::read_symlink("/proc/self/exe").parent_path().parent_path();  // BUILD/FLAVOUR
    if (o.out.empty()) o.out = "runs/harness-" + utc_text(kTimeForm);
    return Harness(o).run();
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("harness", rz::harness, argc, argv, 2); }
