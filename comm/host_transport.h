#pragma once
// The transport over anything that can move messages between host memories without blocking (a Wire): MPI, TCP, or the
// queues between the threads of one process. On a CPU stream start() posts the messages from the stream's worker and
// finish() polls them there, so that compute enqueued between the two overlaps the transfer. For memory of a CUDA
// device the messages are staged through pinned buffers on a stream of the transport's own: several ranks can then
// share one GPU, for no kernel ever spins on the device waiting for a peer. (CUDA may run the host functions of all
// streams on one thread, so there the collectives of different groups belong on one stream: two that wait at once could
// block each other.)
//
// The one wait in here polls, yields the core and looks at the deadline. Ranks may outnumber cores.

#include <memory>

#include "comm/transport.h"
#include "kernels/runtime/memory.h"
#include "kernels/runtime/request.h"

namespace rz {

class Wire {
   public:
    // Posted messages. Their memory is in use until test() has returned true.
    class Batch {
       public:
        virtual ~Batch() = default;
        virtual bool test() = 0;  // makes progress; true once all messages are complete. Throws on a transport error.
        // Between two tests of a thread that waits: another thread's turn.
        virtual void pause();
        // The messages that are not complete, by index into the posted vector.
        virtual std::vector<int> pending() = 0;
    };

    virtual ~Wire() = default;
    // Called by one thread at a time per wire. Peers are ranks of the wire's group.
    virtual std::unique_ptr<Batch> post(const std::vector<Message>& messages) = 0;
    // Memory that all members map; they call it together. Throws where they can't.
    virtual std::unique_ptr<SharedMemory> share(int64_t, Alloc) {
        refuse("--collectives symmetric: these ranks do not map each other's memory\n  nearest: ring or direct");
    }
    // Throws if a member is known to have failed. For waits that make no progress on messages.
    virtual void check_peers() {}
};

class HostTransport : public Transport {
   public:
    HostTransport(const char* name, std::unique_ptr<Wire> wire, std::string group, int rank,
                  std::vector<int> world_ranks, Device device, std::shared_ptr<Watch> watch);
    ~HostTransport() override;
    const char* name() const override { return name_; }
    Wire& wire() { return *wire_; }
    const Wire& wire() const { return *wire_; }
    Mapping mapping() override { return device().is_cuda() ? Mapping::pinned : Mapping::own; }
    std::string mapping_note() override {
        return !device().is_cuda() ? "" : name_ == std::string("tcp") ? "messages go over TCP" : "messages go over MPI";
    }
    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override;
    void check_peers() override { wire_->check_peers(); }
    bool waits_on_host() const override { return true; }

    // Blocks the calling thread until `batch` is complete; at the deadline the Watch ends the job.
    void wait(Wire::Batch& batch, const std::vector<Message>& messages, uint64_t seq);

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override;
    void do_finish(Stream& stream, const Transfer& transfer) override;

   private:
    struct State;
    Transfer start_staged(Stream& stream, const MessageGroup& group);
    void post(State& state);
    void complete(State& state);

    const char* name_;
    std::unique_ptr<Wire> wire_;
    // CUDA only
    std::unique_ptr<Stream> staging_stream_;
    Buffer staging_;
};

}  // namespace rz
