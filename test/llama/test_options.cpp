// What is asked for on the command line and can't be meant is refused, with exit code 2 and a message that says what to
// do.

#include <gtest/gtest.h>

#include "llama/train/options.h"

namespace rz {
namespace {

// The exit code, 0 for accepted; `said` gets what was printed.
int parse(std::vector<const char*> flags, std::string* said = nullptr) {
    Command command;
    testing::internal::CaptureStderr();
    const std::optional<int> code = parse_command_line({flags.begin(), flags.end()}, command);
    const std::string text = testing::internal::GetCapturedStderr();
    if (said) *said = text;
    return code.value_or(0);
}

TEST(Options, ContradictionsAreRefusedAndNamed) {
    const struct {
        std::vector<const char*> flags;
        const char* says;
    } cases[] = {
        {{"--preset", "tiny", "--init-from", "somewhere"}, "both say what the model is"},
        {{"--data", "d", "--raw16"}, "--raw16"},
        {{"--lr", "1e-4", "--min-lr", "1e-3"}, "nearest: --min-lr 0.0001"},
        {{"--sample-tokens", "20"}, "--sample-every 1"},
        {{"--prefetch", "2", "--zero", "2"}, "nearest: --zero 3"},
        {{"--accumulate-locally", "--zero", "1"}, "--zero 2 or 3"},
        {{"--on-spike", "stop", "--spike-z", "0"}, "nearest: --spike-z 8"},
        {{"--save-every", "10"}, "--out"},
        {{"--keep-every", "10"}, "--out"},
        {{"--data", "d", "generate", "--from", "m"}, "--data is a flag of training"},
        {{"--steps", "3", "export", "--from", "m", "--to", "n"}, "does nothing for export"},
    };
    for (const auto& c : cases) {
        std::string said;
        EXPECT_EQ(parse(c.flags, &said), 2) << c.says;
        EXPECT_NE(said.find(c.says), std::string::npos) << "expected: " << c.says << "\nfound: " << said;
    }
}

TEST(Options, WhatGoesTogetherIsAccepted) {
    for (const std::vector<const char*>& flags : std::vector<std::vector<const char*>>{
             {},
             {"--init-from", "m", "--out", "o", "--save-every", "10", "--keep-every", "20"},
             {"--train-data", "x.bin", "--raw16"},
             {"--save-every", "0"},
             {"--lr", "1e-3", "--min-lr", "1e-3"},
             {"--on-spike", "stop", "--out", "o"},
             {"generate", "--from", "m", "--seed", "3"},
             {"export", "--from", "m", "--to", "n"},
         }) {
        std::string said;
        EXPECT_EQ(parse(flags, &said), 0) << said;
    }
}

}  // namespace
}  // namespace rz
