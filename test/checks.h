#pragma once
// What tests of every room ask of texts, refusals and files.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
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

// The refusal of f, by an error of type E; "" if it is not refused.
template <class E = Error, class F>
std::string error_of(F&& f) {
    try {
        f();
        return "";
    } catch (const E& e) {
        return e.what();
    }
}

// All of a file; "" if there is none.
inline std::string text_in(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Replaces the file; makes the folders that lead to it.
inline void write_text(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

// Flips a bit of the file's byte `at`; below 0: from the end.
inline void flip_bit(const std::filesystem::path& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    if (at < 0) at += int64_t(std::filesystem::file_size(path));
    file.seekg(at);
    const char c = char(file.get() ^ 1);
    file.seekp(at);
    file.put(c);
}

// While one lives, no file grows beyond so many bytes: as on a full disk, a write fails late.
struct FileSizeLimit {
    explicit FileSizeLimit(rlim_t bytes) {
        require(::getrlimit(RLIMIT_FSIZE, &before) == 0, "no limit of file sizes: %m");
        const rlimit small{bytes, before.rlim_max};
        require(::setrlimit(RLIMIT_FSIZE, &small) == 0, "no limit of file sizes: %m");
    }
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &before);
        std::signal(SIGXFSZ, handler);
    }
    FileSizeLimit(const FileSizeLimit&) = delete;
    FileSizeLimit& operator=(const FileSizeLimit&) = delete;

    rlimit before{};
    void (*const handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

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
