#pragma once

#include <array>

#include "kernels/runtime/names.h"

namespace rz {

enum class DataOrder { kShuffled, kSequential };
template <>
inline constexpr auto kNames<DataOrder> = std::to_array<Named<DataOrder>>({{DataOrder::kShuffled, "shuffled"},
                                                                           {DataOrder::kSequential, "sequential"}});

}  // namespace rz
