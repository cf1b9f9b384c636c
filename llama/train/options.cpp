#include "llama/train/options.h"

#include <iostream>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "kernels/runtime/request.h"
#include "llama/model/presets.h"
#include "llama/train/snapshots.h"

namespace rz {

// A plan is made of a run's flags: they are parsed and checked as the run's would be.
static std::optional<int> parse_plan(const std::vector<std::string>& arguments, Command& command) {
    PlanOptions& plan = command.emplace<PlanOptions>();
    const CommandTable table = command_table(plan);
    ParsedFlags found;
    if (const std::optional<int> exit_code = parse_flags(arguments, {&table, 1}, found)) return exit_code;
    resolve_defaults(plan.train, arguments, table, found);
    check_given(plan.train);
    return std::nullopt;
}

static std::optional<int> parse_coordinates(const std::vector<std::string>& arguments, Command& command) {
    CoordinatesOptions& check = command.emplace<CoordinatesOptions>();
    const CommandTable table = command_table(check);
    ParsedFlags found;
    if (const std::optional<int> exit_code = parse_flags(arguments, {&table, 1}, found)) return exit_code;
    resolve_defaults(check.train, arguments, table, found);
    check_given(check.train);
    coordinate_runs(check);  // refuses what is wrong
    return std::nullopt;
}

static std::optional<int> parse(std::vector<std::string> arguments, Command& command) {
    if (arguments == std::vector<std::string>{"help"}) {
        std::cout << greeting();
        return 0;
    }
    if (!arguments.empty() && arguments[0] == "plan")
        return parse_plan({arguments.begin() + 1, arguments.end()}, command);
    if (!arguments.empty() && arguments[0] == "coordinates")
        return parse_coordinates({arguments.begin() + 1, arguments.end()}, command);
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
