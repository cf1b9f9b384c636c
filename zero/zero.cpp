#include "zero/zero.h"

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"

namespace rz {

ResidentParameters::ResidentParameters(Device device, Stream& stream, const std::vector<UnitLayout>& units, DType dtype)
    : units_(units), dtype_(dtype) {
    const int64_t elements = checked_add(units.back().offset, units.back().padded, "parameters");
    params_ = Buffer(device, checked_mul(elements, size_of(dtype), "parameters"), MemKind::parameters, "parameters");
    stream.zero(params_.data(), params_.bytes());
}

Zero::Zero(Device device, Stream& compute, std::vector<UnitLayout> units, const DecaySegments& decay,
           ZeroOptions options, AdamWOptions adamw)
    : device_(device), compute_(compute), units_(std::move(units)), options_(options), adamw_(adamw) {
    require(options_.stage == 0, "--zero %d: one rank has nothing to share; run under mpirun -n N", options_.stage);
    for (const UnitLayout& u : units_) {
        require(u.offset == total_, "unit %s begins at %lld, expected %lld", u.name.c_str(), (long long)u.offset,
                (long long)total_);
        total_ = checked_add(total_, u.padded, "parameters");
    }
    const int64_t pbytes = checked_mul(total_, size_of(options_.param_dtype), "parameters");
    const int64_t gbytes = checked_mul(total_, size_of(options_.grad_dtype), "gradients");
    const int64_t fbytes = checked_mul(total_, 4, "optimizer state");
    const bool separate_master = options_.param_dtype != DType::f32;

    params_ = Buffer(device, pbytes, MemKind::parameters, "parameters");
    grads_ = Buffer(device, gbytes, MemKind::gradients, "gradients");
    if (separate_master) master_ = Buffer(device, fbytes, MemKind::optimizer, "master weights");
    m_ = Buffer(device, fbytes, MemKind::optimizer, "AdamW m");
    v_ = Buffer(device, fbytes, MemKind::optimizer, "AdamW v");
    for (Buffer* b : {&params_, &grads_, &master_, &m_, &v_}) compute_.zero(b->data(), b->bytes());

    segments_ = int64_t(decay.end.size());
    require(segments_ > 0 && decay.decays.size() == decay.end.size() && decay.end.back() >= total_,
            "decay segments do not cover the parameters");
    segment_end_ = Buffer(device, segments_ * 8, MemKind::optimizer, "decay segments");
    segment_decays_ = Buffer(device, segments_, MemKind::optimizer, "decay flags");
    compute_.copy(segment_end_.data(), decay.end.data(), segments_ * 8);
    compute_.copy(segment_decays_.data(), decay.decays.data(), segments_);

    int64_t blocks = 0;
    for (const UnitLayout& u : units_) blocks += u.blocks();
    partial_sums_ = Buffer(device, blocks * 8, MemKind::workspace, "block sums of the gradient norm");
    scalars_ = Buffer(device, 2 * 4, MemKind::workspace, "gradient norm and scale");
    compute_.synchronize();  // the host arrays copied above may go now

    for (int i = 0; i < int(units_.size()); ++i) {
        const UnitLayout& u = units_[i];
        void* param = params_.bytes_at(u.offset * size_of(options_.param_dtype));
        float* master = separate_master ? master_.as<float>() + u.offset : static_cast<float*>(param);
        owned_.push_back({i, {0, u.padded}, u.offset, param, master, m_.as<float>() + u.offset, v_.as<float>() + u.offset});
    }
}

Zero::~Zero() = default;

const void* Zero::gather(int unit) { return params_.bytes_at(units_[unit].offset * size_of(options_.param_dtype)); }
void Zero::release(int) {}
void* Zero::gradients(int unit) { return grads_.bytes_at(units_[unit].offset * size_of(options_.grad_dtype)); }
void Zero::reduce(int) {}

const float* Zero::grad_norm() const { return scalars_.as<float>(); }

void Zero::update(float learning_rate, int64_t step) {
    int64_t block = 0;
    for (const UnitLayout& u : units_) {
        sum_squares(compute_, {.partial = partial_sums_.as<double>() + block,
                               .x = grads_.bytes_at(u.offset * size_of(options_.grad_dtype)),
                               .n = u.padded,
                               .block = u.block,
                               .dtype = options_.grad_dtype});
        block += u.blocks();
    }
    float* norm = scalars_.as<float>();
    float* scale = norm + 1;
    clip_scale(compute_, {.norm = norm,
                          .scale = scale,
                          .partial = partial_sums_.as<double>(),
                          .count = block,
                          .average = 1,
                          .max_norm = adamw_.max_norm});
    adamw(compute_, {.param = params_.data(),
                     .master = master_ ? master_.as<float>() : params_.as<float>(),
                     .m = m_.as<float>(),
                     .v = v_.as<float>(),
                     .grad = grads_.data(),
                     .grad_scale = scale,
                     .n = total_,
                     .segment_end = segment_end_.as<int64_t>(),
                     .decays = segment_decays_.as<uint8_t>(),
                     .segments = segments_,
                     .first = 0,
                     .lr = learning_rate,
                     .beta1 = adamw_.beta1,
                     .beta2 = adamw_.beta2,
                     .eps = adamw_.eps,
                     .weight_decay = adamw_.weight_decay,
                     .step = step,
                     .param_dtype = options_.param_dtype,
                     .grad_dtype = options_.grad_dtype});
    compute_.zero(grads_.data(), grads_.bytes());
}

void Zero::publish() {
    if (!master_) return;
    cast(compute_, {.out = params_.data(),
                    .x = master_.data(),
                    .n = total_,
                    .out_dtype = options_.param_dtype,
                    .dtype = DType::f32});
}

}  // namespace rz
