#pragma once
// The two streams that the parts of zero/ work on, and how one waits for the other.

#include <cstring>

#include "comm/mesh.h"
#include "comm/meter.h"
#include "kernels/runtime/host_streams.h"
#include "kernels/runtime/memory.h"

namespace rz {

struct ZeroStreams {
    Device device;
    Stream& compute;
    Mesh& mesh;  // collectives are on mesh.stream()
    CommMeter* meter = nullptr;

    Stream& comm() const { return mesh.stream(); }
    // compute.wait(event), measured where ranks communicate; nothing for an event that was never recorded.
    void compute_waits(const Event& event) const {
        if (!event.valid()) return;
        if (meter && mesh.data().size() > 1)
            meter->wait(compute, event);
        else
            compute.wait(event);
    }
    // Until nothing is queued: before memory is freed. Errors are whoever's that synchronised first.
    void drain() const noexcept {
        rz::drain(comm());
        rz::drain(compute);
    }
    // Zeroed memory.
    Buffer take(int64_t elements, DType dtype, MemKind kind, const char* name) const {
        Buffer b(device, checked_mul(elements, size_of(dtype), name), kind, name);
        compute.zero(b.data(), b.bytes());
        return b;
    }
    // The same on the host: pinned where the device is a GPU.
    Buffer take_pinned(int64_t elements, DType dtype, MemKind kind, const char* name) const {
        Buffer b = Buffer::host_for(device, checked_mul(elements, size_of(dtype), name), kind, name);
        if (b) compute.enqueue_host([data = b.data(), n = size_t(b.bytes())] { std::memset(data, 0, n); });
        return b;
    }
};

}  // namespace rz
