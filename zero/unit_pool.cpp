#include "zero/unit_pool.h"

#include <algorithm>
#include <map>
#include <utility>

namespace rz {

namespace {

struct PoolSlots {
    std::vector<int64_t> slot_bytes;  // by unit
    std::map<int64_t, int> slots;     // by their size
    int64_t bytes() const {
        int64_t sum = 0;
        for (const auto& [size, count] : slots) sum += checked_mul(size, count, "slots");
        return sum;
    }
};

PoolSlots shares_of(std::vector<int64_t> slot_bytes, int slots, int units_in_one) {
    PoolSlots s{.slot_bytes = std::move(slot_bytes), .slots = {}};
    for (const int64_t bytes : s.slot_bytes) ++s.slots[bytes];
    s.slots.erase(0);
    if (units_in_one > 1) s.slots[s.slot_bytes.front()] -= units_in_one - 1;
    for (auto& [size, count] : s.slots) count = std::min(slots, count);
    return s;
}

}  // namespace

UnitPool::UnitPool(Device device, const std::vector<int64_t>& bytes, int slots, bool in_turn, MemKind kind,
                   const char* name)
    : slot_of_(bytes.size(), -1) {
    PoolSlots shares = shares_of(bytes, slots, 1);
    if (in_turn && bytes.size() > 1 && bytes.front() > 0 && bytes.back() > 0) {
        std::vector<int64_t> ends = bytes, largest = bytes;
        ends.front() = ends.back() = std::max(bytes.front(), bytes.back());
        for (int64_t& b : largest)
            if (b > 0) b = *std::max_element(bytes.begin(), bytes.end());
        shares = shares_of(ends, slots, 2);
        if (PoolSlots all = shares_of(largest, slots, 1); all.bytes() <= shares.bytes()) shares = all;
    }
    slot_bytes_ = shares.slot_bytes;
    for (const auto& [size, count] : shares.slots)
        for (int i = 0; i < count; ++i)
            slots_.push_back({.memory = Buffer(device, size, kind, format("%s, slot %d", name, i))});
}

int UnitPool::find_free(int unit) const {
    int best = -1;
    for (int i = 0; i < int(slots_.size()); ++i) {
        const Slot& s = slots_[size_t(i)];
        if (s.unit >= 0 || s.memory.bytes() != slot_bytes_[size_t(unit)]) continue;
        if (best < 0 || s.turn < slots_[size_t(best)].turn) best = i;
    }
    return best;
}

void* UnitPool::acquire(int unit, Stream& stream) {
    const int i = find_free(unit);
    require(i >= 0, "unit %d: all slots that serve it are in use; a unit was not released", unit);
    Slot& slot = slots_[size_t(i)];
    stream.wait(slot.last_use);
    slot.unit = unit;
    slot_of_[size_t(unit)] = i;
    return slot.memory.data();
}

void UnitPool::give_back(int unit, Event last_use) {
    require(holds(unit), "unit %d was released without being held", unit);
    Slot& slot = slots_[size_t(slot_of_[size_t(unit)])];
    slot.unit = -1;
    slot.last_use = std::move(last_use);
    slot.turn = ++turns_;
    slot_of_[size_t(unit)] = -1;
}

}  // namespace rz
