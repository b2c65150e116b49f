// Rotary positions in place; see rope.rs for the convention and the reference.
//
// Memory-bound: the rotated heads are read and written once. A thread turns the same columns of up to HEADS heads of a
// row, so it reads their cosines and sines once. Heads whose halves are not in whole vectors go element by element.
#include "packed.cuh"

constexpr int HEADS = 2;

// Grid: x over groups of `rows_per_block` rows. `sign`: 1, or -1 for the inverse.
template <typename T, bool VECTORS>
__device__ void rope_rows(T* dst, long long stride, const unsigned* positions, const float* table,
                          long long table_stride, long long n_positions, long long n, int n_heads, int head_dim,
                          float sign, int rows_per_block) {
    constexpr int N = VECTORS ? Packed<T>::N : 1;
    const int half = head_dim / 2, n_columns = half / N, n_groups = (n_heads + HEADS - 1) / HEADS;
    const int items_per_row = n_columns * n_groups;
    for (int item = threadIdx.x; item < rows_per_block * items_per_row; item += blockDim.x) {
        const long long row = blockIdx.x * (long long)rows_per_block + item / items_per_row;
        if (row >= n) return;
        const int column = item % items_per_row % n_columns * N, group = item % items_per_row / n_columns;
        const unsigned position = positions[row];
        // The host validates positions; one that is wrong all the same must not read past the table.
        if (position >= n_positions) continue;
        T* first = dst + row * stride + (long long)group * head_dim + column;
        const long long head_step = (long long)n_groups * head_dim;
        const float* angle = table + position * table_stride + column;
        if constexpr (VECTORS) {
            Packed<T> a[HEADS], b[HEADS];
#pragma unroll
            for (int k = 0; k < HEADS; k++) {
                if (group + k * n_groups >= n_heads) break;
                a[k] = Packed<T>::load(first + k * head_step);
                b[k] = Packed<T>::load(first + k * head_step + half);
            }
            float cosine[N], sine[N];
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const float4 c = __ldg((const float4*)(angle + i)), s = __ldg((const float4*)(angle + half + i));
                cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
                sine[i] = sign * s.x, sine[i + 1] = sign * s.y, sine[i + 2] = sign * s.z, sine[i + 3] = sign * s.w;
            }
#pragma unroll
            for (int k = 0; k < HEADS; k++) {
                if (group + k * n_groups >= n_heads) break;
                float x[N], y[N];
                a[k].unpack(x);
                b[k].unpack(y);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float turned = x[i] * cosine[i] - y[i] * sine[i];
                    y[i] = y[i] * cosine[i] + x[i] * sine[i];
                    x[i] = turned;
                }
                Packed<T>::pack(x).store(first + k * head_step);
                Packed<T>::pack(y).store(first + k * head_step + half);
            }
        } else {
            const float cosine = angle[0], sine = sign * angle[half];
            for (int k = 0; group + k * n_groups < n_heads; k++) {
                T *a = first + k * head_step, *b = a + half;
                const float x = to_float(*a), y = to_float(*b);
                *a = from_float<T>(x * cosine - y * sine);
                *b = from_float<T>(y * cosine + x * sine);
            }
        }
    }
}

#define ROPE(T)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4)                                                               \
        rope_##T(T* dst, long long stride, const unsigned* positions, const float* table, long long table_stride,      \
                 long long n_positions, long long n, int n_heads, int head_dim, float sign, int rows_per_block,        \
                 int vectors) {                                                                                        \
        if (vectors)                                                                                                   \
            rope_rows<T, true>(dst, stride, positions, table, table_stride, n_positions, n, n_heads, head_dim, sign,   \
                               rows_per_block);                                                                        \
        else                                                                                                           \
            rope_rows<T, false>(dst, stride, positions, table, table_stride, n_positions, n, n_heads, head_dim, sign,  \
                                rows_per_block);                                                                       \
    }

ROPE(f32)
WHERE_BF16(ROPE(bf16))
ROPE(f16)
