#include "test/ptx/coverage.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "test/ptx/cudart.h"

namespace ptx {
namespace {

// "sm_90a  lines run of all  kernel", then each line that did not run, with where it comes from.
void write_coverage(FILE* out) {
    size_t run = 0, all = 0;
    for (const auto& m : modules())
        for (const auto& [name, k] : m->kernels) {
            size_t here = 0;
            for (const Inst& i : k->code) here += i.executed > 0;
            run += here, all += k->code.size();
            fprintf(out, "%s\t%zu\t%zu\t%s\n", m->target.c_str(), here, k->code.size(), k->demangled().c_str());
            if (!here) continue;
            for (const Inst& i : k->code)
                if (!i.executed)
                    fprintf(out, "\tline %d\t%s:%d\t%s\n", i.line, m->file(i.source_file).c_str(), i.source_line,
                            m->line_of_text(i.line).c_str());
        }
    for (const auto& m : modules())
        for (const std::string& name : m->names())
            if (!m->kernels.count(name)) fprintf(out, "%s\tnever launched\t%s\n", m->target.c_str(), name.c_str());
    fprintf(out, "total\t%zu\t%zu\n", run, all);
}

}  // namespace

void write_reports() {
    if (const char* path = getenv("PTX_LINES")) {
        FILE* out = fopen(path, "a");
        if (!out) return perror(path);
        for (const auto& m : modules())
            for (const auto& [name, k] : m->kernels)
                for (const Inst& i : k->code)
                    if (i.executed)
                        fprintf(out, "%s\t%d\t%s\t%s\n", name.c_str(), i.line, k->demangled().c_str(),
                                m->line_of_text(i.line).c_str());
        fclose(out);
    }
    if (const char* path = getenv("PTX_COVERAGE")) {
        FILE* out = fopen(path, "a");
        if (!out) return perror(path);
        write_coverage(out);
        fclose(out);
    }
}

}  // namespace ptx
