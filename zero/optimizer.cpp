#include "zero/optimizer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/flight.h"
#include "kernels/adamw.h"
#include "kernels/bias_correction.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"

namespace rz {

constexpr int64_t kExchanged = int64_t(1) << 18;  // elements at a time

// ---- construction ---------------------------------------------------------------------------------------------------

ShardedAdamW::ShardedAdamW(const Ownership& ownership, ParameterCache& params, GradientStore& grads,
                           const DecaySegments& decay, const ZeroOptions& options, const AdamWOptions& adamw,
                           ZeroStreams streams)
    : ownership_(ownership),
      params_(params),
      grads_(grads),
      options_(options),
      adamw_(adamw),
      streams_(streams),
      segments_(int64_t(decay.end.size())) {
    require_request(
        options_.master_dtype == DType::f32 || options_.master_dtype == options_.param_dtype,
        "master_dtype %s with param_dtype %s: narrow masters are the parameters themselves, so both must be the same\n"
        "  nearest: master_dtype fp32",
        name_of(options_.master_dtype), name_of(options_.param_dtype));
    const UnitLayout& last = ownership_.units().back();
    require(segments_ > 0 && decay.decays.size() == decay.end.size() &&
                decay.end.back() >= last.global_offset + last.padded,
            "decay segments do not cover the parameters");
    require(options_.ema == 0 || options_.master_dtype == DType::f32, "an average of masters that are %s",
            name_of(options_.master_dtype));
    const int64_t owned = ownership_.owned_elements();
    if (options_.param_dtype != options_.master_dtype)
        master_ = take_state(owned, options_.master_dtype, "master weights");
    m_ = take_state(owned, options_.adam_dtype, "AdamW m");
    v_ = take_state(second_moments(), options_.adam_dtype, "AdamW v");
    if (options_.ema > 0) ema_ = take_state(owned, DType::f32, "average of the weights");
    // On the device even beside offloaded state: there are a thousandth of the others'.
    if (options_.muon.beta2 > 0)
        row_v_ = streams_.take(row_moments(), DType::f32, MemKind::optimizer, "NorMuon row moments");
    if (ema_ && !master_)
        exchange_ = streams_.take(std::min(owned, kExchanged), DType::f32, MemKind::workspace, "average being shown");
    if (options_.muon.on) muon_.emplace(ownership_, options_, streams_);
    scalars_ = streams_.take(2, DType::f32, MemKind::workspace, "gradient norm and scale");
    count_ = Buffer(streams_.device, 24, MemKind::workspace, "count of updates and bias correction");
    streams_.compute.zero(count_.data(), count_.bytes());
    if (const LossScaling& l = options_.loss_scaling; l.on()) {
        loss_scale_ = Buffer(streams_.device, sizeof(LossScaleState), MemKind::workspace, "loss scale");
        set_loss_scale({l.initial, 1 / l.initial, 0, l.hysteresis});
    }
    copy_decay(decay);
    if (!decay.rates.empty()) rate_end_ = decay.end, rates_ = decay.rates;
    index_owned();
    index_block_sums();
    const bool by_host = options_.offload_optimizer == OffloadOptimizer::cpu;
    if (options_.offload_optimizer == OffloadOptimizer::stream || (by_host && muon_))
        tiles_.emplace(streams_, options_, options_.slices_state() ? ownership_.largest_owned() : owned);
    if (by_host) {
        host_.emplace(streams_, options_, decay, second_moments());
        grads_.on_reduced([this](int unit, const Event& ready) {
            for (const OwnedRange& r : owned_)
                if (r.unit == unit && r.matrix < 0) host_->fetch_gradient(r, ready);
        });
    }
}

ShardedAdamW::~ShardedAdamW() {
    grads_.on_reduced({});
    streams_.drain();
}

Buffer ShardedAdamW::take_state(int64_t elements, DType dtype, const char* name) const {
    return options_.offload_optimizer == OffloadOptimizer::none
               ? streams_.take(elements, dtype, MemKind::optimizer, name)
               : streams_.take_pinned(elements, dtype, MemKind::optimizer, name);
}

void ShardedAdamW::copy_decay(const DecaySegments& decay) {
    segment_end_ = Buffer(streams_.device, segments_ * 8, MemKind::optimizer, "decay segments");
    segment_decays_ = Buffer(streams_.device, segments_, MemKind::optimizer, "decay flags");
    // Nothing may throw between these copies and the wait: `decay` is the caller's.
    streams_.compute.copy(segment_end_.data(), decay.end.data(), segments_ * 8);
    streams_.compute.copy(segment_decays_.data(), decay.decays.data(), segments_);
    streams_.compute.synchronize();
}

void ShardedAdamW::index_owned() {
    int64_t second = 0, rows = 0;  // elements that have a v, and rows that begin, so far
    int matrix = 0;
    for (int u = 0; u < int(ownership_.units().size()); ++u) {
        const OwnedSlice& slice = ownership_.owned(u);
        const auto add = [&](ElementRange run, int of_matrix) {
            run = {std::max(run.begin, slice.elements.begin), std::min(run.end, slice.elements.end)};
            if (run.size() <= 0) return;
            OwnedRange whole{slice, params_.owned(u)};
            whole.grad = grads_.owned(u);
            whole.matrix = of_matrix;
            OwnedRange r = part_of(whole, run.begin - slice.elements.begin, run.size(), options_);
            r.master = master_ ? master_.bytes_at(r.shard_offset * size_of(options_.master_dtype)) : r.param;
            r.m = m_.bytes_at(r.shard_offset * size_of(options_.adam_dtype));
            if (ema_) r.ema = ema_.bytes_at(r.shard_offset * 4);
            if (of_matrix < 0) {
                r.v = v_.bytes_at(second * size_of(options_.adam_dtype));
                r.second = second;
                second += run.size();
            } else {
                const MuonMatrix& m = muon_->matrices()[size_t(of_matrix)];
                r.columns = m.held.cols, r.in_matrix = run.begin - m.elements.begin;
                if (row_v_ && m.held.col == 0) {
                    r.row_v = row_v_.bytes_at(rows * 4);
                    rows += r.rows_in(run.size());
                }
                muon_->keep_rows(of_matrix, static_cast<float*>(r.row_v));
            }
            owned_.push_back(r);
        };
        int64_t at = 0;
        if (muon_)
            for (const MuonMatrix& m : options_.muon.matrices[size_t(u)]) {
                add({at, m.elements.begin}, -1);
                add(m.elements, matrix++);
                at = m.elements.end;
            }
        add({at, ownership_.unit(u).padded}, -1);
    }
}

// Elements that AdamW keeps a v of.
int64_t ShardedAdamW::second_moments() const {
    int64_t elements = ownership_.owned_elements();
    for (size_t u = 0; u < options_.muon.matrices.size(); ++u) {
        const ElementRange own = ownership_.owned(int(u)).elements;
        for (const MuonMatrix& m : options_.muon.matrices[u])
            elements -= std::max<int64_t>(0, std::min(own.end, m.elements.end) - std::max(own.begin, m.elements.begin));
    }
    return elements;
}

// Rows of matrices that begin in what is owned.
int64_t ShardedAdamW::row_moments() const {
    int64_t rows = 0;
    for (size_t u = 0; u < options_.muon.matrices.size(); ++u) {
        const ElementRange own = ownership_.owned(int(u)).elements;
        for (const MuonMatrix& m : options_.muon.matrices[u]) rows += m.rows_in(own).size();
    }
    return rows;
}

// `own` of every part of the model (stages of the pipeline, parts of tensors), one after the other; stage_sums_ says
// where each begins. The ranks that share slices have the same.
std::vector<int64_t> ShardedAdamW::gather_stages(const std::vector<int64_t>& own) {
    std::vector<int64_t> all;
    stage_sums_ = {0};
    for (const std::vector<int64_t>& one : streams_.mesh.gather_over_model(streams_.comm(), own)) {
        all.insert(all.end(), one.begin(), one.end());
        stage_sums_.push_back(2 * int64_t(all.size()));
    }
    return all;
}

// Each rank sums what it owns and counts of each block; gathered, the sums stand rank by rank and part by part of the
// model, and block_order_ finds them in logical order (of parts of the same tensors in rank order): the two sums of a
// block that two ranks share, one after the other.
void ShardedAdamW::index_block_sums() {
    std::vector<int64_t> places;  // logical offset of what is summed, in the order in which the sums are gathered
    const ShardGroups& shard_groups = ownership_.shard_groups();
    const bool gathers = shard_groups.sharded && shard_groups.shard.size > 1;
    if (gathers) rank_sums_ = {0};
    for (int r = 0; r < (gathers ? shard_groups.shard.size : 1); ++r) {
        for (const UnitLayout& u : ownership_.units()) {
            const ElementRange slice = gathers ? u.slice(r, shard_groups.shard.size) : ElementRange{0, u.padded};
            for (const ElementRange& run : u.counted(slice))
                for (int64_t at = run.begin; at < run.end; at = (at / u.block + 1) * u.block)
                    places.push_back(u.global_offset + at);
        }
        if (gathers) rank_sums_.push_back(2 * int64_t(places.size()));
    }
    if (streams_.mesh.model().size() > 1) places = gather_stages(places);
    blocks_ = int64_t(places.size());
    block_sums_ = Buffer(streams_.device, blocks_ * 8, MemKind::workspace, "block sums of the gradient norm");
    if (rank_sums_.empty() && stage_sums_.empty()) return;
    std::vector<int32_t> order(places.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return places[size_t(a)] < places[size_t(b)]; });
    block_order_ = Buffer(streams_.device, blocks_ * 4, MemKind::workspace, "order of the block sums");
    streams_.compute.copy(block_order_.data(), order.data(), blocks_ * 4);
    streams_.compute.synchronize();
}

// ---- the norm -------------------------------------------------------------------------------------------------------

void ShardedAdamW::sum_blocks() {
    const auto place = [](const std::vector<int64_t>& offsets, int rank) {
        return offsets.empty() ? 0 : offsets[size_t(rank)] / 2;
    };
    Stream& compute = streams_.compute;
    Stream& comm = streams_.comm();
    double* stage = block_sums_.as<double>() + place(stage_sums_, streams_.mesh.model().rank());
    double* own = stage + place(rank_sums_, ownership_.shard_groups().shard.rank);
    double* sums = own;
    for (int u = 0; u < int(ownership_.units().size()); ++u) {
        const UnitLayout& unit = ownership_.unit(u);
        const ElementRange own = ownership_.owned(u).elements;
        for (const ElementRange& run : unit.counted(own)) {
            sum_squares(compute, {.partial = sums,
                                  .x = at(grads_.owned(u), run.begin - own.begin, options_.grad_dtype),
                                  .n = run.size(),
                                  .block = unit.block,
                                  .dtype = options_.grad_dtype,
                                  .at = run.begin % unit.block,
                                  .on_host = options_.offload_grads});
            sums += unit.blocks_in(run);
        }
    }
    if (rank_sums_.empty() && stage_sums_.empty()) return;
    comm.wait(compute.record());
    // A double travels as two fp32 words: a gather copies bits.
    if (!rank_sums_.empty())
        streams_.mesh.shard().all_gather(comm, {.out = stage, .in = own, .offsets = rank_sums_, .dtype = DType::f32});
    if (!stage_sums_.empty())
        streams_.mesh.model().all_gather(
            comm, {.out = block_sums_.data(), .in = stage, .offsets = stage_sums_, .dtype = DType::f32});
    streams_.compute_waits(comm.record());
}

const float* ShardedAdamW::gradient_norm() {
    grads_.wait();
    sum_blocks();
    clip_scale(streams_.compute, {.norm = scalars_.as<float>(),
                                  .scale = scale(),
                                  .partial = block_sums_.as<double>(),
                                  .order = block_order_.as<int32_t>(),
                                  .count = blocks_,
                                  .average = 1,
                                  .unscale = loss_scale_ ? &loss_scale()->inverse : nullptr,
                                  .max_norm = adamw_.max_norm});
    norm_known_ = true;
    return norm();
}

// ---- the update -----------------------------------------------------------------------------------------------------

// Any cut of a range gives the same bits.
void ShardedAdamW::watched(const OwnedRange& range, int64_t local, int64_t elements,
                           const std::function<void(const OwnedRange&)>& change) {
    const int64_t most = watcher_ ? watcher_->most() : elements;
    for (int64_t at = 0; at < elements; at += most) {
        const OwnedRange piece = part_of(range, at, std::min(most, elements - at), options_);
        if (watcher_) watcher_->before(piece, local + at, piece.elements.size());
        change(piece);
        if (watcher_) watcher_->after(piece, local + at, piece.elements.size());
    }
}

// Pieces of the range that are updated by one rate. AdamW gives the same bits for any cut.
void ShardedAdamW::for_each_rate(const OwnedRange& range, int64_t elements,
                                 const std::function<void(const OwnedRange&, int64_t, float)>& body) const {
    if (rates_.empty()) return body(range, elements, 1);
    size_t s = size_t(std::upper_bound(rate_end_.begin(), rate_end_.end(), range.global_offset) - rate_end_.begin());
    for (int64_t at = 0; at < elements;) {
        const float rate = rates_[s];
        while (s + 1 < rates_.size() && rates_[s + 1] == rate) ++s;
        const int64_t n =
            s + 1 < rates_.size() ? std::min(elements, rate_end_[s] - range.global_offset) - at : elements - at;
        body(part_of(range, at, n, options_), n, rate);
        at += n;
        ++s;
    }
}

// Calls body for pieces of the range whose arrays the compute stream reaches. Nothing, or when the range's parameters
// are final: else they are on the compute stream.
Event ShardedAdamW::on_device(const OwnedRange& range, int64_t elements,
                              const std::function<void(const OwnedRange&, int64_t)>& body) {
    if (tiles_) {
        const Event at_home = tiles_->update(range, elements, body);
        return options_.offload_params ? at_home : Event{};
    }
    body(range, elements);
    return {};
}

Event ShardedAdamW::update_range(const OwnedRange& range, int64_t elements, float learning_rate, int64_t step) {
    const AdamW same = {.param = nullptr,
                        .master = nullptr,
                        .m = nullptr,
                        .v = nullptr,
                        .grad = nullptr,
                        .grad_scale = scale(),
                        .n = 0,
                        .segment_end = segment_end_.as<int64_t>(),
                        .decays = segment_decays_.as<uint8_t>(),
                        .segments = segments_,
                        .lr = learning_rate,
                        .beta1 = adamw_.beta1,
                        .beta2 = adamw_.beta2,
                        .eps = adamw_.eps,
                        .weight_decay = adamw_.weight_decay,
                        .step = step,
                        .correction = correction(),
                        .param_dtype = options_.param_dtype,
                        .grad_dtype = options_.grad_dtype,
                        .master_dtype = options_.master_dtype,
                        .adam_dtype = options_.adam_dtype,
                        .seed = options_.rounding_seed,
                        .on_host = options_.offload_optimizer == OffloadOptimizer::zero_copy};
    const auto at_rate = [&](float rate) {
        AdamW a = same;
        a.lr *= rate, a.weight_decay /= rate;
        return a;
    };
    const auto change = [&](const OwnedRange& whole, int64_t all) {
        for_each_rate(whole, all, [&](const OwnedRange& part, int64_t elements, float rate) {
            watched(part, range.local_offset + (part.global_offset - range.global_offset), elements,
                    [&](const OwnedRange& r) {
                        AdamW a = at_rate(rate);
                        a.param = r.param, a.master = r.master, a.m = r.m, a.v = r.v, a.grad = r.grad;
                        a.n = r.elements.size(), a.first = r.global_offset;
                        adamw(streams_.compute, a);
                        move_average(streams_.compute, r, scale());
                    });
        });
    };
    require(!watcher_ || !host_, "the host's AdamW is not watched");
    if (host_) {
        Event last;
        for_each_rate(range, elements,
                      [&](const OwnedRange& r, int64_t n, float rate) { last = host_->update(r, n, at_rate(rate)); });
        return last;
    }
    return on_device(range, elements, change);
}

void ShardedAdamW::leave_out() {
    static const float kNan = __builtin_nanf("");
    streams_.compute.copy(scale(), &kNan, sizeof kNan);
    left_out_ = true;
}

void ShardedAdamW::update(float learning_rate, int64_t step) {
    require(std::exchange(norm_known_, false), "update of step %lld: gradient_norm() comes first", (long long)step);
    bias_correction(streams_.compute, {.updates = count_.as<int64_t>(),
                                       .correction = correction(),
                                       .grad_scale = scale(),
                                       .beta1 = double(adamw_.beta1),
                                       .beta2 = double(adamw_.beta2)});
    if (tiles_) tiles_->begin();
    if (host_) host_->begin(scale(), correction());
    if (muon_)
        update_in_rounds(learning_rate, step);
    else if (!options_.slices_state())
        update_whole(learning_rate, step);
    else
        update_slices([&](const OwnedRange& r) { return update_range(r, r.elements.size(), learning_rate, step); });
    if (tiles_) tiles_->end();
    if (host_) host_->end();
    const bool left_out = std::exchange(left_out_, false);  // no overflow, which the loss scale would answer
    if (const LossScaling& l = options_.loss_scaling; l.dynamic && !left_out)
        loss_scale_update(streams_.compute, {.state = loss_scale_.as<LossScaleState>(),
                                             .grad_scale = scale(),
                                             .window = l.window,
                                             .hysteresis = l.hysteresis,
                                             .least = l.least,
                                             .most = l.most});
    grads_.begin_step();
}

// Units that lie side by side, here and in the whole model, take one launch.
void ShardedAdamW::update_whole(float learning_rate, int64_t step) {
    for (size_t first = 0, next; first < owned_.size(); first = next) {
        int64_t elements = 0;
        for (next = first; next < owned_.size(); ++next) {
            const OwnedRange& r = owned_[next];
            if (r.global_offset - r.local_offset != owned_[first].global_offset - owned_[first].local_offset) break;
            elements += r.elements.size();
        }
        streams_.compute.wait(update_range(owned_[first], elements, learning_rate, step));
    }
    for (int u = 0; u < int(ownership_.units().size()); ++u) params_.all_gather_updated(u);
}

// While the matrices of one round are orthogonalised, the next one's sums and the last one's results travel.
void ShardedAdamW::update_in_rounds(float learning_rate, int64_t step) {
    const int late = muon_->exchanges() ? 1 : 0, rounds = muon_->rounds();
    for (int i = 0; i < rounds + 2 * late; ++i) {
        if (i < rounds) begin_round(i, step);
        if (i >= late && i - late < rounds) muon_->orthogonalise(i - late, scale());
        if (i >= 2 * late) finish_round(i - 2 * late, learning_rate, step);
    }
}

void ShardedAdamW::begin_round(int round, int64_t step) {
    for (const OwnedRange& r : owned_) {
        if (r.matrix < 0 || r.unit < muon_->first_unit(round) || r.unit >= muon_->end_unit(round)) continue;
        OwnedRange only = r;  // what the momentum needs: the rest stays where it is
        only.param = only.master = only.ema = nullptr;
        on_device(only, r.elements.size(), [&](const OwnedRange& part, int64_t) {
            muon_->momentum(round, part, part.global_offset - r.global_offset, scale(), step);
        });
    }
    muon_->send(round);
}

void ShardedAdamW::finish_round(int round, float learning_rate, int64_t step) {
    const int first = muon_->first_unit(round), end = muon_->end_unit(round);
    const auto each = [&](bool of_matrices, const auto& body) {
        for (const OwnedRange& r : owned_)
            if (r.unit >= first && r.unit < end && (r.matrix >= 0) == of_matrices) body(r);
    };
    each(false,
         [&](const OwnedRange& r) { streams_.compute.wait(update_range(r, r.elements.size(), learning_rate, step)); });
    muon_->wait(round);
    each(true, [&](const OwnedRange& r) {
        OwnedRange only = r;
        if (tiles_) only.m = only.grad = nullptr;
        streams_.compute.wait(on_device(only, r.elements.size(), [&](const OwnedRange& there, int64_t elements) {
            watched(there, there.local_offset, elements, [&](const OwnedRange& part) {
                muon_->step(round, part, part.global_offset - r.global_offset, scale(), learning_rate,
                            adamw_.weight_decay, step);
                move_average(streams_.compute, part, scale());
            });
        }));
    });
    for (int u = first; u < end; ++u) {
        work_scope.unit = u;
        params_.all_gather_updated(u);
    }
    work_scope = {};
}

// The all-gather of a unit's parameters starts as soon as they are final, while the next unit's are computed.
void ShardedAdamW::update_slices(const std::function<Event(const OwnedRange&)>& change) {
    auto range = owned_.begin();
    for (int u = 0; u < int(ownership_.units().size()); ++u) {
        work_scope.unit = u;
        Event final;
        for (; range != owned_.end() && range->unit == u; ++range) final = change(*range);  // none of a small unit
        params_.all_gather_updated(u, final);
    }
    work_scope = {};
}

void ShardedAdamW::all_gather_updated() {
    update_slices([&](const OwnedRange& r) {
        if (master_)
            cast(streams_.compute, {.out = r.param,
                                    .x = r.master,
                                    .n = r.elements.size(),
                                    .out_dtype = options_.param_dtype,
                                    .dtype = options_.master_dtype});
        if (host_ && r.matrix < 0) host_->fetch_parameters(r);
        return Event{};
    });
}

// ---- the average of the weights -------------------------------------------------------------------------------------

void ShardedAdamW::move_average(Stream& stream, const OwnedRange& r, const float* grad_scale) const {
    if (!r.ema) return;
    ema(stream, {.average = static_cast<float*>(r.ema),
                 .x = static_cast<const float*>(r.master),
                 .grad_scale = grad_scale,
                 .n = r.elements.size(),
                 .weight = options_.ema_weight(),
                 .on_host = options_.offload_optimizer == OffloadOptimizer::zero_copy});
}

void ShardedAdamW::begin_average() {
    for (const OwnedRange& r : owned_)
        if (r.ema) streams_.compute.copy(r.ema, r.master, r.elements.size() * 4);
}

void ShardedAdamW::exchange_average() {
    Stream& compute = streams_.compute;
    for (const OwnedRange& r : owned_)
        for (int64_t at = 0; at < r.elements.size(); at += kExchanged) {
            const int64_t bytes = std::min(kExchanged, r.elements.size() - at) * 4;
            const OwnedRange part = part_of(r, at, bytes / 4, options_);
            compute.copy(exchange_.data(), part.param, bytes);
            compute.copy(part.param, part.ema, bytes);
            compute.copy(part.ema, exchange_.data(), bytes);
        }
}

void ShardedAdamW::show_average() {
    require(bool(ema_), "no average of the weights is kept");
    streams_.compute_waits(streams_.comm().record());  // which may still send what was published last
    if (!master_) exchange_average();
    update_slices([&](const OwnedRange& r) {
        if (master_)
            cast(streams_.compute, {.out = r.param,
                                    .x = r.ema,
                                    .n = r.elements.size(),
                                    .out_dtype = options_.param_dtype,
                                    .dtype = DType::f32});
        return Event{};
    });
}

void ShardedAdamW::show_weights() {
    streams_.compute_waits(streams_.comm().record());
    if (!master_) exchange_average();
    all_gather_updated();
}

void ShardedAdamW::set_updates(int64_t updates) {
    streams_.compute.copy(count_.data(), &updates, 8);
    streams_.compute.synchronize();
}

void ShardedAdamW::set_loss_scale(const LossScaleState& state) {
    require(bool(loss_scale_), "a loss scale of %g for an optimizer that has none", double(state.scale));
    streams_.compute.copy(loss_scale_.data(), &state, sizeof state);
    streams_.compute.synchronize();
}

}  // namespace rz
