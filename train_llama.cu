// ringzero trains a LLaMA. This file is the program from top to bottom: parse, build, train, report.
//
//   train_llama --help                                      every flag
//   train_llama --data data/stdlib --out runs/first       one process
//   mpirun -n 4 train_llama --data ... --zero 3             four
//   train_llama --out runs/first --resume auto              go on after whatever happened
//   train_llama generate --from runs/first/final --prompt "def "
//   train_llama schedule --pp 4 --micro-batches 8           a pipeline's schedule, drawn and timed

#include <cstdio>

#include "comm/process.h"
#include "llama/train/commands.h"
#include "llama/base/fault.h"
#include "llama/train/run.h"

using namespace rz;

// One line per stage; everything is enqueued, nothing here waits for the device.
static int train(Run& run) {
    if (run.options.val_every > 0 && run.first_step() == 1) run.validate(0);
    for (int64_t step = run.first_step(); step <= run.options.steps; ++step) {
        run.begin_step(step);
        run.train(step);
        run.zero->update(float(run.schedule.at(step)), step);
        run.end_step(step);
        if (run.stops(step)) break;
        if (run.validates(step)) run.validate(step);
        if (run.saves(step)) run.save(step);
    }
    return run.finish();
}

static int train_command(TrainOptions options, Process& process) {
    if (options.print_config) return print_config_command(options);
    arm_faults(process.rank());
    fault_point("start");
    Health health(options, process);
    std::optional<ResumePoint> from = find_checkpoint(options, process, health.status().saved_step());
    if (from)
        for (const std::string& line : adopt_options(options, from->manifest, process.size()))
            if (process.is_root()) std::printf("changed  %s\n", line.c_str());
    health.set_guards(options);
    for (;;) {
        Run run(options, process, health, from);
        const int exit_code = train(run);
        if (!run.rollback()) return exit_code;
        from = run.rollback();  // the run is made anew, as if it had been started again there
    }
}

static int run_command(const Command& command, Process& process) {
    if (const auto* train = std::get_if<TrainOptions>(&command)) return train_command(*train, process);
    require(process.size() == 1, "generate and export run in one process, this is one of %d: leave mpirun out",
            process.size());
    if (const auto* generate = std::get_if<GenerateOptions>(&command)) return generate_command(*generate);
    return export_command(std::get<ExportOptions>(command));
}

int main(int argc, char** argv) {
    Command command;
    if (const std::optional<int> exit_code = parse_command_line({argv + 1, argv + argc}, command)) return *exit_code;
    const auto* options = std::get_if<TrainOptions>(&command);
    try {
        if (const auto* study = std::get_if<ScheduleStudy>(&command)) return schedule_command(*study);
        Process process(options ? ProcessOptions{.timeout_s = options->timeout} : ProcessOptions{});
        return process.run([&] { return run_command(command, process); });
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_llama: %s\n", error.what());
        return kExitError;
    }
}
