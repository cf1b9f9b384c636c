// --help, of the table's rows (option_table.h).

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "comm/exit_codes.h"
#include "kernels/runtime/request.h"
#include "llama/base/text.h"
#include "llama/train/option_table.h"

namespace rz {

namespace {

constexpr size_t kHelpColumn = 30;  // dev/build/describe.py reads it so, too

size_t terminal_width() {
    winsize size = {};
    const bool known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? std::clamp<size_t>(size.ws_col, 50, 160) : 80;
}

// `text` in lines that end before `width`, from `column` on; the first one begins where `head` ends, if there is room.
std::string wrapped(const std::string& head, const std::string& text, size_t column, size_t width) {
    std::string out, line = head;
    if (line.size() + 1 > column && !text.empty()) out = line + "\n", line.clear();
    line.resize(std::max(line.size(), text.empty() ? 0 : column), ' ');
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        if (line.size() > column && line.size() + 1 + (end - at) > width) {
            out += line + "\n";
            line.assign(column, ' ');
        }
        line += (line.size() > column ? " " : "") + text.substr(at, end - at);
        at = end + 1;
    }
    return out + line + "\n";
}

std::string head_of(const OptionRow& row) {
    std::string text = row.flag;
    if (!row.placeholder.empty()) text += " " + row.placeholder;
    if (!row.default_text.empty()) text += "=" + row.default_text;
    return text;
}

std::string line_of(const OptionRow& row, size_t width) {
    return wrapped("  " + head_of(row), (row.required ? "Required. " : "") + row.help, kHelpColumn, width);
}

const char* words_of(ResumeClass keeps) {
    switch (keeps) {
        case ResumeClass::no:
            return "leaves it: it belongs to one start, or to the model, which comes with the weights";
        case ResumeClass::always:
            return "takes the checkpoint's, unless it is given again";
        case ResumeClass::layout:
            return "takes the checkpoint's on as many ranks, unless an axis (--tp, --cp, --pp) is given";
        case ResumeClass::gpu:
            return "takes the checkpoint's where there is a GPU";
    }
    return "";
}

std::string page_of(const OptionRow& row, size_t width) {
    std::string text = wrapped(head_of(row), "", 0, width) + "\n" + wrapped("", row.help, 2, width) + "\n";
    const auto fact = [&](const char* what, const std::string& value) {
        if (!value.empty()) text += wrapped("  " + std::string(what), value, 12, width);
    };
    const std::string name = row.flag.substr(2);
    fact("values", row.is_switch ? row.flag + " alone is on, --no-" + name + " is off" : row.range);
    fact("default", row.default_text.empty() ? "none" : row.default_text);
    if (!row.section.empty()) {
        const std::string value = row.is_switch ? "true|false" : row.placeholder;
        fact("file", name + " = " + value + ", under [" + row.section + "]");
        fact("resume", words_of(row.keeps));
    }
    fact("group", row.group + (row.topic.empty() ? "" : " (--help " + row.topic + ")"));
    std::string names;
    for (const auto* list : {&row.former, &row.others})
        for (const std::string& other : *list) names += (names.empty() ? "--" : ", --") + other;
    fact("also", names);
    fact("source", row.source.substr(row.source.starts_with("./") ? 2 : 0));
    return text;
}

// Rows of the parser itself.
std::string general_lines(bool takes_file, size_t width) {
    const auto line = [&](const char* head, const char* help) { return wrapped(head, help, kHelpColumn, width); };
    return "\nHelp:\n" + line("  -h,--help", "These flags. --help GROUP, --help FLAG: those of a group, one of them.") +
           (takes_file
                ? line("  --help-all", "Every flag.") +
                      line("  --config PATH",
                           "TOML file of flags (without dashes), or a recipe's name, as 8b. The command line wins.")
                : "") +
           line("  --version", "Print the version and stop.");
}

std::string usage(const CommandTable& table, bool has_commands) {
    std::string text = table.program + (table.name.empty() ? "" : " " + table.name), required;
    for (const OptionRow& row : table.rows)
        if (row.required) required += " " + row.flag + " " + row.placeholder;
    std::string lines = "Usage: " + text + required + " [OPTIONS]\n";
    if (has_commands) lines += "       " + text + " COMMAND [OPTIONS]\n";
    return lines;
}

std::vector<std::pair<std::string, std::string>> groups_of(const CommandTable& table) {  // topic, heading
    std::vector<std::pair<std::string, std::string>> groups;
    for (const OptionRow& row : table.rows)
        if (groups.empty() || groups.back().second != row.group) groups.emplace_back(row.topic, row.group);
    return groups;
}

std::string lines_of(const CommandTable& table, const std::function<bool(const OptionRow&)>& shows, size_t width) {
    std::string text;
    for (const auto& [topic, heading] : groups_of(table)) {
        std::string lines;
        for (const OptionRow& row : table.rows)
            if (row.group == heading && shows(row)) lines += line_of(row, width);
        if (!lines.empty()) text += "\n" + heading + ":\n" + lines;
    }
    return text;
}

std::string list_page(std::span<const CommandTable> tables, size_t command, bool all, size_t width) {
    const CommandTable& table = tables[command];
    const bool has_commands = command == 0 && tables.size() > 1;
    std::string text = table.about + "\n" + usage(table, has_commands) + general_lines(command == 0, width);
    text += lines_of(
        table, [all](const OptionRow& row) { return all || row.level == Level::basic; }, width);
    if (has_commands) {
        text += "\nCommands:\n";
        for (const CommandTable& c : tables.subspan(1)) text += wrapped("  " + c.name, c.about, 14, width);
    }
    std::string topics;
    size_t hidden = 0;
    for (const auto& [topic, heading] : groups_of(table))
        if (!topic.empty()) topics += (topics.empty() ? "" : ", ") + topic;
    for (const OptionRow& row : table.rows) hidden += row.level != Level::basic;
    if (hidden > 0 && !all)
        text += "\n" + wrapped("", format("%zu more flags: --help-all, or --help and a group: ", hidden) + topics + ".",
                               0, width);
    if (!table.footer.empty()) text += "\n" + table.footer + "\n";
    text += "\nExit codes:\n";
    for (const ExitMeaning& row : kExitMeanings) text += "  " + std::to_string(row.code) + "\t" + row.meaning + "\n";
    return text;
}

}  // namespace

std::string help_text(std::span<const CommandTable> tables, const HelpRequest& asked) {
    const size_t width = terminal_width();
    if (asked.topic.empty()) return list_page(tables, asked.command, asked.all, width);
    const bool dashed = asked.topic.starts_with("--");
    const std::string name = dashed ? asked.topic.substr(2) : asked.topic;
    if (asked.command == 0 && !dashed)
        for (size_t i = 1; i < tables.size(); ++i)
            if (tables[i].name == name) return list_page(tables, i, asked.all, width);
    std::vector<std::string> known;
    for (const CommandTable& table : tables) known.push_back(table.name);
    std::vector<const CommandTable*> order = {&tables[asked.command]};
    for (const CommandTable& table : tables)
        if (&table != order[0]) order.push_back(&table);
    for (const CommandTable* table : order) {
        const auto in_group = [&](const OptionRow& row) { return row.topic == name; };
        if (!dashed && std::any_of(table->rows.begin(), table->rows.end(), in_group))
            return lines_of(*table, in_group, width).substr(1);
        if (const OptionRow* row = find_flag(table->rows, name).row) return page_of(*row, width);
        for (const OptionRow& row : table->rows) {
            known.push_back(row.flag.substr(2));
            if (!row.topic.empty()) known.push_back(row.topic);
        }
    }
    const std::string near = similar_name(name, known);
    refuse("--help %s: there is no such flag, group or command\n  nearest: %s", asked.topic.c_str(),
           near.empty() ? "--help, or --help-all" : ("--help " + near).c_str());
}

std::string greeting() {
    return "ringzero trains LLaMAs. Three commands to begin with:\n\n"
           "  train_llama --data synthetic --steps 20                       a small model, to see one run\n"
           "  train_llama --data data/NAME --out runs/first                 on data of data_prep/prepare.py\n"
           "  train_llama generate --from runs/first/final --prompt \"def \"  text from what was trained\n\n"
           "train_llama --help has the flags of a first week, make quickstart does all of it once.\n";
}

}  // namespace rz
