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
};

}  // namespace rz
