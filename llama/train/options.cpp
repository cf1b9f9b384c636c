#include "llama/train/options.h"

#include <iostream>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "kernels/runtime/request.h"
#include "llama/model/presets.h"
#include "llama/train/snapshots.h"

namespace rz {

// Commands that take every flag of training, too: those are parsed and checked as the run's would be.
template <class Options>
static std::optional<int> parse_with_training(std::span<const std::string> arguments, Options& o) {
    const std::vector<std::string> own(arguments.begin() + 1, arguments.end());
    const CommandTable table = command_table(o);
    ParsedFlags found;
    if (const std::optional<int> exit_code = parse_flags(own, {&table, 1}, found)) return exit_code;
    resolve_defaults(o.train, own, table, found);
    check_given(o.train);
    return std::nullopt;
}

// Commands with the flags of training are listed with their own alone.
template <class Options>
static CommandTable listed_table(Options& o) {
    if constexpr (requires { own_command_table(o); })
        return own_command_table(o);
    else
        return command_table(o);
}

static std::optional<int> parse(std::vector<std::string> arguments, Command& command) {
    if (arguments == std::vector<std::string>{"help"}) {
        std::cout << greeting();
        return 0;
    }
    if (!arguments.empty() && arguments[0] == "plan")
        return parse_with_training(arguments, command.emplace<PlanOptions>());
    if (!arguments.empty() && arguments[0] == "coordinates") {
        CoordinatesOptions& check = command.emplace<CoordinatesOptions>();
        const std::optional<int> exit_code = parse_with_training(arguments, check);
        if (!exit_code) coordinate_runs(check);  // refuses what is wrong
        return exit_code;
    }
    if (!arguments.empty() && arguments[0] == "average") arguments = models_as_flag(arguments);
    Command commands[] = {TrainOptions{},   GenerateOptions{}, EvalOptions{}, ExportOptions{},
                          AverageOptions{}, ScheduleStudy{},   PlanOptions{}, CoordinatesOptions{}};
    std::vector<CommandTable> tables;
    for (Command& c : commands) tables.push_back(std::visit([](auto& o) { return listed_table(o); }, c));
    ParsedFlags found;
    if (const std::optional<int> exit_code = parse_flags(arguments, tables, found)) return exit_code;
    const std::string& name = tables[found.command].name;
    require_request(
        found.command == 0 || found.given.empty(),
        "--%s is a flag of training and does nothing for %s\n  leave it out; %s's own flags come after its name",
        found.given.empty() ? "" : found.given.begin()->c_str(), name.c_str(), name.c_str());
    command = std::move(commands[found.command]);
    if (auto* schedule = std::get_if<ScheduleStudy>(&command)) check_given(*schedule);
    auto* train = std::get_if<TrainOptions>(&command);
    if (!train) return std::nullopt;
    resolve_defaults(*train, arguments, tables[0], found);
    check_given(*train);
    check_restarts(*train);
    if (!train->presets) return std::nullopt;
    std::cout << preset_table();
    return 0;
}

std::optional<int> parse_command_line(const std::vector<std::string>& arguments, Command& command) {
    try {
        return parse(arguments, command);
    } catch (const Error& error) {
        say_once(std::string("train_llama: ") + error.what() + "\n");
        return kExitRequest;
    }
}

}  // namespace rz
