#include <gtest/gtest.h>

#include <chrono>

#include "llama/base/json.h"
#include "test/checks.h"

namespace rz {
namespace {

std::string problem_of(const std::string& text) {
    return error_of([&] { parse_json(text, "here"); });
}

TEST(JsonTest, RefusesWhatTheStandardLeavesOpen) {
    EXPECT_EQ(problem_of(R"({"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}], "b": null})"), "");
    EXPECT_EQ(problem_of(R"({"a": {"b": 1, "c": 2, "b": 3}})"), "here: duplicate JSON key \"b\"");
    EXPECT_EQ(problem_of(std::string(100, '[') + std::string(100, ']')), "");
    EXPECT_EQ(problem_of(std::string(101, '[') + std::string(101, ']')), "here: JSON nested deeper than 100");
    for (const char* bad : {"", "{", "{}{}", "[1,]", "{\"a\" 1}", "nul", "{\"a\": 1e999}"})
        EXPECT_EQ(problem_of(bad).rfind("here: not valid JSON: ", 0), 0u) << bad << " " << problem_of(bad);
}

// As many objects as the index of a very large model has: it took 25 s when it was quadratic.
TEST(JsonTest, TimeIsLinearInObjects) {
    std::string text = "{";
    for (int i = 0; i < 40000; ++i)
        text += format("%s\"tensor.%d\": {\"dtype\": \"F32\", \"shape\": [1]}", i ? ", " : "", i);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(parse_json(text + "}", "here").size(), 40000u);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 5);
}

TEST(JsonTest, BytesThatAreNoUtf8AreReplaced) {
    EXPECT_EQ(replace_invalid_utf8("caf\xc3\xa9"), "caf\xc3\xa9");
    EXPECT_EQ(replace_invalid_utf8("caf\xe9/x"), "caf\xef\xbf\xbd/x");
}

}  // namespace
}  // namespace rz
