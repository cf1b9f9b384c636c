#pragma once
// Small ops over flat ranges: conversion, the ring's reduce-add, the direct sum, the moving average of weights, and
// random initial weights.

#include "kernels/runtime/device.h"

namespace rz {

// out[i] = x[i], converted (through fp32). out may be x itself if the types are the same size.
struct Cast {
    void* out;      // (n) out_dtype   =
    const void* x;  // (n) dtype
    int64_t n;
    DType out_dtype, dtype;
};

// out[i] = (a[i] + b[i]) * scale in fp32, rounded once to out_dtype. out may alias a or b. One hop of a ring reduction.
struct ReduceAdd {
    void* out;
    const void* a;
    const void* b;
    int64_t n;
    float scale = 1;
    DType out_dtype, a_dtype, b_dtype;
};

// out[i] = scale * (x[0][i] + x[1][i] + ... in ascending row order), fp32, rounded once. The reduction of `direct`.
struct SumRows {
    void* out;      // (n) out_dtype   =   may be one of the rows' memory
    const void* x;  // (rows, n) dtype, row stride in elements
    int64_t rows, n, stride;
    float scale = 1;
    DType out_dtype, dtype;
};

// average[i] = fmaf(weight, x[i] - average[i], average[i]): a moving average that keeps 1 - weight of itself, rounded
// as torch's get_ema_multi_avg_fn(1 - weight) rounds it where weight < 0.5. Nothing is written if *grad_scale is not
// finite, as by adamw. Both backends give the same bits.
struct Ema {
    float* average;           // (n)   in place
    const float* x;           // (n)
    const float* grad_scale;  // (1)
    int64_t n;
    float weight;
    bool on_host = false;  // a GPU's average is in its host's memory: plans cost that
};

// x[i] = mean + std * z(first + i), z standard normal: Philox4x32-10 (Salmon et al. 2011) counted by logical index and
// keyed by (seed, stream), Box-Muller; kernels/philox.h has the exact recipe, and both backends give the same bits. x =
// fmaf(std, z, mean). Any cut of a tensor gives the same numbers. f32 and rounded copies are filled together.
struct RandomNormal {
    void* x;               // (n) dtype   =
    float* x32 = nullptr;  // (n) f32     =   the value before rounding; optional
    int64_t n;
    int64_t first = 0;
    uint64_t seed, stream;
    float mean = 0, std;
    DType dtype;
};

void cast(Stream&, const Cast&);
void reduce_add(Stream&, const ReduceAdd&);
void sum_rows(Stream&, const SumRows&);
void ema(Stream&, const Ema&);
void random_normal(Stream&, const RandomNormal&);

void cast_cpu(const Cast&);
void reduce_add_cpu(const ReduceAdd&);
void sum_rows_cpu(const SumRows&);
void ema_cpu(const Ema&);
void random_normal_cpu(const RandomNormal&);
void cast_cuda(const Cast&, CudaStream);
void reduce_add_cuda(const ReduceAdd&, CudaStream);
void sum_rows_cuda(const SumRows&, CudaStream);
void ema_cuda(const Ema&, CudaStream);
void random_normal_cuda(const RandomNormal&, CudaStream);

}  // namespace rz
