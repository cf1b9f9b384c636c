// parse_flags() by CLI11: the one file that includes it, since it is slow to compile.

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <sstream>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "llama/base/text.h"
#include "llama/base/toml.h"
#include "llama/base/version.h"
#include "llama/train/option_table.h"

namespace rz {

static CLI::Option* add_row(CLI::App& app, const OptionRow& row) {
    if (row.turned_on) return app.add_flag(row.flag, *row.turned_on, row.help)->group(row.group);
    CLI::Option* option = app.add_option_function<std::string>(row.flag, row.set, row.help)->group(row.group);
    option->type_name(row.placeholder)->default_str(row.default_text)->required(row.required);
    if (row.wrong) option->check(CLI::Validator([wrong = row.wrong](std::string& text) { return wrong(text); }, ""));
    return option;
}

// What other trainers call it.
static const std::map<std::string, std::string> kSynonyms = {
    {"learning-rate", "--lr"},
    {"max-lr", "--lr"},
    {"epochs", "--steps (an epoch is the data's tokens / --batch-tokens steps)"},
    {"num-epochs", "--steps (an epoch is the data's tokens / --batch-tokens steps)"},
    {"max-steps", "--steps"},
    {"iters", "--steps"},
    {"max-iters", "--steps"},
    {"num-iterations", "--steps"},
    {"gradient-accumulation-steps", "--grad-accum"},
    {"accumulation-steps", "--grad-accum"},
    {"batch-size", "--batch"},
    {"micro-batch-size", "--batch"},
    {"global-batch-size", "--batch-tokens (in tokens)"},
    {"block-size", "--seq-len"},
    {"context-length", "--seq-len"},
    {"sequence-length", "--seq-len"},
    {"grad-clip", "--clip"},
    {"bf16", "--dtype bf16"},
    {"precision", "--dtype"},
    {"gradient-checkpointing", "--recompute block"},
    {"activation-checkpointing", "--recompute block"},
    {"fsdp", "--zero 3"},
    {"zero-stage", "--zero"},
    {"pipeline-parallel-size", "--pp"},
    {"out-dir", "--out"},
    {"eval-interval", "--val-every, or --eval-every for tasks"},
    {"model", "--preset, or --init-from for weights"},
    {"load", "--init-from"},
    {"gpus", "mpirun -n N ./train_llama ..."},
    {"nproc-per-node", "mpirun -n N ./train_llama ..."},
};

// What Hugging Face's Trainer and its kin call a flag, where they have one name for it: accepted.
static const std::map<std::string, std::string> kAliases = {
    {"warmup-steps", "warmup"}, {"max-grad-norm", "clip"}, {"output-dir", "out"},          {"adam-beta1", "beta1"},
    {"adam-beta2", "beta2"},    {"adam-epsilon", "eps"},   {"logging-steps", "log-every"}, {"save-steps", "save-every"},
};

static std::string own_name(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    const auto alias = kAliases.find(name);
    return alias == kAliases.end() ? "" : alias->second;
}

static std::string without_alias(const std::string& argument) {
    if (argument.rfind("--", 0) != 0) return argument;
    const size_t end = std::min(argument.find('='), argument.size());
    const std::string own = own_name(argument.substr(2, end - 2));
    return own.empty() ? argument : "--" + own + argument.substr(end);
}

// "--stepz": "did you mean --steps?"; "" for a word that is like none.
static std::string did_you_mean(const CLI::App& app, const std::string& unknown) {
    std::string name = unknown.substr(0, unknown.find('='));
    std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    std::replace(bare.begin(), bare.end(), '_', '-');
    if (const auto known = kSynonyms.find(bare); known != kSynonyms.end()) return known->second;
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& n : option->get_lnames()) names.push_back("--" + n);
    return similar_name("--" + bare, names);
}

static std::string question(const std::string& meant) { return meant.empty() ? "" : "; did you mean " + meant + "?"; }

// A --config file: TOML, its keys the flags of the program without dashes, under these headings or none.
class ConfigFile : public CLI::ConfigTOML {
   public:
    explicit ConfigFile(const CLI::App& app) : app_(app) {}

    // Checks each line, so that errors name it; headings are for people and go.
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::string text;
        int number = 0;
        for (std::string line; std::getline(input, line);) {
            const size_t first = line.find_first_not_of(" \t\r");
            const bool heading = first != std::string::npos && line[first] == '[';
            ++number;
            if (heading) check_heading(number, line);
            if (first != std::string::npos && line[first] != '#' && !heading) {
                const size_t end = line.find_first_of(" \t=", first);
                if (const std::string own = own_name(line.substr(first, end - first)); !own.empty())
                    line.replace(first, end - first, own);
                check_key(number, line.substr(first));
            }
            text += (heading ? "" : line) + "\n";
        }
        std::map<std::string, std::string> strings;
        try {
            strings = take_strings(text, path());
        } catch (const std::exception& error) {
            throw CLI::ConfigError(error.what(), CLI::ExitCodes::ConfigError);
        }
        std::istringstream rest(text);
        std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(rest);
        for (CLI::ConfigItem& item : items)
            if (const auto found = strings.find(item.name); found != strings.end()) item.inputs = {found->second};
        return items;
    }

    // "line 7 of FILE has it" for a message about "--flag", if its value came from here.
    std::string origin(const std::string& message) const {
        for (const auto& [key, line] : lines_)
            if (message.rfind("--" + key + ":", 0) == 0 || message.rfind("--" + key + " ", 0) == 0)
                return "  line " + std::to_string(line) + " of " + path() + " has it\n";
        return "";
    }

   private:
    std::string path() const { return app_.get_config_ptr()->as<std::string>(); }
    [[noreturn]] void refuse(int line, const std::string& why) const {
        throw CLI::ConfigError(path() + ", line " + std::to_string(line) + ": " + why, CLI::ExitCodes::ConfigError);
    }

    void check_heading(int number, const std::string& line) const {
        const size_t open = line.find('['), close = line.find(']');
        const std::string name = close == std::string::npos ? "" : line.substr(open + 1, close - open - 1);
        for (const char* known : {"model", "data", "training", "optimizer", "distributed", "validation", "output"})
            if (name == known) return;
        refuse(number, "'" + line +
                           "' is no heading that is known; there are [model], [data], [training], "
                           "[optimizer], [distributed], [validation] and [output], or none at all");
    }

    void check_key(int number, const std::string& line) const {
        const size_t equals = line.find('=');
        std::string key = line.substr(0, equals);
        key.erase(key.find_last_not_of(" \t\"") + 1);
        if (!key.empty() && key[0] == '"') key.erase(0, 1);
        if (equals == std::string::npos) refuse(number, "'" + line + "' is neither key = value nor a heading");
        if (app_.get_option_no_throw("--" + key) == nullptr) {
            const std::string meant = did_you_mean(app_, "--" + key);
            refuse(number, "'" + key + "' is no flag" + question(meant.substr(0, 2) == "--" ? meant.substr(2) : meant));
        }
        const auto [earlier, is_new] = lines_.emplace(key, number);
        if (!is_new) refuse(number, "'" + key + "' stands in line " + std::to_string(earlier->second) + " already");
    }

    const CLI::App& app_;
    mutable std::map<std::string, int> lines_;  // by key
};

static std::string exit_code_table() {
    std::string text = "Exit codes:\n";
    for (const ExitMeaning& row : kExitMeanings) text += "  " + std::to_string(row.code) + "\t" + row.meaning + "\n";
    return text;
}

static int report(const CLI::App& app, const CLI::ParseError& error, const ConfigFile& config) {
    if (error.get_exit_code() == 0) {
        app.exit(error);
        return 0;
    }
    std::string text = std::string("train_llama: ") + error.what() + "\n";
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
        for (const std::string& word : app.remaining())
            if (word.rfind("-", 0) == 0) text += "  " + word + " is no flag" + question(did_you_mean(app, word)) + "\n";
    }
    text += config.origin(error.what());
    if (dynamic_cast<const CLI::ConfigError*>(&error))
        text += "  the keys of a --config file are the flags without dashes\n";
    say_once(text + "  --help lists every flag with its default\n");
    return kExitRequest;
}

std::optional<int> parse_flags(const std::vector<std::string>& arguments, std::span<const CommandTable> tables,
                               ParsedFlags& found) {
    CLI::App app{tables[0].about, "train_llama"};
    auto formatter = std::make_shared<CLI::Formatter>();
    formatter->column_width(34);
    app.formatter(formatter);
    app.set_config("--config", "",
                   "TOML file with any of these flags (without dashes). Flags on the command line win.");
    app.allow_config_extras(false);
    app.footer(tables[0].footer.empty() ? exit_code_table() : tables[0].footer + "\n" + exit_code_table());
    const auto config = std::make_shared<ConfigFile>(app);
    app.config_formatter(config);
    app.set_version_flag("--version", std::string("ringzero ") + version() + ", commit " + build_commit(),
                         "Print the version and stop");
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // so that scripts can append "$@"
    std::vector<CLI::App*> apps{&app};
    for (const CommandTable& table : tables.subspan(1)) apps.push_back(app.add_subcommand(table.name, table.about));
    for (size_t i = 0; i < tables.size(); ++i)
        for (const OptionRow& row : tables[i].rows) add_row(*apps[i], row);

    const auto command = [&] {
        for (size_t i = 1; i < apps.size(); ++i)
            if (apps[i]->parsed()) return i;
        return size_t(0);
    };
    try {
        std::vector<std::string> words;  // the last first, as the parser takes them
        for (auto word = arguments.rbegin(); word != arguments.rend(); ++word) words.push_back(without_alias(*word));
        app.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
        return report(*apps[command()], error, *config);
    }
    found.command = command();
    for (const OptionRow& row : tables[0].rows) {
        const CLI::Option* option = app.get_option(row.flag);
        const std::string name = row.flag.substr(2);
        if (option->count() > 0) found.given.insert(name);
        found.values[name] = option->count() > 0 ? option->results().back() : option->get_default_str();
    }
    return std::nullopt;
}

}  // namespace rz
