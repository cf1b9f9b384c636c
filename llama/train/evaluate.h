#pragma once
// Evaluation while a model trains (`train_llama eval` is in commands.h).

#include <string>
#include <utility>
#include <vector>

#include "llama/train/eval_tasks.h"
#include "llama/train/scorer.h"

namespace rz {

struct TaskResult {
    std::string name;
    int64_t examples;
    std::vector<Metric> metrics;
};

// The tasks, encoded.
class Evaluation {
   public:
    Evaluation(std::vector<EvalTask> tasks, const Tokenizer&, const EncodeOptions&);

    int64_t longest() const;  // tokens that an item's model sees
    int64_t items() const;

    // Collective. `requests` receives EvalTask::request_lines of all tasks, if it is asked for.
    std::vector<TaskResult> run(Scorer&, std::string* requests = nullptr) const;

   private:
    std::vector<EvalTask> tasks_;
};

// {"hellaswag":{"examples":10042,"acc":0.25,...},...}; a value that is not defined is null.
std::string results_json(const std::vector<TaskResult>&);
// "hellaswag acc 0.2500, acc_norm 0.3100 | perplexity ..."; without standard errors.
std::string results_line(const std::vector<TaskResult>&);

}  // namespace rz
