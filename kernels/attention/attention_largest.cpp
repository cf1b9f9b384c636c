#include "kernels/attention/attention_largest.h"

#include "kernels/checks.h"

namespace rz {

// Its other operands are those of attention_forward().
void attention_largest(Stream& stream, const AttentionLargest& a) {
    const char* op = "attention_largest";
    const AttentionShape& s = a.forward.shape;
    check_sizes(op, {{"B", s.B, 0}, {"Tq", s.Tq, 0}});
    require(!stream.device().is_cuda(), "%s: only a CPU's attention tells its largest logits", op);
    if (s.B == 0 || s.Tq == 0) return;
    check_pointers(op, {{"o", a.forward.o, size_of(s.dtype)}, {"lse", a.forward.lse}, {"largest", a.largest}});
    stream.run(a, attention_largest_cpu, nullptr);
}

}  // namespace rz
