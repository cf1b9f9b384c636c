#pragma once
// A request that can't be met: a flag, or what flags say together, with this model, these data or these ranks. The same
// start would be refused again on an idle machine of this kind, so the program ends with exit code 2, wherever it is
// found. Files, free memory, a port or a lock are the machine's: fail() and require(), and exit code 70
// (comm/exit_codes.h).

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
