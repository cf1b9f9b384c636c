// Requests on the command line that can't be meant are refused, with exit code 2 and a message that says what to
// do.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "llama/train/options.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

// The exit code, 0 for accepted; `said` gets what was printed.
int parse(const std::string& line, std::string* said = nullptr, Command* parsed = nullptr) {
    Command command;
    testing::internal::CaptureStderr();
    const std::optional<int> code = parse_command_line(words_of(line), command);
    const std::string text = testing::internal::GetCapturedStderr();
    if (said) *said = text;
    if (parsed) *parsed = std::move(command);
    return code.value_or(0);
}

// The text of a refusal, whose exit code is 2.
std::string refusal_of(const std::string& line) {
    std::string said;
    EXPECT_EQ(parse(line, &said), 2) << line;
    return said;
}

// The flag that names a config file of this text; the next one has its place.
std::string config(const std::string& text) {
    static const TempFolder folder;
    std::ofstream(folder / "run.toml") << text;
    return "--config " + folder / "run.toml ";
}

using Answers = std::vector<std::pair<const char*, const char*>>;  // a line, and what is said of it
void expect_refused(const Answers& answers) {
    for (const auto& [line, answer] : answers) EXPECT_TRUE(says(refusal_of(line), answer)) << line;
}

TEST(Options, ContradictionsAreRefusedAndNamed) {
    expect_refused({
        {"--preset tiny --init-from somewhere", "both say what the model is"},
        {"--data d --raw16", "--raw16"},
        {"--lr 1e-4 --min-lr 1e-3", "nearest: --min-lr 0.0001"},
        {"--cooldown 20", "nearest: --lr-schedule wsd"},
        {"--lr-schedule constant --min-lr 1e-5", "nearest: --min-lr -1"},
        {"--lr-schedule wsd --steps 100 --cooldown 101", "nearest: --cooldown 100"},
        {"--lr-schedule wsx", "nearest: wsd"},
        {"--sample-tokens 20", "--sample-every 1"},
        {"--prefetch 2 --zero 2", "nearest: --zero 3"},
        {"--accumulate-locally --zero 1", "--zero 2 or 3"},
        {"--bucket-mib 8 --pp 2", "nearest: --bucket-mib 0, or --pp 1"},
        {"--bucket-mib 8 --zero 2 --offload-grads on", "nearest: --bucket-mib 0"},
        {"--on-spike stop --spike-z 0", "nearest: --spike-z 5.7"},
        {"--keep-every 10 --out=", "--out, and that is empty"},
        {"--grad-accum 2 --batch-tokens 4096", "leave one of them out"},
        {"--warmup 50 --steps 10", "nearest: --warmup 10"},
        {"--pp 2 --pp-schedule zbv", "'zbv' is neither a file nor a schedule; nearest: zb-v"},
        {"--pp 2 --pp-layers 3,x", "'3,x' must be the number of blocks of each stage"},
        {"--pp 2 --pp-layers 3,0", "at least 1"},
        {"--pp 2 --zero 3 --pp-gather window:0", "nearest: window:3"},
        {"--lr-continue", "nearest: --resume auto"},
        {"--resume auto --out o --lr-continue --rewarm 5", "give one of them"},
        {"--resume auto --out o --branch 5", "give --resume RUN and --out NEW"},
        {"--resize-vocab", "about the model of --init-from"},
        {"--learning-rate 1", "did you mean --lr?"},
        {"--max_steps=7", "did you mean --steps?"},
        {"--stepz 7", "did you mean --steps?"},
        {"--data d generate --from m", "--data is a flag of training"},
        {"--steps 3 export --from m --to n", "does nothing for export"},
    });
    Command command;
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse_command_line({"--save-every", "10", "--out", ""}, command), 2);
    EXPECT_TRUE(says(testing::internal::GetCapturedStderr(), "--out, and that is empty"));
}

TEST(Options, NamesOfOtherTrainersThatMeanOneThingAreAccepted) {
    const TrainOptions o = train_options("--max-grad-norm 0.5 --warmup_steps=7 --output-dir o");
    EXPECT_EQ(o.clip, 0.5);
    EXPECT_EQ(o.warmup, 7);
    EXPECT_EQ(o.out, "o");
    EXPECT_TRUE(o.given.count("max-grad-norm"));
    expect_refused({{"--max-grad-norm high", "--max-grad-norm: 'high' is not a number"}});
}

// A file's faults are named with its line.
TEST(Options, AConfigFilesFaultsAreNamedWithTheirLine) {
    const struct {
        const char *text, *answer;
        int code;
    } cases[] = {
        {"[model]\ndim = 64\n\n[training] # as others write it\nsteps = 3\n[distributed]\nzero = 1\n", "", 0},
        {"steps = 3\nlr = 1e-3\nsteps = 4\n", "line 3: 'steps' stands in line 1 already", 2},
        {"\n# note\nstepz = 3\n", "line 3: 'stepz' is no flag; did you mean steps?", 2},
        {"learning_rate = 3\n", "line 1: 'learning_rate' is no flag; did you mean lr?", 2},
        {"warmup_steps = 3\noutput-dir = \"x\"\n", "", 0},
        {"steps = 3\n[mdoel]\n", "line 2: '[mdoel]' is no heading that is known", 2},
        {"steps = 3\nbatch\n", "line 2: 'batch' is neither key = value nor a heading", 2},
        {"steps = 3\n\nlr = \"fast\"\n", "line 3 of ", 2},
    };
    for (const auto& c : cases) {
        std::string said;
        EXPECT_EQ(parse(config(c.text), &said), c.code) << c.text << said;
        EXPECT_TRUE(says(said, c.answer));
        if (c.code != 0) {
            EXPECT_EQ(said.rfind("train_llama: ", 0), 0u) << said;
            EXPECT_TRUE(says(said, "run.toml"));
        }
    }
}

TEST(Options, CommandsOfAConfigFileRunOnlyIfThatIsAllowed) {
    const auto said_of = [&](const char* text, const std::string& more) {
        std::string said;
        const int code = parse("--out run --save-every 1 " + config(text) + more, &said);
        EXPECT_EQ(code, said.empty() ? 0 : 2) << said;
        return said;
    };
    const char* const command = "batch = 2\n[output]\nafter-save = \"touch /tmp/x\"\n";
    EXPECT_TRUE(says(said_of(command, ""), "run.toml, line 3: --after-save is a command that would run as you"));
    EXPECT_EQ(said_of(command, "--allow-commands"), "");
    EXPECT_EQ(said_of(command, "--after-save mine"), "");
    EXPECT_TRUE(says(said_of("\"before-resume\" = \"id\"\n", ""), "line 1: --before-resume is a command"));
    const char* const switched = "allow-commands = true\n\nbefore-resume = \"id\"\n";
    for (const char* more : {"", "--allow-commands"})
        EXPECT_TRUE(says(said_of(switched, more), "line 1: --allow-commands stands on the command line only"));
}

TEST(Options, ATextInAConfigFileIsReadWithItsEscapesAndSigns) {
    const TrainOptions o = train_options(config(
        "prompt = \"# a \\\"list\\\",\\n\\tthen [b] \\u00e9\" # a prompt\n\"out\" = \"x y\"\nsteps = 7 # few\n"));
    EXPECT_EQ(o.prompt, "# a \"list\",\n\tthen [b] \u00e9");
    EXPECT_EQ(o.out, "x y");
    EXPECT_EQ(o.steps, 7);
    for (const std::string broken : {"out = \"x", "out = \"x\" y", "out = \"\\q\"", "out = \"x\\\""})
        EXPECT_TRUE(says(refusal_of(config("steps = 3\n" + broken + "\n")), "run.toml, line 2: ")) << broken;
}

// requests.py draws more of them.
TEST(Options, EveryFormOfAValueInAConfigFileIsTakenOrNamed) {
    const auto check = [&](const std::string& flag, const std::string& form) {
        std::string said;
        const int code = parse(config(flag.substr(2) + " = " + form + "\n"), &said);
        EXPECT_TRUE(code == 0 || code == 2) << flag << " = " << form;
        EXPECT_EQ(code == 2, said.find("train_llama: ") == 0) << flag << " = " << form << "\n" << said;
    };
    TrainOptions fresh;
    for (const OptionRow& row : command_table(fresh).rows) check(row.flag, "[]");
    for (const char* flag : {"--batch", "--lr", "--out", "--train-data", "--overwrite", "--dtype"})
        for (const char* form : {"[[]]",     "[[1], [2]]",  "{}",
                                 "{a = 1}",  "1979-05-27",  "07:32:00",
                                 "inf",      "-inf",        "nan",
                                 "0x10",     "1_0",         "99999999999999999999999999",
                                 "-1e400",   "true",        "\"\"",
                                 "\"a\"",    "'a'",         "[\"a\", \"b\"]",
                                 "[1, 2, ]", "[1",          "\"\"\"a\"\"\"",
                                 "",         "\"\\u0000\"", "a.b",
                                 "1 2"})
            check(flag, form);
}

TEST(Options, AListInAConfigFileIsTakenWholeOrRefused) {
    const TrainOptions o =
        train_options(config("train-data = [\"a.bin\", # two\n  \"b.bin\",\n]\npp = 2\npp-layers = [3, 5]\n"));
    EXPECT_EQ(o.train_data, "a.bin,b.bin");
    EXPECT_EQ(o.pp_cut, (std::vector<int64_t>{3, 5}));
    for (const auto& [text, answer] : Answers{{"batch = []\n", "'batch' is given a list and takes one value"},
                                              {"train-data = []\n", "the list of 'train-data' is empty"},
                                              {"out = [\"a\"]\n", "'out' is given a list and takes one value"},
                                              {"train-data = [\"a,b\"]\n", "has 'a,b' in its list"}}) {
        const std::string said = refusal_of(config(text));
        EXPECT_TRUE(says(said, "run.toml, line 1: "));
        EXPECT_TRUE(says(said, answer));
    }
}

TEST(Options, AnEmptyValueIsAValue) {
    const TrainOptions o = train_options("--wandb= --lr=0.5 --prompt --max_grad_norm=3 --out=");
    EXPECT_EQ(o.wandb, "");
    EXPECT_EQ(o.lr, 0.5);
    EXPECT_EQ(o.prompt, "--max_grad_norm=3") << "a value is no flag";
    refusal_of("--lr= 0.5");
    for (const std::string word : {"perhaps", "-1", "1e3", "{}"})
        EXPECT_TRUE(says(refusal_of("--no-overlap=" + word), "'" + word + "' is not on or off"));
    for (const char* minus : {"--steps=-", "--fp8-skip-blocks=-,1", "--eval-limit=-"}) refusal_of(minus);  // no number
}

TEST(Options, MicroBatchesAreCountedWith64Bits) {
    const TrainOptions o = train_options("--batch 1 --seq-len 32 --batch-tokens 137438953600");
    const std::string error = error_of([&] { micro_batches(o, 1); });
    EXPECT_TRUE(says(error, "makes 4294967300 micro-batches"));
    EXPECT_TRUE(says(error, "nearest: --batch-tokens 33554432"));
    EXPECT_EQ(micro_batches(train_options("--batch 1 --seq-len 32 --batch-tokens 33554432"), 1), 1 << 20);
}

TEST(Options, AWordThatIsLikeNoFlagGetsNoSuggestion) {
    for (const char* word : {"--neptune", "--quux", "--x"}) {
        const std::string said = refusal_of(word);
        EXPECT_FALSE(says(said, "did you mean"));
        EXPECT_TRUE(says(said, "is no flag"));
    }
}

TEST(Options, WhatGoesTogetherIsAccepted) {
    for (const char* line :
         {"", "--init-from m --out o --save-every 10 --keep-every 20", "--train-data x.bin --raw16", "--save-every 0",
          "--lr 1e-3 --min-lr 1e-3", "--on-spike stop --out o", "--lr-schedule wsd --steps 100 --cooldown 100",
          "generate --from m --seed 3", "export --from m --to n"}) {
        std::string said;
        EXPECT_EQ(parse(line, &said), 0) << said;
    }
}

TEST(Options, BytesOfAParameterFollowTheTypes) {
    const struct {
        const char* flags;
        int64_t all, saved;
    } cases[] = {
        {"", 4 + 4 + 0 + 8, 12},
        {"--dtype bf16", 2 + 4 + 4 + 8, 14},
        {"--dtype bf16 --grad-dtype bf16", 2 + 2 + 4 + 8, 14},
        {"--dtype bf16 --master-dtype bf16 --adam-dtype bf16", 2 + 4 + 0 + 4, 6},
        {"--dtype fp16", 2 + 4 + 4 + 8, 14},
        {"--dtype bf16 --ema 0.999", 2 + 4 + 4 + 8 + 4, 18},
    };
    for (const auto& c : cases) {
        const BytesPerParameter b = bytes_per_parameter(train_options(c.flags));
        EXPECT_EQ(b.all(), c.all);
        EXPECT_EQ(b.saved(), c.saved);
    }
}

TEST(Options, TypesThatAreNotGivenFollowThoseThatAre) {
    EXPECT_EQ(train_options("--dtype bf16").grad_dtype, DType::f32);
    EXPECT_EQ(train_options("--dtype bf16").gradient_wire_dtype(), DType::bf16);
    EXPECT_EQ(train_options("--dtype fp16").gradient_wire_dtype(), DType::f32);
    EXPECT_EQ(train_options("--grad-dtype fp32 --wire-dtype bf16").gradient_wire_dtype(), DType::bf16);
}

TEST(Options, LossScaleIsFp16sAndAPowerOfTwo) {
    EXPECT_FALSE(train_options("--dtype bf16").loss_scaling().on());
    const LossScaling dynamic = train_options("--dtype fp16 --loss-scale-window 50").loss_scaling();
    EXPECT_TRUE(dynamic.dynamic);
    EXPECT_EQ(dynamic.initial, 65536);
    EXPECT_EQ(dynamic.window, 50);
    EXPECT_EQ(dynamic.hysteresis, 2);
    const LossScaling fixed = train_options("--dtype fp16 --loss-scale 1024").loss_scaling();
    EXPECT_FALSE(fixed.dynamic);
    EXPECT_EQ(fixed.initial, 1024);
    expect_refused({{"--dtype fp16 --loss-scale 1000", "1000 is not a power of two; nearest valid value: 1024"},
                    {"--dtype fp16 --loss-scale 0.5", "0.5 is out of range; nearest valid value: 1"},
                    {"--dtype fp16 --loss-scale 1e12", "1e12 is out of range; nearest valid value: 4294967296"},
                    {"--dtype fp16 --loss-scale often", "'often' is neither dynamic nor a power of two"}});
    const auto refused_on_a_rank = [](const char* line) {
        return error_of([&] { check_ranks(train_options(line), 1); });
    };
    EXPECT_EQ(refused_on_a_rank("--dtype bf16 --loss-scale dynamic"),
              "--loss-scale dynamic: --dtype bf16 needs none\n  nearest: leave it out, or --dtype fp16");
    EXPECT_TRUE(says(refused_on_a_rank("--dtype fp16 --loss-scale 8 --loss-scale-window 9"), "--loss-scale dynamic"));
    EXPECT_TRUE(says(refused_on_a_rank("--dtype fp16 --grad-dtype bf16"), "nearest: --grad-dtype fp32"));
    EXPECT_EQ(refused_on_a_rank("--dtype fp16 --grad-dtype fp32 --loss-scale dynamic"), "");
}

TEST(Options, WhatACheckpointKeepsIsTheTextThatWasGiven) {
    TrainOptions o = train_options("--lr 5e-3 --on-spike stop --spike-z 8 --threads 2");
    EXPECT_EQ(o.kept_flags.at("lr"), "5e-3");
    EXPECT_EQ(o.kept_flags.at("eps"), "1e-08");
    EXPECT_EQ(o.kept_flags.at("tp-wire"), "");
    EXPECT_EQ(o.kept_flags.count("out"), 0u) << "of one start, not of the run";
    // Resumed with another rate: the checkpoint's other flags come back, as enums.
    TrainOptions resumed = train_options("--lr 1e-3");
    const std::vector<std::string> lines = adopt_flags(resumed, o.kept_flags, {.same_ranks = false});
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], "--lr 1e-3, was 5e-3");
    EXPECT_EQ(lines[1], "--threads 0, was 2: not restored on another number of ranks, give it again if it is meant");
    EXPECT_EQ(resumed.threads, 0);
    EXPECT_EQ(resumed.on_spike, OnSpike::stop);
    EXPECT_EQ(resumed.lr, 1e-3);
}

// A text may look like a switch's value or like another flag: it stays a text, and what comes after it too.
TEST(Options, ATextThatIsTrueSwallowsNoFlagOnResume) {
    for (const std::string name : {"true", "false", "--zero", "-1", "a b", "x=y"}) {
        std::vector<std::string> words = words_of("--out o --wandb true --weight-decay 0.25 --zero 2 --no-overlap");
        words.insert(words.begin() + 4, "--wandb-name=" + name);
        Command command;
        ASSERT_FALSE(parse_command_line(words, command));
        const std::map<std::string, std::string> saved = std::get<TrainOptions>(command).kept_flags;
        TrainOptions resumed = train_options("--out o");
        EXPECT_EQ(adopt_flags(resumed, saved, {.same_ranks = true}), std::vector<std::string>());
        EXPECT_EQ(resumed.wandb, "true");
        EXPECT_EQ(resumed.wandb_name, name);
        EXPECT_EQ(resumed.weight_decay, 0.25) << name;
        EXPECT_EQ(resumed.zero, 2) << name;
        EXPECT_FALSE(resumed.overlap) << name;
    }
}

TEST(Options, AResumedRunTakesEveryFlagThatItsPlaceAllows) {
    const std::map<std::string, std::string> saved =
        train_options(
            "--tp 2 --tp-wire fp32 --zero 2 --shard-size 2 --threads 3 --device cuda --cuda-graphs off "
            "--offload-optimizer stream")
            .kept_flags;
    const auto resumed = [&](const char* given, ResumePlace place, size_t said) {
        TrainOptions o = train_options(given);
        const std::vector<std::string> lines = adopt_flags(o, saved, place);
        EXPECT_EQ(lines.size(), said) << testing::PrintToString(lines);
        return o;
    };
    const TrainOptions same = resumed("", {.same_ranks = true, .gpu = true}, 0);
    EXPECT_EQ(same.tp, 2);
    EXPECT_EQ(same.tp_wire, DType::f32);
    EXPECT_EQ(same.shard_size, 2);
    EXPECT_EQ(same.threads, 3);
    EXPECT_EQ(same.device, DeviceChoice::cuda);
    EXPECT_EQ(same.offload_optimizer, OffloadOptimizer::stream);
    const TrainOptions no_gpu = resumed("", {.same_ranks = true, .gpu = false}, 2);
    EXPECT_EQ(no_gpu.tp, 2);
    EXPECT_EQ(no_gpu.device, DeviceChoice::automatic);
    EXPECT_EQ(no_gpu.offload_optimizer, OffloadOptimizer::none);
    const TrainOptions elsewhere = resumed("", {.same_ranks = false, .gpu = true}, 4);
    EXPECT_EQ(elsewhere.tp, 1);
    EXPECT_EQ(elsewhere.offload_optimizer, OffloadOptimizer::stream);
    EXPECT_EQ(elsewhere.zero, 2);
    const TrainOptions axes = resumed("--cp 2", {.same_ranks = true, .gpu = true}, 4);
    EXPECT_EQ(axes.tp, 1) << "the axes that are given are the layout";
    EXPECT_EQ(axes.threads, 3);
    EXPECT_EQ(resumed("--zero 0", {.same_ranks = true, .gpu = true}, 2).shard_size, 0);
    EXPECT_EQ(train_options("--pp-threads 2").kept_flags.at("pp"), "2") << "mpirun -n 2 resumes as a pipeline";
}

// The same flags on one command line are the oracle.
TEST(Options, AResumedRunHasTheFlagsThatOneCommandLineWouldHaveGivenIt) {
    const auto settled = [](const std::vector<std::string>& flags) {
        TrainOptions o;
        const CommandTable table = command_table(o);
        ParsedFlags found;
        EXPECT_FALSE(parse_flags(flags, {&table, 1}, found)) << testing::PrintToString(flags);
        resolve_defaults(o, flags, table, found);
        return o;
    };
    std::vector<std::string> all = words_of(
        "--lr=5e-3 --lr=0.02 --warmup=3 --steps=70 --steps=900 --lr-schedule=wsd --cooldown=4 --min-lr=1e-5 "
        "--no-overlap --no-overlap=false --batch-tokens=4M --batch-tokens=8192 --batch=3 --grad-accum=2 "
        "--dtype=bf16 --grad-dtype=fp32 --zero=2 --zero=3 --collectives=direct --pp-layers=3,5 "
        "--fp8-skip-blocks=1,2 --wandb=true --wandb-name=-1 --out=o --train-data=/x,/y --seed=7 --threads=2 "
        "--device=cpu --spike-z=0 --axis-order=dp,tp,cp,pp --init-from=m --overwrite --data-order=sequential "
        "--pp-gather=window:4");
    all.push_back("--prompt=a b");
    uint64_t state = 1;
    for (int n = 0; n < 60; ++n) {
        std::vector<std::string> first, second;
        for (const std::string& flag : all) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            if (state >> 62 == 0) first.push_back(flag);
            if (state >> 62 == 1) second.push_back(flag);
        }
        for (std::vector<std::string>* flags : {&first, &second})  // only wsd has a cooldown
            flags->insert(flags->begin(), "--lr-schedule=wsd");
        const TrainOptions saved = settled(first);
        TrainOptions resumed = settled(second);
        std::vector<std::string> whole = second;
        for (const auto& [name, value] : saved.kept_flags)
            if (!resumed.given.count(name) && !value.empty()) whole.push_back("--" + name + "=" + value);
        const TrainOptions want = settled(whole);
        adopt_flags(resumed, saved.kept_flags, {.same_ranks = true, .gpu = true});
        EXPECT_EQ(resumed.values, want.values) << testing::PrintToString(whole);
        EXPECT_EQ(resumed.kept_flags, want.kept_flags) << testing::PrintToString(whole);
        EXPECT_EQ(resumed.lr, want.lr);
        EXPECT_EQ(resumed.warmup, want.warmup);
        EXPECT_EQ(resumed.min_lr, want.min_lr);
        EXPECT_EQ(resumed.overlap, want.overlap);
        EXPECT_EQ(resumed.pp_cut, want.pp_cut);
        EXPECT_EQ(resumed.axis_order, want.axis_order);
        EXPECT_EQ(resumed.fp8.skip_last, want.fp8.skip_last);
    }
}

TEST(Options, AFlagOfACheckpointThatItsRowRefusesIsNamed) {
    for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
             {"steps", "many"}, {"zero", "9"}, {"overlap", "perhaps"}, {"dtype", "fp31"}}) {
        TrainOptions o = train_options("");
        const std::string error = error_of([&] { adopt_flags(o, {{name, value}}, {}); });
        EXPECT_EQ(error.rfind("the checkpoint's --" + name + ": ", 0), 0u) << name << ": " << error;
    }
}

TEST(Options, EveryFlagOfTrainingHasASectionOfTheConfigFile) {
    TrainOptions o;
    for (const OptionRow& row : command_table(o).rows) EXPECT_FALSE(row.section.empty()) << row.flag;
}

TEST(Options, WordsOfOtherTrainersAreAnsweredWithOurs) {
    for (const auto& [line, answer] :
         Answers{{"--eval-steps 100", "--eval-steps is no flag; did you mean --val-every"},
                 {"--num-gpus 2", "did you mean --ranks N, or mpirun -n N"},
                 {"--bs 8", "did you mean --batch?"},
                 {"--device-batch-size 8", "did you mean --batch?"},
                 {"--total_batch_size=512", "--total_batch_size is no flag; did you mean --batch-tokens"},
                 {"--dry-run", "did you mean --print-config"},
                 {"--fp16", "did you mean --dtype fp16"},
                 {"--temp 1", "did you mean --temperature of train_llama generate"},
                 {"--greedy", "did you mean --temperature 0"},
                 {"--hidden-size 64", "did you mean --dim"},
                 {"--cpu", "did you mean --device cpu"},
                 {"generate --model m", "did you mean --from?"},
                 {"generate --max-new-tokens 5", "did you mean --max-tokens?"},
                 {"plan --num-gpus 2 --gpus 2 --gpu g", "did you mean --gpus?"},
                 {"train --data d", "train_llama: train is no command; did you mean train_llama without a command?"},
                 {"evaluate", "did you mean train_llama eval?"},
                 {"--stepz 3 data/mine", "--steps?\n  data/mine is no flag and no command"}}) {
        const std::string said = refusal_of(line);
        EXPECT_TRUE(says(said, answer));
        EXPECT_FALSE(says(said, "not expected"));
    }
}

TEST(Options, ACountMayHaveAUnit) {
    const TrainOptions o = train_options("--steps 1.5k --val-tokens=2M --save-every 1B --out o --warmup -1");
    EXPECT_EQ(o.steps, 1500);
    EXPECT_EQ(o.val_tokens, 2000000);
    EXPECT_EQ(o.save_every, 1000000000);
    EXPECT_EQ(o.values.at("steps"), "1500") << "as it is kept";
    EXPECT_EQ(o.values.at("save-every"), "1000000000");
    expect_refused({{"--steps 1.0005k", "is not a whole number"},
                    {"--steps k", "is not a whole number"},
                    {"--steps 1kk", "is not a whole number"},
                    {"--steps 1.5", "is not a plain whole number; nearest valid value: 2"},
                    {"--steps 900000B", "is out of range"},
                    {"--seq-len 4k", "nearest valid value: 4000"}});
}

TEST(Options, ASwitchIsOnOrOffInEveryForm) {
    for (const char* on : {"", "--overlap", "--overlap on", "--overlap=yes", "--no-overlap off", "--no_overlap=false"})
        EXPECT_TRUE(train_options(on).overlap) << on;
    EXPECT_TRUE(train_options(config("overlap = true\n")).overlap);
    EXPECT_TRUE(train_options(config("no-overlap = false\n")).overlap);
    for (const char* off : {"--no-overlap", "--overlap off", "--overlap=no", "--no-overlap true"})
        EXPECT_FALSE(train_options(off).overlap) << off;
    EXPECT_FALSE(train_options(config("no_overlap = true\n")).overlap);
    EXPECT_FALSE(train_options(config("overlap = \"off\"\n")).overlap);
    EXPECT_FALSE(train_options("--overlap --no-overlap").overlap) << "the last one counts";
    EXPECT_EQ(train_options("--tp 2 --tp-overlap --steps 3").steps, 3) << "the next flag is no value";
    refusal_of(config("overlap = \"off\"\n") + "--no-steps");
    expect_refused({{"--overlap perhaps", "--overlap: 'perhaps' is not on or off"}});
    EXPECT_EQ(parse("export --from m --to n --overwrite"), 0);
}

TEST(Options, FormerNamesAreTakenAndTheNewOneIsSaidOnce) {
    std::string said;
    Command command;
    EXPECT_EQ(parse("--clip 2 --clip=0.5 --doc-boundary bos", &said, &command), 0);
    EXPECT_EQ(said, "train_llama: --clip is now --max-grad-norm\ntrain_llama: --doc-boundary is now --doc-mask\n");
    EXPECT_EQ(std::get<TrainOptions>(command).clip, 0.5);
    EXPECT_TRUE(std::get<TrainOptions>(command).given.count("max-grad-norm"));
    EXPECT_EQ(parse(config("clip = 0.25\n"), &said, &command), 0);
    EXPECT_EQ(said, "train_llama: 'clip' is now 'max-grad-norm'\n");
    EXPECT_EQ(std::get<TrainOptions>(command).clip, 0.25);
    EXPECT_TRUE(says(refusal_of(config("clip = 0.25\nmax-grad-norm = 1\n")),
                     "line 2: 'max-grad-norm' stands in line 1 already"));
}

TEST(Options, ACheckpointOfAnEarlierProgramIsResumedByItsFormerNames) {
    const std::map<std::string, std::string> saved = {
        {"clip", "0.5"},      {"doc-boundary", "bos"},           {"no-overlap", "true"}, {"accumulate-locally", ""},
        {"pp-cut", "1,3"},    {"no-accumulate-locally", "true"}, {"raw16", "false"},     {"no-background-save", ""},
        {"cuda-graphs", "on"}};
    TrainOptions o = train_options("--zero 2 --max-shard-mib 7");
    EXPECT_EQ(adopt_flags(o, saved, {.same_ranks = true, .gpu = true}),
              std::vector<std::string>{"--collectives ring stays, the former default: the run keeps its sums"});
    EXPECT_EQ(o.collectives.data, Algorithm::ring);
    EXPECT_EQ(o.clip, 0.5);
    EXPECT_EQ(o.doc_boundary, DocBoundary::bos);
    EXPECT_FALSE(o.overlap);
    EXPECT_EQ(o.accumulate_locally, std::optional(false));
    EXPECT_EQ(o.pp_cut, (std::vector<int64_t>{1, 3}));
    EXPECT_TRUE(o.background_save);
    EXPECT_TRUE(o.cuda_graphs);
    EXPECT_EQ(o.kept_flags.at("max-grad-norm"), "0.5");
    EXPECT_EQ(o.kept_flags.count("clip"), 0u);
    TrainOptions again = train_options("--zero 2 --overlap --raw16");
    EXPECT_EQ(adopt_flags(again, {{"no-overlap", "true"}, {"raw16", ""}}, {}),
              (std::vector<std::string>{"--overlap on, was off", "--raw16 on, was off"}));
    TrainOptions other = train_options("--zero 2 --clip 2");
    EXPECT_EQ(adopt_flags(other, {{"clip", "0.5"}, {"accumulate-locally", "true"}}, {}),
              std::vector<std::string>{"--max-grad-norm 2, was 0.5"});
    EXPECT_EQ(other.accumulate_locally, std::optional(true));
}

TEST(Options, ThePageOfFlagsHasEveryOtherName) {
    const std::string page = text_in("dev/guide/flags.md");
    TrainOptions o;
    size_t names = 0;
    for (const OptionRow& row : command_table(o).rows)
        for (const auto* list : {&row.former, &row.others})
            for (const std::string& name : *list) {
                EXPECT_NE(page.find("| `--" + name + "` | `" + row.flag + "` |"), std::string::npos) << name;
                ++names;
            }
    size_t rows = 0;
    for (size_t at = page.find("\n| `--"); at != std::string::npos; at = page.find("\n| `--", at + 1)) ++rows;
    EXPECT_EQ(rows, names) << "the page has a name that is none";
}

// Output of a command line that is answered at once.
std::string answer(const std::string& line, int code = 0) {
    testing::internal::CaptureStdout();
    std::string said;
    EXPECT_EQ(parse(line, &said), code) << line;
    return testing::internal::GetCapturedStdout() + said;
}

TEST(Options, HelpHasTheFlagsOfAFirstWeekAndHelpAllEveryOne) {
    const auto has = [](const std::string& text, const std::string& flag) {
        return says(text, "\n  " + flag + " ") || says(text, "\n  " + flag + "\n");
    };
    TrainOptions o;
    const std::string some = answer("--help"), all = answer("--help-all");
    size_t basic = 0;
    for (const OptionRow& row : command_table(o).rows) {
        EXPECT_TRUE(has(all, row.flag)) << row.flag;
        EXPECT_EQ(has(some, row.flag), row.level == Level::basic) << row.flag;
        basic += row.level == Level::basic;
    }
    EXPECT_EQ(basic, 30u);
    for (const std::string& text : {some, all}) {
        std::istringstream lines(text.substr(0, text.find("\nExit codes:")));
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    }
    EXPECT_LE(std::count(some.begin(), some.end(), '\n'), 140);
}

TEST(Options, HelpOfAGroupOrAFlagIsThatAlone) {
    const std::string group = answer("--help batch");
    EXPECT_EQ(group.find("Batch and length of the run:\n  --batch "), 0u) << group;
    EXPECT_TRUE(says(group, "--grad-accum"));
    EXPECT_EQ(group.find("--lr"), std::string::npos);
    const std::string flag = answer("--help --weight-decay");
    for (const char* part : {"--weight-decay X=0.1\n", "Decoupled weight decay.", "values    0 to 1000\n",
                             "default   0.1\n", "weight-decay = X, under [optimizer]", "takes the checkpoint's",
                             "--help optimizer", "source    llama/train/options_train.cpp:"})
        EXPECT_TRUE(says(flag, part));
    EXPECT_EQ(answer("--help weight_decay"), flag);
    EXPECT_EQ(answer("--steps many --help weight-decay"), flag) << "help answers whatever else is there";
    EXPECT_EQ(answer("--help warmup-steps").find("--warmup N"), 0u) << "Hugging Face's name";
    EXPECT_EQ(answer("--help top-k").find("--top-k N"), 0u) << "a flag of generate";
    EXPECT_EQ(answer("--help generate"), answer("generate --help"));
    EXPECT_TRUE(says(answer("--help generat", 2), "nearest: --help generate"));
    EXPECT_TRUE(says(answer("--help quux", 2), "there is no such flag"));
    EXPECT_EQ(train_options("--prompt --help").prompt, "--help") << "a value is no flag";
    EXPECT_TRUE(says(answer("help"), "Three commands"));
}

TEST(Options, HelpOfACommandNamesTheCommandInItsUsageLine) {
    for (const auto& [line, usage] : Answers{{"--help", "Usage: train_llama [OPTIONS]"},
                                             {"plan --help", "Usage: train_llama plan --gpus N --gpu NAME [OPTIONS]"},
                                             {"generate --help", "Usage: train_llama generate --from PATH [OPTIONS]"}})
        EXPECT_TRUE(says(answer(line), usage));
}

TEST(Options, APipelinesChoicesAreParsedOnce) {
    const TrainOptions none = train_options("--pp 2");
    EXPECT_FALSE(none.pp_schedule.kind);
    EXPECT_TRUE(none.pp_schedule.file.empty() && none.pp_cut.empty());
    EXPECT_EQ(none.pp_gather, GatherFor::op);
    const TrainOptions all = train_options("--pp 2 --zero 3 --pp-schedule zb-h1 --pp-layers 3,5 --pp-gather window:7");
    EXPECT_EQ(all.pp_schedule.kind, PipelineKind::zb_h1);
    EXPECT_EQ(all.pp_cut, (std::vector<int64_t>{3, 5}));
    EXPECT_EQ(all.pp_gather, GatherFor::window);
    EXPECT_EQ(all.pp_gather_window, 7);
}

TEST(Options, ResumeIsTheNewestAStepOrAFolder) {
    using Kind = ResumeFrom::Kind;
    EXPECT_EQ(train_options("").resume.kind, Kind::nothing);
    EXPECT_EQ(train_options("--resume auto --out o").resume.kind, Kind::newest);
    const ResumeFrom step = train_options("--resume 0012 --out o").resume;
    EXPECT_EQ(step.kind, Kind::step);
    EXPECT_EQ(step.step, 12);
    EXPECT_EQ(train_options("--resume runs/12").resume.kind, Kind::folder);
    EXPECT_EQ(train_options("--resume 1234567890123456").resume.kind, Kind::folder) << "too long for a step";
}

}  // namespace
}  // namespace rz
