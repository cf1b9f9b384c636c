// Kernel names, from the executable's own symbol table, and the file of launch counts.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/simt/runtime.h"

namespace simt {
namespace {

struct Symbol {
    std::string mangled;
    bool local;
};
// All functions by address (a kernel in an anonymous namespace is a local symbol, which dladdr misses).
std::map<uintptr_t, Symbol> read_symbols() {
    std::map<uintptr_t, Symbol> names;
    uintptr_t load = 0;
    dl_iterate_phdr([](dl_phdr_info* i, size_t, void* p) { return *static_cast<uintptr_t*>(p) = i->dlpi_addr, 1; },
                    &load);
    const int fd = open("/proc/self/exe", O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) return names;
    void* map = mmap(nullptr, size_t(st.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return names;
    const char* file = static_cast<const char*>(map);
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const char* strings = file + sections[sections[i].sh_link].sh_offset;
        const auto* symbol = reinterpret_cast<const Elf64_Sym*>(file + sections[i].sh_offset);
        for (size_t n = sections[i].sh_size / sizeof *symbol; n; n--, symbol++)
            if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
                names[load + symbol->st_value] = {strings + symbol->st_name,
                                                  ELF64_ST_BIND(symbol->st_info) == STB_LOCAL};
    }
    munmap(map, size_t(st.st_size));
    return names;
}

// "void rz::(anonymous namespace)::k<128>(float*, int)" -> "rz::k<128>"
std::string short_name(const std::string& mangled) {
    int status;
    char* d = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    std::string s = d ? d : mangled;
    free(d);
    for (const char* cut : {"(anonymous namespace)::", "void "})
        for (size_t i; (i = s.find(cut)) != std::string::npos;) s.erase(i, strlen(cut));
    int depth = 0;  // the parameter list is the first parenthesis outside <>
    for (size_t i = 0; i < s.size(); i++) {
        depth += (s[i] == '<') - (s[i] == '>');
        if (s[i] == '(' && depth == 0) return s.substr(0, i);
    }
    return s;
}

const Symbol* symbol_of(const void* kernel) {
    static auto& symbols = *new std::map<uintptr_t, Symbol>(read_symbols());
    const auto it = symbols.find(reinterpret_cast<uintptr_t>(kernel));
    return it == symbols.end() ? nullptr : &it->second;
}

struct Count {
    std::string file;
    uint64_t launches = 0, blocks = 0;
};
auto& counts = *new std::map<const void*, Count>;

void write_counts() {
    const char* path = getenv("SIMT_COVERAGE");
    if (!path || counts.empty()) return;
    std::string text;
    for (const auto& [kernel, c] : counts)
        text += "kernel\t" + c.file + "\t" + kernel_name(kernel) + "\t" + std::to_string(c.launches) + "\t" +
                std::to_string(c.blocks) + "\t" +
                (symbol_of(kernel) && symbol_of(kernel)->local ? "local" : "external") + "\n";
    char line[128];
    snprintf(line, sizeof line, "time\t%s\t%.3f\t%llu\n", build_name(), stats().seconds,
             static_cast<unsigned long long>(stats().threads));
    text += line;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, text.data(), text.size()) != ssize_t(text.size()))
        fprintf(stderr, "simt: can't write SIMT_COVERAGE=%s\n", path);
    if (fd >= 0) close(fd);
}

}  // namespace

std::string kernel_name(const void* kernel) {
    const Symbol* s = symbol_of(kernel);
    return s ? short_name(s->mangled) : "a kernel without symbol";
}

void count_launch(const Launch& l) {
    static const bool registered = atexit(write_counts) == 0;
    (void)registered;
    Count& c = counts[l.kernel];
    if (!c.launches++) c.file = l.at.file_name();
    c.blocks += uint64_t(l.grid.x) * l.grid.y * l.grid.z;
}

const char* build_name() {
#if defined(__SANITIZE_ADDRESS__)
    return "asan";
#else
    return race ? "race" : "plain";
#endif
}

}  // namespace simt
