#pragma once
// NCCL's point-to-point calls as transport, made through nccl_comm.h. Compiled with and without NCCL (RZ_CUDA and
// RZ_HAVE_NCCL); without it everything but built_with_nccl() fails, naming the fix.
//
// Messages move on a stream of the transport's own, of high priority, between two events on the caller's stream, so
// that a reduction enqueued between start() and finish() overlaps them. The watchdog polls what NCCL says and the age
// of the oldest unfinished group.

#include <memory>
#include <string>
#include <vector>

#include "comm/nccl_memory.h"
#include "comm/transport.h"

namespace rz {

bool built_with_nccl();

// The PCI bus id of a CUDA device, "" for the CPU: two ranks of a host with the same one share a GPU.
std::string gpu_bus_id(Device device);
int gpu_multiprocessors(Device device);  // 0 for the CPU

// A fresh id (opaque bytes); one member makes it, all members need it.
std::string nccl_unique_id();

// NCCL's version and how it orders launches, for the user. From NCCL 2.26, with a driver and a runtime of CUDA 12.3
// (where that costs nothing), kernels of several groups start only in the order in which they were launched
// (NCCL_LAUNCH_ORDER_IMPLICIT); every rank of ours launches in one order. What the environment sets stands.
std::string nccl_launch_order();

// To be called before the first NCCL call of the process if several ranks share its GPU: NCCL refuses two ranks on one
// device unless they look like different hosts (2.28, 2.29) or are let in expressly (2.30 on).
void nccl_allow_shared_gpu(int rank);

// Collective over the members.
std::unique_ptr<Transport> make_nccl_transport(const std::string& id, int rank, std::vector<int> world_ranks,
                                               const std::string& group, Device device, std::shared_ptr<Watch> watch,
                                               NcclChannels channels = {});

}  // namespace rz
