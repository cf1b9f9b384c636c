#include "llama/run_command.h"

#include <cstdio>
#include <exception>
#include <optional>
#include <variant>

#include "comm/ranks.h"
#include "kernels/runtime/request.h"
#include "llama/base/fault.h"
#include "llama/base/output.h"
#include "llama/plan/batch_auto.h"
#include "llama/train/commands.h"
#include "llama/train/start.h"

namespace rz {

// A rank that fails ends the job while its trainer stands: its streams may wait for messages that other ranks make of
// what it no longer sends, and destructors wait for streams.
static RunEnd train_or_end_job(TrainingLoop loop, Trainer& t) {
    try {
        return loop(t);
    } catch (const std::exception& error) {
        if (t.process.size() == 1 || t.process.rejoins()) throw;
        t.snapshots.reset();
        t.saver.reset();  // ends a save and a command that are under way
        t.log->wait_for_files();
        t.process.abort(exit_code_of(error), error.what());
    }
}

static int train_command(TrainOptions options, Process& process, TrainingLoop loop) {
    if (options.print_config) return process.is_root() ? print_config_command(options) : 0;
    check_ranks(options.ranks, process);
    check_same_flags(options, process);
    const FaultScope armed(Faults(process.rank()));
    fault_point("start");
    continue_run(options, process);
    // Without --out a run gets a folder of its own. Those that --resume N and auto look into are named.
    options.out_is_new = options.out.empty() && options.keeps() && !options.resume.looks_in_out();
    if (options.out_is_new) options.out = choose_run_folder(process);
    RunGuard health(options, process);
    if (options.batch == 0) options.given.erase("batch");  // a resumed run stays with the batch that was chosen
    std::optional<ResumePoint> from = find_checkpoint(options, process, health.status().saved_step());
    if (from)
        for (const std::string& line : adopt_options(options, from->manifest, process.size()))
            if (process.is_root()) std::printf("changed  %s\n", line.c_str());
    choose_dtype(options, gpu_capability(options));
    if (options.recipe && !from)
        for (const std::string& line :
             choose_recipe(options, model_config(options, find_data(options).vocab), process.size()))
            if (process.is_root()) std::printf("%s\n", line.c_str());
    MeteredMesh mesh;
    if (options.batch == 0)
        if (const std::string line = choose_batch(options, process, mesh); process.is_root())
            std::printf("%s\n", line.c_str());
    health.set_guards(options);
    for (const int64_t batch_tokens = options.batch_tokens;;) {
        options.batch_tokens = batch_tokens;
        enter_ramp_stage(options, from ? from->manifest.tokens : 0);
        Trainer trainer(options, process, health, from, std::move(mesh));
        RunEnd end = train_or_end_job(loop, trainer);
        if (!end.rollback) return end.exit_code;
        // Rolled back, or a larger batch: as if the program had been started again there.
        from = std::move(end.rollback);
    }
}

int run_command(const Command& command, Process& process, TrainingLoop loop) {
    if (const auto* train = std::get_if<TrainOptions>(&command)) return train_command(*train, process, loop);
    if (const auto* check = std::get_if<CoordinatesOptions>(&command)) {
        for (const TrainOptions& width : coordinate_runs(*check))
            if (const int exit_code = train_command(width, process, loop); exit_code != 0) return exit_code;
        return process.is_root() ? draw_coordinates(*check) : 0;
    }
    if (const auto* eval = std::get_if<EvalOptions>(&command)) return eval_command(*eval, process);
    require_request(process.size() == 1,
                    "generate, export and average run in one process, this is one of %d: leave mpirun out",
                    process.size());
    if (const auto* generate = std::get_if<GenerateOptions>(&command)) return generate_command(*generate);
    if (const auto* average = std::get_if<AverageOptions>(&command)) return average_command(*average);
    return export_command(std::get<ExportOptions>(command));
}

}  // namespace rz
