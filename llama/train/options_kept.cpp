// Which flags a checkpoint keeps, and which of them a resumed run takes from it (options_train.h).

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "llama/data/made_data.h"
#include "llama/train/options_train.h"

namespace rz {

namespace {

enum class Keeps {
    no,  // of one start (--out, --resume, --time-limit, permissions, commands), or of the model, which comes with the
         // weights
    always,  // what a step computes, and how the run is saved and watched
    layout,  // how ranks are laid out and what they are given: on the same number of ranks, where no axis is given
    gpu,     // the device, and what only a GPU does: where there is one
};

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

Keeps keeps(const OptionRow& row) {
    const std::string name = row.flag.substr(2);
    if (name == "grad-accum") return Keeps::no;  // its tokens are kept, which any number of ranks can divide
    if (name == "data-threads") return Keeps::layout;
    for (const char* group : {"Data", "Batch", "Optimizer", "Validation"})
        if (row.group.rfind(group, 0) == 0) return Keeps::always;
    if (is_one_of(name, {"dtype",
                         "grad-dtype",
                         "master-dtype",
                         "adam-dtype",
                         "fp8",
                         "fp8-skip-blocks",
                         "fp8-gather",
                         "loss-scale",
                         "loss-scale-window",
                         "loss-scale-hysteresis",
                         "recompute",
                         "logits-mib",
                         "zero",
                         "prefetch",
                         "no-overlap",
                         "accumulate-locally",
                         "collectives",
                         "wire-dtype",
                         "save-every",
                         "keep",
                         "keep-every",
                         "shard-above",
                         "no-background-save",
                         "log-every",
                         "stats-every",
                         "wandb",
                         "wandb-name",
                         "max-skips",
                         "spike-z",
                         "on-spike",
                         "max-rollbacks",
                         "rollback-steps",
                         "rollback-skip",
                         "check-replicas",
                         "recheck-every",
                         "check-wire",
                         "timeout",
                         "disk-timeout"}))
        return Keeps::always;
    if (is_one_of(name,
                  {"threads", "peak-tflops", "tp", "tp-wire", "tp-overlap", "cp", "cp-exchange", "pp", "pp-schedule",
                   "pp-stages-per-rank", "pp-cut", "pp-gather", "pp-window", "no-accumulate-locally", "shard-size",
                   "axis-order", "ranks-per-node", "ring-chunk", "bucket-mib"}))
        return Keeps::layout;
    if (is_one_of(name, {"device", "cuda-graphs", "offload-optimizer", "offload-params", "offload-grads",
                         "offload-activations", "gemm-tune", "gemm-cache", "transport", "comm-sms"}))
        return Keeps::gpu;
    return Keeps::no;
}

// A run may be resumed from another folder: files and patterns, comma-separated, in full.
std::string kept_value(const std::string& name, const ParsedFlags& found) {
    const std::string& value = found.values.at(name);
    if (name == "data" && is_made_data(value)) return value;
    if (name != "data" && name != "train-data" && name != "val-data" && name != "tokenizer" && name != "eval-data")
        return value;
    std::string all;
    for (size_t at = 0; at < value.size();) {
        const size_t end = std::min(value.find(',', at), value.size());
        std::error_code none;
        const std::string one = value.substr(at, end - at), whole = std::filesystem::absolute(one, none);
        all += (all.empty() ? "" : ",") + (none || one.empty() ? one : whole);
        at = end + 1;
    }
    return all;
}

bool same_value(const std::string& a, const std::string& b) {
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    const bool numbers = !a.empty() && !b.empty() && *end_a == '\0' && *end_b == '\0';
    return numbers ? x == y : a == b;
}

// Why a resumed run does not take a flag that was not given; nullptr: it takes it.
const char* why_not(Keeps how, const std::string& name, const std::string& value, const std::set<std::string>& given,
                    const ResumePlace& place) {
    if (how == Keeps::always) return nullptr;
    if (how == Keeps::gpu) return place.gpu || value == "cpu" || value == "mpi" ? nullptr : "without a GPU";
    if (!place.same_ranks) return "on another number of ranks";
    for (const char* axis : {"tp", "cp", "pp", "pp-threads"})
        if (given.count(axis) && name != "threads" && name != "peak-tflops") return "beside an axis that is given";
    return name == "shard-size" && given.count("zero") ? "with another --zero" : nullptr;
}

}  // namespace

std::map<std::string, std::string> kept_flags(const CommandTable& table, const ParsedFlags& found) {
    std::map<std::string, std::string> kept;
    for (const OptionRow& row : table.rows)
        if (keeps(row) != Keeps::no) kept[row.flag.substr(2)] = kept_value(row.flag.substr(2), found);
    return kept;
}

std::vector<std::string> adopt_flags(TrainOptions& o, const std::map<std::string, std::string>& saved,
                                     const ResumePlace& place) {
    std::vector<std::string> lines;
    TrainOptions fresh;
    std::vector<std::string> arguments = o.arguments;
    const CommandTable table = command_table(fresh);
    std::map<std::string, Keeps> how;
    for (const OptionRow& row : table.rows) how[row.flag.substr(2)] = keeps(row);
    for (const auto& [name, value] : saved) {
        if (!o.kept_flags.count(name)) {
            lines.push_back(
                format("--%s %s of the checkpoint is not known to this program", name.c_str(), value.c_str()));
            continue;
        }
        const std::string& now = o.kept_flags[name];
        const bool given = o.given.count(name) > 0;
        const char* why = given ? "" : why_not(how[name], name, value, o.given, place);
        if (!why && !value.empty()) arguments.push_back("--" + name + "=" + value);
        if (!why || same_value(now, value)) continue;
        lines.push_back(
            format("--%s %s, was %s", name.c_str(), now.empty() ? "not given" : now.c_str(), value.c_str()));
        if (!given) lines.back() += format(": not restored %s, give it again if it is meant", why);
    }
    ParsedFlags found;
    require(!parse_flags(arguments, {&table, 1}, found), "the checkpoint's flags and those given do not go together");
    settle(fresh, o.arguments, table, found);
    fresh.given = o.given;
    o = fresh;
    return lines;
}

}  // namespace rz
