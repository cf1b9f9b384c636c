// The part of a run that is saved and gone on from (run.h).

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>

#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/train/run.h"
#include "llama/base/version.h"

namespace rz {

int64_t Run::samples_before(int64_t step) const {
    return resumed_.samples + (step - 1 - resumed_.step) * samples_per_step();
}

bool Run::saves(int64_t step) const {
    return writer_ && options.save_every > 0 && (step % options.save_every == 0 || step == options.steps);
}

static std::string now_utc() {
    char text[32];
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

Manifest Run::manifest_at(int64_t step) const {
    Manifest m;
    m.run_id = run_id_;
    m.commit = build_commit();
    m.written_at = now_utc();
    m.device = device_.name();
    m.step = step;
    m.updates = updates_;
    m.samples = samples_before(step + 1);
    m.tokens = resumed_.tokens + tokens_per_step() * (step - resumed_.step);
    m.data_hash = consumed_;
    m.validations = validations_;
    m.rollbacks = resumed_.rollbacks;
    m.seconds = resumed_.seconds + std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    m.ranks = mesh_->world().size;
    m.zero = options.zero;
    m.flags = options.kept_flags;
    m.flags["batch-tokens"] = std::to_string(tokens_per_step());
    m.data = train_data_->fingerprint().to_json();
    m.guards = health_.state();
    return m;
}

void Run::save(int64_t step) {
    for (Probe& probe : probes_) report(probe);
    if (health_.end() && !health_.end()->saves) return;  // known only now, by a process that reports a step late
    writer_->save(manifest_at(step));
    report_saves();
    last_done_ = compute_->record(/*timing=*/true);
}

void Run::report_saves() {
    if (!writer_ || !process.is_root()) return;
    for (const SaveReport& r : writer_->reports()) {
        if (!r.error.empty()) {
            ++failed_saves_;
            std::fprintf(
                stderr,
                "train_llama: the checkpoint of step %lld could not be saved (%lld failed so far): %s\n  %sthe "
                "checkpoint before it stays\n",
                (long long)r.step, (long long)failed_saves_, r.error.c_str(), r.not_finite ? "" : "training goes on; ");
            if (r.not_finite) health_.report_end(kExitNumbers, r.error);
            continue;
        }
        health_.saved(r.step, r.write_seconds);
        log_->line(format("saved    %s, %s in %s; training waited %.2f s", r.folder.c_str(),
                          human_bytes(r.bytes).c_str(), duration(r.write_seconds).c_str(), r.stall_seconds));
    }
}

void Run::choose_run_id() {
    uint32_t id = std::random_device()();
    process.broadcast(&id, sizeof id, 0);
    run_id_ = format("%08x", id);
}

// Every rank writes its own slices into --out.
void Run::check_folder_is_shared() {
    if (process.alone() || options.out.empty()) return;
    const std::string probe = options.out + "/.seen-by-all-" + run_id_;
    if (process.is_root()) write_file_atomically(probe, "");
    process.barrier();
    std::string blind;  // this host, if it does not see the file
    // A network file system may remember for some seconds that a file is not there.
    for (int tries = 0; ::access(probe.c_str(), F_OK) != 0; ++tries) {
        if (tries == 50) {
            char host[256] = {};
            ::gethostname(host, sizeof host - 1);
            blind = host;
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const std::vector<std::string> hosts = process.all_gather_text(blind);
    if (process.is_root()) ::unlink(probe.c_str());
    for (size_t r = 0; r < hosts.size(); ++r)
        require(hosts[r].empty(),
                "--out %s: what rank 0 wrote there is not seen by rank %zu on %s\n"
                "  ranks on several hosts need a folder on a shared file system, at the same path",
                options.out.c_str(), r, hosts[r].c_str());
}

void Run::check_data(const Manifest& m) {
    const DataFingerprint was = DataFingerprint::from_json(m.data), now = train_data_->fingerprint();
    const std::string difference = was.difference(now);
    if (difference.empty()) return;
    require(options.allow_data_change,
            "the training data are not those of the checkpoint: %s\n"
            "  --allow-data-change goes on with them, from the same number of tokens",
            difference.c_str());
    if (process.is_root()) std::fprintf(stderr, "train_llama: the training data changed: %s\n", difference.c_str());
    // The position counts samples; of another length, they are as many tokens further on.
    if (was.seq_len != now.seq_len) resumed_.samples = resumed_.tokens / now.seq_len;
}

void Run::load_checkpoint(ResumePoint from) {
    for (;;) {
        resumed_ = from.manifest;
        check_data(resumed_);
        std::vector<std::string> converted;
        const std::string problem =
            load_state(from.folder, from.manifest, table_, process, device_, *compute_, *zero, &converted);
        from.notes.insert(from.notes.end(), converted.begin(), converted.end());
        if (problem.empty()) break;
        require(from.may_fall_back, "%s", problem.c_str());
        from = fall_back(options, process, from, problem);
    }
    if (from.folder == CheckpointStore(options.out).path(resumed_.step)) health_.status().set_saved_step(resumed_.step);
    first_step_ = resumed_.step + 1;
    last_step_ = resumed_.step;
    zero->set_updates(updates_ = resumed_.updates);
    health_.restore(resumed_.guards, from.folder + ": guards");
    validations_ = resumed_.validations;
    consumed_ = resumed_.data_hash;
    if (!process.is_root()) return;
    if (const CheckpointStore store(options.out); !options.out.empty())
        for (const int64_t step : store.abandon_after(resumed_.step, run_id_))
            from.notes.push_back(format("the checkpoint of step %lld is newer: renamed to %s-abandoned-%s",
                                        (long long)step, store.path(step).c_str(), run_id_.c_str()));
    for (const std::string& note : from.notes) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
    std::printf("resumed  %s: step %lld, %lld tokens\n", from.folder.c_str(), (long long)resumed_.step,
                (long long)resumed_.tokens);
    if (first_step_ > options.steps) std::printf("nothing is left to do: raise --steps to train further\n");
    fault_point("resume.done");
}

}  // namespace rz
