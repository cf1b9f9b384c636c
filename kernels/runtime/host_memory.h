#pragma once
// How much memory of the host this process may still take.

#include <cstdint>
#include <string>

namespace rz {

// The least of what the machine has available and what each control group above this process leaves it (versions 1
// and 2; file cache that the kernel would give up counts as free), in bytes. INT64_MAX if nothing can be read. The
// folders are arguments for tests.
int64_t available_host_memory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

// Memory of this process now, in bytes. 0 if it can't be read.
int64_t resident_host_memory(const std::string& proc = "/proc");

}  // namespace rz
