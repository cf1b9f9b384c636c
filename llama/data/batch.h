#pragma once
// A micro-batch on the device.

#include <cstdint>

namespace rz {

struct DeviceBatch {
    int64_t B, T;
    const int32_t* tokens;   // (B, T)
    const int32_t* targets;  // (B, T), kIgnoreTarget where there is none
    // embedding_plan of the tokens; needed for training only
    const int32_t* rows = nullptr;
    const int32_t* starts = nullptr;
    const int32_t* ids = nullptr;
    int64_t distinct = 0;
    // (B, T) where rows are not one text from position 0 on, else nullptr: RoPE's positions, and the places in the row
    // before which the token sees nothing, never less than the token before has.
    const int32_t* positions = nullptr;
    const int32_t* first_key = nullptr;
};

}  // namespace rz
