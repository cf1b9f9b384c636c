// Which file knows an instruction
#include "test/ptx/ops.h"

namespace ptx {

Step bind(Inst& i) {
    if (i.part[0] == "bra" || i.part[0] == "ret" || i.part[0] == "exit") return {};  // the machine's own
    for (Step (*file)(const Inst&) : {bind_move, bind_memory, bind_arithmetic, bind_warp, bind_tensor, bind_hopper})
        if (Step s = file(i)) return s;
    return {};
}

}  // namespace ptx
