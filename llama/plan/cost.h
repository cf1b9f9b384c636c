#pragma once
// What ops and messages cost on a machine. An op takes the longer of its FLOPs at the rate that its kind reaches and
// its bytes at the rate of a copy, and the machine's least time; FLOPs and bytes come from the arguments that the
// program passes to it. Bytes are those that can't be avoided: every operand once, nothing kept in a cache.

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "comm/nccl_memory.h"
#include "comm/planned_transport.h"
#include "comm/virtual_net.h"
#include "llama/base/machine.h"

namespace rz {

struct OpWork {
    enum class Limit { gemm, attention_forward, attention_backward, bytes } limit = Limit::bytes;
    double flops = 0, bytes = 0;
    double more_bytes = 0;  // of a second kernel
    DType dtype = DType::f32;
    int64_t T = 0, head_dim = 0;  // of attention
    int reserved_sms = 0;         // multiprocessors that attention does not take (--comm-sms)
    bool fp8 = false;             // of a product
};
// Of everything that a stream can be asked for. false: an op that is not known here.
bool find_work(const OpCall&, OpWork&);

// Seconds on the machine; an op that is not known takes the least time.
double seconds_of(const Machine&, const OpWork&);

// What PlannedJob::cost is. Names of ops that are not known are put into `unknown`, which outlives the function. Of
// attention the FLOPs of pairs within the model's window count; 0: none.
struct UnknownOps {
    std::mutex mutex;
    std::set<std::string> names;
};
std::function<Ticks(const OpCall&, const Stream&)> make_cost(const Machine&, UnknownOps& unknown, int64_t window = 0);

// The links of the machine, as members of a group see them. A message takes the latency and its bytes at the rate of
// the link: between ranks of a node, or over cards, which the senders of a node share. A rank's messages leave one
// after the other over the node's links, and so over its card. Where the others of the group are not planned, a link is
// the slowest of those between members that are as far apart: the slowest sets the pace of a ring.
// With the channels that each group's communicator has over NCCL a message is no faster than those that it gets, at the
// machine's rate of a channel, and one to the same peer waits for it there; a group of which nothing is said has none.
using ChannelsOf = std::function<std::optional<NcclChannels>(const GroupKind&)>;
PlannedNetwork make_network(const Machine&, ChannelsOf channels = nullptr);

// The machine's nodes as the virtual network has them: ports, costs of messages, gaps.
NetMachine net_machine(const Machine&);

}  // namespace rz
