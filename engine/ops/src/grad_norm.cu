// The sum of squares of a flat buffer; see grad_norm.rs.
//
// Memory-bound: 4 bytes read per value. Which thread adds which value, and in which order, depends on the length alone.
#include "kernels.cuh"

constexpr int PIECE = 16 * 1024;
constexpr int N_THREADS = 256;

// Given to thread 0.
__device__ double block_sum(double x) {
    __shared__ double warps[N_THREADS / 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0.0;
    if (threadIdx.x == 0)
        for (double warp : warps) sum += warp;
    return sum;
}

// Grid: a block of N_THREADS a piece. Four running sums a thread, so that the additions don't wait for each other.
extern "C" __global__ void __launch_bounds__(N_THREADS)
    sum_of_squares_pieces(double* pieces, const float* values, long long n, int vectors) {
    const long long start = blockIdx.x * (long long)PIECE;
    double sums[4] = {};
    // The square of a float is exact in double precision: fused or not is the same.
    const auto add = [&](Vec<float> x) {
#pragma unroll
        for (int j = 0; j < 4; j++) sums[j] += (double)x.x[j] * (double)x.x[j];
    };
    if (vectors && start + PIECE <= n) {
#pragma unroll 8
        for (int i = threadIdx.x * 4; i < PIECE; i += N_THREADS * 4) {
            const Vec<float> x = *(const Vec<float>*)(values + start + i);
            add(x);
        }
    } else {
        for (long long i = start + threadIdx.x * 4; i < min(start + PIECE, n); i += N_THREADS * 4) {
            Vec<float> x;
#pragma unroll
            for (int j = 0; j < 4; j++) x.x[j] = i + j < n ? values[i + j] : 0.0f;
            add(x);
        }
    }
    const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (threadIdx.x == 0) pieces[blockIdx.x] = sum;
}

// Grid: one block of N_THREADS.
extern "C" __global__ void __launch_bounds__(N_THREADS)
    sum_of_squares_total(double* total, const double* pieces, long long n_pieces) {
    double sum = 0.0;
    for (long long i = threadIdx.x; i < n_pieces; i += N_THREADS) sum += pieces[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
