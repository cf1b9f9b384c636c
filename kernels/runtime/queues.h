#pragma once
// A GPU takes work from hardware queues, 8 unless CUDA_DEVICE_MAX_CONNECTIONS says another number, 32 at most (CUDA C++
// Programming Guide, "Environment Variables"). Streams that share a queue wait for each other's events, and then
// nothing overlaps. A program that has this asks for 32 before main, unless the environment says a number.

#include <string>

namespace rz {

void count_cuda_streams(int change);  // those of this process, by kernels/runtime/device.cpp
std::string queue_advice();           // a line for the user where fewer queues than streams are set; else ""

}  // namespace rz
