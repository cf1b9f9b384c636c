#include "llama/train/saver.h"

#include <cstdio>
#include <utility>

namespace rz {

Saver::Saver(Process& process, TrainState& core, RunGuard& health, Log& log, SaveOptions options,
             double report_hang_after, const std::string& after_save, std::function<Manifest(int64_t)> manifest)
    : process_(process),
      health_(health),
      log_(log),
      options_(std::move(options)),
      report_hang_after_(report_hang_after),
      manifest_(std::move(manifest)),
      writer_(process, core.device, core.compute, core.zero, core.table, core.config, options_) {
    if (!writer_.note().empty()) std::fprintf(stderr, "train_llama: %s\n", writer_.note().c_str());
    if (!process.is_root()) return;
    const CheckpointStore store(options_.run_folder);
    if (!after_save.empty()) {
        // On the screen only: it may hold a token.
        std::printf("hook     --after-save runs: %s\n", after_save.c_str());
        std::fflush(stdout);
        after_save_ = std::make_unique<AfterSave>(after_save, store);
    } else if (const size_t held = store.marked().size(); held > 0) {
        log_.line(format("hook     %zu checkpoint%s an earlier start's --after-save, which is not given now: kept",
                         held, held == 1 ? " waits for" : "s wait for"));
    }
}

void Saver::save(int64_t step) {
    writer_.save(manifest_(step));
    report();
}

bool Saver::finish() {
    const bool good = writer_.finish();
    report();
    return good;
}

void Saver::finish_commands(double seconds) {
    if (!after_save_) return;
    after_save_->finish(seconds);
    for (const std::string& line : after_save_->lines()) log_.line(line);
    after_save_.reset();
    try {  // what was kept only for the command
        CheckpointStore(options_.run_folder).collect(options_.keep, options_.keep_every, -1, options_.save_every);
    } catch (const Error& error) {
        std::fprintf(stderr, "train_llama: %s\n", error.what());
    }
}

void Saver::report() {
    writer_.agree();
    if (const CheckpointWriter::Progress p = writer_.progress();
        p.silent_seconds > report_hang_after_ && p.step != hangs_at_) {
        hangs_at_ = p.step;
        std::fprintf(stderr,
                     "train_llama: rank %d: the checkpoint of step %ld: the file system has not answered for %.0f s; "
                     "training continues until the next checkpoint\n",
                     process_.rank(), p.step, p.silent_seconds);
    }
    if (!process_.is_root()) return;
    if (after_save_)
        for (const std::string& line : after_save_->lines()) log_.line(line);
    for (const SaveReport& r : writer_.reports()) {
        for (const int64_t step : r.unseen)
            log_.line(
                format("hook     the checkpoint of step %ld is deleted, and --after-save has not succeeded for "
                       "it: %ld at most wait, fewer where the disk is full",
                       step, kMostHeld));
        if (!r.error.empty()) {
            ++failed_;
            std::fprintf(stderr,
                         "train_llama: the checkpoint of step %ld could not be saved (%ld failed so far): %s\n  %sthe "
                         "checkpoint before it stays\n",
                         r.step, failed_, r.error.c_str(), r.not_finite ? "" : "training continues; ");
            if (r.not_finite) health_.report_end(kExitNumbers, r.error);
            continue;
        }
        health_.saved(r.step, r.write_seconds);
        if (after_save_) after_save_->saved(r.step);
        log_.line(format("saved    %s, %s in %s; training waited %.2f s", r.folder.c_str(),
                         human_bytes(r.bytes).c_str(), duration(r.write_seconds).c_str(), r.stall_seconds));
    }
}

}  // namespace rz
