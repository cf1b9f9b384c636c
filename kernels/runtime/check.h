#pragma once
// Errors. Everything throws rz::Error; main catches once, adds the rank and exits.
// A message says what was asked, what was found and what to do.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rz {

// Text that may come from outside, for people: control characters and bytes that are no UTF-8 as \x1b, those above
// ASCII as \u009b; so are the marks that turn the direction of writing. New lines and tabs stay.
std::string printable(std::string_view text);
// On one line.
std::string printable_line(std::string_view text);

// The same for text that arrives in pieces; a character may be cut between two of them.
class PrintablePieces {
   public:
    // colours: those that this program itself prints on a terminal stay.
    explicit PrintablePieces(bool colours = false) : colours_(colours) {}
    std::string feed(std::string_view piece);
    std::string finish();

   private:
    std::string take(bool last);
    std::string pending_;
    bool colours_;
};

// what() is printable.
struct Error : std::runtime_error {
    explicit Error(std::string_view text) : std::runtime_error(printable(text)) {}
};

// printf-style text; grows as needed.
std::string format(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

[[noreturn]] void fail(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

// require(C % 8 == 0, "rmsnorm: C=%ld is not a multiple of 8", long(C));
#define require(cond, ...)           \
    do {                             \
        if (!(cond)) [[unlikely]]    \
            ::rz::fail(__VA_ARGS__); \
    } while (0)

// Sizes are 64-bit and never wrap: throws rz::Error naming `what` on overflow or a negative operand.
int64_t checked_mul(int64_t a, int64_t b, const char* what);
int64_t checked_add(int64_t a, int64_t b, const char* what);

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// 1536 -> "1.5 KiB"
std::string human_bytes(int64_t bytes);

}  // namespace rz
