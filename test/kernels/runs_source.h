#pragma once

// In test/ptx, which runs what nvcc has made of the kernels in place of the emulator
extern "C" int kernels_are_ptx() __attribute__((weak));

namespace rz::test {

// Cases for loops that nvcc unrolls: in the emulator, which runs the source, they would show nothing new.
inline bool runs_source() {
#ifdef SIMT_EMU
    return !kernels_are_ptx;
#else
    return false;
#endif
}

}  // namespace rz::test
