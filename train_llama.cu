// ringzero trains a LLaMA. Here are the command line and the training loop; llama/run_command.h is what lies between.
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

#include <optional>
#include <variant>

#include "comm/crash.h"
#include "comm/process.h"
#include "comm/ranks.h"
#include "kernels/runtime/waiting.h"
#include "llama/base/output.h"
#include "llama/plan/plan.h"
#include "llama/run_command.h"
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
            const int exit_code = process.run([&] { return run_command(command, process, train); });
            if (exit_code != Process::kRejoins) return exit_code;  // else another rank has died: with its successor
        }
    } catch (...) {
        return code_of_failed_start();
    }
}
