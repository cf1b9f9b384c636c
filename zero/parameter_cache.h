#pragma once
// A rank's parameters, and the cache of gathered units. Stages 0 to 2 keep all parameters whole; an update of a slice
// is spread to the ranks that share the unit. Stage 3 keeps the owned slices and gathers units for as long as they are
// read, in slots that units use one after the other (unit_pool.h). With symmetric collectives stages 1 and 2 keep one
// copy for all ranks of the group: a slice is read where its owner has updated it, and nothing is copied. That is safe
// because no owner updates before all ranks have reduced the gradients of all units, so after their last reading.
//
// The events between compute and communication, by unit:
//
//   all_gather_updated(u)  compute -> comm    the owned slice is final
//   gather(u)              comm -> compute    the unit is whole; waited for in parameters(u)
//   release(u)             compute -> comm    the slot may be written again

#include <optional>

#include "zero/fp8_gather.h"
#include "zero/comm_buffer.h"
#include "zero/ownership.h"
#include "zero/parameter_source.h"
#include "zero/streams.h"
#include "zero/unit_pool.h"
#include "zero/zero_options.h"

namespace rz {

class ParameterCache : public ParameterSource {
   public:
    // `ownership` and the streams outlive this.
    ParameterCache(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams);
    ~ParameterCache() override {
        if (from_host_) drain(*from_host_);
        streams_.drain();
    }

    void gather(int unit) override;
    const void* parameters(int unit) override;
    std::optional<Fp8Parameters> fp8_parameters(int unit) override;
    void release(int unit) override;
    int gathered_at_once() const override;
    int64_t version() const override { return version_; }
    // Readers make again what they have made of parameters.
    void forget_what_was_made() { ++version_; }
    bool in_common() const { return params_.in_common(); }  // with the ranks that share the state

    // All of a unit in its own type, `padded` elements at `out`, whatever gather() does; valid on the compute stream.
    // Collective.
    void gather_whole(int unit, void* out);

    // The owned slice, to be written on the compute stream, then published.
    void* owned(int unit) const;
    // The owned slice of the unit is final on the compute stream and after `final`: it goes to the ranks that keep the
    // unit whole, or waits to be gathered. All ranks publish all units, in one order, whether or not they own a part.
    void all_gather_updated(int unit, const Event& final = {});

   private:
    struct UnitState {
        Event own_ready = {};  // stage 3: the owned slice is final
        Event ready = {};      // the unit is whole
    };

    std::vector<int64_t> wide_bytes() const;
    // The slice on the host comes to its place in `whole`, once `ready`; the communication stream waits for it.
    const void* bring(int unit, void* whole, const Event& ready);

    const Ownership& ownership_;
    ZeroOptions options_;
    ZeroStreams streams_;
    int64_t element_;    // bytes
    CommBuffer params_;  // whole, or owned slices, which may be on the host
    UnitPool gathered_;
    std::optional<Fp8Gather> fp8_;
    std::vector<UnitState> state_;
    int64_t version_ = 0;
    std::optional<Stream> from_host_;  // with parameters on the host
};

}  // namespace rz
