#pragma once
// Output is seen on terminals, which obey control characters; much of it comes from files of others.

#include <string_view>

namespace rz {

// From here on all that is printed on standard output and standard error through stdio or iostream is printable
// (kernels/runtime/check.h). Once, in main().
void print_escaped();

// A text that was asked for, on standard output: its bytes as they are, but printable on a terminal. False once nobody
// reads it.
bool print_text(std::string_view text);

}  // namespace rz
