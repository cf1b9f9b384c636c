#pragma once
// Flags as rows of a table: what --help shows, how a value is checked and where it goes. The options of each command
// fill one; command_line.cpp parses with it. A value that is refused is answered with the nearest valid one.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "kernels/runtime/names.h"

namespace rz {

// Resume class of a flag that is not given again. Every row says it.
enum class ResumeClass {
    no,  // leaves it: it belongs to one start (--out, --resume, --time-limit, permissions, commands), or to the model,
         // which comes with the weights
    always,  // takes the checkpoint's: what a step computes, and how the run is saved and watched
    layout,  // takes it on the same number of ranks, where no axis is given: how ranks are laid out and what they get
    gpu,     // takes it where there is a GPU: the device, and what only a GPU does
};

enum class Level { basic, advanced };  // --help shows the first, --help-all both

struct OptionRow {
    std::string group, flag, help;
    std::string topic;    // of the group: --help TOPIC
    std::string section;  // heading in a run's config.toml; empty: it is not written there
    std::string source;   // FILE:LINE of the row
    ResumeClass keeps = ResumeClass::no;
    Level level = Level::advanced;
    std::string placeholder;   // "N", "PATH", "fp32|bf16"
    std::string range;         // values in words; empty: the placeholder says all
    std::string default_text;  // empty: none is shown
    bool required = false;
    bool is_list = false;        // of values with commas between them, which a --config file may give as a list
    bool is_switch = false;      // --x, --x on and --no-x; true or false in a file
    bool runs_commands = false;  // stands on the command line; in a --config file only beside --allow-commands
    std::function<std::string(const std::string&)> wrong;  // what is wrong with a value; "": nothing
    std::function<std::string(const std::string&)> plain;  // of a value that is right: as it is kept; empty: as given
    std::function<void(const std::string&)> set;           // of a plain value
    std::vector<std::string> former;                       // names that it had: taken, and the new one is said
    std::vector<std::string> others;                       // names that it has in other trainers: taken

    OptionRow& basic() {
        level = Level::basic;
        return *this;
    }
    OptionRow& was(const char* name) {
        former.emplace_back(name);
        return *this;
    }
    OptionRow& also(const char* name) {
        others.emplace_back(name);
        return *this;
    }
    OptionRow& kept_as(std::function<std::string(const std::string&)> how) {
        plain = std::move(how);
        return *this;
    }
    std::string plain_value(const std::string& text) const { return plain ? plain(text) : text; }
};

// The row of a name without dashes: its own, a former one, another trainer's, or "no-" and a switch's.
struct FlagFound {
    const OptionRow* row = nullptr;
    bool off = false;     // "no-": the value is turned round
    bool former = false;  // say the new name
};
FlagFound find_flag(std::span<const OptionRow> rows, std::string name);
// "on" or "off" of on, true, yes, off, false, no; else as it is.
std::string switch_value(const std::string& text, bool turned = false);

// 1000 of 1k, 2000000 of 2M, 1500000000 of 1.5B; else as it is.
std::string plain_count(const std::string& text);

// Checks of a value's text: what is wrong with it, or "".
std::string wrong_whole_number(const std::string& text, int64_t min, int64_t max);
std::string wrong_real_number(const std::string& text, double min, double max);
std::string wrong_name(const std::string& text, const std::vector<std::string>& names);

// A flag, and the place in the source that names it.
struct FlagName {
    std::string text, source;
    FlagName(const std::string& name, const std::source_location& at = std::source_location::current())
        : text(name), source(std::string(at.file_name()) + ":" + std::to_string(at.line())) {}
    FlagName(const char* name, const std::source_location& at = std::source_location::current())
        : FlagName(std::string(name), at) {}
};

// Adds rows under one heading of the help. A row's reference is good until the next row. Training's groups have a topic
// and a section, and rows are advanced unless they say basic(); commands have one group, all of it basic.
class OptionGroup {
   public:
    OptionGroup(std::vector<OptionRow>& rows, std::string heading, std::string topic = "", std::string section = "")
        : rows_(rows), heading_(std::move(heading)), topic_(std::move(topic)), section_(std::move(section)) {}

    OptionRow& text(const FlagName& flag, ResumeClass keeps, std::string& to, const char* help,
                    const char* placeholder = "PATH");
    OptionRow& whole(const FlagName& flag, ResumeClass keeps, int64_t& to, int64_t min, int64_t max, const char* help);
    // A number of steps or tokens: 1000, 1k, 2M, 1.5B are whole numbers too.
    OptionRow& count(const FlagName& flag, ResumeClass keeps, int64_t& to, int64_t min, int64_t max, const char* help);
    // Hands on a value that is given; has no default.
    OptionRow& given_whole(const FlagName& flag, ResumeClass keeps, int64_t min, int64_t max, const std::string& help,
                           std::function<void(int64_t)> set);
    OptionRow& checked(const FlagName& flag, ResumeClass keeps, const char* placeholder, const char* help,
                       std::function<std::string(const std::string&)> wrong,
                       std::function<void(const std::string&)> set);
    // parse() gives the value that set() takes, or nothing; then it is said that 'TEXT' `is_wrong`.
    template <class Parse, class Set>
    OptionRow& parsed(const FlagName& flag, ResumeClass keeps, const char* placeholder, const char* help,
                      const std::string& is_wrong, Parse parse, Set set) {
        return checked(
            flag, keeps, placeholder, help,
            [=](const std::string& text) { return parse(text) ? "" : "'" + text + "' " + is_wrong; },
            [=](const std::string& text) { set(*parse(text)); });
    }
    OptionRow& real(const FlagName& flag, ResumeClass keeps, double& to, double min, double max, const char* help);
    OptionRow& on_off(const FlagName& flag, ResumeClass keeps, bool& to, const char* help);
    OptionRow& on_off(const FlagName& flag, ResumeClass keeps, std::optional<bool>& to, const char* help);
    OptionRow& seed(const FlagName& flag, ResumeClass keeps, uint64_t& to, const char* help);
    // One of `names`; set() takes what was chosen.
    OptionRow& one_of(const FlagName& flag, ResumeClass keeps, const std::vector<std::string>& names,
                      const std::string& default_text, const std::string& help,
                      std::function<void(const std::string&)> set);

    // One of some values of an enum, by name_of(); of all that have names if none are listed.
    template <class E>
    OptionRow& choice(const FlagName& flag, ResumeClass keeps, E& to, const char* help,
                      std::initializer_list<E> among = {}) {
        return choose<E>(
            flag, keeps, [&to](E value) { to = value; }, name_of(to), help, among);
    }
    template <class E>
    OptionRow& choice(const FlagName& flag, ResumeClass keeps, std::optional<E>& to, const char* help,
                      std::initializer_list<E> among = {}) {
        return choose<E>(
            flag, keeps, [&to](E value) { to = value; }, to ? name_of(*to) : "", help, among);
    }

   private:
    OptionRow& add(const FlagName& flag, ResumeClass keeps, const std::string& placeholder,
                   const std::string& default_text, const std::string& help);
    template <class E>
    OptionRow& choose(const FlagName& flag, ResumeClass keeps, std::function<void(E)> set, const char* default_text,
                      const char* help, std::vector<E> among) {
        if constexpr (requires { kNames<E>.front(); })
            if (among.empty())
                for (const Named<E>& n : kNames<E>) among.push_back(n.value);
        std::vector<std::string> names;
        for (const E value : among) names.emplace_back(name_of(value));
        const auto take = [set, among](const std::string& text) {
            for (const E value : among)
                if (text == name_of(value)) set(value);
        };
        return one_of(flag, keeps, names, default_text, help, take);
    }

    std::vector<OptionRow>& rows_;
    std::string heading_, topic_, section_;
};

// Flags of a program or of a command of it.
struct CommandTable {
    std::string name;  // of the command; the program's own has none
    std::string about;
    std::vector<OptionRow> rows;
    std::string footer = "";              // after the flags; before the exit codes
    std::string program = "train_llama";  // in the usage line
};

struct ParsedFlags {
    size_t command = 0;                         // index into the tables
    std::set<std::string> given;                // flags of the program itself, without dashes
    std::map<std::string, std::string> values;  // of all of those: as given but plain, or the default's text
};

// The request of --help: of tables[command] the flags of a first week, all of them, or one group, flag or command.
struct HelpRequest {
    size_t command = 0;
    bool all = false;
    std::string topic;
};
std::string help_text(std::span<const CommandTable>, const HelpRequest&);
std::string greeting();  // of `train_llama help`, and of the program's name alone

// Parses with the first table, the program's, and the others, its commands, and sets what the flags of the command say.
// On --help or an error prints and returns the exit code: 0 or 2.
std::optional<int> parse_flags(const std::vector<std::string>& arguments, std::span<const CommandTable>,
                               ParsedFlags& found);

}  // namespace rz
