#pragma once
// Ranks as a grid of `replicate` rows of `shard` columns: rank = row * shard + column. The members of a row shard the
// state between them; the members of a column hold the same slice. Each row, each column and the whole job is a group
// with a transport of its own. Which streams their collectives may be on:
//
//   CPU memory               any; ranks may even enqueue different groups in different order
//   CUDA memory over NCCL    one for all groups, or several put in one order, the same on all ranks, by events. To
//                            enqueue in one order is enough only with NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26; off
//                            unless set)
//   CUDA memory over MPI     one stream for all groups: CUDA may run the host functions of all streams on one thread,
//                            where two groups that wait would block each other
//
// zero/ puts all of them on one stream, which is right everywhere.
//
//   shard = size()   plain ZeRO: one row
//   shard = S < N    hybrid sharding: rows should lie inside a host, which they do if S divides the ranks per host
//   shard = 1        plain data parallelism: one column

#include <memory>
#include <string>

#include "comm/collectives.h"

namespace rz {

class LoopbackHub;
class Process;

struct MeshOptions {
    int shard_size = 0;  // 0: all ranks
    std::string transport = "auto";
    std::string algorithm = "ring";
    CollectiveOptions collectives = {};
};

class Mesh {
   public:
    // Collective over all ranks.
    Mesh(Process& process, Device device, const MeshOptions& options = {});
    // One process, no launcher.
    explicit Mesh(Device device, const MeshOptions& options = {});
    // A rank of an in-process loopback.
    Mesh(LoopbackHub& hub, int rank, const MeshOptions& options = {});

    int rank() const { return rank_; }
    int size() const { return size_; }
    int shard_rank() const { return rank_ % shard_size_; }
    int shard_size() const { return shard_size_; }
    int replica() const { return rank_ / shard_size_; }
    int replicas() const { return size_ / shard_size_; }

    Collectives& world() { return *world_.collectives; }
    Collectives& shard() { return *shard_.collectives; }          // this rank's row
    Collectives& replicate() { return *replicate_.collectives; }  // this rank's column

    int64_t bytes_sent() const;  // from this rank, all groups

   private:
    struct Group {
        std::unique_ptr<Transport> transport;
        std::unique_ptr<Collectives> collectives;
    };
    void check_shape(int rank, int size, const MeshOptions& options);
    void fill(const MeshOptions& options);

    int rank_ = 0, size_ = 1, shard_size_ = 1;
    Group world_, shard_, replicate_;
};

// The stream for collectives: high priority on CUDA; on the CPU its additions use one thread, since they share the
// cores with compute.
std::unique_ptr<Stream> make_comm_stream(Device device);

}  // namespace rz
