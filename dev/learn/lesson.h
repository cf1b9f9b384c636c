#pragma once
// Shared by the checks of all lessons: a line per expectation, and an exit code. A check compares an answer with
// something that does not come from it: a closed form, finite differences, stored values, or the program's own kernel.

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace learn {

inline int expectations = 0, unmet = 0;

// One line: "  ok   ..." or "  NOT  ...".
[[gnu::format(printf, 2, 3)]] inline bool expect(bool met, const char* text, ...) {
    std::printf(met ? "  ok   " : "  NOT  ");
    va_list arguments;
    va_start(arguments, text);
    std::vprintf(text, arguments);
    va_end(arguments);
    std::putchar('\n');
    ++expectations;
    unmet += !met;
    return met;
}

// |got - want| <= tolerance; a NaN never is.
inline bool close(const char* what, double got, double want, double tolerance) {
    const bool met = std::fabs(got - want) <= tolerance;
    if (met) return expect(true, "%s: %.9g", what, got);
    return expect(false, "%s: %.9g, but it should be %.9g (within %.2g)", what, got, want, tolerance);
}

// Largest |got[i] - want[i]|; infinite if any is NaN.
template <class A, class B>
double distance(const A& got, const B& want, int n) {
    double largest = 0;
    for (int i = 0; i < n; ++i) {
        const double d = std::fabs(double(got[i]) - double(want[i]));
        if (!(d <= largest)) largest = std::isnan(d) ? INFINITY : d;
    }
    return largest;
}

// The last line of a check, and main's return value.
inline int verdict(const char* insight) {
    if (unmet == 0 && expectations > 0) {
        std::printf("solved: %s\n", insight);
        return 0;
    }
    std::printf("not yet: %d of %d expectations are not met\n", unmet, expectations);
    return 1;
}

// The same pseudorandom values in (-1, 1) in every run, from a counter.
inline double noise(unsigned i) {
    unsigned long long x = i * 0x9e3779b97f4a7c15ull + 0x1234567ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return double((x ^ (x >> 31)) >> 11) / double(1ull << 52) - 1;
}

// n of them in (-size, size), from the counter `first` on.
template <class T = float>
std::vector<T> noises(int n, unsigned first, double size = 1) {
    std::vector<T> out;
    for (int i = 0; i < n; ++i) out.push_back(T(size * noise(first + unsigned(i))));
    return out;
}

template <class T>
double dot(const T* a, const T* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += double(a[i]) * b[i];
    return sum;
}

// The derivative of f() by a parameter, by central differences: their error is about step^2.
template <class T, class F>
double slope(T& parameter, double step, const F& f) {
    const T kept = parameter;
    parameter = T(kept + step);
    const double above = f();
    parameter = T(kept - step);
    const double below = f();
    parameter = kept;
    return (above - below) / (2 * step);
}

}  // namespace learn
