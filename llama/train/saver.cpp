#include "llama/train/saver.h"

#include <cstdio>
#include <utility>

namespace rz {

Saver::Saver(Process& process, TrainingCore& core, Health& health, Log& log, SaveOptions options,
             std::function<Manifest(int64_t)> manifest)
    : process_(process),
      health_(health),
      log_(log),
      manifest_(std::move(manifest)),
      writer_(process, core.device, core.compute, core.zero, core.table, core.config, std::move(options)) {
    if (!writer_.note().empty()) std::fprintf(stderr, "train_llama: %s\n", writer_.note().c_str());
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

void Saver::report() {
    if (!process_.is_root()) return;
    for (const SaveReport& r : writer_.reports()) {
        if (!r.error.empty()) {
            ++failed_;
            std::fprintf(
                stderr,
                "train_llama: the checkpoint of step %lld could not be saved (%lld failed so far): %s\n  %sthe "
                "checkpoint before it stays\n",
                (long long)r.step, (long long)failed_, r.error.c_str(), r.not_finite ? "" : "training continues; ");
            if (r.not_finite) health_.report_end(kExitNumbers, r.error);
            continue;
        }
        health_.saved(r.step, r.write_seconds);
        log_.line(format("saved    %s, %s in %s; training waited %.2f s", r.folder.c_str(),
                         human_bytes(r.bytes).c_str(), duration(r.write_seconds).c_str(), r.stall_seconds));
    }
}

}  // namespace rz
