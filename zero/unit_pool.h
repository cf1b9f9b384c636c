#pragma once
// Memory for units that are whole only for a while: gathered parameters, unreduced gradients. A slot serves units one
// after the other; whoever takes it next first waits for the event that ended its last use.
//
// Which units share slots: those of one size. Where units are used in turn, from the first to the last and back, with
// at most `slots` at once, embedding and head are never there together: they share one slot, or, where that takes less,
// all units share `slots` of the largest.

#include <vector>

#include "kernels/runtime/memory.h"
#include "zero/unit_layout.h"

namespace rz {

class UnitPool {
   public:
    UnitPool() = default;
    // `slots` for units that share them, but no more than there are units.
    // `bytes`: by unit; 0: none.
    UnitPool(Device device, const std::vector<int64_t>& bytes, int slots, bool in_turn, MemKind kind, const char* name);

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
    std::vector<int> slot_of_;         // by unit, -1: not held
    std::vector<int64_t> slot_bytes_;  // by unit: of the slots that serve it
    int64_t turns_ = 0;
};

}  // namespace rz
