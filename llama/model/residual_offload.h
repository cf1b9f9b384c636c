#pragma once
// The residual stream that enters each block, on the host between its forward and its backward pass: with
// Recompute::block it is all that a block keeps. On the device are two, of blocks next to each other.
//
//   to_host     block i goes while block i + 1 is computed
//   from_host   block i - 1 comes while the backward pass of block i runs
//
// The first block's stays on the device: a pipeline receives it there.

#include <array>

#include "kernels/runtime/memory.h"

namespace rz {

class ResidualOffload {
   public:
    // `bytes` of each of `blocks` blocks of a slot, of which the first is not offloaded.
    ResidualOffload(Device device, Stream& compute, int64_t bytes, int64_t blocks, int64_t slots);
    ~ResidualOffload();

    bool covers(int64_t block) const { return block > 0; }
    // On the device, while the block is worked on.
    void* place(int64_t block) const { return places_[size_t(block % 2)].memory.data(); }

    // The compute stream may write place(block) from here on.
    void before_forward(int64_t slot, int64_t block);
    // The data there now is needed again by backward.
    void after_forward(int64_t slot, int64_t block);
    // The compute stream finds it at place(block); that of the block before sets out.
    void before_backward(int64_t slot, int64_t block);

   private:
    struct StagedBlock {
        Buffer memory;
        int64_t slot = -1, block = -1;  // whose it is
        Event gone = {}, here = {};     // copied to the host; from there
    };
    StagedBlock& of(int64_t block) { return places_[size_t(block % 2)]; }
    char* at_home(int64_t slot, int64_t block) const {
        return host_.bytes_at((slot * (blocks_ - 1) + block - 1) * bytes_);
    }
    void fetch(int64_t slot, int64_t block);

    Stream& compute_;
    int64_t bytes_, blocks_;
    std::array<StagedBlock, 2> places_;
    Buffer host_;
    Stream from_host_, to_host_;
};

}  // namespace rz
