#pragma once
// Changes of a rank's ledger in time: a list that is kept while somebody asks for it (llama/report/memory_timeline.h).

#include <string>
#include <vector>

#include "kernels/runtime/memory.h"

namespace rz {

struct MemoryChange {
    double time;  // seconds on the host's steady clock
    DeviceKind where;
    MemKind kind;
    int64_t bytes;     // negative: given back
    std::string name;  // the buffer's; memory that ranks share has none of its own and is named by its kind
};

// From now on each change is kept, until take_changes() gives them in order and ends it.
void keep_changes(MemoryLedger&);
std::vector<MemoryChange> take_changes(MemoryLedger&);

}  // namespace rz
