// Compares runs in one HTML file.
//
//   build/dev/report RUN... [--out report.html]       each RUN is a folder given as --out of train_llama

#include <cstdio>
#include <string>
#include <vector>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "dev/common/run_record.h"

int main(int argc, char** argv) {
    std::vector<std::string> folders;
    std::string out = "report.html";
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--out" && i + 1 < argc)
            out = argv[++i];
        else if (word.starts_with("-")) {
            std::fprintf(stderr, "usage: report RUN... [--out report.html]\n");
            return word == "--help" ? 0 : 2;
        } else
            folders.push_back(word);
    }
    if (folders.empty()) {
        std::fprintf(stderr, "report: name the folders of one or more runs (--out of train_llama)\n");
        return 2;
    }
    try {
        rz::write_file_atomically(out, rz::compare_runs(rz::read_runs(folders)));
        std::printf("%s: %zu run%s\n", out.c_str(), folders.size(), folders.size() == 1 ? "" : "s");
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "report: %s\n", error.what());
        return 1;
    }
}
