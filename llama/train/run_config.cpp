#include "llama/train/run_config.h"

#include <algorithm>

#include "comm/host.h"
#include "llama/base/json.h"
#include "llama/base/version.h"

namespace rz {

bool may_hold_secrets(const std::string& flag) { return flag == "after-save" || flag == "before-resume"; }

// Without the values of the flags that may hold secrets.
static std::vector<std::string> without_secrets(std::vector<std::string> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (!arguments[i].starts_with("--")) continue;
        const size_t equals = arguments[i].find('=');
        if (!may_hold_secrets(arguments[i].substr(2, equals - 2))) continue;
        if (equals != std::string::npos)
            arguments[i].replace(equals + 1, std::string::npos, "...");
        else if (i + 1 < arguments.size())
            arguments[++i] = "...";
    }
    return arguments;
}

std::string command_text(const std::vector<std::string>& arguments) {
    std::string text = "train_llama";
    for (const std::string& a : without_secrets(arguments)) {
        const bool plain = !a.empty() && std::all_of(a.begin(), a.end(), [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) ||
                   std::string("-_./=:,@+%").find(c) != std::string::npos;
        });
        std::string quoted;
        for (const char c : a) quoted += c == '\'' ? "'\\''" : c == '\n' ? " " : std::string(1, c);
        text += plain ? " " + a : " '" + quoted + "'";
    }
    return text;
}

// Values decided by other flags, by the model's folder or by the machine.
static std::map<std::string, std::string> resolved(const Trainer& t) {
    const TrainOptions& o = t.options;
    const ModelConfig& c = t.core->config;
    std::map<std::string, std::string> values = {
        {"head", name_of(c.tied ? Head::tied : Head::untied)},
        {"rope-theta", format("%.17g", c.rope_theta)},
        {"norm-eps", format("%.17g", c.norm_eps)},
        {"init-std", format("%.17g", c.init_std)},
        {"batch", std::to_string(o.batch)},
        {"batch-tokens", std::to_string(t.batches->tokens_per_step())},
        {"min-lr", format("%.17g", o.min_lr)},
        {"warmup", std::to_string(o.warmup)},
        {"cooldown", std::to_string(o.cooldown)},
        {"device", t.core->device.is_cuda() ? "cuda" : "cpu"},
        {"wire-dtype", name_of(o.gradient_wire_dtype())},
        {"logits-mib", std::to_string(t.core->options.stage.logits_bytes >> 20)},
        {"threads", std::to_string(t.core->options.threads)},
    };
    if (t.core->plan && o.zero >= 2)
        values["accumulate-locally"] = t.core->zero.options.accumulate_locally ? "on" : "off";
    for (const ConfigField& f : config_fields()) values[f.name] = std::to_string(c.*f.member);
    for (const ConfigSwitch& w : config_switches()) values[w.name] = c.*w.member ? "on" : "off";
    return values;
}

std::string toml_value(const std::string& value, bool is_switch) {
    if (is_switch) return value == "on" ? "true" : "false";
    char* end = nullptr;
    std::strtod(value.c_str(), &end);
    const bool number =
        !value.empty() && *end == '\0' && value.find_first_not_of("0123456789+-.eE") == std::string::npos;
    return number ? value : OrderedJson(replace_invalid_utf8(value)).dump();  // JSON's strings are TOML's
}

std::string run_config(const Trainer& t) {
    const TrainOptions& o = t.options;
    const int ranks = t.core->mesh.world().size;
    std::string text = "# A run of train_llama: every flag as it was resolved; those after # are defaults.\n";
    text += "#   train_llama --config THIS --out NEW   does the same once more\n";
    text += "# command: " + command_text(o.arguments) + "\n";
    text += format("# commit:  %s, ringzero %s\n", build_commit(), version());
    text += format("# host:    %s, %d rank%s, %s\n", host_name().c_str(), ranks, ranks == 1 ? "" : "s",
                   t.core->device.name().c_str());
    text += format("# data:    %ld training tokens in %zu shard%s, %ld for validation\n", t.sources.train->tokens(),
                   t.sources.train_shards(), t.sources.train_shards() == 1 ? "" : "s", t.sources.val_tokens());
    text += "# model:   " + summary(t.core->config) + "\n";
    if (t.start.first_step() > 1) text += format("# resumed: at step %ld\n", t.start.resumed.step);

    TrainOptions fresh;
    const std::map<std::string, std::string> values = resolved(t);
    std::vector<std::pair<std::string, std::string>> sections;  // in the order of the table
    for (const OptionRow& row : command_table(fresh).rows) {
        const std::string name = row.flag.substr(2);
        // Flags about how this start began say nothing about the run.
        if (std::set<std::string>{"resume", "branch", "overwrite", "print-config", "presets", "auto", "lr-continue",
                                  "rewarm", "allow-lr-jump", "allow-data-change", "before-resume", "allow-commands"}
                .count(name))
            continue;
        const auto asked = o.values.find(name), found = values.find(name);
        const std::string given = asked == o.values.end() ? "" : asked->second;
        const std::string value = found == values.end() ? given : found->second;
        const bool key = o.given.count(name) || given != row.default_text;
        if (value.empty() && (row.is_switch || !key)) continue;
        auto section = std::find_if(sections.begin(), sections.end(), [&](auto& s) { return s.first == row.section; });
        if (section == sections.end()) section = sections.insert(section, {row.section, ""});
        if (may_hold_secrets(name)) {
            if (key) section->second += "# " + name + " was given, and is left out: it may hold a token\n";
            continue;
        }
        section->second += (key ? "" : "# ") + name + " = " + toml_value(value, row.is_switch) + "\n";
    }
    for (const auto& [name, keys] : sections) text += "\n[" + name + "]\n" + keys;
    return text;
}

}  // namespace rz
