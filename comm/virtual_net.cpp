#include "comm/virtual_net.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/elementwise.h"

namespace rz {

Ticks ticks_of(int64_t bytes, int64_t rate) {
    constexpr int64_t kPerMicrosecond = kMicrosecond;
    return rate ? Ticks((__int128(bytes) * kPerMicrosecond + rate - 1) / rate) : 0;
}

NetMachine NetMachine::without_gaps() const {
    NetMachine m = *this;
    m.group_gap = m.op_gap = 0;
    return m;
}

NetMachine NetMachine::without_message_cost() const {
    NetMachine m = *this;
    m.link_message = m.card_message = 0;
    return m;
}

Ticks collective_bound(const NetMachine& m, int ranks, int passes, int64_t bytes) {
    const int on_node = std::min(ranks, m.ranks_per_node), nodes = ranks / on_node;
    const int64_t card_share = nodes > 1 ? m.card_rate * m.cards / m.ranks_per_node : 0;
    const Ticks of_rank = m.link_latency + ticks_of(passes * (bytes / ranks) * (ranks - 1), m.link_rate + card_share);
    if (nodes == 1) return of_rank;
    return std::max(of_rank, m.card_latency + ticks_of(passes * (bytes / nodes) * (nodes - 1), m.card_rate * m.cards));
}

// Bytes that an op of the collectives reads and writes.
static int64_t bytes_of(const OpCall& op) {
    if (const auto* a = op.as<ReduceAdd>())
        return a->n * (size_of(a->a_dtype) + size_of(a->b_dtype) + size_of(a->out_dtype));
    if (const auto* s = op.as<SumRows>()) return s->n * (s->rows * size_of(s->dtype) + size_of(s->out_dtype));
    return 2 * op.bytes;
}

// One rank's end of a communicator.
class VirtualTransport : public Transport {
   public:
    VirtualTransport(VirtualNet& net, VirtualNet::Team& team, const std::string& name, int place, Device device)
        : Transport(name, place, team.members, device, nullptr), net_(net), team_(team) {}
    const char* name() const override { return "virtual"; }
    int64_t good_chunk_bytes() const override { return kNcclChunkBytes; }

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override {
        auto moving = net_.start(team_, rank(), stream, group, net_.machine_.ordered ? last_ : nullptr);
        last_ = moving;
        return {moving};
    }
    void do_finish(Stream& stream, const Transfer& transfer) override {
        stream.wait_until(net_.wait(*std::static_pointer_cast<VirtualNet::Moving>(transfer.state)));
    }

   private:
    VirtualNet& net_;
    VirtualNet::Team& team_;
    std::shared_ptr<VirtualNet::Moving> last_;
};

VirtualNet::VirtualNet(int ranks, const NetMachine& machine, bool executes, size_t stack_bytes)
    : machine_(machine), executes_(executes), fibers_(ranks, stack_bytes) {
    const int on_node = std::min(ranks, machine.ranks_per_node);
    require(ranks > 0 && on_node > 0 && ranks % on_node == 0 && machine.cards > 0,
            "a virtual network of %d ranks, %d on a node with %d cards: nodes are full, and have a card", ranks,
            on_node, machine.cards);
    require(machine.link_rate > 0 && machine.card_rate > 0, "links of %lld and cards of %lld MB/s",
            (long long)machine.link_rate, (long long)machine.card_rate);
    nodes_ = ranks / on_node;
    const int cards = std::min(machine.cards, on_node);
    for (int r = 0; r < ranks; ++r) {
        const int node = machine.in_turn ? r % nodes_ : r / on_node, local = machine.in_turn ? r / nodes_ : r % on_node;
        node_of_.push_back(node);
        card_of_.push_back(node * cards + local * cards / on_node);
        contexts_.emplace_back();
        contexts_.back().planned.executes = executes;
        contexts_.back().planned.cost = [this](const OpCall& op, const Stream&) {
            return machine_.op_gap + ticks_of(bytes_of(op), machine_.memory_rate);
        };
    }
    links_.resize(size_t(2 * ranks));
    cards_.resize(size_t(2 * cards * nodes_));
    sent_.resize(size_t(ranks));
}

VirtualNet::~VirtualNet() = default;

std::vector<int> VirtualNet::node_of_ranks() const { return node_of_; }

std::unique_ptr<Transport> VirtualNet::transport(int rank) {
    std::vector<int> all;
    for (int r = 0; r < size(); ++r) all.push_back(r);
    return transport(rank, all, "world");
}

std::unique_ptr<Transport> VirtualNet::transport(int rank, const std::vector<int>& members, const std::string& name) {
    const auto found = std::find(members.begin(), members.end(), rank);
    require(found != members.end(), "virtual group '%s' does not contain rank %d", name.c_str(), rank);
    Team& team = teams_[name + format(" of %d", members.front())];
    if (team.members.empty()) {
        team.members = members;
        team.first.assign(members.size() * members.size(), -1);
        team.last = team.first;
    }
    require(team.members == members, "virtual group '%s' has other members on rank %d", name.c_str(), rank);
    return std::make_unique<VirtualTransport>(*this, team, name, int(found - members.begin()), device(rank));
}

Ticks VirtualNet::run(const std::function<Ticks(int)>& body) {
    Ticks end = 0;
    fibers_.run([&](int rank) { end = std::max(end, body(rank)); }, [&] { return next_happening(); });
    while (!happenings_.empty()) next_happening();  // what nobody waited for
    const std::string left = one_sided();
    require(left.empty(), "messages that only one side posted:%s", left.c_str());
    return end;
}

// ---- on a rank's fiber ----------------------------------------------------------------------------------------------

std::shared_ptr<VirtualNet::Moving> VirtualNet::start(Team& team, int place, Stream& stream, const MessageGroup& group,
                                                      const std::shared_ptr<Moving>& before) {
    stream.wait_until(stream.context().planned.host);
    Ticks time = stream.clock() + machine_.group_gap;
    if (before) time = std::max(time, wait(*before));
    auto moving = std::make_shared<Moving>();
    moving->rank = team.members[size_t(place)];
    moving->done = time;
    std::vector<const Message*> own;  // receives from oneself
    for (const Message& m : group.messages) {
        if (m.peer != place)
            ++moving->pending;
        else if (!m.is_send)
            own.push_back(&m);
    }
    size_t copied = 0;
    for (size_t i = 0; i < group.messages.size(); ++i) {
        const Message& m = group.messages[i];
        if (m.peer != place) {
            post(team, place, m, time, moving, uint64_t(i));
        } else if (m.is_send) {
            require(copied < own.size() && own[copied]->bytes == m.bytes,
                    "a message of %lld bytes to oneself is not received", (long long)m.bytes);
            if (executes_ && own[copied]->data != m.data) std::memcpy(own[copied]->data, m.data, size_t(m.bytes));
            ++copied;
            moving->done = std::max(moving->done, time + ticks_of(2 * m.bytes, machine_.memory_rate));
        }
    }
    return moving;
}

Ticks VirtualNet::wait(Moving& moving) {
    while (moving.pending > 0) {
        moving.awaited = true;
        fibers_.park();
    }
    return moving.done;
}

// Matched in the order of posting, for each pair of members.
void VirtualNet::post(Team& team, int place, const Message& m, Ticks time, const std::shared_ptr<Moving>& moving,
                      uint64_t order) {
    const int from = m.is_send ? place : m.peer, to = m.is_send ? m.peer : place;
    const size_t pair = size_t(from) * team.members.size() + size_t(to);
    const int source = team.members[size_t(from)], destination = team.members[size_t(to)];
    const uint64_t key = m.is_send ? order << 20 | uint64_t(source) : 0;
    if (m.is_send) sent_[size_t(source)] += m.bytes;
    const int first = team.first[pair];
    if (first >= 0 && wires_[size_t(first)].by_sender != m.is_send) {
        Wire& w = wires_[size_t(first)];
        team.first[pair] = w.next;
        require(w.bytes == m.bytes, "rank %d receives %lld bytes from rank %d, which sends %lld", destination,
                (long long)(m.is_send ? w.bytes : m.bytes), source, (long long)(m.is_send ? m.bytes : w.bytes));
        if (m.is_send)
            w.from = m.data, w.sender = moving;
        else
            w.to = m.data, w.receiver = moving;
        w.ready = std::max(w.ready, time);
        w.key |= key;
        happenings_.push({w.ready, w.key, first, false});
        return;
    }
    if (spare_.empty()) {
        spare_.push_back(int(wires_.size()));
        wires_.emplace_back();
    }
    const int i = spare_.back();
    spare_.pop_back();
    Wire& w = wires_[size_t(i)];
    w = Wire{};
    w.bytes = m.bytes, w.ready = time, w.source = source, w.destination = destination;
    w.by_sender = m.is_send, w.key = key;
    if (m.is_send)
        w.from = m.data, w.sender = moving;
    else
        w.to = m.data, w.receiver = moving;
    (first >= 0 ? wires_[size_t(team.last[pair])].next : team.first[pair]) = i;
    team.last[pair] = i;
}

// ---- between the fibers ---------------------------------------------------------------------------------------------

std::string VirtualNet::next_happening() {
    if (happenings_.empty()) return "no rank can continue:" + one_sided();
    const NetEvent h = happenings_.top();
    happenings_.pop();
    if (h.arrival)
        arrive(h);
    else
        leave(h);
    return "";
}

// direction: 0 out, 1 in. When the port is free again.
Ticks VirtualNet::occupy(const Wire& w, int rank, int direction, Ticks time) {
    const bool inside = same_node(w);
    Port& port = inside ? links_[size_t(2 * rank + direction)] : cards_[size_t(2 * card_of_[size_t(rank)] + direction)];
    port.bytes += w.bytes;
    port.free = std::max(time, port.free) + (inside ? machine_.link_message + ticks_of(w.bytes, machine_.link_rate)
                                                    : machine_.card_message + ticks_of(w.bytes, machine_.card_rate));
    return port.free;
}

void VirtualNet::leave(const NetEvent& h) {
    Wire& w = wires_[size_t(h.wire)];
    const bool inside = same_node(w);
    const Port& port = inside ? links_[size_t(2 * w.source)] : cards_[size_t(2 * card_of_[size_t(w.source)])];
    const Ticks begin = std::max(h.time, port.free), left = occupy(w, w.source, 0, h.time);
    if (executes_) std::memcpy(w.to, w.from, size_t(w.bytes));
    happenings_.push({begin + (inside ? machine_.link_latency : machine_.card_latency), w.key, h.wire, true});
    complete(*w.sender, left);
    w.sender.reset();
}

void VirtualNet::arrive(const NetEvent& h) {
    Wire& w = wires_[size_t(h.wire)];
    const Ticks there = occupy(w, w.destination, 1, h.time);
    const std::shared_ptr<Moving> receiver = std::move(w.receiver);
    spare_.push_back(h.wire);
    complete(*receiver, there);
}

void VirtualNet::complete(Moving& moving, Ticks time) {
    moving.done = std::max(moving.done, time);
    if (--moving.pending > 0 || !moving.awaited) return;
    moving.awaited = false;
    fibers_.wake(moving.rank);
}

std::string VirtualNet::one_sided() const {
    std::string what;
    int listed = 0;
    for (const auto& [name, team] : teams_)
        for (const int first : team.first) {
            if (first < 0 || ++listed > 8) continue;
            const Wire& w = wires_[size_t(first)];
            what += format("\n  group %s: only the %s posted %lld bytes from rank %d to rank %d", name.c_str(),
                           w.by_sender ? "sender" : "receiver", (long long)w.bytes, w.source, w.destination);
        }
    if (listed > 8) what += format("\n  and %d more", listed - 8);
    return what;
}

static int64_t busiest(const auto& ports) {
    int64_t most = 0;
    for (size_t i = 0; i < ports.size(); i += 2) most = std::max(most, ports[i].bytes);
    return most;
}
int64_t VirtualNet::busiest_card_bytes() const { return busiest(cards_); }
int64_t VirtualNet::busiest_link_bytes() const { return busiest(links_); }

}  // namespace rz
