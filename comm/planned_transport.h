#pragma once
// The transport of planned devices (kernels/runtime/planned.h): a message carries the time at which it arrives, and the
// receiver's clock is then at least that. Nothing waits but a receiver, for a message that its peer has not posted yet.
// The sender's memory is free when the message has arrived.

#include <functional>
#include <memory>

#include "comm/transport.h"

namespace rz {

// When a message has arrived that may leave at `ready`. Ranks are the job's. Called once for each message, by the
// sender in the order in which it sends, so what belongs to one sender may be kept: when its port is free again.
using PlannedLink = std::function<Ticks(int from, int to, int64_t bytes, Ticks ready)>;

// Every message takes `latency` and its bytes at a rate; messages do not wait for each other.
PlannedLink even_link(Ticks latency, int64_t bytes_per_second);

// The messages under way between the ranks of a group that live in this process.
class PlannedMail;
std::shared_ptr<PlannedMail> make_planned_mail(int size, double timeout_s);

// Without `mail` there are no other ranks: each is taken to do what this one does at the same time, which plans one
// rank of a job of any size.
std::unique_ptr<Transport> make_planned_transport(std::string group, int rank, std::vector<int> world_ranks,
                                                  Device device, PlannedLink link,
                                                  std::shared_ptr<PlannedMail> mail = nullptr);

}  // namespace rz
