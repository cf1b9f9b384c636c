// cuTensorMapEncodeTiled, reached as on a real device through cudaGetDriverEntryPointByVersion. Included by
// fake_cudart.cpp, within extern "C".
#pragma once
}

#include <cuda.h>

#include "test/simt/tensor_map.h"

extern "C" {

// The checks are the driver's documented ones.
static CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                             const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                             const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    uint8_t element = 0;
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            element = 1;
            break;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            element = 2;
            break;
        case CU_TENSOR_MAP_DATA_TYPE_UINT32:
        case CU_TENSOR_MAP_DATA_TYPE_INT32:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
            element = 4;
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (rank < 1 || rank > 5 || uintptr_t(map) % 64 || uintptr_t(base) % 16) return CUDA_ERROR_INVALID_VALUE;
    const uint32_t span = swizzle ? 16u << swizzle : UINT32_MAX;  // the inner box must fit the swizzle
    if (box[0] * element % 16 || box[0] * element > span) return CUDA_ERROR_INVALID_VALUE;
    simt::TensorMap m{};
    m.magic = simt::TensorMap::kMagic;
    m.rank = uint16_t(rank), m.element = element, m.swizzle = uint8_t(swizzle), m.base = static_cast<char*>(base);
    for (cuuint32_t d = 0; d < rank; d++) {
        if (!dim[d] || dim[d] > UINT32_MAX || !box[d] || box[d] > 256 || element_strides[d] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (d && (strides[d - 1] % 16 || strides[d - 1] >= (cuuint64_t(1) << 40))) return CUDA_ERROR_INVALID_VALUE;
        m.dim[d] = uint32_t(dim[d]), m.box[d] = uint16_t(box[d]), m.stride[d] = d ? strides[d - 1] : element;
    }
    memset(static_cast<void*>(map), 0, sizeof *map);
    memcpy(static_cast<void*>(map), &m, sizeof m);
    return CUDA_SUCCESS;
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** fn, unsigned, unsigned long long,
                                                       cudaDriverEntryPointQueryResult* result) {
    const bool known = !strcmp(symbol, "cuTensorMapEncodeTiled");
    *fn = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
    if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return known ? cudaSuccess : report(cudaErrorNotSupported);
}
