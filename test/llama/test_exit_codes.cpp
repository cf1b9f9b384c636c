// comm/exit_codes.h is the one list: the manual says the same, and the type of an error decides between 2 and 70.

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <regex>
#include <sstream>

#include "comm/exit_codes.h"
#include "comm/pinned_memory.h"
#include "comm/process.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "test/checks.h"

namespace rz {
namespace {

TEST(ExitCodes, AreThoseOfTheManual) {
    std::map<int, std::string> rows;
    std::istringstream page(read_file("dev/guide/failures.md"));
    for (std::string line; std::getline(page, line);) {
        std::smatch m;
        if (std::regex_match(line, m, std::regex(R"(\| (\d+) \| (.*) \|)"))) rows[std::stoi(m[1])] = m[2];
    }
    EXPECT_EQ(rows.size(), std::size(kExitMeanings));
    for (const ExitMeaning& row : kExitMeanings)
        EXPECT_EQ(rows[row.code].substr(0, std::string(row.meaning).size()), row.meaning) << row.code;
}

int code_of(const std::function<int()>& body) {
    Process process;
    return process.run(body);
}

TEST(ExitCodes, ARequestThatCannotBeMetIsTwoWhereverItIsFound) {
    EXPECT_EQ(code_of([]() -> int { refuse("--batch %d: does not divide", 3); }), kExitRequest);
    EXPECT_EQ(code_of([]() -> int { fail("--out %s: the disk is full", "runs"); }), kExitError);  // no text decides
    EXPECT_EQ(code_of([]() -> int { refuse("no data: --data is needed"); }), kExitRequest);
    EXPECT_EQ(code_of([]() -> int { fail("model.safetensors: --batch in the middle"); }), kExitError);
    EXPECT_EQ(code_of([]() -> int { throw std::bad_alloc(); }), kExitError);
    EXPECT_EQ(code_of([] {
                  require_request(true, "not this one");
                  return int(kExitRequeue);
              }),
              kExitRequeue);
}

TEST(ExitCodes, AFullSharedMemoryIsTheMachines) {
    const std::string name = "/ringzero-test-full-" + std::to_string(getpid());
    try {
        map_by_name(name, /*rank=*/0, /*members=*/2, int64_t(1) << 50, Alloc::shared, [] {});
        FAIL() << "a PiB of /dev/shm";
    } catch (const Error& error) {
        EXPECT_EQ(exit_code_of(error), kExitError) << error.what();
        EXPECT_TRUE(says(error.what(), "/dev/shm"));
    }
}

}  // namespace
}  // namespace rz
