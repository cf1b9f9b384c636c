#pragma once
// The transport of planned devices (kernels/runtime/planned.h): a message carries the time at which it arrives, and the
// receiver's clock is then at least that. Nothing waits but a receiver, for a message that its peer has not posted yet.
// The sender's memory is free when the message has arrived.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "comm/transport.h"

namespace rz {

// When a message has arrived that may leave at `ready`. Ranks are the job's. Called once for each message, by the
// sender in the order in which it sends, so what belongs to one sender may be kept: when its port is free again.
using PlannedLink = std::function<Ticks(int from, int to, int64_t bytes, Ticks ready)>;

// The links of a group whose members are these ranks of the job. `alone`: its other members are not planned, and each
// is taken to do what the rank that asks does.
using PlannedNetwork = std::function<PlannedLink(const GroupKind& group, const std::vector<int>& members, bool alone)>;

// Every message takes `latency` and its bytes at a rate; messages do not wait for each other.
PlannedLink even_link(Ticks latency, int64_t bytes_per_second);

// The messages under way between the ranks of a group that live in this process.
class PlannedMail;
std::shared_ptr<PlannedMail> make_planned_mail(int size, double timeout_s);

// Some ranks of a larger job that are planned together, each on a thread of this process: messages between them are
// theirs, and what they tell each other is known. All other ranks are taken to do what the rank that asks does.
class PlannedPeers {
   public:
    explicit PlannedPeers(std::vector<int> ranks, double timeout_s = 60);

    // For a group of a pipeline whose members are all planned here; else nullptr.
    std::shared_ptr<PlannedMail> mail(const std::string& group, const std::vector<int>& members);
    // What each of them passes, one after the other in their order: values that a planned device only counts.
    std::vector<std::vector<int64_t>> gather(int rank, const std::vector<int64_t>& own);
    // A rank failed: whoever waits for it throws.
    void fail(const std::string& reason);

   private:
    struct Gathered {
        std::map<int, std::vector<int64_t>> by_rank;
    };
    std::vector<int> ranks_;
    double timeout_s_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::shared_ptr<PlannedMail>> mails_;
    std::vector<Gathered> gathers_;       // the k-th of every rank
    std::map<int, size_t> gathers_made_;  // by rank
    std::string failed_;
};

// Without `mail` there are no other ranks: each is taken to do what this one does at the same time, which plans one
// rank of a job of any size. Where the context has one memory (a CPU) the members map memory of each other. The
// library's collectives take the memory of MPI's on a CPU and `over_mpi`, of NCCL's otherwise; their time is that of
// the ring's messages.
std::unique_ptr<Transport> make_planned_transport(std::string group, int rank, std::vector<int> world_ranks,
                                                  Device device, PlannedLink link,
                                                  std::shared_ptr<PlannedMail> mail = nullptr, bool over_mpi = false);

}  // namespace rz
