// Evaluation: tokens, windows, batches and metrics against what lm-evaluation-harness says of the same model and rows
// (test/golden/eval, written by dev/golden/make_eval_golden.py; `make test-full` asks the package itself).

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "kernels/runtime/context.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/model/hf.h"
#include "llama/model/weights.h"
#include "llama/train/evaluate.h"
#include "test/llama/helpers.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

const std::string kEvalGolden = "test/golden/eval";
const std::string kTasks = "hellaswag,arc_easy,piqa,winogrande,lambada,perplexity,pairs";

// The toy model on one rank.
struct Toy {
    ModelConfig config = load_config(kEvalGolden + "/plain");
    ParamTable table{config};
    RankContext context;
    Device device{DeviceKind::cpu, 0, &context};
    Stream stream{device, "compute"};
    ResidentParameters parameters{device, stream, unit_layouts(table), DType::f32};
    std::optional<Model> model;

    Toy(int64_t B, int64_t T) {
        load_weights(kEvalGolden + "/plain", table, DType::f32, device, stream, parameters);
        model.emplace(config, table, StageOptions{.B = B, .T = T}, device, stream, parameters, nullptr);
    }
};

struct Scored {
    std::vector<TaskResult> results;
    std::vector<Json> lines;  // of each request
};

Scored evaluate(Process& process, const std::string& tokenizer_folder, const std::string& tasks, int64_t batch) {
    const Tokenizer tokenizer = Tokenizer::load(tokenizer_folder);
    const Evaluation evaluation(load_eval_tasks(kEvalGolden, tasks, 0), tokenizer,
                                {.max_length = 64, .bos = tokenizer.adds_bos()});
    Toy toy(batch, evaluation.longest());
    Scorer scorer(process, *toy.model, toy.device, toy.stream, {process.rank(), process.size()}, true, batch,
                  evaluation.longest(), toy.config.vocab);
    Scored run;
    std::string requests;
    run.results = evaluation.run(scorer, &requests);
    for (size_t at = 0; at < requests.size();) {
        const size_t end = requests.find('\n', at);
        run.lines.push_back(parse_json(requests.substr(at, end - at), "request"));
        at = end + 1;
    }
    return run;
}

Scored evaluate(const std::string& tokenizer_folder, const std::string& tasks = kTasks, int64_t batch = 4) {
    Process process;
    return evaluate(process, kEvalGolden + "/" + tokenizer_folder, tasks, batch);
}

double metric(const Scored& run, const std::string& task, const std::string& name) {
    for (const TaskResult& r : run.results)
        for (const Metric& m : r.metrics)
            if (r.name == task && m.name == name) return m.value;
    ADD_FAILURE() << task << " has no " << name;
    return NAN;
}

class LmEval : public testing::TestWithParam<const char*> {};

// Both sides compute in fp32 from the same weights: 1e-4 is what the harness promises between its own backends.
TEST_P(LmEval, EveryRequestHasItsLogLikelihoodAndGreediness) {
    const Json oracle = read_json(kEvalGolden + "/" + GetParam() + ".json");
    const Scored run = evaluate(GetParam());
    for (const auto& [task, expected] : oracle["tasks"].items()) {
        std::vector<std::pair<double, double>> got;
        int64_t example = -1;
        for (const Json& line : run.lines) {
            if (line["task"] != task || line.contains("llmc")) continue;
            if (line.contains("window")) {  // the oracle has the sum of an example's windows
                if (line["example"] != example) got.push_back({0, 0});
                example = line["example"].get<int64_t>();
                got.back().first += line["log_p"].get<double>();
                continue;
            }
            got.push_back({line["log_p"].get<double>(), line["greedy"].get<bool>()});
        }
        ASSERT_EQ(got.size(), expected["requests"].size()) << task;
        for (size_t i = 0; i < got.size(); ++i) {
            const Json& want = expected["requests"][i];
            EXPECT_NEAR(got[i].first, want[0].get<double>(), 1e-4) << task << " request " << i;
            if (want.size() > 1) {
                EXPECT_EQ(got[i].second, want[1].get<double>()) << task << " request " << i;
            }
        }
    }
}

TEST_P(LmEval, MetricsAreTheirs) {
    const Json oracle = read_json(kEvalGolden + "/" + GetParam() + ".json");
    const Scored run = evaluate(GetParam());
    int compared = 0;
    for (const auto& [task, expected] : oracle["tasks"].items())
        for (const auto& [name, value] : expected["metrics"].items()) {
            // A sum of log p that is off by 1e-4 changes exp(sum / n) by 1e-4 of itself at most.
            EXPECT_NEAR(metric(run, task, name), value.get<double>(), 1e-4 * std::abs(value.get<double>()))
                << task << " " << name;
            ++compared;
        }
    EXPECT_EQ(compared, 2 * 3 + 1 + 2 + 3 + 1);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, LmEval, testing::Values("plain", "bos"),
                         [](const auto& info) { return std::string(info.param); });

// ---- what has gone wrong elsewhere ----------------------------------------------------------------------------------

// A tokenizer of single bytes, and of "ab" besides.
Tokenizer pair_tokenizer() {
    return Tokenizer::parse(
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<s>": 4}, "merges": ["a b"]},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
            "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": 4, "content": "<s>", "special": true}],
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}})",
        "pairs");
}

EvalTask task_of(const std::string& line, const EncodeOptions& options) {
    const TempFolder folder;
    write_file_atomically(folder / "t.jsonl", line + "\n");
    EvalTask task(folder.path, "t");
    task.encode(pair_tokenizer(), options);
    return task;
}

std::vector<ScoreItem> items_of(const std::string& line, const EncodeOptions& options) {
    return task_of(line, options).items();
}

std::vector<Metric> metrics_of(const std::string& line, const std::vector<Score>& scores) {
    return task_of(line, {.max_length = 100}).metrics(scores);
}

TEST(EvalTokens, ContextAndContinuationAreTokenisedTogether) {
    // "a" + "b": apart they are two tokens, together one. The context keeps its own, and what the whole has beyond as
    // many tokens is scored.
    const auto items = items_of(R"({"context": "ba", "continuation": "bb"})", {.max_length = 10});
    ASSERT_EQ(items.size(), 1u);
    EXPECT_EQ(items[0].tokens, (std::vector<int32_t>{1, 0, 1}));
    EXPECT_EQ(items[0].scored, 1);
}

TEST(EvalTokens, SpacesAtTheEndOfAContextGoToTheContinuation) {
    const auto items = items_of(R"({"context": "b ", "continuation": "a"})", {.max_length = 10});
    EXPECT_EQ(items[0].tokens, (std::vector<int32_t>{1, 2, 0}));
    EXPECT_EQ(items[0].scored, 2);
}

TEST(EvalTokens, BosStandsOnce) {
    const EncodeOptions bos{.max_length = 10, .bos = true};
    EXPECT_EQ(items_of(R"({"context": "b", "continuation": "a"})", bos)[0].tokens, (std::vector<int32_t>{4, 1, 0}));
    EXPECT_EQ(items_of(R"({"context": "<s>b", "continuation": "a"})", bos)[0].tokens, (std::vector<int32_t>{4, 1, 0}));
    EXPECT_EQ(items_of(R"({"context": "", "continuation": "a"})", bos)[0].tokens, (std::vector<int32_t>{4, 0}));
    EXPECT_EQ(items_of(R"({"context": "b", "continuation": "a"})", {.max_length = 10})[0].tokens,
              (std::vector<int32_t>{1, 0}));
}

TEST(EvalTokens, WhatIsTooLongIsCutFromTheLeft) {
    const auto items = items_of(R"({"context": "bbbbbb aaaa", "continuation": " b"})", {.max_length = 3});
    EXPECT_EQ(items[0].tokens, (std::vector<int32_t>{0, 0, 2, 1}));
    EXPECT_EQ(items[0].scored, 2);
}

TEST(EvalTokens, EveryTokenOfATextIsScoredInOneWindow) {
    for (int64_t length = 1; length < 20; ++length)
        for (int64_t window = 1; window < 8; ++window) {
            const std::string text(size_t(length), 'b');
            const auto items =
                items_of("{\"text\": \"" + text + "\", \"words\": 1, \"bytes\": 1}", {.max_length = window});
            int64_t scored = 0;
            for (const ScoreItem& item : items) {
                scored += item.scored;
                EXPECT_LE(int64_t(item.tokens.size()), window + 1);
            }
            EXPECT_EQ(scored, length) << "windows of " << window;
            EXPECT_EQ(items[0].tokens[0], 4) << "nothing stands before the first token but the prefix";
        }
}

const char* kTwo = R"({"context": "a", "choices": ["aaaaaaaa", "ab"], "gold": 1,
                       "llmc": {"context": "a", "choices": ["aaaaaaaa", "ab"]}})";

double value(const std::vector<Metric>& metrics, const std::string& name) {
    for (const Metric& m : metrics)
        if (m.name == name) return m.value;
    return NAN;
}

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n') c = ' ';
    return text;
}

TEST(EvalMetrics, AccNormDividesByCharactersAndLlmcsByTokens) {
    // Sums -4 and -3: the second. By characters -4/8 and -3/2: the first. By tokens (" aaaaaaaa" is 9, " ab" is 2)
    // -9/9 and -1.8/2: the second; by the sum of those the second.
    const auto m = metrics_of(one_line(kTwo), {{-4, false}, {-3, false}, {-9, false}, {-1.8, false}});
    EXPECT_EQ(value(m, "acc"), 1);
    EXPECT_EQ(value(m, "acc_norm"), 0);
    EXPECT_EQ(value(m, "llmc_acc"), 1);
    EXPECT_EQ(value(m, "llmc_acc_norm"), 1);
    // By characters -9/8 and -1.8/2 would be the second as well; -1.9/9 and -0.6/2 are the first by tokens only.
    const auto n = metrics_of(one_line(kTwo), {{-4, false}, {-3, false}, {-1.9, false}, {-0.6, false}});
    EXPECT_EQ(value(n, "llmc_acc_norm"), 0);
    // By characters -4.25/8 and -1/2: the second; by tokens -4.25/9 and -1/2 would be the first.
    const auto c = metrics_of(one_line(kTwo), {{-4.25, false}, {-1, false}, {-9, false}, {-1.8, false}});
    EXPECT_EQ(value(c, "acc_norm"), 1);
}

TEST(EvalMetrics, OfEqualScoresTheFirstCounts) {
    const auto m = metrics_of(one_line(kTwo), {{-4, false}, {-4, false}, {-1, false}, {-1, false}});
    EXPECT_EQ(value(m, "acc"), 0);
}

TEST(EvalScores, BatchesOfAnySizeGiveTheSameNumbers) {
    const Scored one = evaluate("plain", kTasks, 1);
    for (const int64_t batch : {3, 7, 64}) {
        const Scored run = evaluate("plain", kTasks, batch);
        ASSERT_EQ(run.lines.size(), one.lines.size());
        for (size_t i = 0; i < one.lines.size(); ++i)
            // 64 tokens at most, each a sum over a vocabulary of 320 in fp32
            EXPECT_NEAR(run.lines[i]["log_p"].get<double>(), one.lines[i]["log_p"].get<double>(), 1e-4)
                << "batches of " << batch << ", request " << i;
    }
}

TEST(EvalScores, AnyNumberOfRanksGivesTheSameBits) {
    const Scored one = evaluate("bos", kTasks, 4);
    for (const int ranks : {2, 3, 5}) {  // none divides the number of batches evenly in every case
        std::vector<Scored> runs{size_t(ranks)};
        run_processes(ranks, [&](Process& process) {
            runs[size_t(process.rank())] = evaluate(process, kEvalGolden + "/bos", kTasks, 4);
        });
        for (const Scored& run : runs) {
            EXPECT_EQ(run.lines, one.lines) << ranks << " ranks";
            EXPECT_EQ(results_json(run.results), results_json(one.results)) << ranks << " ranks";
        }
    }
}

// ---- refusals -------------------------------------------------------------------------------------------------------

TEST(EvalRefusals, NameFileLineAndRemedy) {
    const TempFolder folder;
    const auto of = [&](const std::string& lines) {
        write_file_atomically(folder.path + "/t.jsonl", lines);
        return error_of([&] { EvalTask(folder.path, "t"); });
    };
    EXPECT_TRUE(says(of(""), "no example"));
    EXPECT_TRUE(says(of("{\"context\": \"a\"}\n"), "t.jsonl:1"));
    EXPECT_TRUE(says(of("\n{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 2}\n"), "t.jsonl:2"));
    EXPECT_TRUE(says(of("{\"context\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n"), "at least two"));
    EXPECT_TRUE(
        says(of("{\"context\": \"a\", \"continuation\": \"b\"}\n{\"text\": \"a\", \"words\": 1, \"bytes\": 1}\n"),
             "another kind"));
    EXPECT_TRUE(says(error_of([&] { load_eval_tasks(kEvalGolden, "helaswag", 0); }), "the folder has"));
    EXPECT_TRUE(says(error_of([&] { load_eval_tasks(kEvalGolden, "piqa,piqa", 0); }), "twice"));
    EXPECT_TRUE(says(error_of([&] { items_of(R"({"context": "a", "continuation": "bbbbb"})", {.max_length = 3}); }),
                     "--max-length"));
}

}  // namespace
}  // namespace rz
