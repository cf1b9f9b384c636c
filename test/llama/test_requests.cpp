// The end of test/llama/requests.py that is the program: answers requests that stand in a file.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "llama/base/json.h"
#include "llama/train/options_train.h"

namespace rz {
namespace {

// RINGZERO_REQUESTS names a file with a list of arguments in each line; FILE.answers gets the table of flags, then a
// line for each request: the exit code, what was said and the values that were given.
TEST(Requests, DISABLED_AreAnswered) {
    const char* file = std::getenv("RINGZERO_REQUESTS");
    ASSERT_NE(file, nullptr);
    std::ifstream in(file);
    std::ofstream out(std::string(file) + ".answers");
    TrainOptions fresh;
    Json rows = Json::array();
    for (const OptionRow& row : command_table(fresh).rows)
        rows.push_back({{"name", row.flag.substr(2)},
                        {"placeholder", row.placeholder},
                        {"switch", row.is_switch},
                        {"list", row.is_list},
                        {"command", row.runs_commands || row.flag == "--allow-commands"},
                        {"text", !row.wrong && row.flag != "--resume"}});
    out << rows.dump() << "\n";
    for (std::string line; std::getline(in, line);) {
        TrainOptions options;
        const CommandTable table = command_table(options);
        ParsedFlags found;
        testing::internal::CaptureStderr();
        const int code =
            parse_flags(parse_json(line, file).get<std::vector<std::string>>(), {&table, 1}, found).value_or(0);
        const std::string said = testing::internal::GetCapturedStderr();
        Json given = Json::object();
        for (const std::string& name : found.given) given[name] = replace_invalid_utf8(found.values.at(name));
        out << Json{{"code", code}, {"said", replace_invalid_utf8(said)}, {"given", given}}.dump() << "\n";
    }
    ASSERT_TRUE(out.good());
}

}  // namespace
}  // namespace rz
