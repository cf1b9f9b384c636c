#include "llama/base/builtin.h"

// Name and text of each, both with a zero at the end; an empty name ends the list.
#define FILE_OF(name) ".asciz \"" name "\"\n.incbin \"llama/configs/" name ".toml\"\n.byte 0\n"
__asm__(
    ".pushsection .rodata\n"
    "rz_builtins:\n"
    FILE_OF("124m")
    FILE_OF("1b-24g")
    FILE_OF("1b")
    FILE_OF("355m")
    FILE_OF("3b-48g")
    FILE_OF("70b")
    FILE_OF("8b-80g")
    FILE_OF("8b")
    FILE_OF("chat")
    FILE_OF("finetune")
    FILE_OF("medium")
    FILE_OF("mlperf-llama31-8b")
    FILE_OF("quickstart")
    FILE_OF("small")
    FILE_OF("tiny")
    FILE_OF("tinystories")
    FILE_OF("machines/a100-80g")
    FILE_OF("machines/b200-180g")
    FILE_OF("machines/b300-270g")
    FILE_OF("machines/gb10-128g")
    FILE_OF("machines/gb200-186g")
    FILE_OF("machines/gb300-279g")
    FILE_OF("machines/h100-80g")
    FILE_OF("machines/h100-96g-titan")
    FILE_OF("machines/h100-nvl")
    FILE_OF("machines/h100-pcie")
    FILE_OF("machines/h200-141g")
    FILE_OF("machines/l40s-48g")
    FILE_OF("machines/rtx3090-24g")
    FILE_OF("machines/rtx4080-16g")
    FILE_OF("machines/rtx4090-24g")
    FILE_OF("machines/rtx5090-32g")
    FILE_OF("machines/rtxpro6000-96g")
    FILE_OF("machines/t4-16g")
    ".byte 0\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char rz_builtins[];

namespace rz {

const std::vector<Builtin>& builtins() {
    static const std::vector<Builtin> all = [] {
        std::vector<Builtin> list;
        for (const char* at = rz_builtins; *at;) {
            const std::string_view name = at, text = at + name.size() + 1;
            list.push_back({name, text});
            at = text.data() + text.size() + 1;
        }
        return list;
    }();
    return all;
}

}  // namespace rz
