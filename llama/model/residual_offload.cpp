#include "llama/model/residual_offload.h"

#include "kernels/runtime/host_streams.h"

namespace rz {

ResidualOffload::ResidualOffload(Device device, Stream& compute, int64_t bytes, int64_t blocks, int64_t slots)
    : compute_(compute),
      bytes_(bytes),
      blocks_(blocks),
      from_host_(device, kFromHostStream),
      to_host_(device, kToHostStream) {
    if (blocks < 2) return;
    for (StagedBlock& p : places_) p.memory = Buffer(device, bytes, MemKind::activations, "residual of a block");
    const int64_t all = checked_mul(checked_mul(bytes, blocks - 1, "residuals"), slots, "residuals");
    host_ = Buffer::host_for(device, all, MemKind::activations, "residuals on the host");
}

ResidualOffload::~ResidualOffload() {
    for (Stream* s : {&from_host_, &to_host_, &compute_}) drain(*s);
}

void ResidualOffload::before_forward(int64_t slot, int64_t block) {
    StagedBlock& p = of(block);
    compute_.wait(p.gone);
    compute_.wait(p.here);
    p.slot = slot, p.block = block;
}

void ResidualOffload::after_forward(int64_t slot, int64_t block) {
    to_host_.wait(compute_.record());
    to_host_.copy(at_home(slot, block), place(block), bytes_);
    of(block).gone = to_host_.record();
}

void ResidualOffload::fetch(int64_t slot, int64_t block) {
    StagedBlock& p = of(block);
    if (p.slot == slot && p.block == block) return;
    from_host_.wait(compute_.record());  // who had the place
    from_host_.wait(to_host_.record());  // and that it is on the host at all
    from_host_.copy(p.memory.data(), at_home(slot, block), bytes_);
    p.here = from_host_.record();
    p.slot = slot, p.block = block;
}

void ResidualOffload::before_backward(int64_t slot, int64_t block) {
    fetch(slot, block);
    compute_.wait(of(block).here);
    if (covers(block - 1)) fetch(slot, block - 1);
}

}  // namespace rz
