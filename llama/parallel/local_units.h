#pragma once
// Programs, stages and tables name units of the whole model; zero/ numbers those that this rank holds from 0. What
// several ranks of the tp axis hold, or two of the pp axis, is summed over them before the data axis sums it.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"
#include "kernels/runtime/check.h"
#include "llama/parallel/tensor_parallel.h"
#include "zero/zero.h"

namespace rz {

class LocalUnits : public ParameterSource, public GradientSink {
   public:
    // `units`: of the whole model, ascending, as `zero` holds them; none: all. `replicated`: by unit of `zero`, with
    // `tp`, which may be nullptr. `zero` and `tp` outlive this.
    LocalUnits(Zero& zero, std::vector<int> units, TensorParallel* tp = nullptr,
               std::vector<std::vector<Replicated>> replicated = {}, std::vector<int> shared = {}, int peer = -1)
        : zero_(zero),
          units_(std::move(units)),
          tp_(tp),
          replicated_(std::move(replicated)),
          shared_(std::move(shared)),
          peer_(peer) {
        int64_t most = 0;
        for (const int u : shared_) most = std::max(most, shared_bytes(u));
        if (most == 0) return;
        arrived_ = Buffer(zero_.streams.device, most, MemKind::comm, "gradients of a shared unit");
        const Transport& pp = zero_.streams.mesh.pp().transport();
        first_ = pp.world_rank(std::min(pp.rank(), peer_));
        const int second = pp.world_rank(std::max(pp.rank(), peer_));
        pair_ = format("%s %d&%d", pp.group().c_str(), first_, second);
        if (pp.watch()) pp.watch()->join(pair_.c_str(), {first_, second});
    }

    void gather(int unit) override { zero_.params.gather(local(unit)); }
    const void* parameters(int unit) override { return zero_.params.parameters(local(unit)); }
    std::optional<Fp8Parameters> fp8_parameters(int unit) override { return zero_.params.fp8_parameters(local(unit)); }
    void release(int unit) override { zero_.params.release(local(unit)); }
    int gathered_at_once() const override { return zero_.params.gathered_at_once(); }
    int64_t version() const override { return zero_.params.version(); }
    void* gradients(int unit) override { return zero_.grads.gradients(local(unit)); }
    void reduce(int unit, bool last) override {
        const int here = local(unit);
        if (before_reduce && (last || reduces_each_micro_batch())) before_reduce(unit, zero_.grads.gradients(here));
        if (tp_ && (last || reduces_each_micro_batch()))
            for (const Replicated& r : replicated_[size_t(here)])
                tp_->sum(zero_.streams.compute, zero_.grads.gradients(here), r, zero_.grads.dtype(here));
        if (last && std::find(shared_.begin(), shared_.end(), unit) != shared_.end()) add_peers(unit);
        zero_.grads.reduce(here, last);
    }
    // Is given a unit's gradients of this rank alone, before they are summed over any others.
    std::function<void(int unit, void* gradients)> before_reduce;
    int64_t padded(int unit) const { return zero_.ownership.unit(local(unit)).padded; }  // elements
    // Bytes of a unit's gradients that each of the two holders sends the other.
    int64_t shared_bytes(int unit) const {
        return checked_mul(zero_.ownership.unit(local(unit)).padded, size_of(zero_.options.grad_dtype), "gradients");
    }
    DType grad_dtype(int unit) const { return zero_.grads.dtype(local(unit)); }
    const std::vector<int>& shared() const { return shared_; }
    bool reduces_each_micro_batch() const override { return zero_.grads.reduces_each_micro_batch(); }

   private:
    int local(int unit) const {
        if (units_.empty()) return unit;
        for (size_t i = 0; i < units_.size(); ++i)
            if (units_[i] == unit) return int(i);
        fail("unit %d is not held by this rank", unit);
    }
    // Both add the same two numbers, so both have the same bits. On the mesh's stream, so after the sums over tp; all
    // holders come to their shared units in the same order (place_reduces).
    void add_peers(int unit) {
        Stream &compute = zero_.streams.compute, &comm = zero_.streams.comm();
        Transport& pp = zero_.streams.mesh.pp().transport();
        void* own = zero_.grads.gradients(local(unit));
        const int64_t bytes = shared_bytes(unit);
        comm.wait(compute.record());
        MessageGroup group;
        work_scope.micro_batch = -1;  // the holders come here with different ones
        group.seq = pp.watch() ? pp.watch()->queue("shared gradients", pair_.c_str(), first_, bytes) : 0;
        group.is_last = group.seq != 0;
        group.send(own, bytes, peer_);
        group.recv(arrived_.data(), bytes, peer_);
        pp.exchange(comm, group);
        const DType dtype = zero_.options.grad_dtype;
        reduce_add(comm, {.out = own,
                          .a = own,
                          .b = arrived_.data(),
                          .n = bytes / size_of(dtype),
                          .out_dtype = dtype,
                          .a_dtype = dtype,
                          .b_dtype = dtype});
        compute.wait(comm.record());
    }

    Zero& zero_;
    std::vector<int> units_;
    TensorParallel* tp_;
    std::vector<std::vector<Replicated>> replicated_;
    std::vector<int> shared_;
    int peer_;
    std::string pair_;  // as the records of operations know it: it is numbered apart from the other stages
    int first_ = -1;    // its lower rank of the world
    Buffer arrived_;
};

}  // namespace rz
