#!/usr/bin/env python3
"""What ml_dtypes says of FP8, for test/kernels/test_fp8.cpp (needs: pip install ml_dtypes numpy).

For each type: the 256 values as fp32 bits, then FNV-1a (64 bits) of the codes of all 65536 bf16 numbers in order of
their bits, clipped to the largest number first (ml_dtypes does not saturate); NaNs are left out."""
import ml_dtypes
import numpy as np
from make_schedule_golden import fnv1a

bf16 = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
bf16 = bf16[~np.isnan(bf16)]
print(f"// ml_dtypes {ml_dtypes.__version__}, by dev/golden/make_fp8_golden.py")
for name, kind in (("E4m3", ml_dtypes.float8_e4m3fn), ("E5m2", ml_dtypes.float8_e5m2)):
    most = float(ml_dtypes.finfo(kind).max)
    codes = np.clip(bf16, -most, most).astype(kind).view(np.uint8)
    values = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32).view(np.uint32)
    values[np.isnan(values.view(np.float32))] = 0x7fc00000
    print(f"constexpr uint64_t k{name}Hash = 0x{fnv1a(codes.tobytes()):016x}u, "
          f"k{name}ValuesHash = 0x{fnv1a(values.tobytes()):016x}u;")
e8m0 = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32).view(np.uint32)
print(f"constexpr uint64_t kE8m0ValuesHash = 0x{fnv1a(e8m0.tobytes()):016x}u;  // without the NaN, code 255")
