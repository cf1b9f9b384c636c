#include "kernels/runtime/check.h"

#include <cstdarg>
#include <cstdio>

#include "kernels/runtime/request.h"

namespace rz {

static std::string vformat(const char* fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = std::vsnprintf(nullptr, 0, fmt, args);
    std::string text(n > 0 ? size_t(n) : 0, '\0');
    if (n > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, again);
    va_end(again);
    return text;
}

std::string format(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    return text;
}

void fail(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    if (text.starts_with("--")) throw RequestError(text);
    throw Error(text);
}

void refuse(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    throw RequestError(text);
}

int64_t checked_mul(int64_t a, int64_t b, const char* what) {
    int64_t out = 0;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &out))
        fail("%s: %lld x %lld does not fit a 64-bit size", what, (long long)a, (long long)b);
    return out;
}

int64_t checked_add(int64_t a, int64_t b, const char* what) {
    int64_t out = 0;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &out))
        fail("%s: %lld + %lld does not fit a 64-bit size", what, (long long)a, (long long)b);
    return out;
}

std::string human_bytes(int64_t bytes) {
    static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = double(bytes);
    int unit = 0;
    while (unit < 5 && (value >= 1024 || value <= -1024)) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? format("%lld B", (long long)bytes) : format("%.*f %s", value < 10 ? 2 : 1, value, kUnits[unit]);
}

}  // namespace rz
