// PTX as data: the kernels of a module, their instructions, and the rows of 32 lanes that operands are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx {

struct Warp;
struct Module;

enum class Space : uint8_t { generic, global, shared, local, param, constant };

// A row is a register, an immediate value, a special register or the address of a symbol, in each of 32 lanes.
// Rows from kConstant on are the same in all lanes and warps and lie in Kernel::constants.
constexpr uint32_t kConstant = 1u << 24;

struct Operand {
    enum Kind : uint8_t { row, vector, address, label, ignored } kind = row;
    bool negated = false;          // !%p
    bool immediate = false;        // its value is in `offset`
    Space space = Space::generic;  // of the symbol that it names
    uint32_t slot = 0;             // row; address: of the base
    int64_t offset = 0;
    std::vector<uint32_t> rows;  // vector; address: coordinates after the base; row: what follows '|'
    std::string name;            // of a label or a symbol
};

// An instruction's effect on the rows of a warp, for these lanes.
using Step = std::function<void(Warp&, uint32_t lanes)>;

struct Inst {
    Step step;  // empty: unknown, and fails when it is executed
    std::string opcode;
    std::vector<std::string> part;  // the opcode, split at dots
    std::vector<Operand> operand;
    int line = 0;  // of the PTX text
    int source_file = 0, source_line = 0;
    int scope = 0, guard = -1;  // guard: a row
    bool guard_negated = false;
    bool joins = false;       // lanes that parted may meet again here
    uint32_t target = 0;      // of a branch
    uint32_t reconverge = 0;  // where its lanes meet again: an instruction, or code.size()
    uint64_t executed = 0;    // by how many groups of lanes
    uint64_t lanes = 0;       // of those groups
    uint64_t idle = 0;        // issued while its guard was false for every lane

    bool has(const char* modifier) const {
        for (size_t i = 1; i < part.size(); i++)
            if (part[i] == modifier) return true;
        return false;
    }
};

// A row that differs between warps or blocks and is set when a warp starts
struct Fill {
    enum Kind : uint8_t { static_shared, dynamic_shared, special } kind;
    uint32_t slot;
    uint64_t value;  // offset, or alignment
    std::string name;
};

struct Kernel {
    std::string name;  // mangled
    Module* module = nullptr;
    std::vector<Inst> code;
    std::vector<uint64_t> constants;  // 32 per row
    std::vector<Fill> fills;
    std::vector<uint32_t> param_size, param_offset;
    uint32_t slots = 1;  // row 0 takes what is written to `_`
    uint32_t param_bytes = 0, static_shared = 0, dynamic_align = 16, local_bytes = 0, max_threads = 1024, labels = 0;
    std::string demangled() const;
};

struct Module {
    explicit Module(std::string ptx_text);
    // Parses and binds the kernel when it is first asked for.
    Kernel& kernel(const std::string& name);
    bool has(const std::string& name) const { return entries_.count(name) > 0; }
    std::vector<std::string> names() const;
    const std::string& file(int number) const;  // of `.loc`
    std::string line_of_text(int line) const;
    std::map<std::string, std::unique_ptr<Kernel>> kernels;  // those parsed so far
    std::map<std::string, void*> variables;                  // .global and .const
    std::string target;                                      // sm_80

   private:
    struct Entry {
        size_t begin, end;
        int line;
    };
    friend struct Parser;
    std::string text_, outside_;  // outside_: the text without the kernels
    std::map<std::string, Entry> entries_;
    std::map<int, std::string> files_;
    std::vector<std::unique_ptr<std::vector<unsigned char>>> storage_;
};

// flow.cpp: branches' points of reconvergence, and few rows in place of many registers.
void analyse_flow(Kernel& k);
// bind.cpp: the step of one instruction
Step bind(Inst& i);

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ptx
