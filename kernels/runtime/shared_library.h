#pragma once
// Libraries that are opened when they are first called: a start needs none of them.

namespace rz {

// By the program's rpath, LD_LIBRARY_PATH and the linker's folders, as if it were linked; else from NVIDIA's wheels
// (site-packages/nvidia/*/lib) of $VIRTUAL_ENV, $CONDA_PREFIX, the user and the system. Throws the loader's words and
// the advice.
void* open_library(const char* name, const char* advice);
// Throws if the library has not got it.
void* function_of(void* library, const char* function);

}  // namespace rz
