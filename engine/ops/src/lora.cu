// Placement of adapters in padded weights, and copies of activations; see lora.rs.
//
// A copy, at most with rounding from f32 to 16 bits. The threads of a block form `1 << log2_columns` columns and as
// many rows as are left; each moves 16 bytes of the destination in ROWS rows, all reads ahead of the writes. Rows that
// are not in whole vectors go element by element.
#include "kernels.cuh"

constexpr int ROWS = 4;

template <typename D, typename S> struct Convert {
    static __device__ __forceinline__ D of(S x) { return from_float<D>(to_float(x)); }
};
// One type is copied as it is, the bits of a NaN too.
template <typename T> struct Convert<T, T> {
    static __device__ __forceinline__ T of(T x) { return x; }
};

template <typename S, int N> struct alignas(N * sizeof(S) < 16 ? N * sizeof(S) : 16) Pack {
    S x[N];
};

// Grid: x over groups of columns, then of rows.
template <typename D, typename S, int N>
__device__ __forceinline__ void place_rows(D* dst, long long dst_stride, const S* src, long long src_stride,
                                           long long n, long long n_columns, int log2_columns) {
    const unsigned n_groups = (n_columns / N + (1 << log2_columns) - 1) >> log2_columns;
    const unsigned group = blockIdx.x % n_groups, thread_column = threadIdx.x & ((1 << log2_columns) - 1);
    const unsigned n_block_rows = blockDim.x >> log2_columns;
    const long long column = (((long long)group << log2_columns) + thread_column) * N;
    const long long first = blockIdx.x / n_groups * (long long)(n_block_rows * ROWS) + (threadIdx.x >> log2_columns);
    if (column >= n_columns) return;
    Pack<S, N> read[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const long long row = first + k * n_block_rows;
        if (row < n) read[k] = *(const Pack<S, N>*)(src + row * src_stride + column);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const long long row = first + k * n_block_rows;
        if (row >= n) break;
        Pack<D, N> write;
#pragma unroll
        for (int i = 0; i < N; i++) write.x[i] = Convert<D, S>::of(read[k].x[i]);
        *(Pack<D, N>*)(dst + row * dst_stride + column) = write;
    }
}

#define PLACE(D, S)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        place_##D##_##S(D* dst, long long dst_stride, const S* src, long long src_stride, long long n,                 \
                        long long n_columns, int log2_columns, int vectors) {                                          \
        if (vectors) place_rows<D, S, Vec<D>::N>(dst, dst_stride, src, src_stride, n, n_columns, log2_columns);        \
        else place_rows<D, S, 1>(dst, dst_stride, src, src_stride, n, n_columns, log2_columns);                        \
    }

PLACE(f32, f32)
WHERE_BF16(PLACE(bf16, bf16))
PLACE(f16, f16)
WHERE_BF16(PLACE(bf16, f32))
PLACE(f16, f32)
