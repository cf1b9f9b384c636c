#include "test/simt/layouts/operands.h"

#include "kernels/attention/attention_wgmma.cuh"

// Nothing here is dereferenced: pointers are shared addresses.
uint32_t simt::shared_address(const void* p) { return uint32_t(reinterpret_cast<uintptr_t>(p)); }

template <int kColumns>
static uint64_t of_panels(Operand operand, const unsigned char* tile, int rows) {
    using P = rz::Panels<kColumns, kColumns>;
    return operand == Operand::rows ? rz::operand_rows<P>(tile) : rz::operand_summed<P>(tile, rows);
}

uint64_t descriptor_of_tile(Operand operand, int columns, uint32_t shared_address, int rows) {
    const auto* tile = reinterpret_cast<const unsigned char*>(uintptr_t(shared_address));
    return columns == 64   ? of_panels<64>(operand, tile, rows)
           : columns == 32 ? of_panels<32>(operand, tile, rows)
                           : of_panels<16>(operand, tile, rows);
}
