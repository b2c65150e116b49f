// Rows picked by index; see rows.rs.
//
// Copies, so the kernels know no element types but units of 16, 4 or 2 bytes, the largest that rows are made of. The
// threads of a block form `1 << log2_columns` columns and as many rows as are left; each moves one unit in ROWS rows,
// all reads ahead of the writes. The host validates indices; one that is wrong all the same writes nothing.
#include "kernels.cuh"

constexpr int ROWS = 4;

// Grid: x over groups of columns, then of rows. Strides and widths are in units; an index is below `n_indexed`.
template <typename Unit, bool SCATTER>
__device__ __forceinline__ void move_rows(Unit* dst, long long dst_stride, const Unit* src, long long src_stride,
                                          const unsigned* index, long long n_indexed, long long n, long long n_units,
                                          int log2_columns) {
    const unsigned n_groups = (n_units + (1 << log2_columns) - 1) >> log2_columns;
    const unsigned n_block_rows = blockDim.x >> log2_columns;
    const unsigned group = blockIdx.x % n_groups, thread_column = threadIdx.x & ((1 << log2_columns) - 1);
    const long long column = ((long long)group << log2_columns) + thread_column;
    const long long first = blockIdx.x / n_groups * (long long)(n_block_rows * ROWS) + (threadIdx.x >> log2_columns);
    if (column >= n_units) return;
    Unit moved[ROWS];
    long long to[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const long long row = first + k * n_block_rows;
        to[k] = -1;
        if (row >= n) continue;
        const unsigned indexed = index[row];
        if (indexed >= n_indexed) continue;
        moved[k] = src[(SCATTER ? row : indexed) * src_stride + column];
        to[k] = SCATTER ? indexed : row;
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        if (to[k] >= 0) dst[to[k] * dst_stride + column] = moved[k];
    }
}

#define MOVE(name, Unit, SCATTER)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        name(Unit* dst, long long dst_stride, const Unit* src, long long src_stride, const unsigned* index,            \
             long long n_indexed, long long n, long long n_units, int log2_columns) {                                  \
        move_rows<Unit, SCATTER>(dst, dst_stride, src, src_stride, index, n_indexed, n, n_units, log2_columns);        \
    }

MOVE(gather_16, uint4, false)
MOVE(gather_4, unsigned, false)
MOVE(gather_2, unsigned short, false)
MOVE(scatter_16, uint4, true)
MOVE(scatter_4, unsigned, true)
MOVE(scatter_2, unsigned short, true)
