#pragma once
// Ranks that find each other over TCP: for every launcher that is not MPI's (launch.h).
//
//   auto net = TcpNet::join(launch, deadline);     all ranks have told rank 0 where they listen
//   process.broadcast(net->table(), ...)           and learn it from each other, in a tree
//   auto control = net->transport(members, ...)    a group of them
//
// A connection goes one way and belongs to one group: its sender opens it when it first has something to send, and both
// ends prove that they know the job's secret before anything else (tcp_proof.h). The control plane needs log2 N of them
// on each rank, and between GPUs that is all; CPU ranks' groups open those of their neighbours. One thread of a rank
// listens and looks at proofs: strangers cost the others nothing, at most 256 of them are looked at together, and each
// has ten seconds.
//
// Where a rank has died its connections end. Whoever waits for it, or shares the control plane with it, ends too, after
// three seconds in which a launcher may do that with a better reason.
//
// Ranks of one host can map the same memory (share()); it has no name, so it ends with the last of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/host_transport.h"
#include "comm/launch.h"
#include "comm/tcp_door.h"

namespace rz {

class TcpNet : public std::enable_shared_from_this<TcpNet> {
   public:
    // Rank 0 waits here until all have come, the others until rank 0 knows them. Throws DeadlineError.
    static std::shared_ptr<TcpNet> join(const Launch& launch, double deadline_s);
    ~TcpNet();

    // Where each rank listens: rank 0 has it, and the others receive it there by a broadcast of group 0.
    std::vector<TcpAddress>& table();
    void table_is_there();

    // `number` is the group's, the same on all its members and of no other group.
    std::unique_ptr<HostTransport> transport(const std::vector<int>& members, const std::string& group, uint64_t number,
                                             Device device, std::shared_ptr<Watch> watch);
    // Throws where a rank that the control plane has heard of died.
    void check_peers();
    // From now on a connection may end: all ranks are done, or about to be.
    void leave();
    // Of ranks that rejoin (process.h): every wait of this one throws from now on, and whether that is so. Where a rank
    // has gone it is.
    void give_up();
    bool given_up() const;

    struct Body;

   private:
    TcpNet() = default;
    std::unique_ptr<Body> body_;
};

// A socket that listens on this host's loopback, for rank 0 of ranks that a process starts; its port.
int listen_on_loopback(int* port);

}  // namespace rz
