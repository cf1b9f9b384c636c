#include "llama/train/traffic.h"

#include <algorithm>
#include <string>
#include <vector>

#include "comm/thresholds.h"
#include "kernels/runtime/is_cpu.h"
#include "kernels/vocab_cross_entropy.h"

namespace rz {
namespace {

class Counter {
   public:
    explicit Counter(const TrainState& core)
        : core_(core),
          zero_(core.zero.options),
          tokens_(checked_mul(core.options.stage.B, core.options.stage.T, "micro-batch") /
                  core.mesh.place(Axis::cp).size),
          replicated_(replicated_elements(core.table)) {}

    Traffic step() {
        for (const Instr& i : core_.program.program.code) add(i);
        if (zero_.slices_state() && zero_.whole_parameters() && !core_.zero.params.in_common())
            for (int u = 0; u < int(core_.zero.ownership.units().size()); ++u) sent_.data += gather_unit(u);
        sent_.data += beside_codes();
        add_norm();
        return sent_;
    }

   private:
    const Mesh& mesh() const { return core_.mesh; }
    bool is_head(int unit) const { return unit == core_.program.shape.last_unit(); }
    int held(int unit) const {  // its number in `zero`
        const std::vector<int>& units = core_.table.holding().units;
        return units.empty() ? unit : int(std::find(units.begin(), units.end(), unit) - units.begin());
    }

    void add(const Instr& i) {
        switch (i.what) {
            case Do::gather:
                sent_.data += zero_.whole_parameters() ? 0 : gather_unit(held(i.first_unit));
                return;
            case Do::send:
                sent_.pp += rows() * core_.config.dim * size_of(zero_.param_dtype);
                return;
            case Do::reduce: {
                const std::vector<int>& shared = core_.units.shared();
                if (i.last && std::find(shared.begin(), shared.end(), i.first_unit) != shared.end())
                    sent_.pp += core_.units.shared_bytes(i.first_unit);
                return reduce(held(i.first_unit), i.last);
            }
            case Do::forward:
            case Do::backward:
            case Do::input_grad:
            case Do::weight_grad:
                for (int u = i.first_unit; u <= i.last_unit; ++u) {
                    if (core_.tp) sent_.tp += pass(i.what, u);
                    if (core_.context && u > 0 && !is_head(u)) sent_.cp += attend(i.what);
                }
                return;
            case Do::recv:
            case Do::release:
                return;
        }
    }

    // ---- cp ----
    int64_t attend(Do what) const {
        const int64_t keys = core_.context->key_bytes(), gradients = core_.context->gradient_bytes();
        const bool again = has(core_.options.stage.recompute, Recompute::attention | Recompute::block);
        if (what == Do::forward) return keys;
        const bool backward = what == Do::backward || what == Do::input_grad;
        return backward ? (again ? 2 : 1) * keys + gradients : 0;
    }

    // ---- tp ----
    int64_t rows() const { return core_.tp ? core_.tp->rows(tokens_) : tokens_; }
    int64_t pass(Do what, int unit) const {
        const int64_t C = core_.config.dim;
        const int64_t G = core_.tp->gather_bytes(tokens_, C, zero_.param_dtype),
                      S = core_.tp->scatter_bytes(tokens_, C);
        // Norms and gradients of branches are gathered as codes, and before that their magnitudes.
        const Fp8Options& fp8 = core_.options.stage.fp8;
        const bool codes = keeps_codes(fp8.recipe) && fp8.covers(unit - 1, core_.config.layers);
        const int64_t H = codes ? core_.tp->gather_bytes(tokens_, C / 2, DType::bf16) : G;
        const int64_t M = codes ? 2 * core_.tp->magnitude_bytes() : 0;
        const int64_t Q = core_.config.post_norm ? core_.tp->share_bytes(tokens_ * 2) : 0;  // sums over q and k
        const bool backward = what == Do::backward || what == Do::input_grad;
        if (unit == 0) return what == Do::forward ? S : what == Do::input_grad ? 0 : G;
        if (is_head(unit)) return backward ? G + S + core_.tp->share_bytes(tokens_ * kVocabStats) : 0;
        const Recompute recompute = core_.options.stage.recompute;
        int64_t again = recompute == Recompute::block ? 2 * H + M + 2 * S + Q : 0;
        if (has(recompute, Recompute::norms)) again += M;
        if (has(recompute, Recompute::attention)) again += H + Q;
        if (has(recompute, Recompute::mlp)) again += H;
        switch (what) {
            case Do::forward:
                return 2 * H + M + 2 * S + Q;
            case Do::input_grad:
                return 2 * H + M + 2 * S + Q + again;
            case Do::weight_grad:
                return 4 * H;
            default:
                return 4 * H + M + 2 * S + Q + again;
        }
    }

    // ---- data and replicate ----
    // `wire`: of the sum that it is the second half of, by which hier chooses.
    int64_t gather(Collectives& group, Offsets offsets, int64_t element, int64_t wire = 0) const {
        const int rank = group.rank(), size = group.size();
        if (size == 1) return 0;
        const auto count = [&](int r) { return offsets[size_t(r) + 1] - offsets[size_t(r)]; };
        const std::string how = group.name();
        const int nodes = group.options().nodes, locals = size / nodes;
        if (how == "hier-symmetric") {  // its slice to other nodes; inside the node what a ring would send
            const size_t next = size_t((rank / nodes + 1) % locals * nodes);
            const int64_t run = offsets[next + size_t(nodes)] - offsets[next];
            return (count(rank) * (nodes - 1) + offsets.back() - offsets.front() - run) * element;
        }
        if (how == "hier" && nodes > 1 && locals > 1) {  // its slice to other nodes, its column's slices inside its own
            const size_t column = size_t(rank / nodes * nodes);
            return (count(rank) * (nodes - 1) + (offsets[column + size_t(nodes)] - offsets[column]) * (locals - 1)) *
                   element;
        }
        const bool gpus = !is_cpu(group.transport().device());
        const bool one_hop =
            how == "hier" && (nodes > 1 || !rings_on_one_node(offsets.back() * (wire ? wire : element), size, gpus));
        if (how == "direct" || one_hop) return count(rank) * element * (size - 1);
        return (offsets.back() - offsets.front() - count((rank + 1) % size)) * element;
    }
    int64_t scatter(Collectives& group, Offsets offsets, int64_t element) const {
        if (group.size() == 1) return 0;
        const size_t rank = size_t(group.rank());
        return (offsets.back() - offsets.front() - (offsets[rank + 1] - offsets[rank])) * element;
    }
    bool is_coded(int unit) const {
        return !zero_.whole_parameters() && !zero_.fp8_matrices.empty() && !zero_.fp8_matrices[size_t(unit)].empty();
    }
    int64_t gather_unit(int unit) const {
        const Offsets slices = core_.zero.ownership.slices(unit);
        if (!is_coded(unit)) return gather(mesh().shard(), slices, size_of(zero_.param_dtype));
        std::vector<int64_t> codes;  // in pairs
        for (const int64_t end : slices) codes.push_back(below_in_matrices(unit, end) / 2);
        return gather(mesh().shard(), codes, 2);
    }
    // Once a step, of the units that are gathered as codes: magnitudes, and what is no matrix.
    int64_t beside_codes() const {
        int64_t bytes = 0;
        std::vector<int64_t> rest(size_t(mesh().shard().size()) + 1);
        for (int u = 0; u < int(core_.zero.ownership.units().size()); ++u) {
            if (!is_coded(u)) continue;
            bytes += int64_t(sizeof(Fp8Scale) * zero_.fp8_matrices[size_t(u)].size());
            const Offsets slices = core_.zero.ownership.slices(u);
            for (size_t r = 0; r < rest.size(); ++r)
                rest[r] += std::min(slices[r], core_.zero.ownership.unit(u).size) - below_in_matrices(u, slices[r]);
        }
        return bytes * (mesh().shard().size() - 1) + gather(mesh().shard(), rest, size_of(zero_.param_dtype));
    }
    int64_t below_in_matrices(int unit, int64_t end) const {
        int64_t below = 0;
        for (const ElementRange& m : zero_.fp8_matrices[size_t(unit)])
            below += std::clamp(end, m.begin, m.end) - m.begin;
        return below;
    }
    void reduce(int unit, bool last) {
        if (core_.tp && (last || core_.zero.grads.reduces_each_micro_batch()))
            for (const Replicated& r : replicated_[size_t(unit)])
                sent_.tp += core_.tp->sum_bytes(r, core_.zero.grads.dtype(unit));
        if (zero_.whole_gradients() && !last) return;
        const int64_t wire = size_of(zero_.wire_dtype), element = size_of(zero_.grad_dtype);
        const Offsets slices = core_.zero.ownership.slices(unit), parts = core_.zero.ownership.parts(unit);
        if (!zero_.slices_state()) {
            sent_.data += scatter(mesh().data(), slices, wire) + gather(mesh().data(), slices, element, wire);
            return;
        }
        sent_.data += scatter(mesh().shard(), slices, wire);
        if (last)
            sent_.replicate +=
                scatter(mesh().replicate(), parts, wire) + gather(mesh().replicate(), parts, element, wire);
    }

    // ---- the norm: a double for each block, first of a rank's slices, then of a part's ----
    void add_norm() {
        const Ownership& owned = core_.zero.ownership;
        const ShardGroups& shard_groups = owned.shard_groups();
        const int ranks = shard_groups.sharded ? shard_groups.shard.size : 1;
        std::vector<int64_t> sums = {0};  // by rank of those that share slices
        for (int r = 0; r < ranks; ++r) {
            int64_t blocks = 0;
            for (const UnitLayout& u : owned.units())
                for (const ElementRange& run : u.counted(ranks > 1 ? u.slice(r, ranks) : ElementRange{0, u.padded}))
                    blocks += u.blocks_in(run);
            sums.push_back(sums.back() + blocks);
        }
        if (ranks > 1) sent_.data += gather(mesh().shard(), sums, 8);
        sent_.model += sums.back() * 8 * (mesh().model().size() - 1);
    }

    const TrainState& core_;
    const ZeroOptions& zero_;
    int64_t tokens_;
    std::vector<std::vector<Replicated>> replicated_;
    Traffic sent_;
};

}  // namespace

Traffic step_traffic(const TrainState& core) { return Counter(core).step(); }

}  // namespace rz
