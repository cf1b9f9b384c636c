#pragma once
// Ranks that hold copies of the same parameters hold the same bits, since every one of them makes the same updates. A
// difference is a fault of memory, of a device or of this program.

#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/process.h"
#include "zero/zero.h"

namespace rz {

// sum_hash, in words of 8 bytes, of the parameters that this rank holds: all of them, or with ZeRO-3 its slices. Waits for the stream; on CUDA
// every parameter is copied to the host once.
uint64_t hash_parameters(Device device, Stream& compute, Zero& zero);

// Collective. "" if all copies agree or nothing is held twice; else names the ranks that differ from the majority.
std::string compare_replicas(Process& process, const Mesh& mesh, Device device, Stream& compute, Zero& zero);

// Whether any parameter is held by two ranks.
bool has_replicas(const Mesh& mesh, const Zero& zero);

// Flips one bit of a parameter that this rank holds: a fault on request.
void flip_parameter(Stream& compute, Zero& zero);

}  // namespace rz
