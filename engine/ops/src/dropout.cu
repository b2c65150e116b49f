// Dropout and its gradient; see dropout.rs for the mask and the reference.
//
// Memory-bound: x is read, dst written (or updated). A Philox counter gives the factors of four elements side by side,
// so a thread takes whole counters: those of vectors of 16 bytes, or one where rows are not in whole vectors.
#include "packed.cuh"

// Philox4x32-10, as dropout.rs has it.
__device__ __forceinline__ uint4 philox4x32(unsigned long long key, unsigned long long counter) {
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
    uint4 c = make_uint4((unsigned)counter, (unsigned)(counter >> 32), 0, 0);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long p0 = 0xD2511F53ull * c.x, p1 = 0xCD9E8D57ull * c.z;
        c = make_uint4((unsigned)(p1 >> 32) ^ c.y ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ c.w ^ k1, (unsigned)p0);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return c;
}

struct Mask {
    unsigned long long seed;
    unsigned threshold;
    float scale;

    // Factors of the four elements of a counter.
    __device__ __forceinline__ void factors(float* factor, unsigned long long counter) const {
        const uint4 words = philox4x32(seed, counter);
        factor[0] = words.x >= threshold ? scale : 0.0f;
        factor[1] = words.y >= threshold ? scale : 0.0f;
        factor[2] = words.z >= threshold ? scale : 0.0f;
        factor[3] = words.w >= threshold ? scale : 0.0f;
    }
};

// Product and sum are rounded apart, as in the reference: f32 results are the same bits.
template <bool ADD> __device__ __forceinline__ float apply(float old, float factor, float x) {
    const float product = __fmul_rn(factor, x);
    return ADD ? __fadd_rn(old, product) : product;
}

// Grid: x over columns, y over rows (strided, since y is limited to 65,535). A thread takes VECTORS vectors of a row,
// so that the round keys serve more than one; with none, the elements of a counter.
template <typename T, int VECTORS, bool ADD>
__device__ void dropout_rows(T* dst, long long dst_stride, const T* x, long long stride, long long n, long long k,
                             long long first_row, Mask mask) {
    constexpr int N = VECTORS ? Packed<T>::N : 4;
    const long long column = (blockIdx.x * (long long)(blockDim.x * max(VECTORS, 1)) + threadIdx.x) * N;
    const long long step = blockDim.x * N, n_counters = (k + 3) / 4;
    for (long long row = blockIdx.y; row < n; row += gridDim.y) {
        const T* in = x + row * stride + column;
        T* out = dst + row * dst_stride + column;
        const unsigned long long counter = (first_row + row) * n_counters + column / 4;
        float factor[N];
        if constexpr (VECTORS > 0) {
            Packed<T> read[VECTORS], old[VECTORS];
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                if (column + j * step >= k) break;
                read[j] = Packed<T>::load(in + j * step);
                if (ADD) old[j] = Packed<T>::load(out + j * step);
            }
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                if (column + j * step >= k) break;
#pragma unroll
                for (int i = 0; i < N; i += 4) mask.factors(factor + i, counter + (j * step + i) / 4);
                float v[N], sum[N];
                read[j].unpack(v);
                if (ADD) old[j].unpack(sum);
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = apply<ADD>(ADD ? sum[i] : 0.0f, factor[i], v[i]);
                Packed<T>::pack(sum).store(out + j * step);
            }
        } else if (column < k) {
            mask.factors(factor, counter);
            for (int i = 0; i < N && column + i < k; i++) {
                out[i] = from_float<T>(apply<ADD>(ADD ? to_float(out[i]) : 0.0f, factor[i], to_float(in[i])));
            }
        }
    }
}

#define DROPOUT(name, T, ADD)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        name##_##T(T* dst, long long dst_stride, const T* x, long long stride, long long n, long long k,               \
                   long long first_row, unsigned long long seed, unsigned threshold, float scale, int vectors) {       \
        const Mask mask{seed, threshold, scale};                                                                       \
        if (vectors) dropout_rows<T, 2, ADD>(dst, dst_stride, x, stride, n, k, first_row, mask);                       \
        else dropout_rows<T, 0, ADD>(dst, dst_stride, x, stride, n, k, first_row, mask);                               \
    }

DROPOUT(dropout, f32, false)
WHERE_BF16(DROPOUT(dropout, bf16, false))
DROPOUT(dropout, f16, false)
DROPOUT(dropout_backward, f32, true)
WHERE_BF16(DROPOUT(dropout_backward, bf16, true))
DROPOUT(dropout_backward, f16, true)
