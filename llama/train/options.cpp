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
    TrainOptions train;
    PlanOptions plan;
    GenerateOptions generate;
    EvalOptions eval;
    ExportOptions exports;
    AverageOptions average;
    ScheduleStudy schedule;
    CoordinatesOptions coordinates;
    const CommandTable tables[] = {command_table(train),    command_table(generate),       command_table(eval),
                                   command_table(exports),  command_table(average),        command_table(schedule),
                                   own_command_table(plan), own_command_table(coordinates)};
    ParsedFlags found;
    if (const std::optional<int> exit_code = parse_flags(arguments, tables, found)) return exit_code;
    const std::string& name = tables[found.command].name;
    require_request(
        found.command == 0 || found.given.empty(),
        "--%s is a flag of training and does nothing for %s\n  leave it out; %s's own flags come after its name",
        found.given.empty() ? "" : found.given.begin()->c_str(), name.c_str(), name.c_str());
    if (found.command > 0) {
        if (name == "generate") command = generate;
        if (name == "eval") command = eval;
        if (name == "export") command = exports;
        if (name == "average") command = average;
        if (name == "schedule") {
            check_given(schedule);
            command = schedule;
        }
        return std::nullopt;
    }
    resolve_defaults(train, arguments, tables[0], found);
    check_given(train);
    check_restarts(train);
    if (train.presets) {
        std::cout << preset_table();
        return 0;
    }
    command = train;
    return std::nullopt;
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
