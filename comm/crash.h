#pragma once
// A program that crashes ends with words, its exit code, and word to the launcher that it is gone.

namespace rz {

// First in main(): std::terminate, abort() and a closed standard stream are taken care of from then on. From the first
// constructor to this call crashes before main() are, too: a program that calls this has the handlers linked.
void crashes_end_in_words();

// In a catch of main(): says what the exception says, and returns the exit code.
int code_of_failed_start();

}  // namespace rz
