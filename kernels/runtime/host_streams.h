#pragma once
// Streams of copies between a device and its host, and of what the host computes for it, as traces and plans know them.

#include "kernels/runtime/device.h"

namespace rz {

constexpr const char *kFromHostStream = "from host", *kToHostStream = "to host", *kHostComputeStream = "host compute";

// Until nothing is queued, for destructors: an error is whoever's that synchronised first.
inline void drain(Stream& stream) noexcept {
    try {
        stream.synchronize();
    } catch (...) {
    }
}

}  // namespace rz
