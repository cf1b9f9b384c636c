#pragma once
// Enums whose values users name, in flags and messages. Each has one table, beside the enum:
//
//   template <>
//   inline constexpr auto kNames<Decay> = std::to_array<Named<Decay>>({{Decay::cosine, "cosine"}, ...});
//
// Flags, --help, parse_name() and name_of() read it.

#include <array>
#include <string>
#include <string_view>

#include "kernels/runtime/check.h"

namespace rz {

template <class E>
struct Named {
    E value;
    const char* name;
};

template <class E>
inline constexpr std::array<Named<E>, 0> kNames{};

template <class E>
requires(!kNames<E>.empty()) const char* name_of(E value) {
    for (const Named<E>& n : kNames<E>)
        if (n.value == value) return n.name;
    fail("value %d of an enum has no name", int(value));
}

// The value called `text`; throws naming `what`, the text and the names that there are.
template <class E>
E parse_name(const char* what, std::string_view text) {
    std::string all;
    for (const Named<E>& n : kNames<E>) {
        if (text == n.name) return n.value;
        all += (all.empty() ? "" : ", ") + std::string(n.name);
    }
    fail("%s %.*s: it must be one of %s", what, int(text.size()), text.data(), all.c_str());
}

}  // namespace rz
