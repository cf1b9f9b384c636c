#pragma once
// Which GPU and which cores a rank gets. All but the last two are arithmetic on what was read, so that tests can give
// any machine.

#include <string>
#include <vector>

namespace rz {

// The running kernel's boot id: the same for all processes and containers of a machine and for no other machine. Host
// names repeat. The host's name where it can't be read.
std::string host_id(const std::string& proc = "/proc");

// For each rank of a host, which of the GPUs that it sees it uses: an index into its own list of bus ids. Launchers may
// show each rank all GPUs, some, or one (Slurm's --gpu-bind), so equal indices need not be equal GPUs. No two ranks get
// the same one as long as that is possible (Kuhn's augmenting paths); then the GPU with the fewest ranks. A rank that
// sees n GPUs starts at its place modulo n. -1 where a rank sees none.
std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& visible);

// The cores of a list such as "0-3,8": what the kernel writes.
std::vector<int> parse_cpu_list(const std::string& text);
// Cores of a PCI device's NUMA node; empty where there is one node only, or it can't be read.
std::vector<int> cores_near(const std::string& bus_id, const std::string& sys = "/sys");

// A line where a rank has too few cores for what it runs, else "". `local_ranks` share the machine.
std::string too_few_cores(int cores, int machine_cores, int local_ranks, bool gpu, bool slurm);

// This process' cores.
std::vector<int> allowed_cores();
// Threads that this one starts from now on stay on `cores`, and so does memory that they touch first; false if it is
// not allowed.
bool stay_on(const std::vector<int>& cores);

}  // namespace rz
