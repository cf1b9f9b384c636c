#pragma once
// Judges the health of the run by the numbers of each step. All ranks feed the same numbers and so reach the same
// verdict without another message.
//
//   a non-finite loss or gradient norm   the device skipped the update (zero/zero.h), so the state is unchanged;
//                                        counted, and after --max-skips in a row the run ends with exit code 72. An
//                                        overflow that a dynamic loss scale answers is not counted
//   a spike                              a loss far above its recent ones: flagged. With --on-spike stop the run
//                                        ends with exit code 72 before anything is saved; with --on-spike rollback
//                                        it resumes from a checkpoint before it, and after --max-skips too. The norm
//                                        alone is no spike: it jumps in healthy runs (dev/bench/spike_study.py)
//   an outlier                           with --on-spike skip: a loss or a norm more than six standard deviations above
//                                        the mean of its last 128, OLMo-core's SkipStepOptimizer. Known before the
//                                        update, which is left out: parameters, moments and the count of updates stay.
//                                        Its numbers enter the windows, so that a lasting change is accepted; it is
//                                        finite, and --max-skips does not count it
//   a slow rank                          named
//   replicas that differ                 ranks that must hold the same parameters do not: named, exit code 73

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/runtime/names.h"

namespace rz {

// z = (x - median) / max(1.4826 MAD, floor |median|) against the last values, or 10/3 of the mean z of the last eight,
// each counted as 6 at most. A spike enters the window too (a lasting change is accepted after half of one); NaN never
// does.
class SpikeDetector {
   public:
    explicit SpikeDetector(double floor) : floor_(floor) {}

    // z of x against what came before; 0 until kLeast values are known, and for a non-finite x. Then takes x in.
    double observe(double x);
    // Standard deviations that x lies above the mean of the window; 0 below it, for a non-finite x, and until there are
    // 63 values, as OLMo-core has it. Does not take x in.
    double deviations(double x) const;

    // Exact: a detector that reads this continues as the one that wrote it.
    nlohmann::json to_json() const;
    void from_json(const nlohmann::json&, const std::string& where);

    static constexpr size_t kWindow = 128, kLeast = 16;

   private:
    double floor_;
    std::deque<double> window_;
};

enum class OnSpike { warn, skip, stop, rollback };  // stop, rollback: give_up is set
template <>
inline constexpr auto kNames<OnSpike> = std::to_array<Named<OnSpike>>(
    {{OnSpike::warn, "warn"}, {OnSpike::skip, "skip"}, {OnSpike::stop, "stop"}, {OnSpike::rollback, "rollback"}});

struct GuardOptions {
    int64_t max_skips = 10;  // 0: never gives up
    double spike_z = 5.7;    // 0: no detector; dev/results/outcomes.md
    OnSpike on_spike = OnSpike::warn;
};

struct Verdict {
    bool skipped = false, left_out = false;
    double loss_z = 0, norm_z = 0;
    bool spike = false;
    std::string give_up;  // why the run must end with kExitNumbers; empty: it continues
    std::string note;     // for the step's line; empty if all is well
};

class Guards {
   public:
    explicit Guards(const GuardOptions& options) : options_(options) {}

    void set_options(const GuardOptions& options) { options_ = options; }

    // `adapting_scale` > 0: the loss scale, where it halves by itself. A finite loss whose gradient is not is then an
    // overflow, which the scale answers: it counts neither as a skip nor as a spike.
    // `left_out`: is_outlier() said so of these numbers, and the update was not made.
    Verdict observe(int64_t step, double loss, double grad_norm, double adapting_scale = 0, bool left_out = false);
    // Judges a step before its update, when all steps before it are observed.
    bool is_outlier(double loss, double grad_norm) const;

    int64_t skipped() const { return skipped_; }  // over the whole run, without overflows
    int64_t overflows() const { return overflows_; }
    int64_t skipped_in_a_row() const { return in_a_row_; }
    int64_t spikes() const { return spikes_; }
    int64_t left_out() const { return left_out_; }

    // Counters and windows, for the manifest. from_json throws naming `where` and leaves this as it was.
    nlohmann::json to_json() const;
    void from_json(const nlohmann::json&, const std::string& where);

   private:
    GuardOptions options_;
    int64_t skipped_ = 0, in_a_row_ = 0, spikes_ = 0, overflows_ = 0, left_out_ = 0;
    SpikeDetector loss_{0.01}, norm_{0.1};
};

// Names a rank that needs much more time of its own (without waiting for others) than the rest.
class StragglerDetector {
   public:
    // Seconds of this step, of all ranks. Returns the rank that is slow, or -1: over the last few steps it took more
    // than twice the median of the others; or its median over 20, 50 or 100 steps is 1.82, 1.55 or 1.1 times theirs,
    // and further from it than five median deviations of its own last 100 steps. And 5 ms more, in either case.
    int observe(const std::vector<double>& own_seconds);
    static constexpr size_t kWindow = 100;
    // Seconds of the rank that observe() named
    double seconds() const { return seconds_; }
    double others() const { return others_; }

   private:
    int over_windows();

    std::vector<double> mean_;                 // decaying
    std::vector<std::vector<double>> window_;  // of each rank, step s at [s % kWindow]
    int64_t steps_ = 0;
    int slow_ = -1;  // as the windows were looked at last
    double seconds_ = 0, others_ = 0, window_seconds_ = 0, window_others_ = 0;
};

}  // namespace rz
