#include "comm/host_transport.h"

#include <sched.h>

#include "comm/deadline.h"
#include "comm/fibers.h"
#include "comm/host.h"
#include "comm/pinned_memory.h"
#include "comm/watch.h"

namespace rz {

struct HostTransport::State {
    std::vector<Message> messages;
    uint64_t seq = 0;
    bool is_last = false;
    std::unique_ptr<Wire::Batch> batch;
};

HostTransport::HostTransport(const char* name, std::unique_ptr<Wire> wire, std::string group, int rank,
                             std::vector<int> world_ranks, Device device, std::shared_ptr<Watch> watch)
    : Transport(std::move(group), rank, std::move(world_ranks), device, std::move(watch)),
      name_(name),
      wire_(std::move(wire)) {
    if (device.is_cuda()) staging_stream_ = std::make_unique<Stream>(device, "staging", /*high_priority=*/true);
}

HostTransport::~HostTransport() { staging_stream_.reset(); }

std::unique_ptr<SharedMemory> HostTransport::share(int64_t bytes, Alloc how) {
    std::unique_ptr<SharedMemory> shared = wire_->share(bytes, how);
    return device().is_cuda() ? pin(std::move(shared), size(), device()) : std::move(shared);
}

void Wire::Batch::pause() { Fibers::wait_a_little(0); }

void HostTransport::wait(Wire::Batch& batch, const std::vector<Message>& messages, uint64_t seq) {
    if (batch.test()) return;
    ask_for_short_slices();
    WaitClock clock;
    for (int polls = 1;; ++polls) {
        batch.pause();
        if (batch.test()) return;
        if (polls % 64 != 0) continue;
        const double waited = clock.look();
        if (waited < (watch() ? watch()->timeout_s() : 600)) continue;  // which disk work may raise meanwhile
        std::string what =
            format("waited %.1f s (the deadline) in %s for", waited,
                   watch() ? watch()->name_of(seq, group()).c_str() : ("an operation of group " + group()).c_str());
        for (int i : batch.pending()) {
            const Message& m = messages[size_t(i)];
            what += format(" [%s of %lld bytes %s rank %d]", m.is_send ? "send" : "recv", (long long)m.bytes,
                           m.is_send ? "to" : "from", world_rank(m.peer));
        }
        if (!watch()) throw DeadlineError(what);
        watch()->fail_deadline(what);
    }
}

void HostTransport::post(State& state) {
    if (watch() && state.seq) {
        int to = -1, from = -1;
        for (const Message& m : state.messages) (m.is_send ? to : from) = world_rank(m.peer);
        watch()->running(state.seq, to, from);
    }
    if (!state.messages.empty()) state.batch = wire_->post(state.messages);
}

void HostTransport::complete(State& state) {
    if (state.batch) try {
            wait(*state.batch, state.messages, state.seq);
        } catch (const DeadlineError&) {
            throw;  // has its report
        } catch (const Error& error) {
            // Most often ranks that call different things: the table shows it.
            if (!watch()) throw;
            watch()->dump_all();
            fail("%s\n%s%s", error.what(), watch()->own_report("this error").c_str(), watch()->job_report().c_str());
        }
    state.batch.reset();
    if (watch() && state.seq && state.is_last) watch()->done(state.seq);
}

Transfer HostTransport::do_start(Stream& stream, const MessageGroup& group) {
    if (device().is_cuda()) return start_staged(stream, group);
    auto state = std::make_shared<State>();
    state->messages = group.messages;
    state->seq = group.seq;
    state->is_last = group.is_last;
    stream.enqueue_host([this, state] { post(*state); });
    return {state};
}

void HostTransport::do_finish(Stream& stream, const Transfer& transfer) {
    if (device().is_cuda()) return stream.wait(*std::static_pointer_cast<Event>(transfer.state));
    auto state = std::static_pointer_cast<State>(transfer.state);
    stream.enqueue_host([this, state] { complete(*state); });
}

// The staging stream runs in order, so one pinned buffer serves all groups: a group's copies in begin after the copies
// out of the one before. The event stands apart from the state, which the host function may be the last to hold: to
// destroy an event there would be a CUDA call, and those are forbidden.
Transfer HostTransport::start_staged(Stream& stream, const MessageGroup& group) {
    auto state = std::make_shared<State>();
    state->messages = group.messages;
    state->seq = group.seq;
    state->is_last = group.is_last;
    int64_t need = 0;
    for (const Message& m : group.messages) need += round_up(m.bytes, 256);
    if (need > staging_.bytes()) {
        staging_stream_->synchronize();
        staging_ = Buffer();
        staging_ = Buffer::host_for(device(), need, MemKind::comm, "message staging");
    }
    staging_stream_->wait(stream.record());
    int64_t offset = 0;
    for (Message& m : state->messages) {
        void* host = staging_.bytes_at(offset);
        offset += round_up(m.bytes, 256);
        if (m.is_send) staging_stream_->copy(host, m.data, m.bytes);
        m.data = host;
    }
    staging_stream_->enqueue_host([this, state] {
        try {
            post(*state);
            complete(*state);
        } catch (const std::exception& error) {
            if (watch()) watch()->fault(error.what());
            throw;
        }
    });
    for (size_t i = 0; i < group.messages.size(); ++i)
        if (!group.messages[i].is_send)
            staging_stream_->copy(group.messages[i].data, state->messages[i].data, group.messages[i].bytes);
    return {std::make_shared<Event>(staging_stream_->record())};
}

}  // namespace rz
