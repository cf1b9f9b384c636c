#pragma once
// Times and lengths of time.

#include <string>

namespace rz {

double wall_clock();       // seconds since the epoch
double monotonic_clock();  // seconds since the machine started, sleep included; nobody can set it

constexpr const char* kTimeForm = "%Y-%m-%dT%H:%M:%SZ";  // of UTC, in records
// A time, and now, as strftime() writes it.
std::string utc_text(const char* form, double time = wall_clock());
std::string local_text(const char* form);

// "90", "90s", "90m", "3h30m", "2d12h", "1:30:00" in seconds. Throws with examples.
double parse_duration(const std::string& text);

}  // namespace rz
