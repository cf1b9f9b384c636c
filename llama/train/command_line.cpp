// parse_flags() by CLI11: the one file that includes it, since it is slow to compile.

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <sstream>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "kernels/runtime/cuda_build.h"
#include "llama/base/atomic_file.h"
#include "llama/base/builtin.h"
#include "llama/base/text.h"
#include "llama/base/toml.h"
#include "llama/base/version.h"
#include "llama/train/option_table.h"

namespace rz {

static CLI::Option* add_row(CLI::App& app, const OptionRow& row) {
    CLI::Option* option = app.add_option_function<std::string>(
        row.flag, [row](const std::string& text) { row.set(row.plain_value(text)); });
    option->type_name(row.placeholder)->required(row.required);
    if (row.wrong) option->check(CLI::Validator([wrong = row.wrong](std::string& text) { return wrong(text); }, ""));
    return option;
}

// Our name of a flag, and what other trainers call it; `command`: that command's flags only.
struct Synonyms {
    const char* ours;
    const char* others;
    const char* command = "";
};
static constexpr Synonyms kSynonyms[] = {
    {"--lr", "learning-rate max-lr peak-lr"},
    {"--steps (an epoch is the data's tokens / --batch-tokens steps)", "epochs num-epochs num-train-epochs"},
    {"--steps", "max-steps iters max-iters num-iterations train-steps total-steps"},
    {"--grad-accum", "gradient-accumulation-steps accumulation-steps"},
    {"--batch",
     "batch-size micro-batch-size micro-batch bs device-batch-size train-batch-size "
     "per-device-train-batch-size local-batch-size"},
    {"--batch-tokens (in tokens)", "global-batch-size total-batch-size"},
    {"--seq-len",
     "block-size context-length context-size ctx-len sequence-length sequence-len "
     "max-seq-length max-length model-max-length"},
    {"--layers", "n-layer n-layers num-layers num-hidden-layers depth"},
    {"--heads", "n-head n-heads num-heads num-attention-heads"},
    {"--kv-heads", "n-kv-heads num-kv-heads num-key-value-heads"},
    {"--dim", "n-embd hidden-size hidden-dim d-model embed-dim"},
    {"--ffn", "intermediate-size ffn-dim"},
    {"--max-grad-norm", "grad-clip clip-grad gradient-clipping gradient-clip-val"},
    {"--warmup (in steps)", "warmup-ratio"},
    {"--weight-decay", "wd"},
    {"--lr-schedule", "decay-lr lr-scheduler lr-scheduler-type scheduler"},
    {"--dtype", "precision mixed-precision"},
    {"--dtype bf16", "bf16"},
    {"--dtype fp16", "fp16 half"},
    {"--dtype fp32", "fp32"},
    {"--recompute block",
     "gradient-checkpointing activation-checkpointing activation-checkpoint checkpoint-activations"},
    {"--zero 3", "fsdp"},
    {"--zero", "zero-stage deepspeed"},
    {"--tp", "tensor-parallel-degree tensor-parallel-size tensor-model-parallel-size"},
    {"--pp", "pipeline-parallel-degree pipeline-parallel-size"},
    {"--cp", "context-parallel-degree context-parallel-size"},
    {"--ranks N, or mpirun -n N ./train_llama ...",
     "gpus num-gpus n-gpus devices num-devices world-size nproc nproc-per-node num-processes"},
    {"--device cpu", "cpu"},
    {"--device cuda", "cuda gpu"},
    {"--out", "out-dir save-dir checkpoint-dir"},
    {"--val-every, or --eval-every for tasks", "eval-interval eval-steps"},
    {"--val-every", "validation-freq val-interval"},
    {"--val-tokens", "eval-iters"},
    {"--save-every", "save-interval checkpoint-interval"},
    {"--log-every", "log-interval logging-interval"},
    {"--resume", "resume-from-checkpoint resume-from"},
    {"--resume, or --init-from for weights alone", "checkpoint ckpt"},
    {"--preset, or --init-from for weights", "model"},
    {"--init-from", "load base-model model-name-or-path model-path model-name pretrained"},
    {"--data", "dataset dataset-path data-dir data-path dataset-name"},
    {"--tokenizer", "tokenizer-path tokenizer-name"},
    {"--wandb PROJECT", "report-to wandb-project"},
    {"--print-config, or train_llama plan", "dry-run"},
    {"--temperature of train_llama generate", "temp"},
    {"--temperature 0 of train_llama generate", "greedy"},
    {"--max-tokens of train_llama generate", "max-new-tokens"},
    {"--top-k of train_llama generate", "top-k"},
    {"--top-p of train_llama generate", "top-p"},
    {"--from of train_llama generate", "from"},
    {"--from", "model m model-path model-name-or-path checkpoint ckpt load init-from out", "generate"},
    {"--temperature", "temp", "generate"},
    {"--temperature 0", "greedy do-sample", "generate"},
    {"--max-tokens", "max-new-tokens max-length n-predict num-tokens length", "generate"},
    {"--num-samples", "n num-return-sequences batch-size batch bs", "generate"},
    {"--prompt", "text input", "generate"},
    {"--gpus", "num-gpus ranks world-size devices", "plan"},
    {"--gpu", "gpu-type machine device gpu-name", "plan"},
    {"--preset", "model", "plan"},
    {"--from", "model checkpoint ckpt", "export"},
    {"--to", "output out out-dir output-dir outfile", "export"},
    {"--format", "outtype type", "export"},
};

// Commands elsewhere.
static constexpr Synonyms kCommands[] = {
    {"train_llama without a command", "train pretrain run fit"},
    {"train_llama --init-from MODEL", "finetune fine-tune sft"},
    {"train_llama --out RUN --resume auto", "resume continue"},
    {"train_llama generate --chat --interactive", "chat"},
    {"train_llama generate", "sample infer inference complete predict gen"},
    {"train_llama export", "convert save serve"},
    {"train_llama eval", "evaluate test benchmark bench validate"},
    {"train_llama average", "merge"},
    {"train_llama plan", "estimate memory"},
    {"--presets", "presets list models"},
    {"--version", "version"},
    {"--print-config", "info config"},
    {"python3 data_prep/prepare.py", "prepare tokenize data"},
};

// "" where nobody calls it so.
static std::string ours(std::span<const Synonyms> all, const std::string& name, const std::string& command) {
    for (const Synonyms& s : all) {
        std::istringstream others(s.others);
        for (std::string other; s.command == command && others >> other;)
            if (other == name) return s.ours;
    }
    return "";
}

// The words as CLI11 takes them: each flag by its own name, each value a word by itself, also an empty one. They end
// where help is asked for. `told` gets a line for each former name.
static std::vector<std::string> parted(const std::vector<std::string>& arguments, std::span<const CommandTable> tables,
                                       std::optional<HelpRequest>& help, std::set<std::string>& told) {
    const auto find = [&](const std::string& word) {
        FlagFound found;
        for (size_t t = 0; t < tables.size() && !found.row && word.starts_with("--"); ++t)
            found = find_flag(tables[t].rows, word.substr(2));
        return found;
    };
    const auto is_command = [&](const std::string& word) {
        return std::any_of(tables.begin(), tables.end(), [&](const CommandTable& t) { return t.name == word; });
    };
    std::vector<std::string> words;
    size_t command = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& word = arguments[i];
        const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
        if (word == "-h" || word == "--help" || word == "--help-all") {
            help = {command, word == "--help-all", next};
            return words;
        }
        for (size_t t = 1; t < tables.size(); ++t)
            if (word == tables[t].name) command = t;
        const size_t end = std::min(word.find('='), word.size());
        const auto [row, off, former] = find(word.substr(0, end));
        const std::string flag = row ? row->flag : word.substr(0, end);
        if (former) told.insert(word.substr(0, end) + " is now " + row->flag);
        if (row && row->is_switch) {
            std::string value = end < word.size() ? word.substr(end + 1) : "on";
            const bool ends = i + 1 == arguments.size() || next.starts_with("-") || is_command(next);
            if (end == word.size() && !ends) value = arguments[++i];
            words.insert(words.end(), {flag, off ? switch_value(value, true) : value});
            continue;
        }
        const bool parts = row || flag == "--config";
        words.push_back(parts ? flag : word);
        if (parts && end < word.size())
            words.push_back(word.substr(end + 1));
        else if (parts && i + 1 < arguments.size())
            words.push_back(arguments[++i]);
    }
    return words;
}

// "--stepz": "did you mean --steps?"; "" for a word that is like none.
static std::string did_you_mean(const CLI::App& app, const std::string& unknown) {
    std::string name = unknown.substr(0, unknown.find('='));
    std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    std::replace(bare.begin(), bare.end(), '_', '-');
    const std::string command = app.get_name().substr(app.get_name().rfind(' ') + 1);  // also "train_llama plan"
    if (const std::string known = ours(kSynonyms, bare, command); !known.empty()) return known;
    if (const std::string known = ours(kSynonyms, bare, ""); !known.empty() && !app.get_parent()) return known;
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& n : option->get_lnames()) names.push_back("--" + n);
    return similar_name("--" + bare, names);
}

static std::string question(const std::string& meant) { return meant.empty() ? "" : "; did you mean " + meant + "?"; }

// A --config file: TOML, its keys the flags of the program without dashes, under these headings or none. Where there is
// no such file it is a recipe of the program: "8b", or "llama/configs/8b.toml".
class ConfigFile : public CLI::ConfigTOML {
   public:
    ConfigFile(const CLI::App& app, std::span<const OptionRow> rows, std::set<std::string>& told)
        : app_(app), rows_(rows), told_(told) {}

    // Before CLI11 opens it: a FIFO would be waited for, and an endless file read. A recipe of the program becomes an
    // empty file, since CLI11 opens one.
    std::string wrong_file(std::string& file) {
        builtin_ = nullptr;
        try {
            if (path_exists(file)) return read_file(file, kTomlFile), "";
        } catch (const Error& error) {
            return error.what();
        }
        for (const Builtin& b : builtins()) {
            const std::string name(b.name);
            if (file == name || file == "llama/configs/" + name + ".toml") builtin_ = &b, file = "/dev/null";
        }
        return "";  // CLI11 says that it is missing
    }

    std::vector<CLI::ConfigItem> from_config(std::istream&) const override {
        std::vector<CLI::ConfigItem> items;
        try {
            for (const TomlEntry& entry :
                 builtin_ ? parse_toml(builtin_->text, path(), headings()) : read_toml(path(), headings()))
                items.push_back(item(entry));
        } catch (const Error& error) {
            throw CLI::ConfigError(error.what(), CLI::ExitCodes::ConfigError);
        }
        return items;
    }

    // A command in the file of someone else would run as this user.
    void refuse_commands(const OptionRow& row, bool allowed) const {
        const auto found = lines_.find(row.flag.substr(2));
        if (!row.runs_commands || found == lines_.end()) return;
        std::string why;
        if (row.is_switch)
            why = " stands on the command line only";
        else if (!allowed)
            why =
                " is a command that would run as you\n"
                "  read it, and give it on the command line instead, or --allow-commands";
        if (!why.empty())
            throw CLI::ConfigError(path() + ", line " + std::to_string(found->second) + ": " + row.flag + why,
                                   CLI::ExitCodes::ConfigError);
    }

    // "line 7 of FILE has it" for a message about "--flag", if its value came from here.
    std::string origin(const std::string& message) const {
        for (const auto& [key, line] : lines_)
            if (message.rfind("--" + key + ":", 0) == 0 || message.rfind("--" + key + " ", 0) == 0)
                return "  line " + std::to_string(line) + " of " + path() + " has it\n";
        return "";
    }

   private:
    std::string path() const {
        return builtin_ ? "llama/configs/" + std::string(builtin_->name) + ".toml"
                        : app_.get_config_ptr()->as<std::string>();
    }

    // Those that a run's config.toml has.
    std::vector<const char*> headings() const {
        std::vector<const char*> all;
        for (const OptionRow& row : rows_)
            if (!row.section.empty() && std::find(all.begin(), all.end(), row.section) == all.end())
                all.push_back(row.section.c_str());
        return all;
    }

    CLI::ConfigItem item(const TomlEntry& entry) const {
        const std::string where = path() + ", line " + std::to_string(entry.line);
        const auto [row, off, former] = find_flag(rows_, entry.key);
        const std::string key = row ? row->flag.substr(2) : entry.key;
        if (former) told_.insert(format("'%s' is now '%s'", entry.key.c_str(), key.c_str()));
        if (!row) {
            const std::string meant = did_you_mean(app_, "--" + key);
            fail("%s: '%s' is no flag%s", where.c_str(), key.c_str(),
                 question(meant.substr(0, 2) == "--" ? meant.substr(2) : meant).c_str());
        }
        const auto [earlier, is_new] = lines_.emplace(key, entry.line);
        require(is_new, "%s: '%s' stands in line %d already", where.c_str(), key.c_str(), earlier->second);
        CLI::ConfigItem item;
        item.name = key;
        item.inputs = {off ? switch_value(value(entry, *row, where), true) : value(entry, *row, where)};
        return item;
    }

    // A list becomes what the command line would have: values with commas between them.
    static std::string value(const TomlEntry& entry, const OptionRow& row, const std::string& where) {
        using enum TomlEntry::Kind;
        const char* key = entry.key.c_str();
        if (row.is_switch) {
            const std::string word = entry.kind == list ? "" : switch_value(entry.values[0]);
            require(word == "on" || word == "off", "%s: '%s' must be true or false", where.c_str(), key);
            return word;
        }
        require(entry.kind != boolean, "%s: '%s' is given %s and takes %s", where.c_str(), key, entry.values[0].c_str(),
                row.placeholder.c_str());
        if (entry.kind != list) return entry.values[0];
        require(row.is_list, "%s: '%s' is given a list and takes one value: %s", where.c_str(), key,
                row.placeholder.c_str());
        require(!entry.values.empty(), "%s: the list of '%s' is empty\n  leave it out", where.c_str(), key);
        for (const std::string& one : entry.values)
            require(!one.empty() && one.find(',') == std::string::npos,
                    "%s: '%s' has '%s' in its list; values are joined by commas, so none can be empty or hold one",
                    where.c_str(), key, one.c_str());
        return joined(entry.values, ",");
    }

    const CLI::App& app_;
    std::span<const OptionRow> rows_;
    std::set<std::string>& told_;  // lines about former names
    const Builtin* builtin_ = nullptr;
    mutable std::map<std::string, int> lines_;  // by key
};

// A line for each word that no flag and no command has taken; a word after an unknown flag is its value.
static std::string unexpected(const CLI::App& app) {
    std::string text;
    bool value = false;
    for (const std::string& word : app.remaining()) {
        const bool flag = word.starts_with("-");
        std::string line = word.substr(0, flag ? word.find('=') : word.npos) + " is no flag";
        if (flag)
            line += question(did_you_mean(app, word));
        else if (value)
            line.clear();
        else if (const std::string meant = app.get_parent() ? "" : ours(kCommands, word, ""); !meant.empty())
            line = word + " is no command" + question(meant);
        else
            line += " and no command";
        if (!line.empty()) text += (text.empty() ? "" : "  ") + line + "\n";
        value = flag && word.find('=') == word.npos;
    }
    return text;
}

static int report(const CLI::App& app, const CLI::ParseError& error, const ConfigFile& config) {
    if (error.get_exit_code() == 0) {
        app.exit(error);
        return 0;
    }
    std::string text = error.what() + std::string("\n");
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) text = unexpected(app);
    if (dynamic_cast<const CLI::RequiredError*>(&error))  // its name may be another's, as --model for --from
        if (const std::string others = unexpected(app); !others.empty()) text = others + "  " + text;
    text += config.origin(error.what());
    if (dynamic_cast<const CLI::ConfigError*>(&error))
        text += "  the keys of a --config file are the flags without dashes\n";
    say_once("train_llama: " + text + "  --help-all lists every flag with its default\n");
    return kExitRequest;
}

std::optional<int> parse_flags(const std::vector<std::string>& arguments, std::span<const CommandTable> tables,
                               ParsedFlags& found) {
    CLI::App app{tables[0].about, tables[0].program};
    app.set_help_all_flag("--help-all");  // both are answered before; a misspelt one is like them
    std::set<std::string> told;
    const auto config = std::make_shared<ConfigFile>(app, tables[0].rows, told);
    app.set_config("--config")
        ->transform(CLI::Validator([&](std::string& file) { return config->wrong_file(file); }, ""));
    app.allow_config_extras(false);
    app.config_formatter(config);
    app.set_version_flag("--version",
                         format("ringzero %s, commit %s, %s", version(), build_commit(), cuda_build().c_str()));
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
        std::optional<HelpRequest> help;
        std::vector<std::string> words = parted(arguments, tables, help, told);
        if (help) {
            std::cout << help_text(tables, *help);
            return 0;
        }
        std::reverse(words.begin(), words.end());  // the last first, as the parser takes them
        app.parse(std::move(words));
        const CLI::Option* const allow = app.get_option_no_throw("--allow-commands");
        const bool allowed = allow && allow->count() > 0 && switch_value(allow->results().back()) == "on";
        const auto is_given = [&](const std::string& flag) {
            return std::any_of(arguments.begin(), arguments.end(),
                               [&](const std::string& a) { return a == flag || a.starts_with(flag + "="); });
        };
        for (const OptionRow& row : tables[0].rows)
            if (row.is_switch || !is_given(row.flag)) config->refuse_commands(row, allowed);
    } catch (const CLI::ParseError& error) {
        return report(*apps[command()], error, *config);
    }
    found.command = command();
    for (const OptionRow& row : tables[0].rows) {
        const CLI::Option* option = app.get_option(row.flag);
        const std::string name = row.flag.substr(2);
        if (option->count() > 0) found.given.insert(name);
        found.values[name] = option->count() > 0 ? row.plain_value(option->results().back()) : row.default_text;
    }
    std::string lines;
    for (const std::string& line : told) lines += "train_llama: " + line + "\n";
    if (!lines.empty()) say_once(lines);
    return std::nullopt;
}

}  // namespace rz
