#include "llama/train/options_plan.h"

#include <cmath>
#include <utility>

#include "llama/train/traffic.h"

namespace rz {

constexpr int64_t kMostTokens = int64_t(1) << 50;

// 4194304, 4M (of 10^6), 15T
static std::optional<int64_t> parse_tokens(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const std::string unit = end;
    const double each = unit.empty()  ? 1
                        : unit == "K" ? 1e3
                        : unit == "M" ? 1e6
                        : unit == "B" ? 1e9
                        : unit == "T" ? 1e12
                                      : 0;
    if (end == text.c_str() || each == 0 || !(value > 0) || value > 1e18) return std::nullopt;
    return std::llround(std::min(value * each, double(kMostTokens)));
}

CommandTable own_command_table(PlanOptions& o) {
    CommandTable table{
        "plan",
        "What a run would take on GPUs that need not be here: memory to the byte, time, what fits. Takes every flag "
        "of training, too",
        {}};
    OptionGroup g(table.rows, "Plan");
    g.given_whole("--gpus", ResumeClass::no, 1, 1 << 20, "Number of ranks, one on each GPU.", [&o](int64_t value) {
         o.gpus = value;
     }).required = true;
    g.text("--gpu", ResumeClass::no, o.machine,
           "Machine: the name of a file in llama/configs/machines, or a file like those.", "NAME")
        .required = true;
    g.checked(
        "--tokens", ResumeClass::no, "N",
        "Number of tokens of the whole run, for days and GPU hours: 160B. [--steps of them]",
        [](const std::string& text) {
            return parse_tokens(text) ? "" : text + " is no number of tokens: 4194304, 500M, 160B and 15T are";
        },
        [&o](const std::string& text) { o.tokens = *parse_tokens(text); });
    g.real("--days", ResumeClass::no, o.days, 0, 1e5, "Days that the run may take: how many tokens are they?");
    g.real(
        "--host-gib", ResumeClass::no, o.host_gib, 0, 1e6,
        "GiB of memory of each host, for offload. [what this machine has free, if its card is the one of --gpu; else "
        "host-memory-gib of the machine's file]");
    g.on_off("--search", ResumeClass::no, o.search,
             "Try what the flags that are not given can be, and show what nothing beats in both speed and memory: of "
             "the same numerics, and of others.");
    g.text("--write-config", ResumeClass::no, o.write_config,
           "File for the fastest of the same numerics that --search finds, as --config reads it.");
    g.text("--json", ResumeClass::no, o.json, "File for the plan as JSON. - is standard output.");
    return table;
}

CommandTable command_table(PlanOptions& o) {
    CommandTable table = own_command_table(o);
    table.name.clear();
    table.program = "train_llama plan";
    table.about =
        "Plans a run: what it takes of memory to the byte, and what fits. Example:\n"
        "  train_llama plan --gpus 64 --gpu h100-80g --config llama/configs/8b.toml";
    table.footer = kTrafficFormulas;
    for (OptionRow& row : command_table(o.train).rows) table.rows.push_back(std::move(row));
    return table;
}

}  // namespace rz
