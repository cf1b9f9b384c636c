// What `train_llama plan` prints.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "comm/exit_codes.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/model/presets.h"
#include "llama/model/recipe.h"
#include "llama/plan/plan.h"
#include "llama/report/log.h"
#include "llama/train/batches.h"
#include "llama/train/run_config.h"

namespace rz {

namespace {

// The name under which a model of this preset was published; nullptr: none.
const char* preset_name(const TrainOptions& o) {
    return o.init_from.empty() && o.fields.empty() ? find_preset(o.preset).published : nullptr;
}

std::string command_line(const TrainOptions& o) {
    std::string text = "train_llama plan";
    for (const std::string& a : o.arguments) text += " " + a;
    return text;
}

OrderedJson memory_json(const std::array<int64_t, int(MemKind::count_)>& by_kind, int64_t total) {
    OrderedJson peak = OrderedJson::object();
    for (int k = 0; k < int(MemKind::count_); ++k) peak[name_of(MemKind(k))] = by_kind[size_t(k)];
    peak["total"] = total;
    return peak;
}

const char* word_of(Fits fits) { return fits == Fits::yes ? "fits" : fits == Fits::tight ? "tight" : "does not fit"; }

double share_of(const Plan& plan, const char* what) {
    const PlannedRank& r = plan.slowest();
    Ticks time = 0;
    for (const PlannedOp& op : r.ops)
        if (op.name.find(what) != std::string::npos) time += op.time;
    return r.step > 0 ? double(time) / double(r.step) : 0;
}

double busy_share(const Plan& plan) { return share_of(plan, ""); }

// A machine has one peak for runs of all types, so that their MFU compare.
const char* peak_name(const PlanCase& c) {
    if (c.options.peak_tflops > 0) return "--peak-tflops";
    return !c.machine.cpu && c.machine.compute_capability < 8 ? "fp16, dense" : "bf16, dense";
}

void print_time(const PlanCase& c, const Plan& plan, int64_t tokens) {
    const double per_second = double(tokens_per_step(c)) / plan.step_seconds;
    const double peak = peak_flops(c);
    std::printf("time     %.4g s a step, %.0f tokens/s, %.0f for each rank: a prediction\n", plan.step_seconds,
                per_second, per_second / c.ranks);
    if (peak > 0)
        std::printf("         MFU %.1f %% of %.0f TFLOP/s (%s), causal attention counted, recomputation not\n",
                    100 * mfu(c, plan), peak / 1e12, peak_name(c));
    const double gemm = share_of(plan, "Gemm"), attention = share_of(plan, "Attention"), busy = busy_share(plan);
    std::printf(
        "         rank %d: products %.0f %%, attention %.0f %%, other ops %.0f %%, waiting for messages %.0f %%\n",
        plan.slowest().rank, 100 * gemm, 100 * attention, 100 * (busy - gemm - attention), 100 * (1 - busy));
    if (const std::string& products = plan.slowest().attention; !products.empty())
        std::printf("         attention backward: %s\n", products.c_str());
    if (!c.machine.cpu && c.machine.compute_capability >= 10)
        std::printf("         attention there is mma.sync, at FlashAttention-2's rates: tcgen05 is not used%s\n",
                    c.options.fp8.recipe == Fp8Recipe::mx ? "" : "; --fp8 mx is the fp8 of such a GPU");
    const int there = int(c.machine.multiprocessors);
    if (const NcclRoom room = nccl_room(grid_of_gpus(c), c.options.collectives, there, int(c.options.comm_sms));
        there > 0 && room.is_limited())
        std::printf(
            "         messages: %d groups%s take %d of %d multiprocessors when all are under way; products beside them "
            "are up to %.0f %% slower, which is not counted\n",
            room.groups + room.hands, room.lanes > 0 ? format(" and %d lanes", room.lanes).c_str() : "",
            room.together(), there, 100.0 * room.together() / (there - room.together()));
    if (const PlannedRank& r = plan.slowest(); r.watched_step > 0)
        std::printf("         statistics: %.3g ms more every %ld steps, %.2g %% of the time\n",
                    1e3 * kSecondsPerTick * double(r.watched_step - r.step), c.options.stats_every,
                    100 * (double(r.mean_step(c.options.stats_every)) / double(r.step) - 1));
    const PlannedMemory& bus = plan.slowest().memory;
    if (bus.from_host + bus.to_host > 0)
        std::printf("         host: from it %s a step, to it %s, at %g GB/s each way\n",
                    human_bytes(bus.from_host).c_str(), human_bytes(bus.to_host).c_str(), c.machine.host_gbs);
    const double seconds = double(tokens) / per_second;
    std::printf("         %.4g tokens: %.4g steps, %s, %.0f GPU hours\n", double(tokens),
                double(tokens) / double(tokens_per_step(c)), duration(seconds).c_str(), seconds / 3600 * c.ranks);
    for (const std::string& name : plan.unknown_ops)
        std::printf("         %s: its cost is not known, and counts as nothing\n", name.c_str());
}

OrderedJson sent_json(const Traffic& sent) {
    OrderedJson by_axis = OrderedJson::object();
    for (const auto& [name, axis] : kTrafficAxes) by_axis[name] = sent.*axis;
    return by_axis;
}

OrderedJson plan_json(const PlanCase& c, const Plan& plan) {
    OrderedJson ranks = OrderedJson::array();
    for (const PlannedRank& r : plan.ranks)
        ranks.push_back({{"rank", r.rank},
                         {"memory_peak", memory_json(r.memory.peak, r.memory.total)},
                         {"host_memory_peak", memory_json(r.memory.host_peak, r.memory.host)},
                         {"bytes_of_snapshots", r.memory.snapshots},
                         {"bytes_from_host", r.memory.from_host},
                         {"bytes_to_host", r.memory.to_host},
                         {"bytes_sent_first_step", r.first_sent},
                         {"bytes_sent", r.sent},
                         {"bytes_sent_watched_step", r.watched_sent},
                         {"bytes_sent_by_axis", sent_json(r.memory.sent)}});
    return {{"machine", c.machine.name},
            {"ranks", c.ranks},
            {"model", summary(c.config)},
            {"fits", word_of(plan.fits)},
            {"capacity", c.capacity()},
            {"outside_ledger", {plan.outside_min, plan.outside_max}},
            {"nccl",
             {{"communicators", plan.nccl.communicators},
              {"bytes", plan.nccl.bytes},
              {"bytes_at_most", plan.nccl.most_bytes()},
              {"bring_up_seconds", {plan.nccl.least_s, plan.nccl.most_s}}}},
            {"left", plan.left},
            {"step_seconds", plan.step_seconds},
            {"tokens_per_step", tokens_per_step(c)},
            {"planned_ranks", std::move(ranks)}};
}

void print_memory(const PlanCase& c, const Plan& plan) {
    const PlannedRank& most = plan.largest();
    const PlannedRank& least =
        *std::ranges::min_element(plan.ranks, {}, [](const PlannedRank& r) { return r.memory.total; });
    std::printf("memory   bytes at the peak    rank %d, the largest         rank %d, the smallest\n", most.rank,
                least.rank);
    const auto row = [](const char* name, int64_t a, int64_t b) {
        if (a > 0 || b > 0)
            std::printf("  %-12s %16ld %10s %16ld %10s\n", name, a, human_bytes(a).c_str(), b, human_bytes(b).c_str());
    };
    for (int k = 0; k < int(MemKind::count_); ++k)
        row(name_of(MemKind(k)), most.memory.peak[size_t(k)], least.memory.peak[size_t(k)]);
    row("at once", most.memory.total, least.memory.total);
    row("host, pinned", most.memory.host, least.memory.host);
    row("in snapshots", most.memory.snapshots, least.memory.snapshots);
    row("sent a step", most.sent, least.sent);
    if (most.watched_sent != most.sent) row("  with stats", most.watched_sent, least.watched_sent);
    for (const auto& [name, axis] : kTrafficAxes)
        row(format("on %s", name).c_str(), most.memory.sent.*axis, least.memory.sent.*axis);
    row("from host", most.memory.from_host, least.memory.from_host);
    row("to host", most.memory.to_host, least.memory.to_host);
    std::printf("  outside the ledger: %s to %s, an estimate of %s\n", human_bytes(plan.outside_min).c_str(),
                human_bytes(plan.outside_max).c_str(), c.machine.file.c_str());
    if (plan.nccl.communicators > 0)
        std::printf("    of it NCCL's for %d communicators: %s counted, up to %s; up in %.2g to %.2g s, a prediction\n",
                    plan.nccl.communicators, human_bytes(plan.nccl.bytes).c_str(),
                    human_bytes(plan.nccl.most_bytes()).c_str(), plan.nccl.least_s, plan.nccl.most_s);
    const int64_t sharing = Grid(c.ranks, grid_options(c.options)).size(Axis::shard), most_sharing = most_owners(c);
    if (c.options.zero > 0 && sharing > most_sharing)
        std::printf(
            "  %ld ranks share a copy, and units have %ld parts at most: others own nothing; --shard-size %ld "
            "takes no more memory\n",
            sharing, most_sharing, most_sharing);
    std::printf("  of %s on each %s: %s, %s %s\n", human_bytes(c.capacity()).c_str(), c.machine.cpu ? "rank" : "GPU",
                word_of(plan.left >= 0 ? Fits::yes : plan.fits), human_bytes(std::abs(plan.left)).c_str(),
                plan.left >= 0             ? "left"
                : plan.fits == Fits::tight ? "missing if the most lies outside the ledger"
                                           : "missing");
    if (!c.machine.cpu && c.host_capacity() > 0)
        std::printf("  of %s of each host: %s pinned by %ld ranks, %s %s\n", human_bytes(c.host_capacity()).c_str(),
                    human_bytes(plan.host).c_str(), c.ranks_on_node(),
                    human_bytes(std::abs(c.host_capacity() - plan.host)).c_str(), plan.host_fits ? "left" : "missing");
}

std::string total_needed(const Plan& plan) { return human_bytes(plan.largest().memory.total + plan.outside_max); }

void print_faster(const PlanCase& c, const Plan& plan) {
    const Changes changes = fastest_change(c, plan);
    const char* begin = "change ";
    for (const auto& [numerics, change] : {std::pair("same", &changes.same), {"other", &changes.other}}) {
        if (!*change) continue;
        const PlanCase& to = (*change)->to;
        const double faster =
            plan.step_seconds / (*change)->plan.step_seconds * double(tokens_per_step(to)) / double(tokens_per_step(c));
        std::printf("%s  %s numerics: %s: %.1f %% faster, %s of %s\n", begin, numerics, (*change)->text.c_str(),
                    100 * (faster - 1), total_needed((*change)->plan).c_str(), human_bytes(c.capacity()).c_str());
        begin = "       ";
    }
}

std::string nearest_lines(const PlanCase& c) {
    const Changes changes = nearest_fit(c);
    std::string text;
    for (const auto& [numerics, change] : {std::pair("same", &changes.same), {"other", &changes.other}})
        if (*change)
            text += format("  nearest, %s numerics: %s needs %s\n", numerics, (*change)->text.c_str(),
                           total_needed((*change)->plan).c_str());
    return text.empty() ? "  nothing near it fits: no flag, and not 16,384 GPUs\n" : text;
}

// What does not fit, and what would; of what fits, what is faster.
int tell_what_fits(const PlanCase& c, const Plan& plan, bool quiet) {
    if (plan.fits == Fits::yes) {
        if (quiet) return kExitSuccess;
        print_faster(c, plan);
        if (const auto batch = largest_batch(c))
            std::printf("largest  --batch %ld is the largest micro-batch that fits: %s of %s\n",
                        batch->to.options.batch, total_needed(batch->plan).c_str(), human_bytes(c.capacity()).c_str());
        return kExitSuccess;
    }
    const std::string text = plan.host_fits ? format("plan: nothing fits %d x %s: this needs %s\n", c.ranks,
                                                     human_bytes(c.capacity()).c_str(), total_needed(plan).c_str())
                                            : format("plan: needs %s pinned on each host, which has %s (%s)\n",
                                                     human_bytes(plan.host).c_str(),
                                                     human_bytes(c.host_capacity()).c_str(), c.host_memory_by.c_str());
    std::fprintf(stderr, "%s%s", text.c_str(), nearest_lines(c).c_str());
    return kExitTooLarge;
}

// The command of the run: the flags that were given to the plan, without those that only a plan has.
std::string run_line(const PlanCase& c, const std::string& change) {
    PlanOptions own;
    const std::vector<OptionRow> rows = own_command_table(own).rows;
    std::string flags;
    const std::vector<std::string>& all = c.options.arguments;
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string name = all[i].substr(0, all[i].find('='));
        const auto row = std::find_if(rows.begin(), rows.end(), [&](const OptionRow& r) { return r.flag == name; });
        if (row == rows.end())
            flags += " " + all[i];
        else if (!row->is_switch)
            i += all[i] == name;
    }
    const std::string launch = c.ranks > 1 ? format("mpirun -n %d ", c.ranks) : "";
    return launch + "./train_llama" + flags + (change.empty() ? "" : " ") + change;
}

// The flags that were given, and those that were found.
void write_config(const PlanCase& c, const Change& found, const std::string& file) {
    std::string text = "# Found by a plan, and run on no such machine:\n#\n#   ./" + command_line(c.options) + "\n#\n";
    text += format(
        "# A rank needs %s of %s; %.0f tokens/s are predicted.\n#\n#   %d GPU%s    %s./train_llama --config %s\n",
        total_needed(found.plan).c_str(), human_bytes(c.capacity()).c_str(),
        double(tokens_per_step(found.to)) / found.plan.step_seconds, c.ranks, c.ranks > 1 ? "s" : " ",
        c.ranks > 1 ? format("mpirun -n %d ", c.ranks).c_str() : "", file.c_str());
    std::map<std::string, std::string> values;
    for (const std::string& name : c.options.given)
        if (const auto value = c.options.values.find(name); value != c.options.values.end()) values.insert(*value);
    for (const auto& [name, value] : found.flags) values[name] = value;
    TrainOptions fresh;
    for (const OptionRow& row : command_table(fresh).rows)
        if (const auto value = values.find(row.flag.substr(2)); value != values.end())
            text += value->first + " = " + toml_value(value->second, row.is_switch) + "\n";
    write_file_atomically(file, text);
}

// The rows of one kind of numerics, then their commands.
void print_found(const PlanCase& c, const PlanOptions& o, const char* numerics, const std::vector<Change>& found) {
    if (found.empty()) return;
    const std::string length = o.days > 0 ? format("in %g days", o.days) : o.tokens > 0 ? "takes" : "";
    std::printf("\n%s numerics\n  %12s %7s %10s %12s  flags\n", numerics, "tokens/s", "MFU", "at once", length.c_str());
    for (const Change& one : found) {
        const double rate = double(tokens_per_step(one.to)) / one.plan.step_seconds;
        const std::string run = o.days > 0     ? token_count(86400 * o.days * rate)
                                : o.tokens > 0 ? duration(double(o.tokens) / rate)
                                               : "";
        std::printf("  %12.0f %6.1f%% %10s %12s  %s\n", rate, peak_flops(c) > 0 ? 100 * mfu(one.to, one.plan) : 0,
                    human_bytes(one.plan.largest().memory.total).c_str(), run.c_str(),
                    one.text.empty() ? "as it is" : one.text.c_str());
    }
    std::printf("\n");
    for (const Change& one : found) std::printf("%s\n", run_line(c, one.text).c_str());
}

int search_command(const PlanCase& c, const PlanOptions& o) {
    int64_t shown = -1;
    const SearchResult found = search(c, [&](int64_t done, int64_t of) {
        if (10 * done / of == shown) return;
        shown = 10 * done / of;
        std::fprintf(stderr, "searched %ld of %ld\n", done, of);
    });
    if (found.same.empty() && found.other.empty()) {
        std::fprintf(stderr, "plan: none of %ld combinations fits %d x %s\n%s", found.tried, c.ranks,
                     human_bytes(c.capacity()).c_str(), nearest_lines(c).c_str());
        return kExitTooLarge;
    }
    std::printf("%ld combinations, %ld fit; beaten by none in both speed and memory (predictions", found.tried,
                found.fit);
    if (peak_flops(c) > 0) std::printf("; MFU of %.0f TFLOP/s, %s", peak_flops(c) / 1e12, peak_name(c));
    std::printf("):\n");
    print_found(c, o, "same", found.same);
    print_found(c, o, "other", found.other);
    if (o.write_config.empty()) return kExitSuccess;
    require_request(!found.same.empty(), "--write-config: nothing of the same numerics fits\n  nearest: %s",
                    found.other[0].text.c_str());
    write_config(c, found.same[0], o.write_config);
    return kExitSuccess;
}

// How much memory a host has, and what says so.
void set_host_memory(PlanCase& c, double asked) {
    constexpr double kGiB = double(int64_t(1) << 30);
    c.host_memory_by = "host-memory-gib of " + c.machine.file;
    if (asked > 0) {
        c.machine.host_memory_gib = asked, c.host_memory_by = "--host-gib";
    } else if (!c.machine.cpu && built_with_cuda() && cuda_device_count() > 0) {
        const std::optional<Machine> here = find_machine({DeviceKind::cuda, 0, nullptr});
        const int64_t free = available_host_memory();
        if (here && here->file == c.machine.file && free < INT64_MAX)
            c.machine.host_memory_gib = double(free) / kGiB, c.host_memory_by = "what this machine has free";
    }
}

}  // namespace

int plan_command(const PlanOptions& o) {
    PlanCase c{.options = o.train, .config = {}, .machine = load_machine(o.machine), .ranks = int(o.gpus)};
    c.options.device = c.machine.cpu ? DeviceChoice::cpu : DeviceChoice::cuda;
    choose_dtype(c.options, c.capability());
    set_host_memory(c, o.host_gib);
    std::string note;
    c.config = planned_config(c.options, note);
    const bool quiet = o.json == "-";
    if (!note.empty()) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    if (c.options.fp8.on())
        require_request(c.machine.cpu || c.machine.peak_fp8 > 0 || c.machine.gemm_fp8 > 0,
                        "--fp8: %s has no fp8 products (gemm-fp8-tflops)\n  nearest: leave --fp8 out",
                        c.machine.name.c_str());
    if (c.options.fp8.recipe == Fp8Recipe::mx)
        require_request(c.machine.cpu || c.machine.compute_capability >= 10,
                        "--fp8 mx needs compute capability 10.0, and %s has %.1f\n  nearest: --fp8 tensor",
                        c.machine.name.c_str(), c.machine.compute_capability);
    require_request(o.write_config.empty() || o.search, "--write-config is of --search\n  nearest: --search");
    require_request(o.days == 0 || (o.tokens == 0 && !c.options.recipe),
                    "--days says how many tokens a run sees, and so does %s\n  nearest: leave one of them out",
                    o.tokens > 0 ? "--tokens" : "--auto");
    std::vector<std::string> chosen;
    if (c.options.recipe) chosen = choose_recipe(c.options, c.config, c.ranks, double(o.tokens));
    if (o.search) return search_command(c, o);
    if (c.options.batch == 0) {  // --batch auto
        c.options.batch = 1;
        if (const auto most = largest_batch(c)) c.options.batch = most->to.options.batch;
    }
    const Plan plan = make_plan(c);
    const int64_t steps = o.days > 0 ? int64_t(86400 * o.days / plan.step_seconds) : c.options.steps;
    const int64_t tokens = o.tokens > 0 ? o.tokens : checked_mul(steps, tokens_per_step(c), "tokens of the run");
    if (!quiet) {
        const int64_t dp = Grid(c.ranks, grid_options(c.options)).size(Axis::dp), M = micro_batches(c.options, dp);
        std::printf("%s\n", command_line(c.options).c_str());
        std::printf("model    %s\n", summary(c.config).c_str());
        std::printf("machine  %d x %s: %s\n", c.ranks, c.machine.name.c_str(), c.machine.about.c_str());
        std::printf("batch    %ld sequences x %ld tokens x %ld ranks x %ld micro-batches = %ld tokens per step\n",
                    c.options.batch, c.options.seq_len, dp, M, c.options.batch * c.options.seq_len * dp * M);
        for (const std::string& line : chosen) std::printf("%s\n", line.c_str());
        if (chosen.empty() && c.options.init_from.empty())
            std::printf("recipe   %s\n", recommended(c.config, preset_name(c.options)).c_str());
        print_memory(c, plan);
        print_time(c, plan, tokens);
    }
    if (!o.json.empty()) {
        OrderedJson json = plan_json(c, plan);
        json["command"] = command_line(c.options);
        if (quiet)
            std::printf("%s\n", json.dump(1).c_str());
        else
            write_file_atomically(o.json, json.dump(1) + "\n");
    }
    return tell_what_fits(c, plan, quiet);
}

}  // namespace rz
