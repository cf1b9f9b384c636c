#pragma once
// A run's folder, read back: its numbers by name, how it was asked for, how it ended.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "llama/report/plot.h"

namespace rz {

struct RunRecord {
    std::string name;  // the last part of its folder
    std::string folder;
    // Every number of metrics.jsonl and ranks.jsonl by its key, against the step; nested ones as "eval/hellaswag/acc".
    // If a resumed run logged steps again, the later lines count.
    std::map<std::string, Curve> curves;
    std::map<std::string, std::string> settings;  // flags, model and machine, from run.json; none in old folders
    std::map<std::string, std::string> status;    // of run_status.json
    std::vector<std::pair<double, std::string>> samples, events;  // step and text
    double peak_memory = NAN;  // bytes of rank 0, of the whole run: ranks.json's; of a run without it, the last step's

    const Curve* find(const std::string& key) const;
    double last(const std::string& key) const;   // NaN if there is none
    double least(const std::string& key) const;  // NaN if there is none
    double median(const std::string& key) const;
};

// Throws if the folder has no metrics.jsonl. Lines that are no JSON (a torn last one) are skipped.
RunRecord read_run(const std::string& folder);
// Names are made different by as much of the folder as that takes.
std::vector<RunRecord> read_runs(const std::vector<std::string>& folders);

// One page: a table of results, curves of all runs against the step and the tokens, what they differ in, samples.
std::string compare_runs(const std::vector<RunRecord>&);

}  // namespace rz
