#pragma once
// Memory for units that are whole only for a while: gathered parameters, unreduced gradients. A slot serves units of
// its size one after the other; whoever takes it next first waits for the event that ended its last use.

#include <vector>

#include "kernels/runtime/memory.h"
#include "zero/unit_layout.h"

namespace rz {

class UnitPool {
   public:
    UnitPool() = default;
    // `slots` for each distinct unit size, but no more than there are units of it.
    UnitPool(Device device, const std::vector<UnitLayout>& units, int slots, DType dtype, MemKind kind,
             const char* name);
    // Of units that take so many bytes; 0: none.
    UnitPool(Device device, std::vector<int64_t> bytes, int slots, MemKind kind, const char* name);

    bool holds(int unit) const { return slot_of_[size_t(unit)] >= 0; }
    void* data(int unit) const { return slots_[size_t(slot_of_[size_t(unit)])].memory.data(); }
    bool has_room_for(int unit) const { return find_free(unit) >= 0; }
    // Takes a free slot for the unit and makes `stream` wait for its last use. Throws if none is free.
    void* acquire(int unit, Stream& stream);
    // The slot may be taken again once `last_use` is complete.
    void give_back(int unit, Event last_use);

   private:
    struct Slot {
        Buffer memory;
        int unit = -1;
        Event last_use = {};
        int64_t turn = 0;  // when it was given back: the longest idle slot is taken first
    };
    int find_free(int unit) const;

    std::vector<Slot> slots_;
    std::vector<int> slot_of_;    // by unit, -1: not held
    std::vector<int64_t> bytes_;  // by unit
    int64_t turns_ = 0;
};

}  // namespace rz
