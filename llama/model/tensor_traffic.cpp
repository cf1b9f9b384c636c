#include "llama/model/tensor_traffic.h"

#include "kernels/vocab_cross_entropy.h"
#include "llama/model/model.h"

namespace rz {

TensorTraffic tensor_traffic(const ModelConfig& config, const ParamTable& table, const StageOptions& o) {
    require(o.tp != nullptr, "the bytes of a tp axis that is not there");
    const int64_t N = checked_mul(o.B, o.T, "micro-batch");
    const int64_t G = o.tp->gather_bytes(N, config.dim, o.dtype), S = o.tp->scatter_bytes(N, config.dim);
    TensorTraffic t = {};
    for (const UnitLayout& u : table.held_units()) {
        const bool embedding = u.logical == 0, head = u.logical == table.units().back().offset;
        if (embedding) {
            t.evaluation += S, t.training += S + G, t.parted += S + G;
        } else if (head) {
            const int64_t loss = G + o.tp->share_bytes(N * kVocabStats);
            t.evaluation += loss, t.training += loss + S, t.parted += loss + S;
        } else {
            t.evaluation += 2 * G + 2 * S;
            t.training += 6 * G + 4 * S;
            t.parted += 8 * G + 4 * S;
            if (o.recompute == Recompute::mlp) t.training += G;
            if (o.recompute == Recompute::block) t.training += 2 * G + 2 * S;
        }
    }
    for (const auto& unit : replicated_elements(table))
        for (const Replicated& r : unit) t.gradients += o.tp->sum_bytes(r, o.grad_dtype);
    return t;
}

}  // namespace rz
