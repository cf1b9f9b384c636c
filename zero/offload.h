#pragma once
// Optimizer state in pinned memory of the host, beside a GPU's (zero_options.h: OffloadOptimizer). Two ways to update
// it; `zero-copy`, the third, needs nothing here: the kernel reads and writes the host's memory over the bus.
//
// StateTiles (stream): master, m and v come to the device a tile at a time and go back, on streams of their own:
//
//   from_host   tile i + 1 comes     waits until tile i - 1, in the same memory, has gone back
//   compute     AdamW on tile i      waits until it has come
//   to_host     tile i - 1 goes      waits until AdamW is done with it
//
// AdamW gives the same bits for any cut of a range, so the bits are those of no offload.
//
// HostAdamW (cpu): gradients go to the host as soon as they are final, the CPU's AdamW updates everything there, and
// the new parameters come back unit by unit. Bits differ from those of a GPU, whose root and reciprocal are
// approximate; on a CPU they are the same.

#include <array>
#include <functional>
#include <vector>

#include "kernels/adamw.h"
#include "zero/state.h"
#include "zero/streams.h"
#include "zero/zero_options.h"

namespace rz {

class StateTiles {
   public:
    // `largest`: elements of the longest range.
    StateTiles(ZeroStreams streams, const ZeroOptions& options, int64_t largest);
    ~StateTiles();

    // update() sees what the compute stream has done to the state so far.
    void begin();
    // Calls change(piece, elements) for pieces of the first `elements` of the range, whose arrays are all on the
    // device; it enqueues on the compute stream. What the range has no array of does not travel. Returns when the new
    // state is on the host.
    Event update(const OwnedRange& range, int64_t elements,
                 const std::function<void(const OwnedRange&, int64_t)>& change);
    // The compute stream waits until the state is on the host.
    void end();

   private:
    struct Array {  // of a range: how to find it, and whether it changes
        void* OwnedRange::*where;
        int64_t element;  // bytes
        int64_t at;       // in a tile
        bool written;
    };
    struct Tile {
        Buffer memory;
        Event gone;  // back to the host
    };

    ZeroStreams streams_;
    ZeroOptions options_;
    std::vector<Array> arrays_;
    bool own_masters_;
    int64_t elements_;  // of a tile
    std::array<Tile, 2> tiles_;
    size_t turn_ = 0;
    Stream from_host_, to_host_;
};

class HostAdamW {
   public:
    // `elements`: that AdamW updates.
    HostAdamW(ZeroStreams streams, const ZeroOptions& options, const DecaySegments& decay, int64_t elements);
    ~HostAdamW();

    // The gradient of the range is final after `ready`: it sets out. Nothing for one that lies on the host.
    void fetch_gradient(const OwnedRange& range, const Event& ready);
    // The parameters are final on the compute stream: the host has them from then on.
    void fetch_parameters(const OwnedRange& range);
    // The compute stream has the clip's factor (1) and the bias correction (2) of this step. Waits for them and for the
    // gradients.
    void begin(const float* scale, const double* correction);
    // `a` has the numbers that do not depend on the range. Waits for the update; returns when its parameters are on the
    // device, or nothing where they stay on the host.
    Event update(const OwnedRange& range, int64_t elements, AdamW a);
    // The compute stream waits until all is done.
    void end();

   private:
    ZeroStreams streams_;
    ZeroOptions options_;
    Buffer gradients_, parameters_;  // of what AdamW updates; empty where those are on the host anyhow
    Buffer numbers_;                 // double[2] correction, float scale
    std::vector<int64_t> segment_end_;
    std::vector<uint8_t> segment_decays_;
    Event fetched_;
    Stream host_, from_host_, to_host_;
};

}  // namespace rz
