// The collectives and ZeRO-3 on a virtual network (comm/virtual_net.h). Every number is the model's prediction: nothing
// here was measured.
//
//   build/dev/virtual_net bars                                the goals at 64 nodes of 8, each with what it came to
//   build/dev/virtual_net table --ranks 512 --op all_reduce   sizes x algorithms: microseconds, and ratio to the bound
//   build/dev/virtual_net thresholds                          what the rows of comm/thresholds.h come from
//   build/dev/virtual_net placement                           hosts filled in turn: ranks sorted by node, and not
//   build/dev/virtual_net shaped --gbs 0.012 --us 300         one rank on each host over such links, beside which
//                                                             dev/net/shaped_model.sh measures
//   build/dev/virtual_net step --picture step.svg             a step of ZeRO-3 of 7B parameters at 8 to 512 ranks
//   build/dev/virtual_net step --picture step.svg --from P    no step: the picture of the tables in page P

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "comm/mesh.h"
#include "comm/thresholds.h"
#include "comm/virtual_net.h"
#include "dev/common/tool.h"
#include "llama/base/machine.h"
#include "llama/base/version.h"
#include "llama/model/presets.h"
#include "llama/plan/cost.h"
#include "llama/report/plot.h"
#include "llama/train/train_state.h"

namespace rz {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

enum class Op { reduce_scatter, all_gather, all_reduce };
constexpr const char* kOps[] = {"reduce_scatter", "all_gather", "all_reduce"};

struct Case {
    NetMachine machine;
    int ranks = 512;
    Op op = Op::reduce_scatter;
    int64_t bytes = kGiB;
    MeshOptions how = {};
    bool trusting = false;  // ranks are taken to fill the nodes one by one
};

// Values are bf16, and their sums travel as bf16.
Ticks time_of(const Case& c) {
    VirtualNet net(c.ranks, c.machine);
    const auto offsets = even_offsets(c.bytes / 2, c.ranks);
    MeshOptions how = c.how;
    for (int r = 0; r < c.ranks && c.trusting; ++r) how.grid.nodes.push_back(r / c.machine.ranks_per_node);
    return net.run([&](int rank) {
        Mesh mesh(net, rank, how);
        Collectives& with = mesh.data();
        const Buffer memory(net.device(rank), c.bytes, MemKind::comm, "range");
        char* own = memory.bytes_at(2 * offsets[size_t(with.rank())]);
        const DType t = DType::bf16;
        switch (c.op) {
            case Op::reduce_scatter:
                with.reduce_scatter(
                    mesh.stream(),
                    {.out = own, .in = memory.data(), .offsets = offsets, .dtype = t, .wire = t, .out_dtype = t});
                break;
            case Op::all_gather:
                with.all_gather(mesh.stream(), {.out = memory.data(), .in = own, .offsets = offsets, .dtype = t});
                break;
            case Op::all_reduce:
                with.all_reduce(mesh.stream(),
                                {.out = memory.data(), .in = memory.data(), .offsets = offsets, .dtype = t, .wire = t});
        }
        return mesh.stream().clock();
    });
}

MeshOptions by(Algorithm algorithm, CollectiveOptions options = {}) {
    return {.algorithms = {.data = algorithm}, .collectives = options};
}
MeshOptions hier(int64_t step) { return by(Algorithm::hier, {.step_bytes = step}); }

double bound_of(const Case& c) {
    return double(collective_bound(c.machine, c.ranks, c.op == Op::all_reduce ? 2 : 1, c.bytes));
}

std::string size_text(int64_t bytes) {
    return bytes >= kGiB   ? format("%lld GiB", (long long)(bytes / kGiB))
           : bytes >= kMiB ? format("%lld MiB", (long long)(bytes / kMiB))
                           : format("%lld KiB", (long long)(bytes / kKiB));
}

std::string time_text(Ticks time, double bound) {
    const double us = double(time) / double(kMicrosecond);
    return format(us < 1000 ? "%.1f (%.2f)" : "%.0f (%.2f)", us, double(time) / bound);
}

// A cell with the time of a case
void put(const Case& c) {
    std::printf(" %s |", time_text(time_of(c), bound_of(c)).c_str());
    std::fflush(stdout);
}

void head(const std::string& command, const Machine& machine) {
    std::printf(
        "Predicted in virtual time by `build/dev/virtual_net %s`, machine %s, commit %s. Nothing was measured.\n",
        command.c_str(), machine.name.c_str(), build_commit());
}

// ---- the goals at 64 nodes of 8 -------------------------------------------------------------------------------------

int bars(const NetMachine& m) {
    std::printf(
        "\n| 64 nodes x 8, reduce-scatter | goal | came to | without cost of messages | |\n|---|---|---|---|---|\n");
    int missed = 0;
    const auto row = [&](const std::string& what, const char* goal, double came, double without, bool met) {
        std::printf("| %s | %s | %.3f | %.3f | %s |\n", what.c_str(), goal, came, without, met ? "met" : "MISSED");
        std::fflush(stdout);
        missed += !met;
    };
    NetMachine two = m;
    two.ordered = false;
    const auto ratio = [](NetMachine on, int64_t bytes) {
        const Case c{.machine = on, .bytes = bytes, .how = by(Algorithm::hier)};
        return double(time_of(c)) / bound_of(c);
    };
    const auto against_bound = [&](const NetMachine& on, int64_t bytes, double most, const char* goal,
                                   const char* how) {
        const double came = ratio(on, bytes);
        row("hier / bound, " + size_text(bytes) + how, goal, came, ratio(on.without_message_cost(), bytes),
            came <= most);
    };
    against_bound(m, kGiB, 1.25, "<= 1.25", "");
    against_bound(m, 2 * kGiB, 1.15, "<= 1.15", "");
    for (const int64_t bytes : {kGiB / 2, kGiB, 2 * kGiB})
        against_bound(two, bytes, 1.2, "<= 1.2", ", two groups under way");
    const auto faster = [&](int64_t bytes, double least, const char* goal) {
        const auto times = [&](const NetMachine& on) {
            const Case flat{.machine = on, .bytes = bytes, .how = by(Algorithm::ring)},
                levels{.machine = on, .bytes = bytes, .how = by(Algorithm::hier)};
            return double(time_of(flat)) / double(time_of(levels));
        };
        const double came = times(m);
        row("flat ring / hier, " + size_text(bytes), goal, came, times(m.without_message_cost()), came >= least);
    };
    for (const int64_t bytes : {64 * kKiB, kMiB, 16 * kMiB}) faster(bytes, 70, ">= 70");
    faster(kGiB, 8, ">= 8");
    return missed;
}

// ---- sizes x algorithms ---------------------------------------------------------------------------------------------

void table(const NetMachine& m, int ranks, Op op, int64_t most) {
    std::printf(
        "\n| %s, %d ranks | bound us | ring | direct | hier | hier, groups independent | hier, no cost of messages |\n"
        "|---|---|---|---|---|---|---|\n",
        kOps[int(op)], ranks);
    NetMachine independent = m;
    independent.ordered = false;
    for (int64_t bytes = 4 * kKiB; bytes <= most; bytes *= 4) {
        Case c{.machine = m, .ranks = ranks, .op = op, .bytes = bytes};
        std::printf("| %s | %.1f |", size_text(bytes).c_str(), bound_of(c) / double(kMicrosecond));
        for (const Algorithm a : {Algorithm::ring, Algorithm::direct, Algorithm::hier}) {
            c.how = by(a);
            put(c);
        }
        c.machine = independent;
        put(c);
        c.machine = m.without_message_cost();
        put(c);
        std::printf("\n");
    }
}

// ---- the table of thresholds ----------------------------------------------------------------------------------------

void thresholds(const NetMachine& m) {
    std::printf(
        "\nOne node of %d: the ring from kRingFrom to kRingUpTo.\n\n"
        "| reduce-scatter | direct us | ring us |\n|---|---|---|\n",
        m.ranks_per_node);
    for (const int64_t mib : {50, 100, 150, 200, 250, 300, 400, 600, 800}) {
        std::printf("| %lld MiB |", (long long)mib);
        for (const Algorithm a : {Algorithm::direct, Algorithm::ring})
            put({.machine = m, .ranks = m.ranks_per_node, .bytes = mib * kMiB, .how = by(a)});
        std::printf("\n");
    }
    for (const int ranks : {64, 512}) {
        const int nodes = ranks / m.ranks_per_node;
        std::printf(
            "\n%d nodes: the time of each step size, and the one that the table takes.\n\n"
            "| reduce-scatter | in sequence |",
            nodes);
        const std::vector<int64_t> steps{kWhole, 256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB, 0};
        for (size_t i = 1; i + 1 < steps.size(); ++i) std::printf(" %s |", size_text(steps[i]).c_str());
        std::printf(" the table's |\n|---|---|---|---|---|---|---|---|---|\n");
        for (int64_t bytes = 4 * kMiB; bytes <= 2 * kGiB; bytes *= 2) {
            std::printf("| %s |", size_text(bytes).c_str());
            for (const int64_t step : steps) put({.machine = m, .ranks = ranks, .bytes = bytes, .how = hier(step)});
            std::printf("\n");
        }
        std::printf(
            "\n%d nodes: all-reduce, in one shot along the column up to %lld KiB; beside a reduce-scatter and an "
            "all-gather.\n\n| bytes | all-reduce | in two |\n|---|---|---|\n",
            nodes, (long long)(hier_one_shot_bytes(nodes) / kKiB));
        for (int64_t bytes = 4 * kKiB; bytes <= 4 * kMiB; bytes *= 2) {
            Case c{.machine = m, .ranks = ranks, .op = Op::all_reduce, .bytes = bytes, .how = by(Algorithm::hier)};
            const Ticks all = time_of(c);
            const double bound = bound_of(c);
            c.op = Op::reduce_scatter;
            Ticks in_two = time_of(c);
            c.op = Op::all_gather;
            in_two += time_of(c);
            std::printf("| %s | %s | %s |\n", size_text(bytes).c_str(), time_text(all, bound).c_str(),
                        time_text(in_two, bound).c_str());
        }
    }
}

// ---- placement ------------------------------------------------------------------------------------------------------

void placement(const NetMachine& m) {
    std::printf(
        "\nHosts filled in turn, %d ranks, reduce-scatter. Sorted: as the mesh does it, by the node of each rank. "
        "Trusting: as if ranks filled one node after the other.\n\n"
        "| bytes | good placement | in turn, sorted | in turn, "
        "trusting | loss |\n|---|---|---|---|---|\n",
        512);
    for (const int64_t bytes : {kMiB, 16 * kMiB, 256 * kMiB, kGiB}) {
        Case c{.machine = m, .bytes = bytes, .how = by(Algorithm::hier)};
        const double bound = bound_of(c);
        const Ticks good = time_of(c);
        c.machine.in_turn = true;
        const Ticks sorted = time_of(c);
        c.trusting = true;
        const Ticks trusting = time_of(c);
        std::printf("| %s | %s | %s | %s | %.1f x |\n", size_text(bytes).c_str(), time_text(good, bound).c_str(),
                    time_text(sorted, bound).c_str(), time_text(trusting, bound).c_str(),
                    double(trusting) / double(sorted));
        std::fflush(stdout);
    }
}

// ---- shaped links ---------------------------------------------------------------------------------------------------

// Hosts with one rank and one card each, over MPI: its chunks and lanes, groups of several lanes under way together.
// Lines "OPERATION ALGORITHM BYTES SECONDS" for a script to read.
void shaped(int ranks, double gbs, double us) {
    NetMachine m;
    m.ranks_per_node = m.cards = 1;
    m.card_rate = std::max<int64_t>(1, std::llround(1e3 * gbs));
    m.card_latency = Ticks(std::llround(us * double(kMicrosecond)));
    m.card_message = m.group_gap = m.op_gap = 0;
    m.memory_rate = 0;
    m.ordered = false;
    for (const Op op : {Op::reduce_scatter, Op::all_gather, Op::all_reduce})
        for (const Algorithm a : {Algorithm::ring, Algorithm::direct})
            for (const int64_t bytes : {kMiB, 4 * kMiB, 16 * kMiB}) {
                const Ticks t = time_of({.machine = m,
                                         .ranks = ranks,
                                         .op = op,
                                         .bytes = bytes,
                                         .how = by(a, {.chunk_bytes = kMiB, .lanes = 2})});
                std::printf("%s %s %lld %.6f\n", kOps[int(op)], name_of(a), (long long)bytes,
                            double(t) / double(kTicksPerSecond));
            }
}

// ---- a step of ZeRO-3 -----------------------------------------------------------------------------------------------

struct StepTime {
    Ticks all = 0, busy = 0;  // busy: the compute stream's ops
    double efficiency() const { return double(busy) / double(all); }
};

ModelConfig llama2_7b(int64_t tokens) {
    ModelConfig c = find_preset("tinyllama-1.1b").config;
    c.dim = 4096, c.ffn = 11008, c.layers = 32, c.heads = c.kv_heads = 32, c.head_dim = 128, c.vocab = 32000;
    c.max_seq_len = std::max<int64_t>(tokens, 2048);
    c.resolve();
    return c;
}

// Every rank enqueues what the program does: model, ZeRO, collectives. The second step's time.
StepTime zero3(const Machine& machine, const NetMachine& net_machine, int ranks, int64_t tokens,
               const MeshOptions& how) {
    VirtualNet net(ranks, net_machine);
    UnknownOps unknown;
    const auto compute_cost = make_cost(machine, unknown);
    std::vector<Ticks> busy(size_t(ranks), 0);
    StepTime time;
    time.all = net.run([&](int rank) {
        PlannedMachine& planned = net.context(rank).planned;
        const auto comm_cost = planned.cost;
        Ticks& spent = busy[size_t(rank)];
        planned.cost = [&, comm_cost](const OpCall& op, const Stream& stream) {
            if (stream.name() == "communication") return comm_cost(op, stream);
            const Ticks ticks = compute_cost(op, stream);
            spent += ticks;
            return ticks;
        };
        Mesh mesh(net, rank, how);
        TrainState core(
            llama2_7b(tokens),
            {.zero = {.stage = 3, .param_dtype = DType::bf16, .grad_dtype = DType::bf16, .wire_dtype = DType::bf16},
             .adamw = {},
             .stage = {.B = 1, .T = tokens, .dtype = DType::bf16, .grad_dtype = DType::bf16}},
            net.device(rank), mesh);
        const Buffer ids(net.device(rank), 4 * (tokens + 1), MemKind::data, "token ids");
        const int32_t* id = ids.as<int32_t>();
        Ticks begin = 0;
        for (int step = 0; step < 2; ++step) {
            begin = core.compute.clock();
            spent = 0;
            core.model.run(core.program, {.pass = Pass::train, .grad_scale = 1}, [&](int64_t) {
                return DeviceBatch{1, tokens, id, id, id, id, id, std::min(tokens, core.config.vocab), nullptr};
            });
            core.zero.optimizer.gradient_norm();
            core.zero.optimizer.update(0, 1);
        }
        return core.compute.clock() - begin;
    });
    time.busy = *std::max_element(busy.begin(), busy.end());
    return time;
}

Curve curve_of(const std::string& how, int64_t tokens) {
    return {.name = format("%s, %lldk", how.c_str(), (long long)tokens / 1024), .marks = true};
}

void draw(const Machine& machine, std::vector<Curve> curves, const std::string& picture) {
    // A colour for each way, pale where a step has fewer tokens.
    std::vector<std::string> ways;
    for (Curve& c : curves) {
        const std::string way = c.name.substr(0, c.name.find(", "));
        const auto known = std::find(ways.begin(), ways.end(), way);
        c.colour = int(known - ways.begin());
        c.faint = known != ways.end();
        if (!c.faint) ways.push_back(way);
    }
    std::ofstream(picture) << plot_svg({.title = "ZeRO-3, 7B, predicted in virtual time",
                                        .x_label = "ranks",
                                        .y_label = "compute / step",
                                        .note = machine.about},
                                       curves);
}

// Reads what step() has printed from such a page: "| how | exposed ms (efficiency) | ..." under "| | ranks | ...".
std::vector<Curve> read_step(const std::string& page) {
    std::ifstream in(page);
    require(in.good(), "%s can't be read", page.c_str());
    std::vector<Curve> curves;
    std::vector<std::string> ranks;
    int64_t tokens = 0;
    for (std::string line; std::getline(in, line);) {
        std::vector<std::string> cells;
        for (size_t at = 1, end; line[0] == '|' && (end = line.find('|', at)) != std::string::npos; at = end + 1)
            cells.push_back(line.substr(at, end - at));
        if (const size_t at = line.find("7B, bf16, "); at != std::string::npos)
            tokens = std::atoll(line.c_str() + at + 10);
        else if (line.rfind("## ", 0) == 0)
            tokens = 0;
        if (tokens == 0 || cells.empty() || cells[0].rfind("---", 0) == 0) continue;
        if (cells[0] == " ") {
            ranks = cells;
            continue;
        }
        require(cells.size() == ranks.size(), "%s: %zu cells under %zu: %s", page.c_str(), cells.size(), ranks.size(),
                line.c_str());
        curves.push_back(curve_of(cells[0].substr(1, cells[0].size() - 2), tokens));
        for (size_t i = 1; i < cells.size(); ++i) {
            double exposed = 0, efficiency = 0;
            require(std::sscanf(cells[i].c_str(), "%lf (%lf)", &exposed, &efficiency) == 2, "%s: '%s' in %s",
                    page.c_str(), cells[i].c_str(), line.c_str());
            curves.back().points.push_back({std::atof(ranks[i].c_str()), efficiency});
        }
    }
    require(!curves.empty(), "%s has no table of virtual_net step", page.c_str());
    return curves;
}

void step(const Machine& machine, const NetMachine& net, const std::vector<int>& sizes, const std::string& picture) {
    struct Row {
        const char* name;
        MeshOptions how;
        int most;
    };
    MeshOptions hybrid = by(Algorithm::hier);
    hybrid.grid.shard_size = net.ranks_per_node;
    const Row rows[] = {{"flat ring", by(Algorithm::ring), 512},
                        {"two levels (hier)", by(Algorithm::hier), 512},
                        {"hybrid: shard inside the node", hybrid, 512}};
    std::vector<Curve> curves;
    for (const int64_t tokens : {int64_t(8192), int64_t(2048)}) {
        std::printf("\nZeRO-3, 7B, bf16, %lld tokens on each GPU, one micro-batch: exposed ms (efficiency)\n\n| |",
                    (long long)tokens);
        for (const int ranks : sizes) std::printf(" %d |", ranks);
        std::printf("\n|---|");
        for (size_t i = 0; i < sizes.size(); ++i) std::printf("---|");
        for (const Row& row : rows) {
            curves.push_back(curve_of(row.name, tokens));
            std::printf("\n| %s |", row.name);
            for (const int ranks : sizes) {
                const StepTime t = zero3(machine, net, ranks, tokens, row.how);
                std::printf(" %.1f (%.3f) |", double(t.all - t.busy) * 1e-9, t.efficiency());
                std::fflush(stdout);
                curves.back().points.push_back({double(ranks), t.efficiency()});
            }
        }
        std::printf("\n");
    }
    if (!picture.empty()) draw(machine, curves, picture);
}

int run(int argc, char** argv) {
    CLI::App app("collectives and ZeRO-3 on a virtual network");
    app.require_subcommand(1);
    std::string name = "h100-80g", op = kOps[0], picture, page;
    int ranks = 512;
    int64_t most = kGiB;
    int hosts = 3;
    double gbs = 0, us = 0;
    std::vector<int> sizes{8, 16, 64, 128, 512};
    app.add_option("--machine", name, "a machine of llama/configs/machines, or a TOML file")->capture_default_str();
    CLI::App* of_bars = app.add_subcommand("bars", "the goals at 64 nodes of 8");
    CLI::App* of_table = app.add_subcommand("table", "sizes x algorithms");
    of_table->add_option("--ranks", ranks)->check(CLI::Range(1, 1024))->capture_default_str();
    of_table->add_option("--op", op)->check(CLI::IsMember({kOps[0], kOps[1], kOps[2]}))->capture_default_str();
    of_table->add_option("--max", most, "largest size")->transform(CLI::AsSizeValue(false));
    CLI::App* of_thresholds = app.add_subcommand("thresholds", "what comm/thresholds.h comes from");
    CLI::App* of_placement = app.add_subcommand("placement", "hosts filled in turn");
    CLI::App* of_shaped = app.add_subcommand("shaped", "one rank on each host, over slow links");
    of_shaped->add_option("--ranks", hosts)->check(CLI::Range(2, 64))->capture_default_str();
    of_shaped->add_option("--gbs", gbs, "Rate of a link, one direction.")->check(CLI::PositiveNumber)->required();
    of_shaped->add_option("--us", us, "Its latency.")->check(CLI::NonNegativeNumber)->required();
    CLI::App* of_step = app.add_subcommand("step", "a step of ZeRO-3 of 7B parameters");
    of_step->add_option("--ranks", sizes)->check(CLI::Range(1, 1024))->delimiter(',');
    CLI::Option* to = of_step->add_option("--picture", picture, "an SVG file");
    of_step->add_option("--from", page, "a page with tables that this printed, to be drawn only")->needs(to);
    CLI11_PARSE(app, argc, argv);
    const Machine machine = load_machine(name);
    const NetMachine net = net_machine(machine);
    head(app.get_subcommands().front()->get_name(), machine);
    if (of_bars->parsed()) return bars(net) > 0;
    if (of_table->parsed())
        table(net, ranks, op == kOps[0] ? Op::reduce_scatter : op == kOps[1] ? Op::all_gather : Op::all_reduce, most);
    if (of_thresholds->parsed()) thresholds(net);
    if (of_placement->parsed()) placement(net);
    if (of_shaped->parsed()) shaped(hosts, gbs, us);
    if (of_step->parsed()) page.empty() ? step(machine, net, sizes, picture) : draw(machine, read_step(page), picture);
    return 0;
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("virtual_net", rz::run, argc, argv, 70); }
