#pragma once
// A request that can't be met: a flag, or what flags say together, with this model, these data or these ranks. The same
// start would be refused again, so the program ends with exit code 2, wherever the error is found; every other error is
// of the machine or the files, and ends it with 70 (comm/exit_codes.h).
//
// fail() and require() make an error whose text begins with a flag ("--batch 3: ...") such a one. Others say refuse().

#include "kernels/runtime/check.h"

namespace rz {

struct RequestError : Error {
    using Error::Error;
};

[[noreturn]] void refuse(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

#define require_request(cond, ...)     \
    do {                               \
        if (!(cond)) [[unlikely]]      \
            ::rz::refuse(__VA_ARGS__); \
    } while (0)

}  // namespace rz
