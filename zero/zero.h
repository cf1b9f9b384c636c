#pragma once
// ZeRO (Rajbhandari et al. 2020) in four parts: who owns what (ownership.h), the cache of gathered units
// (parameter_cache.h), the gradients (gradient_store.h), and the optimizer on what a rank owns (optimizer.h).
//
//   stage   parameters   gradients   master, m, v   communication per step of M micro-batches, in passes over the
//                                                   parameters
//     0     whole        whole       whole          all-reduce (2)
//     1     whole        whole       own slices     reduce-scatter + all-gather (2)
//     2     whole        own slices  own slices     M reduce-scatters + all-gather (M + 1); 2 if accumulated locally
//     3     own slices   own slices  own slices     2M all-gathers + M reduce-scatters (3M)
//
// A pass sends (N - 1) / N of the parameters (bytes of param_dtype or wire_dtype). Stage 3's backward pass gathers
// blocks only: the last unit is still there and the embedding is not read (test/zero/test_zero_program.cpp has the
// bytes to the last one).
//
// Units are those that this rank holds, at the offsets of its own flat buffer; where a pipeline shares them out, they
// keep the logical offsets of the whole model.
//
// Everything enqueues and returns. Work on the compute stream is ordered with the communication stream by events.
//
// Bits. With one micro-batch and no hybrid sharding all stages sum each gradient element in the same order, so they
// give the same weights to the bit, whatever the prefetch, overlap or chunk size. With M > 1, stages 0 and 1 add
// micro-batches locally and reduce once; stages 2 and 3 reduce every micro-batch into the owned slice, which sums in
// another order, unless `accumulate_locally` spends the memory of whole gradients to keep the first order.

#include <utility>
#include <vector>

#include "zero/optimizer.h"

namespace rz {

struct Zero {
    // The compute stream, the mesh and the meter (nullptr: none) outlive this.
    Zero(Device device, Stream& compute, std::vector<UnitLayout> units, const DecaySegments& decay,
         const ZeroOptions& o, const AdamWOptions& adamw, Mesh& mesh, CommMeter* meter = nullptr)
        : options(o),
          streams{device, compute, mesh, meter},
          ownership(std::move(units), shard_groups_of(options, mesh)),
          params(ownership, options, streams),
          grads(ownership, options, streams),
          optimizer(ownership, params, grads, decay, options, adamw, streams) {
        if (!options.overlap) hold(&compute);
    }
    ~Zero() { hold(nullptr); }
    Zero(const Zero&) = delete;
    Zero& operator=(const Zero&) = delete;

    const ZeroOptions options;
    const ZeroStreams streams;
    const Ownership ownership;
    ParameterCache params;
    GradientStore grads;
    ShardedAdamW optimizer;

   private:
    void hold(Stream* compute) const {
        const Mesh& mesh = streams.mesh;
        for (Collectives* group : {&mesh.data(), &mesh.shard(), &mesh.replicate(), &mesh.model()}) group->hold(compute);
    }
};

}  // namespace rz
