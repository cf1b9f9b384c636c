#include "zero/offload.h"

#include <omp.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/runtime/context.h"

namespace rz {

static void* plus(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

// ---- tiles ----------------------------------------------------------------------------------------------------------

StateTiles::StateTiles(ZeroStreams streams, const ZeroOptions& o, int64_t largest)
    : streams_(streams),
      options_(o),
      own_masters_(o.master_dtype == o.param_dtype),
      elements_(std::min(o.offload_tile, largest)),
      from_host_(streams.device, kFromHostStream),
      to_host_(streams.device, kToHostStream) {
    require(o.offload_tile > 0 && o.offload_tile % 256 == 0, "tiles of %lld elements: they are a multiple of 256",
            (long long)o.offload_tile);
    int64_t bytes = 0;
    const auto add = [&](void* OwnedRange::*where, DType dtype, bool written) {
        arrays_.push_back({where, size_of(dtype), bytes, written});
        bytes += round_up(checked_mul(elements_, size_of(dtype), "optimizer tile"), int64_t(256));
    };
    if (!own_masters_) add(&OwnedRange::master, o.master_dtype, true);
    if (o.ema > 0) add(&OwnedRange::ema, DType::f32, true);
    add(&OwnedRange::m, o.adam_dtype, true);
    add(&OwnedRange::v, o.adam_dtype, true);
    if (o.offload_params) add(&OwnedRange::param, o.param_dtype, true);
    if (o.offload_grads) add(&OwnedRange::grad, o.grad_dtype, false);
    for (Tile& tile : tiles_) tile.memory = Buffer(streams.device, bytes, MemKind::optimizer, "optimizer tile");
}

StateTiles::~StateTiles() {
    for (Stream* s : {&from_host_, &to_host_}) drain(*s);
    streams_.drain();
}

void StateTiles::begin() { from_host_.wait(streams_.compute.record()); }

Event StateTiles::update(const OwnedRange& range, int64_t elements,
                         const std::function<void(const OwnedRange&, int64_t)>& change) {
    for (int64_t first = 0; first < elements; first += elements_) {
        const int64_t n = std::min(elements_, elements - first);
        Tile& tile = tiles_[turn_++ % tiles_.size()];
        OwnedRange piece = part_of(range, first, n, options_);
        from_host_.wait(tile.gone);
        for (const Array& a : arrays_) {
            if (!(range.*a.where)) continue;
            piece.*a.where = tile.memory.bytes_at(a.at);
            from_host_.copy(piece.*a.where, plus(range.*a.where, first * a.element), n * a.element);
        }
        if (own_masters_) piece.master = piece.param;
        streams_.compute.wait(from_host_.record());
        change(piece, n);
        to_host_.wait(streams_.compute.record());
        for (const Array& a : arrays_)
            if (a.written && range.*a.where)
                to_host_.copy(plus(range.*a.where, first * a.element), piece.*a.where, n * a.element);
        tile.gone = to_host_.record();
    }
    return to_host_.record();
}

void StateTiles::end() { streams_.compute.wait(to_host_.record()); }

// ---- the CPU's AdamW ------------------------------------------------------------------------------------------------

// Whose thread computes: of a GPU's host, and of a planned device itself, whose clock it moves.
static Device host_of(Device device) {
    return device.is_planned() ? device : Device{DeviceKind::cpu, 0, device.context};
}

HostAdamW::HostAdamW(ZeroStreams streams, const ZeroOptions& o, const DecaySegments& decay, int64_t elements)
    : streams_(streams),
      options_(o),
      segment_end_(decay.end),
      segment_decays_(decay.decays),
      host_(host_of(streams.device), kHostComputeStream),
      from_host_(streams.device, kFromHostStream),
      to_host_(streams.device, kToHostStream) {
    if (!o.offload_grads)
        gradients_ = streams.take_pinned(elements, o.grad_dtype, MemKind::gradients, "gradients on the host");
    if (!o.offload_params)
        parameters_ = streams.take_pinned(elements, o.param_dtype, MemKind::parameters, "parameters on the host");
    numbers_ = Buffer::host_for(streams.device, 24, MemKind::workspace, "scale and bias correction on the host");
    if (o.host_threads > 0) host_.enqueue_host([n = o.host_threads] { omp_set_num_threads(n); });
}

HostAdamW::~HostAdamW() {
    for (Stream* s : {&to_host_, &host_, &from_host_}) drain(*s);
    streams_.drain();
}

void HostAdamW::fetch_gradient(const OwnedRange& r, const Event& ready) {
    to_host_.wait(ready);
    if (gradients_) {
        const int64_t e = size_of(options_.grad_dtype);
        to_host_.copy(gradients_.bytes_at(r.second * e), r.grad, r.elements.size() * e);
    }
    fetched_ = to_host_.record();
}

void HostAdamW::fetch_parameters(const OwnedRange& r) {
    if (!parameters_) return;
    const int64_t e = size_of(options_.param_dtype);
    streams_.compute.copy(parameters_.bytes_at(r.second * e), r.param, r.elements.size() * e);
}

void HostAdamW::begin(const float* scale, const double* correction) {
    Stream& compute = streams_.compute;
    compute.copy(numbers_.data(), correction, 16);
    compute.copy(numbers_.bytes_at(16), scale, 4);
    // The caller waits, not a host function of a stream: CUDA may run those one after the other, and one that waits for
    // the CPU's AdamW would stand before another that a save needs.
    compute.record().synchronize();
    fetched_.synchronize();
}

Event HostAdamW::update(const OwnedRange& r, int64_t elements, AdamW a) {
    const int64_t e = size_of(options_.param_dtype);
    a.param = parameters_ ? parameters_.bytes_at(r.second * e) : r.param;
    a.master = r.master == r.param ? a.param : r.master;
    a.m = r.m, a.v = r.v;
    a.grad = gradients_ ? gradients_.bytes_at(r.second * size_of(options_.grad_dtype)) : r.grad;
    a.grad_scale = reinterpret_cast<const float*>(numbers_.bytes_at(16));
    a.correction = numbers_.as<double>();
    a.n = elements;
    a.segment_end = segment_end_.data();
    a.decays = segment_decays_.data();
    a.segments = int64_t(segment_end_.size());
    a.first = r.global_offset;
    adamw(host_, a);
    if (r.ema)
        ema(host_, {.average = static_cast<float*>(r.ema),
                    .x = static_cast<const float*>(a.master),
                    .grad_scale = a.grad_scale,
                    .n = elements,
                    .weight = options_.ema_weight()});
    host_.synchronize();
    if (!parameters_) return {};
    from_host_.copy(r.param, a.param, elements * e);
    return from_host_.record();
}

void HostAdamW::end() {
    for (Stream* s : {&to_host_, &from_host_}) streams_.compute.wait(s->record());
}

}  // namespace rz
