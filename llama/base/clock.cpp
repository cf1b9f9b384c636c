#include "llama/base/clock.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "kernels/runtime/check.h"

namespace rz {

double wall_clock() {
    timespec t{};
    clock_gettime(CLOCK_REALTIME, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double monotonic_clock() {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

static std::string text_of(const char* form, const tm& parts) {
    char text[64];
    return {text, strftime(text, sizeof text, form, &parts)};
}

std::string utc_text(const char* form, double time) {
    const time_t seconds = time_t(time);
    tm parts{};
    return text_of(form, *gmtime_r(&seconds, &parts));
}

std::string local_text(const char* form) {
    const time_t now = time(nullptr);
    tm parts{};
    return text_of(form, *localtime_r(&now, &parts));
}

double parse_duration(const std::string& text) {
    auto refuse = [&] {
        fail("'%s' is not a length of time; examples: 90 (seconds), 90m, 3h30m, 2d, 1:30:00", text.c_str());
    };
    double total = 0;
    const char* at = text.c_str();
    if (text.find(':') != std::string::npos) {  // [days-]hours:minutes:seconds or minutes:seconds, as Slurm writes it
        int fields = 0;
        while (*at) {
            char* end = nullptr;
            if (*at < '0' || *at > '9') refuse();
            const double x = double(std::strtoul(at, &end, 10));
            if (end - at > 9 || (fields > 0 && x >= 60) || ++fields > 3) refuse();
            total = total * 60 + x;
            at = end;
            if (*at == ':' && at[1])
                ++at;
            else if (*at)
                refuse();
        }
        return total;
    }
    double last = INFINITY;
    if (!*at) refuse();
    while (*at) {
        if ((*at < '0' || *at > '9') && *at != '.') refuse();
        char* end = nullptr;
        const size_t digits = std::strspn(at, "0123456789.");
        const double x = std::strtod(std::string(at, digits).c_str(), &end);
        if (*end || digits > 12) refuse();
        at += digits;
        const double unit = *at == 'd' ? 86400 : *at == 'h' ? 3600 : *at == 'm' ? 60 : *at == 's' || !*at ? 1 : 0;
        if (unit == 0 || unit >= last) refuse();
        last = unit;
        total += x * unit;
        if (*at) ++at;
    }
    return total;
}

}  // namespace rz
