#pragma once
// Zeroed memory that collectives move: mapped by the other ranks where the collectives gain by that (symmetric), else a
// buffer of this rank.

#include <memory>
#include <utility>

#include "kernels/runtime/context.h"
#include "zero/streams.h"

namespace rz {

class CommBuffer {
   public:
    CommBuffer() = default;
    // Shares::one: where the members can have one memory in common, what the owner of a slice writes is there for all,
    // and memory is counted at the group's first rank.
    CommBuffer(const ZeroStreams& streams, Collectives& group, int64_t elements, DType dtype, MemKind kind,
               const char* name, Alloc how) {
        bytes_ = checked_mul(elements, size_of(dtype), name);
        const SharedMemory* shared = bytes_ > 0 ? group.allocate(bytes_, how) : nullptr;
        if (!shared) {
            own_ = streams.take(elements, dtype, kind, name);
            data_ = own_.bytes_at(0);
            return;
        }
        data_ = shared->part(group.shared_rank());
        RankContext* context = streams.device.context;
        in_common_ = shared->stride() == 0;
        if (!context || (in_common_ && group.rank() != 0)) return;
        const DeviceKind where = streams.device.kind;
        context->memory.add(where, kind, bytes_);
        counted_ = {context, [bytes = bytes_, where, kind](RankContext* c) { c->memory.remove(where, kind, bytes); }};
    }

    // A buffer of this rank, whatever the collectives are.
    explicit CommBuffer(Buffer own) : own_(std::move(own)), data_(own_.bytes_at(0)), bytes_(own_.bytes()) {}

    void* data() const { return data_; }
    char* bytes_at(int64_t offset) const { return data_ + offset; }
    int64_t bytes() const { return bytes_; }
    bool in_common() const { return in_common_; }  // one memory of all members: gathers move nothing

   private:
    Buffer own_;
    char* data_ = nullptr;
    int64_t bytes_ = 0;
    bool in_common_ = false;
    std::shared_ptr<RankContext> counted_;
};

}  // namespace rz
