// 16 bytes of T that stay packed while they wait: as a struct of 16-bit members each would take a register of its own.
#pragma once
#include "kernels.cuh"

template <typename T> struct Packed {
    static constexpr int N = 16 / sizeof(T);
    uint4 words;

    static __device__ __forceinline__ Packed load(const T* p) { return {*(const uint4*)p}; }
    __device__ __forceinline__ void store(T* p) const { *(uint4*)p = words; }
    __device__ __forceinline__ void unpack(float (&x)[N]) const;
    static __device__ __forceinline__ Packed pack(const float (&x)[N]);
};

template <> __device__ __forceinline__ void Packed<f32>::unpack(float (&x)[4]) const {
    x[0] = __uint_as_float(words.x), x[1] = __uint_as_float(words.y);
    x[2] = __uint_as_float(words.z), x[3] = __uint_as_float(words.w);
}

template <> __device__ __forceinline__ Packed<f32> Packed<f32>::pack(const float (&x)[4]) {
    return {make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]))};
}

// bf16 is the upper half of an f32.
template <> __device__ __forceinline__ void Packed<bf16>::unpack(float (&x)[8]) const {
    const unsigned w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(w[i] << 16);
        x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

template <> __device__ __forceinline__ void Packed<f16>::unpack(float (&x)[8]) const {
    const unsigned w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __half2float(__ushort_as_half((unsigned short)w[i]));
        x[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(w[i] >> 16)));
    }
}

// Two values rounded and packed, by one instruction.
__device__ __forceinline__ unsigned pack_pair(float low, float high, bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned*)&pair;
}

__device__ __forceinline__ unsigned pack_pair(float low, float high, f16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const unsigned*)&pair;
}

template <typename T> __device__ __forceinline__ Packed<T> Packed<T>::pack(const float (&x)[N]) {
    return {make_uint4(pack_pair(x[0], x[1], T{}), pack_pair(x[2], x[3], T{}), pack_pair(x[4], x[5], T{}),
                       pack_pair(x[6], x[7], T{}))};
}
