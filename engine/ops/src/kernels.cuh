// What the kernels share: conversions, vectors of 16 bytes, sums over a block in a fixed order.
//
// Conventions: matrices are row-major with a row stride in elements (`long long`, may exceed the width); arithmetic is in
// f32 whatever the storage; no float atomics, so results are the same bits on every run.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using f32 = float;
using bf16 = __nv_bfloat16;
using f16 = __half;

// Tensor cores take bf16 from compute capability 8.0 on. Below there are no kernels for it, and cuda.rs says so.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define WHERE_BF16(...)
#else
#define WHERE_BF16(...) __VA_ARGS__
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }

// 16 bytes of T: what one memory instruction of a thread moves.
template <typename T> struct alignas(16) Vec {
    static constexpr int N = 16 / sizeof(T);
    T x[N];
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset));
    return x;
}

__device__ __forceinline__ unsigned warp_max(unsigned x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, offset));
    return x;
#else
    return __reduce_max_sync(0xffffffff, x);
#endif
}

// Sum over a block of up to 1024 threads (a multiple of 32), given to every thread. `scratch` holds 33 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < n_warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}
