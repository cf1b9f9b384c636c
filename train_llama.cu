// ringzero trains a LLaMA. This file is the program from top to bottom: parse, build, train, report.
//
//   train_llama --help                                      the flags of a first week; --help-all: every flag
//   train_llama --data data/stdlib --out runs/first       one process
//   train_llama --data ... --zero 3 --ranks 4               four, on this machine; mpirun and torchrun start them too
//   train_llama --out runs/first --resume auto              resume, whatever ended the run
//   train_llama generate --from runs/first/final --prompt "def "
//   train_llama eval --from runs/first/final --tasks hellaswag,perplexity
//   train_llama average runs/first/checkpoints/step_* --to mean            the mean of several models' weights
//   train_llama coordinates --widths 64,128,256 --mup-base-width 64 ...    muP's check
//   train_llama schedule --pp 4 --micro-batches 8           a pipeline's schedule, drawn and timed
//   train_llama plan --gpus 64 --gpu h100-80g --config llama/configs/8b.toml       what a run would take there

#include <cstdio>
#include <exception>
#include <optional>
#include <variant>

#include "comm/crash.h"
#include "comm/process.h"
#include "comm/ranks.h"
#include "kernels/runtime/request.h"
#include "kernels/runtime/waiting.h"
#include "llama/base/fault.h"
#include "llama/base/output.h"
#include "llama/plan/batch_auto.h"
#include "llama/plan/plan.h"
#include "llama/train/commands.h"
#include "llama/train/start.h"
#include "llama/train/trainer.h"

using namespace rz;

// Everything is enqueued; nothing here waits for the device but the report of the step before.
static RunEnd train(Trainer& t) {
    const TrainOptions& o = t.options;
    Model& model = t.core->model;
    ShardedAdamW& optimizer = t.core->zero.optimizer;
    begin_training(t);
    for (int64_t step = t.start.first_step(); step <= o.steps; ++step) {
        if (!await_data(t, step)) break;
        begin_step(t, step);
        const auto batch = [&](int64_t micro_batch) { return t.batches->training(step, micro_batch); };
        // A unit is the embedding, a block, or the final norm with the head. For one stage the order is forward of all
        // units, backward of all units, micro-batch by micro-batch; for a pipeline, what its schedule says.
        ProgramRun run = model.begin(t.core->program, t.goal(), batch);
        // clang-format off
        while (const Instr* i = run.next())
            switch (i->what) {
                case Do::gather:      run.gather(*i);      break;  // ZeRO-3: a unit's parameters, from their owners
                case Do::recv:        run.recv(*i);        break;  // pipeline: what another rank's stage made
                case Do::forward:     run.forward(*i);     break;
                case Do::backward:    run.backward(*i);    break;  // the loss too, at the head
                case Do::input_grad:  run.input_grad(*i);  break;  // backward in two halves: what the unit below
                case Do::weight_grad: run.weight_grad(*i); break;  // waits for; what is added to gradients
                case Do::send:        run.send(*i);        break;
                case Do::reduce:      run.reduce(*i);      break;  // a unit's gradients, summed over ranks
                case Do::release:     run.release(*i);     break;  // ZeRO-3: a unit's parameters are not needed now
            }
        // clang-format on
        // AdamW, clipped by the norm, on what this rank owns; parameters return to the ranks that share them.
        optimizer.gradient_norm();
        if (t.is_outlier(step)) optimizer.leave_out();
        optimizer.update(float(t.lr.at(step)), step);
        end_step(t, step);
        // ---- diagnostics and files ----
        if (ends(t, step)) break;
        if (t.validates(step)) validate(t, step);
        if (t.evaluates(step)) evaluate(t, step);
        if (t.saves(step)) save(t, step);
        if (t.takes_snapshot(step)) take_snapshot(t, step);
    }
    return finish(t);
}

// A rank that fails ends the job while its trainer stands: its streams may wait for messages that other ranks make of
// what it no longer sends, and destructors wait for streams.
static RunEnd train_or_end_job(Trainer& t) {
    try {
        return train(t);
    } catch (const std::exception& error) {
        if (t.process.size() == 1 || t.process.rejoins()) throw;
        t.snapshots.reset();
        t.saver.reset();  // ends a save and a command that are under way
        t.log->wait_for_files();
        t.process.abort(exit_code_of(error), error.what());
    }
}

static int train_command(TrainOptions options, Process& process) {
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
        RunEnd end = train_or_end_job(trainer);
        if (!end.rollback) return end.exit_code;
        // Rolled back, or a larger batch: as if the program had been started again there.
        from = std::move(end.rollback);
    }
}

static int run_command(const Command& command, Process& process) {
    if (const auto* train = std::get_if<TrainOptions>(&command)) return train_command(*train, process);
    if (const auto* check = std::get_if<CoordinatesOptions>(&command)) {
        for (const TrainOptions& width : coordinate_runs(*check))
            if (const int exit_code = train_command(width, process); exit_code != 0) return exit_code;
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

int main(int argc, char** argv) {
    sleep_while_waiting(argv);
    crashes_end_in_words();
    try {
        print_escaped();
        Command command;
        if (const std::optional<int> exit_code = parse_command_line(
                argc > 1 ? std::vector<std::string>{argv + 1, argv + argc} : std::vector<std::string>{"help"}, command))
            return *exit_code;
        const auto* options = std::get_if<TrainOptions>(&command);
        if (const auto* study = std::get_if<ScheduleStudy>(&command)) return schedule_command(*study);
        if (const auto* plan = std::get_if<PlanOptions>(&command)) return plan_command(*plan);
        if (options && options->ranks > 1 && !options->print_config)
            if (const std::optional<int> exit_code =
                    run_ranks(int(options->ranks), options->max_restarts, options->timeout, argv))
                return *exit_code;
        for (;;) {
            Process process(options
                                ? ProcessOptions{.timeout_s = options->timeout, .disk_timeout_s = options->disk_timeout}
                                : ProcessOptions{});
            const int exit_code = process.run([&] { return run_command(command, process); });
            if (exit_code != Process::kRejoins) return exit_code;  // else another rank has died: with its successor
        }
    } catch (...) {
        return code_of_failed_start();
    }
}
