#pragma once
// What tests of every room ask of texts, refusals and files.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/runtime/check.h"

namespace rz {

// Success if `part` stands in `text`; a failure has both.
inline testing::AssertionResult says(const std::string& text, const std::string& part) {
    if (text.find(part) != std::string::npos)
        return testing::AssertionSuccess() << "\"" << part << "\" is in: " << text;
    return testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
}

// The refusal of f; "" if it is not refused.
template <class F>
std::string error_of(F&& f) {
    try {
        f();
        return "";
    } catch (const Error& e) {
        return e.what();
    }
}

// All of a file; "" if there is none.
inline std::string text_in(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Removed in the end, with what is in it.
struct TempFolder {
    TempFolder() { require(::mkdtemp(path.data()) != nullptr, "can't make a folder: %m"); }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    std::string operator/(const std::string& file) const { return path + "/" + file; }

    std::string path = "/tmp/ringzero-test-XXXXXX";
};

}  // namespace rz
