#pragma once
// Moves slices of snapshots and texts about them between ranks of several hosts (neighbours.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/process.h"
#include "comm/transport.h"
#include "llama/base/limits.h"

namespace rz {

constexpr Limit kShareFile = {"which bytes of a snapshot are there", int64_t(256) << 20};

struct Outgoing {
    int to;
    int64_t bytes;
    // Bytes from `at` on: memory that stays, or `room` filled with them.
    std::function<const void*(int64_t at, int64_t count, char* room)> read;
    std::vector<char> room[2] = {};
    uint64_t sum[2] = {};
};

struct Incoming {
    int from;
    int64_t bytes;
    std::function<void(int64_t at, const char* data, int64_t count)> write;
    std::vector<char> room[2] = {};
    uint64_t sum[2] = {};
};

// Over TCP or MPI, on a group and a stream of its own. Shares go in pieces, each with its sum; while one is written the
// next is on its way.
class Courier {
   public:
    explicit Courier(Process& process);  // collective; a group of all ranks
    ~Courier();
    // Every member calls it; what is sent is what is expected. What is wrong with one piece shows when all have moved.
    void move(std::vector<Outgoing> out, std::vector<Incoming> in);
    // A text to each of `to` from each of `from`.
    std::vector<std::string> texts(const std::vector<std::pair<int, std::string>>& to, const std::vector<int>& from);

   private:
    void post(int64_t round, std::vector<Outgoing>& out, std::vector<Incoming>& in, std::string& problem);
    void drain() noexcept;

    std::unique_ptr<Transport> transport_;
    Stream stream_{Device{}, "snapshots"};
    Event arrived_[2];
};

int64_t arrival_bytes(int64_t share);  // of host memory, for what is on its way of a share
uint64_t sum_of_piece(const void* data, int64_t bytes);

}  // namespace rz
