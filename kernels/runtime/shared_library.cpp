#include "kernels/runtime/shared_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>

#include "kernels/runtime/check.h"

namespace rz {

static void* open_in_wheels(const std::string& name) {
    const auto below = [](const char* variable, const char* rest) {
        const char* value = std::getenv(variable);
        return value && *value ? std::string(value) + rest : std::string();
    };
    for (const std::string& root :
         {below("VIRTUAL_ENV", "/lib/python3*/site-packages"), below("CONDA_PREFIX", "/lib/python3*/site-packages"),
          below("HOME", "/.local/lib/python3*/site-packages"), std::string("/usr/local/lib/python3*/dist-packages"),
          std::string("/usr/local/lib/python3*/site-packages")}) {
        if (root.empty()) continue;
        glob_t found{};
        void* library = nullptr;
        if (glob((root + "/nvidia/*/lib/" + name).c_str(), 0, nullptr, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc && !library; ++i)
                library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
        if (library) return library;
    }
    return nullptr;
}

void* open_library(const char* name, const char* advice) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const std::string why = dlerror();
    if (void* library = open_in_wheels(name)) return library;
    fail("%s\n  %s", why.c_str(), advice);
}

void* function_of(void* library, const char* function) {
    if (void* found = dlsym(library, function)) return found;
    fail("%s", dlerror());
}

}  // namespace rz
