// Shared memory: finding the static variables, poisoning all of it before each block, and swapping the static part
// between blocks that run together.
//
// Static variables live in the executable's thread-local segment, or, under ASan, in plain statics that ASan has
// registered with name and source line: those whose line says __shared__ are taken. (ASan registers only variables with
// internal linkage, hence the rule that kernels are static or in an anonymous namespace.)
#include <cstdlib>
#include <fstream>
#include <map>

#include <dlfcn.h>
#include <link.h>

#include "test/simt/runtime.h"

namespace simt {

void poison(void* p, size_t bytes, int kind) {
    if (!bytes) return;
    // Either NaN in every float format and -1 in integers, or large positive numbers, since fmaxf swallows NaN.
    if (kind == 0) {
        memset(p, 0xff, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++) static_cast<unsigned char*>(p)[i] = i & 1 ? 0x7e : 0x77;
}

// Allocates exactly that size, so that ASan sees the first byte past the end.
void allocate_smem(Block& b, size_t bytes) {
    if (b.smem && b.smem_bytes == bytes) return;
    free(b.smem);
    void* p = nullptr;
    if (posix_memalign(&p, 1024, bytes ? bytes : 1)) abort();
    b.smem = static_cast<unsigned char*>(p);
    b.smem_bytes = bytes;
}

namespace {

struct Range {
    char* begin;
    size_t bytes;
};

#if defined(__SANITIZE_ADDRESS__)

struct AsanGlobal {  // the layout that g++ emits and libasan reads
    char* begin;
    size_t bytes, bytes_with_redzone;
    const char *name, *module;
    size_t dynamic_init;
    const struct Location {
        const char* file;
        int line, column;
    } * location;
    size_t odr_indicator;
};
std::vector<AsanGlobal>& registered() {
    static auto& v = *new std::vector<AsanGlobal>;
    return v;
}

bool declared_shared(const AsanGlobal& g) {
    static auto& files = *new std::map<std::string, std::vector<std::string>>;
    const std::string path = g.location->file;
    auto [it, first] = files.try_emplace(path);
    if (first) {
        std::ifstream in(path);
        if (!in) in.open(std::string(SIMT_SOURCE_ROOT "/") + path);
        if (!in)
            fprintf(stderr, "simt: can't read %s, which the ASan build needs to find shared variables\n", path.c_str()),
                abort();
        for (std::string line; std::getline(in, line);) it->second.push_back(line);
    }
    const auto line = size_t(g.location->line);
    return line >= 1 && line <= it->second.size() && it->second[line - 1].find("__shared__") != std::string::npos;
}

bool kernel_source(const std::string& file) {
    return file.ends_with(".cu") || file.ends_with(".cuh") || file.ends_with(".cpp");
}

const std::vector<Range>& static_shared() {
    static auto& found = *new std::vector<Range>;
    static size_t seen = 0;
    for (; seen < registered().size(); seen++) {
        const AsanGlobal& g = registered()[seen];
        if (g.location && g.location->file && kernel_source(g.location->file) && declared_shared(g))
            found.push_back({g.begin, g.bytes});
    }
    return found;
}

#else

thread_local char anchor = 1;

// The calling thread's segment; set before each launch. Nothing that is used while a kernel runs may be thread-local.
auto& segment = *new std::vector<Range>(1);
auto& host_values = *new std::vector<char>;
const std::vector<Range>& static_shared() { return segment; }

void find_segment() {
    segment[0] = {};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void*) {
            if (info->dlpi_name && *info->dlpi_name) return 0;  // a library
            for (int k = 0; k < info->dlpi_phnum; k++)
                if (info->dlpi_phdr[k].p_type == PT_TLS && info->dlpi_tls_data)
                    segment[0] = {static_cast<char*>(info->dlpi_tls_data), info->dlpi_phdr[k].p_memsz};
            return 1;
        },
        nullptr);
    if (&anchor < segment[0].begin || &anchor >= segment[0].begin + segment[0].bytes)
        fprintf(stderr, "simt: the emulator must be linked into the executable, not into a library\n"), abort();
}

#endif

Block* running = nullptr;  // whose static variables are in place, where blocks run together

void copy_out(std::vector<char>& to) {
    to.clear();
    for (const Range& r : static_shared()) to.insert(to.end(), r.begin, r.begin + r.bytes);
}
void copy_in(const std::vector<char>& from) {
    const char* p = from.data();
    for (const Range& r : static_shared()) memcpy(r.begin, p, r.bytes), p += r.bytes;
}

}  // namespace

// The thread-local segment also holds the host's thread-locals; statics under ASan hold nothing but shared variables.
#if defined(__SANITIZE_ADDRESS__)
void save_static_shared() {}
void restore_static_shared() { running = nullptr; }
void static_shared_range(const char** begin, size_t* bytes) { *begin = nullptr, *bytes = 0; }
#else
void save_static_shared() {
    find_segment();
    copy_out(host_values);
}
void restore_static_shared() {
    copy_in(host_values);
    running = nullptr;
}
void static_shared_range(const char** begin, size_t* bytes) { *begin = segment[0].begin, *bytes = segment[0].bytes; }
#endif

void poison_static_shared(int kind) {
    for (const Range& r : static_shared()) poison(r.begin, r.bytes, kind);
}

void prepare_resident_shared(int kind) {
    poison_static_shared(kind);
    for (uint32_t i = 0; i < resident_count(); i++) copy_out(resident_blocks()[i].static_shared);
    running = nullptr;
}

void switch_static_shared(Block* to) {
    if (running == to) return;
    if (running) copy_out(running->static_shared);
    copy_in(to->static_shared);
    running = to;
}

Block* owner_of_shared(const void* p) {
    const auto* c = static_cast<const unsigned char*>(p);
    for (uint32_t i = 0; i < resident_count(); i++) {
        Block& b = resident_blocks()[i];
        if (c >= b.smem && c < b.smem + b.smem_bytes) return &b;
    }
    for (const Range& r : static_shared())
        if (static_cast<const char*>(p) >= r.begin && static_cast<const char*>(p) < r.begin + r.bytes)
            return resident_count() > 1 ? running : current->block;
    return nullptr;
}

}  // namespace simt

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_register_globals(void* globals, size_t n) {
    static auto* real = reinterpret_cast<void (*)(void*, size_t)>(dlsym(RTLD_NEXT, "__asan_register_globals"));
    auto* g = static_cast<simt::AsanGlobal*>(globals);
    for (size_t i = 0; i < n; i++)
        if (g[i].location) simt::registered().push_back(g[i]);
    real(globals, n);
}
#endif
