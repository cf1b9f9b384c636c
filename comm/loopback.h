#pragma once
// N ranks as threads of one process, with shared-memory queues as the wire: the ring, the streams and ZeRO run under
// ThreadSanitizer without MPI. A send is met in place (the receiver copies straight from the sender's memory), so
// memory that is reused too early is a data race here.
//
//   LoopbackHub hub(4);
//   hub.run([&](int rank) { auto transport = hub.transport(rank); ... });   // one thread per rank; rethrows the first
//   error

#include <functional>
#include <memory>

#include "comm/exit_codes.h"
#include "comm/planned_transport.h"
#include "comm/transport.h"

namespace rz {

class HostTransport;

class LoopbackHub {
   public:
    explicit LoopbackHub(int ranks, double timeout_s = 60);
    // Ranks on the CPU, or each on the GPU of its number. Those on GPUs agree through the hub, and their groups send
    // over NCCL (Process::make_transport).
    LoopbackHub(int ranks, DeviceKind kind, double timeout_s);
    // Ranks on planned devices, each as device(rank).context->planned says when its first stream is made.
    LoopbackHub(int ranks, PlannedLink link, double timeout_s = 60);
    ~LoopbackHub();
    int size() const { return ranks_; }
    // The CPU, a GPU or a planned device, with a context of this rank's own.
    Device device(int rank) const;

    // The group of all ranks, as seen by `rank`. Each call with a new `name` makes another group (its own queues); all
    // members must use the same name.
    std::unique_ptr<Transport> transport(int rank, const std::string& name = "world");
    // A group of the given world ranks, which contain `rank`.
    std::unique_ptr<Transport> subgroup(int rank, const std::vector<int>& members, const std::string& name) {
        return subgroup(rank, members, name, name);
    }
    // Reports call it `name`; its members use the same `key`, which no other group has.
    std::unique_ptr<Transport> subgroup(int rank, const std::vector<int>& members, const std::string& name,
                                        const std::string& key);

    std::shared_ptr<Watch> watch(int rank);
    // The transport that a Process of a rank on the CPU or on a GPU agrees with the others through.
    std::unique_ptr<HostTransport> control(int rank);
    // From now on whatever a rank waits for throws that this one failed, and why. True for the first that does.
    bool fail(int rank, const std::string& reason, int exit_code = kExitError);
    int exit_code() const;  // of the rank that failed first; 0: none has

    void run(const std::function<void(int rank)>& body);

   private:
    struct Group;
    std::shared_ptr<Group> group(const std::string& name, int size);

    int ranks_;
    struct Shared;
    std::unique_ptr<Shared> shared_;
};

}  // namespace rz
