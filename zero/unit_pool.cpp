#include "zero/unit_pool.h"

#include <map>

namespace rz {

static std::vector<int64_t> bytes_of(const std::vector<UnitLayout>& units, DType dtype, const char* name) {
    std::vector<int64_t> bytes;
    for (const UnitLayout& u : units) bytes.push_back(checked_mul(u.padded, size_of(dtype), name));
    return bytes;
}

UnitPool::UnitPool(Device device, const std::vector<UnitLayout>& units, int slots, DType dtype, MemKind kind,
                   const char* name)
    : UnitPool(device, bytes_of(units, dtype, name), slots, kind, name) {}

UnitPool::UnitPool(Device device, std::vector<int64_t> bytes, int slots, MemKind kind, const char* name)
    : bytes_(std::move(bytes)) {
    std::map<int64_t, int> units_of_size;
    for (const int64_t b : bytes_) ++units_of_size[b];
    units_of_size.erase(0);
    slot_of_.assign(bytes_.size(), -1);
    for (const auto& [size, count] : units_of_size)
        for (int i = 0; i < std::min(slots, count); ++i)
            slots_.push_back({.memory = Buffer(device, size, kind, format("%s, slot %d", name, i))});
}

int UnitPool::find_free(int unit) const {
    int best = -1;
    for (int i = 0; i < int(slots_.size()); ++i) {
        const Slot& s = slots_[size_t(i)];
        if (s.unit >= 0 || s.memory.bytes() != bytes_[size_t(unit)]) continue;
        if (best < 0 || s.turn < slots_[size_t(best)].turn) best = i;
    }
    return best;
}

void* UnitPool::acquire(int unit, Stream& stream) {
    const int i = find_free(unit);
    require(i >= 0, "unit %d: all slots of its size are in use; a unit was not released", unit);
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
