// The descriptors that the attention kernels make of a tile at a 32-bit shared address, for the check against CuTe.
#pragma once

#include <cstdint>

enum class Operand { rows, summed };  // what operand_rows() and operand_summed() of attention_wgmma.cuh describe

// columns: of a panel (64, 32 or 16). rows: of the tile; used by `summed` only.
uint64_t descriptor_of_tile(Operand operand, int columns, uint32_t shared_address, int rows);
