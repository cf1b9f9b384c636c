// Which flags a checkpoint keeps, and which of them a resumed run takes from it (options_train.h).

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "llama/base/text.h"
#include "llama/data/synthetic_data.h"
#include "llama/train/options_train.h"

namespace rz {

namespace {

// A run may be resumed from another folder: files and patterns, comma-separated, in full.
std::string kept_value(const std::string& name, const ParsedFlags& found) {
    const std::string& value = found.values.at(name);
    if (name == "data" && is_made_data(value)) return value;
    if (name != "data" && name != "train-data" && name != "val-data" && name != "tokenizer" && name != "eval-data")
        return value;
    std::vector<std::string> files = split(value, ',');
    for (std::string& file : files) {
        std::error_code none;
        const std::string whole = std::filesystem::absolute(file, none);
        if (!none && !file.empty()) file = whole;
    }
    return joined(files, ",");
}

bool same_value(const std::string& a, const std::string& b) {
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    const bool numbers = !a.empty() && !b.empty() && *end_a == '\0' && *end_b == '\0';
    return numbers ? x == y : a == b;
}

using Flags = std::map<std::string, std::string>;

std::string value_of(const Flags& flags, const std::string& name) {
    const auto found = flags.find(name);
    return found == flags.end() ? "" : found->second;
}

bool is_pipeline(const Flags& flags) {
    const std::string pp = value_of(flags, "pp");
    return !pp.empty() && pp != "1";
}

// Defaults of earlier programs for flags that they left open, where they are not this program's. This one leaves
// none of them open in a checkpoint, but for sums that are accumulated locally.
Flags former_defaults(const Flags& saved, bool gpu) {
    Flags meant;
    if (gpu && !saved.count("collectives")) meant["collectives"] = "ring";
    const std::string sums = value_of(saved, "grad-dtype"), zero = value_of(saved, "zero");
    const bool bf16 = value_of(saved, "dtype") == "bf16";
    if (bf16 && sums.empty()) meant["grad-dtype"] = "bf16";
    if (bf16 && sums == "fp32" && value_of(saved, "wire-dtype").empty()) meant["wire-dtype"] = "fp32";
    if (is_pipeline(saved) && (zero == "2" || zero == "3") && value_of(saved, "accumulate-locally").empty())
        meant["accumulate-locally"] = "on";
    return meant;
}

// Why a resumed run does not take a flag that was not given; nullptr: it takes it.
const char* why_not(ResumeClass how, const std::string& name, const std::string& value,
                    const std::set<std::string>& given, const ResumePlace& place) {
    if (how == ResumeClass::always) return nullptr;
    if (how == ResumeClass::gpu)
        return place.gpu || value == "cpu" || value == "mpi" || value == "tcp" ? nullptr : "without a GPU";
    if (!place.same_ranks) return "on another number of ranks";
    for (const char* axis : {"tp", "cp", "pp", "pp-threads"})
        if (given.count(axis) && name != "threads" && name != "peak-tflops") return "beside an axis that is given";
    return name == "shard-size" && given.count("zero") ? "with another --zero" : nullptr;
}

}  // namespace

std::map<std::string, std::string> current_flags(const CommandTable& table,
                                                 const std::map<std::string, std::string>& saved) {
    std::map<std::string, std::string> flags;
    for (const auto& [name, value] : saved) {
        const auto [row, off, former] = find_flag(table.rows, name);
        const std::string now = row ? row->flag.substr(2) : name;
        if (row && row->is_switch && (off || value == "true" || value == "false" || value.empty())) {
            // Earlier programs had switches for what is not the default: "true", else the default.
            if (value == "true")
                flags[now] = off ? "off" : "on";
            else
                flags.emplace(now, row->default_text);
        } else {
            flags[now] = value;
        }
    }
    return flags;
}

std::map<std::string, std::string> kept_flags(const CommandTable& table, const ParsedFlags& found) {
    std::map<std::string, std::string> kept;
    for (const OptionRow& row : table.rows)
        if (row.keeps != ResumeClass::no) kept[row.flag.substr(2)] = kept_value(row.flag.substr(2), found);
    return kept;
}

std::vector<std::string> adopt_flags(TrainOptions& o, const std::map<std::string, std::string>& as_saved,
                                     const ResumePlace& place) {
    std::vector<std::string> lines;
    TrainOptions fresh;
    const CommandTable table = command_table(fresh);
    Flags saved = current_flags(table, as_saved);
    const Flags former = former_defaults(saved, place.gpu);
    for (const auto& [name, value] : former) saved[name] = value;
    if (value_of(saved, "pp-gather") == "step" && !(is_pipeline(saved) && value_of(saved, "zero") == "3"))
        saved.erase("pp-gather");  // the former default, which did nothing
    const bool other_dtype = o.given.count("dtype") && o.kept_flags["dtype"] != value_of(saved, "dtype");
    for (const auto& [name, value] : saved)
        if (!o.kept_flags.count(name))
            lines.push_back(
                format("--%s %s of the checkpoint is not known to this program", name.c_str(), value.c_str()));
    // The value given, else the checkpoint's, else the default.
    ParsedFlags found;
    std::map<std::string, std::string> differ;  // in the order of the names
    for (const OptionRow& row : table.rows) {
        const std::string name = row.flag.substr(2);
        std::string& value = found.values[name] = row.default_text;
        const bool given = o.given.count(name) > 0;
        const auto kept = row.keeps == ResumeClass::no ? saved.end() : saved.find(name);
        const char* why = nullptr;
        if (kept != saved.end()) {
            const std::string& now = o.kept_flags[name];
            const bool follows_dtype = name == "grad-dtype" || name == "wire-dtype";
            const bool follows_layout = name == "accumulate-locally" && former.count(name);
            const ResumeClass keeps = follows_layout ? ResumeClass::layout : row.keeps;
            why = given                          ? ""
                  : other_dtype && follows_dtype ? "beside another --dtype"
                                                 : why_not(keeps, name, kept->second, o.given, place);
            const auto told = [](const std::string& v) { return v.empty() ? "not given" : v.c_str(); };
            if (why && (given || !kept->second.empty()) && !same_value(now, kept->second)) {
                differ[name] = format("--%s %s, was %s", name.c_str(), told(now), told(kept->second));
                if (!given) differ[name] += format(": not restored %s, give it again if it is meant", why);
            }
        }
        const bool taken = kept != saved.end() && !why && !kept->second.empty();
        if (!given && !taken) continue;
        if (taken && former.count(name))
            lines.push_back(format("--%s %s stays, the former default: the run keeps its sums", name.c_str(),
                                   kept->second.c_str()));
        value = given ? o.values.at(name) : kept->second;
        found.given.insert(name);
        const std::string wrong = row.wrong ? row.wrong(value) : "";
        require(wrong.empty(), "the checkpoint's --%s: %s", name.c_str(), wrong.c_str());
        row.set(value);
    }
    for (const auto& [name, line] : differ) lines.push_back(line);
    resolve_defaults(fresh, o.arguments, table, found);
    fresh.given = o.given;
    fresh.out = o.out, fresh.out_is_new = o.out_is_new;
    o = fresh;
    return lines;
}

}  // namespace rz
