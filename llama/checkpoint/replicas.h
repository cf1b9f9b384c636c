#pragma once
// Ranks that hold copies of the same state hold the same bits, since every one of them makes the same updates. A
// difference is a fault of memory, of a device or of this program.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/process.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

// Collective. Compares parameters, master weights and AdamW's moments among the ranks that hold the same: parameters
// unless they are sliced (ZeRO-3), the rest with ZeRO-0; with hybrid sharding all of it on the replicate axis; and on
// the tp axis, at any stage, the tensors that several of its ranks hold. ""
// if all copies agree; else names what differs, the tensors and the ranks that differ from the majority. Waits for the
// stream; on CUDA everything that is compared is copied to the host once.
std::string compare_replicas(Process&, const Mesh&, Device, Stream& compute, Zero&, const ParamTable&);

// True: something is held by two ranks.
bool has_replicas(const Mesh&, const Zero&);

// Ranks whose value is not that of the majority; all, if there is none. Empty if all agree.
std::vector<int> odd_ones_out(const std::vector<uint64_t>& values);

// Faults on request: flips a bit of a word on the device, or makes it NaN, in fp32 as in 16 bits.
void damage_word(Stream& compute, void* word, bool nan);
// Spoils one element of a part of the state that this rank holds.
void damage_state(Stream& compute, Zero&, StatePart, bool nan);

}  // namespace rz
