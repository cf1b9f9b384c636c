#pragma once
// Evaluation tasks: text to score with a model, and what the scores mean. A task is a file NAME.jsonl, which
// data_prep/prepare.py eval writes; each line is one example, and all lines of a file are of one kind:
//
//   choices        {"context": TEXT, "choices": [TEXT...], "gold": INDEX}      the model continues with " " + choice
//                  {"context": [TEXT...], "continuation": TEXT, "gold": INDEX} one context for each choice (WinoGrande)
//                  with "llmc": {"context": TEXT, "choices": [TEXT...]} the example as llm.c's script has it, also
//   continuation   {"context": TEXT, "continuation": TEXT}                     (LAMBADA)
//   rolling        {"text": TEXT, "words": N, "bytes": N}                      perplexity, by words and bytes of the
//                                                                              original text
//
// Tokens, windows and metrics are those of EleutherAI's lm-evaluation-harness (0.4), without few-shot examples: context
// and continuation are tokenised together, and what they have beyond as many tokens as the context alone is scored
// after the context's own tokens; special tokens count as such, bos is put in front where the tokenizer does so, what
// is too long is cut from the left, and acc_norm divides by the characters of a choice. llm.c's
// (dev/data/hellaswag.py) tokenises them apart, puts nothing in front, and divides by the tokens.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llama/tokenizer/tokenizer.h"

namespace rz {

// A question to a model: log p of the last `scored` tokens, each given all that stand before it.
struct ScoreItem {
    std::vector<int32_t> tokens;  // at least scored + 1
    int64_t scored = 0;
};

struct Score {
    double log_p = 0;     // nats, sum over the scored tokens
    bool greedy = false;  // each of them was the likeliest
};

struct Metric {
    std::string name;                      // "acc", "byte_perplexity"
    double value;                          // NaN where it is not defined, as the next
    std::optional<double> standard_error;  // of a mean: "acc_stderr" in results
};

struct EncodeOptions {
    int64_t max_length = 0;  // tokens that the model sees at once, at least 1
    bool bos = false;        // put in front of every text that does not begin with it
};

class EvalTask {
   public:
    enum class Kind { choices, continuation, rolling };

    // Reads folder/NAME.jsonl, at most `limit` examples of it (0: all). Throws naming file and line.
    EvalTask(const std::string& folder, const std::string& name, int64_t limit = 0);

    const std::string& name() const { return name_; }
    Kind kind() const { return kind_; }
    int64_t examples() const { return int64_t(examples_.size()); }

    // Items in the order of the examples. Throws naming the line if there is nothing to score in it, or if its
    // continuation alone is longer than max_length.
    void encode(const Tokenizer&, const EncodeOptions&);
    const std::vector<ScoreItem>& items() const { return items_; }

    // Metrics from one score for each item.
    std::vector<Metric> metrics(std::span<const Score>) const;
    // A line of JSON for each item: task, example, choice, log_p, greedy, tokens.
    std::string request_lines(std::span<const Score>) const;

   private:
    struct Request {
        std::string context, continuation;
        double characters = 0;  // of the choice
    };
    struct Example {
        std::vector<Request> requests, llmc;
        std::string text;  // rolling
        int64_t gold = -1, words = 0, bytes = 0;
        size_t first_item = 0, items = 0;
    };

    void read_line(const std::string& line, const std::string& where);
    void encode_pair(const Request&, const Tokenizer&, const EncodeOptions&, const std::string& where);
    void encode_apart(const Request&, const Tokenizer&, const EncodeOptions&, const std::string& where);
    void encode_rolling(const std::string& text, const Tokenizer&, const EncodeOptions&);
    void add_item(std::vector<int32_t> tokens, int64_t scored, const EncodeOptions&, const std::string& where);
    std::string where(size_t example) const;
    std::vector<Metric> choice_metrics(std::span<const Score>) const;

    std::string name_, path_;
    Kind kind_ = Kind::choices;
    bool normalised_ = false;  // the choices differ, so that dividing by their length says something
    std::vector<Example> examples_;
    std::vector<int64_t> lines_;  // of each example, from 1
    std::vector<ScoreItem> items_;
};

// The tasks of a list such as "hellaswag,piqa". Throws if it is empty, names one twice, or a file is missing; names the
// files that are there.
std::vector<EvalTask> load_eval_tasks(const std::string& folder, const std::string& names, int64_t limit);

}  // namespace rz
