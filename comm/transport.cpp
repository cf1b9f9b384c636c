#include "comm/transport.h"

#include "comm/collectives.h"
#include "comm/watch.h"
#include "comm/wire_check.h"
#include "kernels/runtime/request.h"

namespace rz {

Transport::Transport(std::string group, int rank, std::vector<int> world_ranks, Device device,
                     std::shared_ptr<Watch> watch)
    : group_(std::move(group)),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      device_(device),
      watch_(std::move(watch)) {
    require(rank_ >= 0 && rank_ < size(), "transport of group '%s': rank %d of %d", group_.c_str(), rank_, size());
    if (watch_ && size() > 1) watch_->join(group_.c_str(), world_ranks_);
}

Transport::~Transport() = default;

Transfer Transport::start(Stream& stream, const MessageGroup& group) {
    if (group.empty() && group.seq == 0) return {};
    require(stream.device() == device_, "%s transport of group '%s': stream '%s' is on another device", name(),
            group_.c_str(), stream.name().c_str());
    int64_t to_self = 0;
    for (const Message& m : group.messages) {
        require(m.bytes > 0 && m.peer >= 0 && m.peer < size(),
                "%s of %lld bytes, peer %d: group '%s' has ranks 0 to %d", m.is_send ? "send" : "recv",
                (long long)m.bytes, m.peer, group_.c_str(), size() - 1);
        if (m.peer == rank_)
            to_self += m.is_send ? m.bytes : -m.bytes;
        else if (m.is_send)
            bytes_sent_ += m.bytes;
    }
    require(to_self == 0, "group '%s', rank %d: a message to oneself needs its send and its recv in one group",
            group_.c_str(), rank_);
    if (!wire_check_) return do_start(stream, group);
    auto arrivals = wire_check_->leaving(stream, group);
    Transfer transfer = do_start(stream, group);
    transfer.arrivals = std::move(arrivals);
    return transfer;
}

void Transport::finish(Stream& stream, const Transfer& transfer) {
    if (transfer.state) do_finish(stream, transfer);
    if (transfer.arrivals)
        wire_check_->arrived(stream, *std::static_pointer_cast<const WireCheck::Arrivals>(transfer.arrivals));
}

void Transport::check_wire(Stream& stream, std::function<bool()> damage) {
    wire_check_ = std::make_unique<WireCheck>(stream, *this, std::move(damage));
}

void Transport::send(Stream& stream, const void* data, int64_t bytes, int to) {
    MessageGroup group;
    group.send(data, bytes, to);
    exchange(stream, group);
}

void Transport::recv(Stream& stream, void* data, int64_t bytes, int from) {
    MessageGroup group;
    group.recv(data, bytes, from);
    exchange(stream, group);
}

std::unique_ptr<Collectives> Transport::library_collectives(const CollectiveOptions&) {
    refuse("library collectives: the %s transport has no library\n  use ring or direct collectives", name());
}

std::unique_ptr<SharedMemory> Transport::share(int64_t, Alloc) {
    refuse("--collectives symmetric: ranks over %s do not map each other's memory\n  nearest: ring or direct", name());
}

SelfTransport::SelfTransport(Device device, std::string group, std::shared_ptr<Watch> watch, int world_rank)
    : Transport(std::move(group), 0, {world_rank}, device, std::move(watch)) {}

Transfer SelfTransport::do_start(Stream& stream, const MessageGroup& group) {
    size_t next_recv = 0;
    for (const Message& send : group.messages) {
        if (!send.is_send) continue;
        while (group.messages[next_recv].is_send) ++next_recv;
        const Message& recv = group.messages[next_recv++];
        require(recv.bytes == send.bytes, "a message to oneself: %lld bytes sent, %lld received", (long long)send.bytes,
                (long long)recv.bytes);
        if (recv.data != send.data) stream.copy(recv.data, send.data, send.bytes);
    }
    return {};
}

}  // namespace rz
