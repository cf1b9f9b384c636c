#include "zero/zero.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/adamw.h"
#include "kernels/bias_correction.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"

namespace rz {

ResidentParameters::ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype)
    : units_(units), dtype_(dtype) {
    const int64_t elements = checked_add(units.back().offset, units.back().padded, "parameters");
    params_ = Buffer(device, checked_mul(elements, size_of(dtype), "parameters"), MemKind::parameters, "parameters");
    stream.zero(params_.data(), params_.bytes());
}

// ---- construction ---------------------------------------------------------------------------------------------------

Zero::Zero(Device device, Stream& compute, std::vector<UnitLayout> units, const DecaySegments& decay,
           ZeroOptions options, AdamWOptions adamw, Mesh& mesh, CommMeter* meter)
    : device_(device),
      compute_(compute),
      comm_(&mesh.stream()),
      units_(std::move(units)),
      options_(options),
      adamw_(adamw),
      mesh_(mesh),
      meter_(meter) {
    require(options_.stage >= 0 && options_.stage <= 3, "stage %d: the stages are 0, 1, 2 and 3", options_.stage);
    require(options_.stage > 0 || mesh.shard().size() == mesh.data().size(), "shard_size %d needs stage 1, 2 or 3",
            mesh.shard().size());
    require(
        options_.master_dtype == DType::f32 || options_.master_dtype == options_.param_dtype,
        "master_dtype %s with param_dtype %s: narrow masters are the parameters themselves, so both must be the same\n"
        "  nearest: master_dtype fp32",
        name_of(options_.master_dtype), name_of(options_.param_dtype));
    require(options_.prefetch >= 0, "prefetch %d: it can't be negative", options_.prefetch);
    row_rank_ = slices_state() ? mesh.shard().rank() : mesh.data().rank();
    row_size_ = slices_state() ? mesh.shard().size() : mesh.data().size();
    for (const UnitLayout& u : units_) {
        require(u.offset == total_, "unit %s begins at %lld, expected %lld", u.name.c_str(), (long long)u.offset,
                (long long)total_);
        const ElementRange range = own(int(state_.size()));
        state_.push_back({.slices = u.slice_offsets(row_size_),
                          .across = even_offsets(range.size(), mesh.replicate().size()),
                          .own_at = own_total_});
        total_ = checked_add(total_, u.padded, "parameters");
        own_total_ += range.size();
    }
    allocate(decay);
    index_owned();
    index_block_sums();
    compute_.synchronize();  // host arrays that were copied may go now
}

Zero::~Zero() {
    try {
        comm_->synchronize();
        compute_.synchronize();
    } catch (...) {  // reported by whoever synchronised first
    }
}

ElementRange Zero::own(int unit) const {
    const UnitLayout& u = units_[size_t(unit)];
    return slices_state() ? u.slice(row_rank_, row_size_) : ElementRange{0, u.padded};
}

void Zero::allocate(const DecaySegments& decay) {
    auto take = [&](int64_t elements, int64_t size, MemKind kind, const char* name) {
        Buffer b(device_, checked_mul(elements, size, name), kind, name);
        compute_.zero(b.data(), b.bytes());
        return b;
    };
    const ZeroOptions& o = options_;
    params_ = take(whole_parameters() ? total_ : own_total_, size_of(o.param_dtype), MemKind::parameters, "parameters");
    if (whole_gradients())
        grads_ = take(total_, size_of(o.grad_dtype), MemKind::gradients, "gradients");
    else
        own_grads_ = take(own_total_, size_of(o.grad_dtype), MemKind::gradients, "own gradients");
    if (o.param_dtype != o.master_dtype)
        master_ = take(own_total_, size_of(o.master_dtype), MemKind::optimizer, "master weights");
    m_ = take(own_total_, size_of(o.adam_dtype), MemKind::optimizer, "AdamW m");
    v_ = take(own_total_, size_of(o.adam_dtype), MemKind::optimizer, "AdamW v");

    if (!whole_parameters())
        gathered_ =
            UnitPool(device_, units_, gathered_at_once(), o.param_dtype, MemKind::gathered, "gathered parameters");
    if (!whole_gradients()) {
        unreduced_ =
            UnitPool(device_, units_, o.overlap ? 2 : 1, o.grad_dtype, MemKind::gathered, "unreduced gradients");
        int64_t largest = 0;
        for (int u = 0; u < int(units_.size()); ++u) largest = std::max(largest, own(u).size());
        arrived_ = take(largest, size_of(o.grad_dtype), MemKind::gathered, "reduced slice");
    }

    segments_ = int64_t(decay.end.size());
    require(segments_ > 0 && decay.decays.size() == decay.end.size() &&
                decay.end.back() >= units_.back().logical + units_.back().padded,
            "decay segments do not cover the parameters");
    segment_end_ = Buffer(device_, segments_ * 8, MemKind::optimizer, "decay segments");
    segment_decays_ = Buffer(device_, segments_, MemKind::optimizer, "decay flags");
    scalars_ = take(2, 4, MemKind::workspace, "gradient norm and scale");
    count_ = take(3, 8, MemKind::workspace, "count of updates and bias correction");
    // Nothing may throw between these copies and the wait: `decay` is the caller's.
    compute_.copy(segment_end_.data(), decay.end.data(), segments_ * 8);
    compute_.copy(segment_decays_.data(), decay.decays.data(), segments_);
    compute_.synchronize();
}

void Zero::index_owned() {
    const int64_t pe = size_of(options_.param_dtype), ge = size_of(options_.grad_dtype);
    for (int u = 0; u < int(units_.size()); ++u) {
        const ElementRange range = own(u);
        if (range.size() == 0) continue;
        const UnitLayout& unit = units_[size_t(u)];
        const int64_t local = unit.offset + range.begin, own_at = state_[size_t(u)].own_at;
        void* param = params_.bytes_at((whole_parameters() ? local : own_at) * pe);
        void* grad = whole_gradients() ? grads_.bytes_at(local * ge) : own_grads_.bytes_at(own_at * ge);
        void* master = master_ ? master_.bytes_at(own_at * size_of(options_.master_dtype)) : param;
        const int64_t adam_at = own_at * size_of(options_.adam_dtype);
        owned_.push_back({u, range, local, unit.logical + range.begin, param, master, m_.bytes_at(adam_at),
                          v_.bytes_at(adam_at), grad});
    }
}

// `own` of every stage, one after the other; stage_sums_ says where each begins. The ranks of a row have the same.
std::vector<int64_t> Zero::gather_stages(const std::vector<int64_t>& own) {
    Collectives& pp = mesh_.pp();
    // An int64 travels as two fp32 words: a gather copies bits.
    const auto gather = [&](const std::vector<int64_t>& mine, const std::vector<int64_t>& offsets) {
        std::vector<int64_t> all(size_t(offsets.back() / 2));
        Buffer from(device_, int64_t(mine.size()) * 8, MemKind::workspace, "places of block sums");
        Buffer to(device_, int64_t(all.size()) * 8, MemKind::workspace, "places of block sums");
        comm_->copy(from.data(), mine.data(), from.bytes());
        pp.all_gather(*comm_, {.out = to.data(), .in = from.data(), .offsets = offsets, .dtype = DType::f32});
        comm_->copy(all.data(), to.data(), to.bytes());
        comm_->synchronize();
        return all;
    };
    const std::vector<int64_t> counts = gather({int64_t(own.size())}, even_offsets(2 * pp.size(), pp.size(), 2));
    stage_sums_ = {0};
    for (const int64_t count : counts) stage_sums_.push_back(stage_sums_.back() + 2 * count);
    return gather(own, stage_sums_);
}

// Each rank sums the blocks that it owns; gathered, they stand rank by rank and stage by stage, and block_order_ finds
// them in logical order.
void Zero::index_block_sums() {
    std::vector<int64_t> places;  // logical offset of each block, in the order in which the sums are gathered
    const bool in_rows = slices_state() && row_size_ > 1;
    if (in_rows) row_sums_ = {0};
    for (int r = 0; r < (in_rows ? row_size_ : 1); ++r) {
        for (const UnitLayout& u : units_) {
            const ElementRange slice = in_rows ? u.slice(r, row_size_) : ElementRange{0, u.padded};
            for (int64_t at = slice.begin; at < slice.end; at += u.block) places.push_back(u.logical + at);
        }
        if (in_rows) row_sums_.push_back(2 * int64_t(places.size()));
    }
    if (mesh_.pp().size() > 1) places = gather_stages(places);
    blocks_ = int64_t(places.size());
    block_sums_ = Buffer(device_, blocks_ * 8, MemKind::workspace, "block sums of the gradient norm");
    if (row_sums_.empty() && stage_sums_.empty()) return;
    std::vector<int32_t> order(places.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return places[size_t(a)] < places[size_t(b)]; });
    block_order_ = Buffer(device_, blocks_ * 4, MemKind::workspace, "order of the block sums");
    compute_.copy(block_order_.data(), order.data(), blocks_ * 4);
    compute_.synchronize();
}

// ---- the three verbs ------------------------------------------------------------------------------------------------

void Zero::compute_waits(const Event& event) {
    if (!event.valid()) return;
    if (meter_ && mesh_.data().size() > 1)
        meter_->wait(compute_, event);
    else
        compute_.wait(event);
}

int Zero::gathered_at_once() const { return whole_parameters() ? 0 : 1 + (options_.overlap ? options_.prefetch : 0); }

void Zero::gather(int unit) {
    if (whole_parameters()) return;
    UnitState& s = state_[size_t(unit)];
    void* whole = gathered_.acquire(unit, *comm_);
    comm_->wait(s.own_ready);
    mesh_.shard().all_gather(*comm_, {.out = whole,
                                      .in = params_.bytes_at(s.own_at * size_of(options_.param_dtype)),
                                      .offsets = s.slices,
                                      .dtype = options_.param_dtype});
    s.ready = comm_->record();
}

const void* Zero::parameters(int unit) {
    compute_waits(std::exchange(state_[size_t(unit)].ready, Event()));
    if (whole_parameters()) return params_.bytes_at(units_[size_t(unit)].offset * size_of(options_.param_dtype));
    require(gathered_.holds(unit), "unit %s is read without being gathered", units_[size_t(unit)].name.c_str());
    return gathered_.data(unit);
}

void Zero::release(int unit) {
    if (!whole_parameters()) gathered_.give_back(unit, compute_.record());
}

void* Zero::gradients(int unit) {
    const UnitLayout& u = units_[size_t(unit)];
    const int64_t e = size_of(options_.grad_dtype);
    if (whole_gradients()) return grads_.bytes_at(u.offset * e);
    if (unreduced_.holds(unit)) return unreduced_.data(unit);
    void* whole = unreduced_.acquire(unit, compute_);
    compute_.zero(whole, u.padded * e);
    return whole;
}

void Zero::reduce(int unit, bool last) {
    UnitState& s = state_[size_t(unit)];
    if (whole_gradients() && (!last || mesh_.data().size() == 1)) return;
    comm_->wait(compute_.record());
    void* whole = gradients(unit);
    if (!slices_state()) {
        mesh_.data().all_reduce(*comm_, {.out = whole,
                                         .in = whole,
                                         .offsets = s.slices,
                                         .dtype = options_.grad_dtype,
                                         .wire = options_.wire_dtype});
    } else {
        reduce_slices(unit, whole, last);
    }
    s.reduced = comm_->record();
    if (!whole_gradients()) unreduced_.give_back(unit, s.reduced);
    if (!options_.overlap) compute_waits(s.reduced);
}

void Zero::reduce_slices(int unit, void* whole, bool last) {
    UnitState& s = state_[size_t(unit)];
    const int64_t e = size_of(options_.grad_dtype);
    const ElementRange range = own(unit);
    char* slice = whole_gradients() ? static_cast<char*>(whole) + range.begin * e : own_grads_.bytes_at(s.own_at * e);
    const bool adds = !whole_gradients() && s.slices_begun;
    mesh_.shard().reduce_scatter(*comm_, {.out = adds ? arrived_.data() : slice,
                                          .in = whole,
                                          .offsets = s.slices,
                                          .dtype = options_.grad_dtype,
                                          .wire = options_.wire_dtype,
                                          .out_dtype = options_.grad_dtype});
    if (adds)
        reduce_add(*comm_, {.out = slice,
                            .a = slice,
                            .b = arrived_.data(),
                            .n = range.size(),
                            .out_dtype = options_.grad_dtype,
                            .a_dtype = options_.grad_dtype,
                            .b_dtype = options_.grad_dtype});
    s.slices_begun = true;
    if (last && mesh_.replicate().size() > 1)
        mesh_.replicate().all_reduce(*comm_, {.out = slice,
                                              .in = slice,
                                              .offsets = s.across,
                                              .dtype = options_.grad_dtype,
                                              .wire = options_.wire_dtype});
}

// ---- the update -----------------------------------------------------------------------------------------------------

void Zero::sum_blocks() {
    const auto place = [](const std::vector<int64_t>& offsets, int rank) {
        return offsets.empty() ? 0 : offsets[size_t(rank)] / 2;
    };
    double* stage = block_sums_.as<double>() + place(stage_sums_, mesh_.pp().rank());
    double* own = stage + place(row_sums_, row_rank_);
    double* sums = own;
    for (const OwnedRange& r : owned_) {
        const UnitLayout& u = units_[size_t(r.unit)];
        sum_squares(
            compute_,
            {.partial = sums, .x = r.grad, .n = r.elements.size(), .block = u.block, .dtype = options_.grad_dtype});
        sums += r.elements.size() / u.block;
    }
    if (row_sums_.empty() && stage_sums_.empty()) return;
    comm_->wait(compute_.record());
    // A double travels as two fp32 words: a gather copies bits.
    if (!row_sums_.empty())
        mesh_.shard().all_gather(*comm_, {.out = stage, .in = own, .offsets = row_sums_, .dtype = DType::f32});
    if (!stage_sums_.empty())
        mesh_.pp().all_gather(*comm_,
                              {.out = block_sums_.data(), .in = stage, .offsets = stage_sums_, .dtype = DType::f32});
    compute_waits(comm_->record());
}

void Zero::update_range(const OwnedRange& r, int64_t elements, float learning_rate, int64_t step) {
    adamw(compute_, {.param = r.param,
                     .master = r.master,
                     .m = r.m,
                     .v = r.v,
                     .grad = r.grad,
                     .grad_scale = scalars_.as<float>() + 1,
                     .n = elements,
                     .segment_end = segment_end_.as<int64_t>(),
                     .decays = segment_decays_.as<uint8_t>(),
                     .segments = segments_,
                     .first = r.logical,
                     .lr = learning_rate,
                     .beta1 = adamw_.beta1,
                     .beta2 = adamw_.beta2,
                     .eps = adamw_.eps,
                     .weight_decay = adamw_.weight_decay,
                     .step = step,
                     .correction = count_.as<double>() + 1,
                     .param_dtype = options_.param_dtype,
                     .grad_dtype = options_.grad_dtype,
                     .master_dtype = options_.master_dtype,
                     .adam_dtype = options_.adam_dtype,
                     .seed = options_.rounding_seed});
}

void Zero::update(float learning_rate, int64_t step) {
    require(
        mesh_.tp().size() == 1,
        "an update with %d ranks on the tp axis: what each of them holds whole would count %d times in the gradient "
        "norm",
        mesh_.tp().size(), mesh_.tp().size());
    if (mesh_.data().size() > 1 || !whole_gradients()) compute_waits(comm_->record());
    sum_blocks();
    clip_scale(compute_, {.norm = scalars_.as<float>(),
                          .scale = scalars_.as<float>() + 1,
                          .partial = block_sums_.as<double>(),
                          .order = block_order_.as<int32_t>(),
                          .count = blocks_,
                          .average = 1,
                          .max_norm = adamw_.max_norm});
    bias_correction(compute_, {.updates = count_.as<int64_t>(),
                               .correction = count_.as<double>() + 1,
                               .grad_scale = scalars_.as<float>() + 1,
                               .beta1 = double(adamw_.beta1),
                               .beta2 = double(adamw_.beta2)});
    if (!slices_state())
        update_whole(learning_rate, step);
    else
        update_slices([&](const OwnedRange& r) { update_range(r, r.elements.size(), learning_rate, step); });
    if (whole_gradients()) compute_.zero(grads_.data(), grads_.bytes());
    for (UnitState& s : state_) s.slices_begun = false;
}

// Units that lie side by side, here and in the whole model, take one launch.
void Zero::update_whole(float learning_rate, int64_t step) {
    for (size_t first = 0, next; first < owned_.size(); first = next) {
        int64_t elements = 0;
        for (next = first; next < owned_.size(); ++next) {
            const OwnedRange& r = owned_[next];
            if (r.logical - r.local != owned_[first].logical - owned_[first].local) break;
            elements += r.elements.size();
        }
        update_range(owned_[first], elements, learning_rate, step);
    }
}

void Zero::set_updates(int64_t updates) {
    compute_.copy(count_.data(), &updates, 8);
    compute_.synchronize();
}

// Each unit's parameters set off as soon as they are final, while the next unit's are computed.
void Zero::update_slices(const std::function<void(const OwnedRange&)>& change) {
    auto range = owned_.begin();
    for (int u = 0; u < int(units_.size()); ++u) {
        if (range != owned_.end() && range->unit == u) change(*range++);  // a rank may own nothing of a small unit
        spread_parameters(u);
    }
}

// The own slice of the unit is final on the compute stream: brings it to the other ranks where parameters are kept
// whole.
void Zero::spread_parameters(int unit) {
    if (options_.stage == 0 || (whole_parameters() && row_size_ == 1)) return;
    UnitState& s = state_[size_t(unit)];
    s.own_ready = compute_.record();
    if (!whole_parameters()) return;  // gather() waits
    comm_->wait(std::exchange(s.own_ready, Event()));
    const int64_t e = size_of(options_.param_dtype);
    char* whole = params_.bytes_at(units_[size_t(unit)].offset * e);
    mesh_.shard().all_gather(
        *comm_, {.out = whole, .in = whole + own(unit).begin * e, .offsets = s.slices, .dtype = options_.param_dtype});
    s.ready = comm_->record();
    if (!options_.overlap) compute_waits(std::exchange(s.ready, Event()));
}

void Zero::publish() {
    update_slices([&](const OwnedRange& r) {
        if (master_)
            cast(compute_, {.out = r.param,
                            .x = r.master,
                            .n = r.elements.size(),
                            .out_dtype = options_.param_dtype,
                            .dtype = options_.master_dtype});
    });
}

}  // namespace rz
