#pragma once
// The launcher of this process, its rank and the number of ranks, by the environment. mpirun's ranks find each other by
// MPI, all others over TCP (tcp_net.h).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rz {

struct Launch {
    enum class How { alone, mpi, tcp };
    How how = How::alone;
    int rank = 0, size = 1;
    std::string by = {};  // "torchrun", for messages
    // For How::tcp: where rank 0 listens. On one host that is its loopback, and nobody else can come.
    bool one_host = false;
    std::string address = {};
    int port = 0;
    int listening = -1;           // rank 0 of --ranks: the socket, made by its parent
    int starter = -1;             // of --ranks with restarts: a socket to the process that started this one (ranks.h)
    std::string secret = {};      // what the ranks prove to each other
    bool secret_is_open = false;  // nobody gave one: made of the job's number and size
};

// The value of an environment variable, or nullptr.
using Environment = std::function<const char*(const char*)>;
const char* environment(const char* name);  // of this process

// `mpi_library`: name and version of the MPI that the program is built with, "": none. Refuses what cannot work.
Launch find_launch(const Environment& env, const std::string& mpi_library);

// Slurm's short form, such as a[01-03,7],b: every name.
std::vector<std::string> expand_nodelist(const std::string& list);

}  // namespace rz
