// parse_flags() by CLI11: the one file that includes it, since it is slow to compile.

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "llama/base/text.h"
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
    {"max-grad-norm", "--clip"},
    {"grad-clip", "--clip"},
    {"warmup-steps", "--warmup"},
    {"bf16", "--dtype bf16"},
    {"precision", "--dtype"},
    {"gradient-checkpointing", "--recompute block"},
    {"activation-checkpointing", "--recompute block"},
    {"fsdp", "--zero 3"},
    {"zero-stage", "--zero"},
    {"pipeline-parallel-size", "--pp"},
    {"output-dir", "--out"},
    {"out-dir", "--out"},
    {"save-steps", "--save-every"},
    {"eval-interval", "--val-every, or --eval-every for tasks"},
    {"model", "--preset, or --init-from for weights"},
    {"load", "--init-from"},
    {"gpus", "mpirun -n N ./train_llama ..."},
    {"nproc-per-node", "mpirun -n N ./train_llama ..."},
};

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

static int report(const CLI::App& app, const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
        app.exit(error);
        return 0;
    }
    std::cerr << "train_llama: " << error.what() << '\n';
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
        for (const std::string& word : app.remaining())
            if (word.rfind("-", 0) == 0)
                std::cerr << "  " << word << " is no flag" << question(did_you_mean(app, word)) << "\n";
    }
    if (const auto* config = dynamic_cast<const CLI::ConfigError*>(&error)) {
        const std::string what = config->what();
        const std::string key = what.substr(what.rfind(' ') + 1);
        const std::string meant = did_you_mean(app, "--" + key);
        std::cerr << "  the keys of a --config file are the flags without dashes"
                  << question(meant.substr(0, 2) == "--" ? meant.substr(2) : meant) << "\n";
    }
    std::cerr << "  --help lists every flag with its default\n";
    return 2;
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
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
        return report(*apps[command()], error);
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
