#include "test/ptx/coverage.h"

#include <sys/file.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "test/ptx/cudart.h"

namespace ptx {
namespace {

// True: control may come from instruction `from` to instruction `to`
bool leads_to(const Kernel& k, uint32_t from, uint32_t to) {
    std::vector<bool> seen(k.code.size());
    std::vector<uint32_t> next{from};
    while (!next.empty()) {
        const uint32_t at = next.back();
        next.pop_back();
        if (at == to) return true;
        if (at >= k.code.size() || seen[at]) continue;
        seen[at] = true;
        const Inst& i = k.code[at];
        if (i.part[0] == "bra") next.push_back(i.target);
        const bool leaves = i.part[0] == "bra" || i.part[0] == "ret" || i.part[0] == "exit";
        if (!leaves || i.guard >= 0) next.push_back(at + 1);
    }
    return false;
}

struct Loop {
    uint32_t last = 0;  // branch back to the first instruction
    bool entered = false, repeated = false;
};

// By first instruction. Every circle of the control flow has a branch back in the text. Left out are those that wait
// for an mbarrier: where nothing is late they end at once.
std::map<uint32_t, Loop> loops_of(const Kernel& k) {
    std::map<uint32_t, Loop> loops;
    for (uint32_t b = 0; b < k.code.size(); ++b) {
        const Inst& i = k.code[b];
        if (i.part[0] != "bra" || i.target > b || !leads_to(k, i.target, b)) continue;
        bool waits = false;
        for (uint32_t at = i.target; at < b && b - i.target <= 4; ++at) waits |= k.code[at].part[0] == "mbarrier";
        if (waits) continue;
        Loop& loop = loops[i.target];
        loop.last = b;
        loop.entered |= k.code[i.target].executed > 0;
        loop.repeated |= i.executed > 0;  // a branch that no lane takes is issued, not executed
    }
    return loops;
}

struct LoopCount {
    size_t repeated = 0, all = 0;
};

// Each loop that no test has gone through twice: nvcc unrolls loops, and the rest of a few rounds is other code.
void write_loops(FILE* out, const Module& m, const Kernel& k, LoopCount& count) {
    for (const auto& [first, loop] : loops_of(k)) {
        count.all++, count.repeated += loop.repeated;
        if (loop.repeated) continue;
        const Inst& i = k.code[loop.last];
        fprintf(out, "\tloop\t%s:%d\tlines %d to %d\t%s\n", m.file(i.source_file).c_str(), i.source_line,
                k.code[first].line, i.line, loop.entered ? "entered, not repeated" : "not entered");
    }
}

// "sm_90a  lines run of all  kernel", then its loops and each line that did not run, with where it comes from.
void write_coverage(FILE* out) {
    size_t run = 0, all = 0;
    LoopCount loops;
    for (const auto& m : modules())
        for (const auto& [name, k] : m->kernels) {
            size_t here = 0;
            for (const Inst& i : k->code) here += i.executed > 0;
            run += here, all += k->code.size();
            fprintf(out, "%s\t%zu\t%zu\t%s\n", m->target.c_str(), here, k->code.size(), k->demangled().c_str());
            if (!here) continue;
            write_loops(out, *m, *k, loops);
            for (const Inst& i : k->code)
                if (!i.executed)
                    fprintf(out, "\tline %d\t%s:%d\t%s\n", i.line, m->file(i.source_file).c_str(), i.source_line,
                            m->line_of_text(i.line).c_str());
        }
    for (const auto& m : modules())
        for (const std::string& name : m->names())
            if (!m->kernels.count(name)) fprintf(out, "%s\tnever launched\t%s\n", m->target.c_str(), name.c_str());
    fprintf(out, "loops\t%zu\t%zu\n", loops.repeated, loops.all);
    fprintf(out, "total\t%zu\t%zu\n", run, all);
}

// The unit that an instruction keeps busy
const char* kind_of(const Inst& i) {
    const std::string &op = i.part[0], &type = i.part.back();
    if (op == "mma" || i.has("mma_async")) return "tensor core";
    if (op == "ld" || op == "st" || op == "atom" || op == "red" || op == "cp" || op == "ldmatrix" || op == "stmatrix")
        return "memory";
    if (op == "bra" || op == "ret" || op == "exit" || op == "bar" || op == "barrier" || op == "mbarrier" ||
        op == "fence" || op == "wgmma")
        return "control";
    if (i.has("approx")) return "special";
    if (op == "shfl" || op == "vote" || op == "redux") return "shuffle";
    if (op == "mov" || op == "cvt" || op == "selp" || op == "cvta") return "move";
    if (type.find("f32") != std::string::npos || type.find("f16") != std::string::npos) return "float";
    return "integer";
}

// Per kernel and launch: warp instructions of the PTX by kind (ptxas merges and drops some, and moves none between
// kinds), global sectors of 32 bytes per request, and cycles of shared memory with and without bank conflicts.
void write_counts(FILE* out) {
    for (const auto& m : modules())
        for (const auto& [name, k] : m->kernels) {
            std::map<std::string, uint64_t> kinds;
            MemoryCount global, shared, bulk;
            uint64_t executed = 0, lanes = 0, idle = 0;
            for (const Inst& i : k->code) {
                if (i.executed) kinds[kind_of(i)] += i.executed;
                executed += i.executed, lanes += i.lanes, idle += i.idle;
                const auto it = counts()->memory.find(&i);
                if (it == counts()->memory.end()) continue;
                const MemoryCount& c = it->second;
                MemoryCount& to = c.sectors ? global : c.wavefronts ? shared : bulk;
                to.requests += c.requests, to.bytes += c.bytes, to.sectors += c.sectors;
                to.wavefronts += c.wavefronts, to.ideal += c.ideal;
            }
            if (kinds.empty()) continue;
            fprintf(out, "%s %s\n   ", m->target.c_str(), k->demangled().c_str());
            for (const auto& [kind, n] : kinds) fprintf(out, " %s %llu", kind.c_str(), (unsigned long long)n);
            const auto per = [](uint64_t a, uint64_t b) { return b ? double(a) / double(b) : 0.0; };
            fprintf(out, "\n    lanes: %.1f %% active; %llu more instructions with no lane active",
                    100 * per(lanes, 32 * executed), (unsigned long long)idle);
            fprintf(out,
                    "\n    global: %llu requests, %llu bytes, %.2f sectors each; %.0f %% of their bytes are used\n",
                    (unsigned long long)global.requests, (unsigned long long)global.bytes,
                    per(global.sectors, global.requests), 100 * per(global.bytes, 32 * global.sectors));
            fprintf(out, "    shared: %llu requests, %llu cycles where %llu would do; bulk copies: %llu bytes\n",
                    (unsigned long long)shared.requests, (unsigned long long)shared.wavefronts,
                    (unsigned long long)shared.ideal, (unsigned long long)bulk.bytes);
            for (const Inst& i : k->code) {
                const auto it = counts()->memory.find(&i);
                if (it == counts()->memory.end() || it->second.bytes * 10 >= it->second.sectors * 32 * 8) continue;
                fprintf(out, "    uncoalesced: %.0f %% of %llu sectors' bytes used at line %d, %s:%d, %s\n",
                        100 * per(it->second.bytes, 32 * it->second.sectors), (unsigned long long)it->second.sectors,
                        i.line, m->file(i.source_file).c_str(), i.source_line,
                        m->line_of_text(i.line).substr(0, 60).c_str());
            }
            for (const Inst& i : k->code) {
                const auto it = counts()->memory.find(&i);
                if (it == counts()->memory.end() || it->second.wavefronts <= it->second.ideal) continue;
                fprintf(out, "    conflicts: %.2f times the cycles at line %d, %s:%d, %s\n",
                        per(it->second.wavefronts, it->second.ideal), i.line, m->file(i.source_file).c_str(),
                        i.source_line, m->line_of_text(i.line).substr(0, 60).c_str());
            }
        }
}

void write_lines(FILE* out) {
    for (const auto& m : modules())
        for (const auto& [name, k] : m->kernels)
            for (const Inst& i : k->code)
                if (i.executed)
                    fprintf(out, "%s\t%d\t%s\t%s\t%s:%d\n", name.c_str(), i.line, k->demangled().c_str(),
                            m->line_of_text(i.line).c_str(), m->file(i.source_file).c_str(), i.source_line);
}

}  // namespace

void write_reports() {
    const std::pair<const char*, void (*)(FILE*)> reports[] = {
        {"PTX_COUNTS", write_counts}, {"PTX_LINES", write_lines}, {"PTX_COVERAGE", write_coverage}};
    for (const auto& [variable, write] : reports) {
        const char* path = getenv(variable);
        if (!path) continue;
        FILE* out = fopen(path, "a");
        if (!out) return perror(path);
        flock(fileno(out), LOCK_EX);  // of processes that end at once
        write(out);
        fclose(out);
    }
}

}  // namespace ptx
