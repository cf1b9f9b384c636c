#pragma once
// Memory of a host that its ranks map and the copy engines of their GPUs reach: what GPUs exchange through where they
// do not reach each other (Mapping::pinned).

#include <functional>
#include <memory>
#include <string>

#include "comm/shared_memory.h"
#include "kernels/runtime/device.h"

namespace rz {

// Members of a group on one host find it by `name`, which no other group has. `meet` returns when all have called it.
// The name is gone when this returns.
std::unique_ptr<SharedMemory> map_by_name(const std::string& name, int rank, int members, int64_t bytes, Alloc how,
                                          const std::function<void()>& meet);

// Pins what the members map, for as long as the result is there.
std::unique_ptr<SharedMemory> pin(std::unique_ptr<SharedMemory> shared, int members, Device device);

// The answer of cudaDeviceCanAccessPeer for the GPUs that this process sees: "GPU 0 does not reach GPUs 1, 2", or "".
std::string unreachable_gpus(Device device);

}  // namespace rz
