// RMSNorm forward and backward; see rms_norm.rs for the formulas and the reference.
//
// Memory-bound: forward reads x and writes y, backward reads dy and x and writes or updates dst. One block per row, and
// a row is read once: its threads keep it in registers between the sum and the result. Rows too long for that (more
// than 16,384 elements of 16 bits or 8,192 of f32), or not in whole vectors, are read twice, the second time from the cache.
#include "packed.cuh"

// Vectors of a row that a thread keeps.
constexpr int KEPT = 2;

// Sums of several values over the block, given to every thread. One barrier, so at most one call in a kernel.
template <int N> __device__ __forceinline__ void block_sums(float (&x)[N]) {
    __shared__ float partial[N][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = warp_sum(x[i]);
        if (lane == 0) partial[i][warp] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0.0f;
    for (int w = 0; w < n_warps; w++) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += partial[i][w];
    }
}

__device__ __forceinline__ float inverse_rms(float sum_of_squares, long long h, float eps) {
    return 1.0f / sqrtf(sum_of_squares / (float)h + eps);
}

template <int N> __device__ __forceinline__ void load_weight(float (&w)[N], const float* weight) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 part = __ldg((const float4*)(weight + i));
        w[i] = part.x, w[i + 1] = part.y, w[i + 2] = part.z, w[i + 3] = part.w;
    }
}

template <typename T>
__device__ void forward_kept(T* dst, const T* x, const float* weight, long long h, float eps) {
    constexpr int N = Packed<T>::N;
    Packed<T> kept[KEPT];
    float sums[1] = {0.0f};
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column < h) kept[k] = Packed<T>::load(x + column);
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column >= h) continue;
        float row[N];
        kept[k].unpack(row);
#pragma unroll
        for (int i = 0; i < N; i++) sums[0] += row[i] * row[i];
    }
    block_sums(sums);
    const float r = inverse_rms(sums[0], h, eps);
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column >= h) continue;
        float row[N], w[N];
        kept[k].unpack(row);
        load_weight(w, weight + column);
#pragma unroll
        for (int i = 0; i < N; i++) row[i] *= r * w[i];
        Packed<T>::pack(row).store(dst + column);
    }
}

template <typename T>
__device__ void forward_reread(T* __restrict__ dst, const T* __restrict__ x, const float* __restrict__ weight,
                               long long h, float eps) {
    float sums[1] = {0.0f};
#pragma unroll 8
    for (long long i = threadIdx.x; i < h; i += blockDim.x) sums[0] += to_float(x[i]) * to_float(x[i]);
    block_sums(sums);
    const float r = inverse_rms(sums[0], h, eps);
#pragma unroll 8
    for (long long i = threadIdx.x; i < h; i += blockDim.x) dst[i] = from_float<T>(to_float(x[i]) * r * weight[i]);
}

template <typename T>
__device__ void backward_kept(T* dst, const T* dy, const T* x, const float* weight, long long h, float eps, bool add) {
    constexpr int N = Packed<T>::N;
    Packed<T> kept_x[KEPT], kept_dy[KEPT], old[KEPT];
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column >= h) continue;
        kept_x[k] = Packed<T>::load(x + column);
        kept_dy[k] = Packed<T>::load(dy + column);
        // Asked for before the sums, so that it is here after them.
        if (add) old[k] = Packed<T>::load(dst + column);
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column >= h) continue;
        float row[N], d[N], w[N];
        kept_x[k].unpack(row);
        kept_dy[k].unpack(d);
        load_weight(w, weight + column);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[0] += row[i] * row[i];
            sums[1] += row[i] * d[i] * w[i];
        }
    }
    block_sums(sums);
    const float r = inverse_rms(sums[0], h, eps), c = r * r * sums[1] / (float)h;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const long long column = (k * blockDim.x + threadIdx.x) * N;
        if (column >= h) continue;
        float row[N], d[N], w[N], sum[N] = {};
        kept_x[k].unpack(row);
        kept_dy[k].unpack(d);
        if (add) old[k].unpack(sum);
        load_weight(w, weight + column);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += r * (d[i] * w[i] - row[i] * c);
        Packed<T>::pack(sum).store(dst + column);
    }
}

template <typename T>
__device__ void backward_reread(T* __restrict__ dst, const T* __restrict__ dy, const T* __restrict__ x,
                                const float* __restrict__ weight, long long h, float eps, bool add) {
    float sums[2] = {0.0f, 0.0f};
#pragma unroll 8
    for (long long i = threadIdx.x; i < h; i += blockDim.x) {
        const float xi = to_float(x[i]);
        sums[0] += xi * xi;
        sums[1] += xi * to_float(dy[i]) * weight[i];
    }
    block_sums(sums);
    const float r = inverse_rms(sums[0], h, eps), c = r * r * sums[1] / (float)h;
#pragma unroll 8
    for (long long i = threadIdx.x; i < h; i += blockDim.x) {
        const float dx = r * (to_float(dy[i]) * weight[i] - to_float(x[i]) * c);
        dst[i] = from_float<T>(add ? to_float(dst[i]) + dx : dx);
    }
}

// Grid: a block per row. `kept`: the block's threads have registers for the whole row, and rows and weight are in whole
// vectors. 48 registers leave room for five blocks of 256 threads on a multiprocessor: some read, others sum.
#define RMS_NORM(T)                                                                                                    \
    extern "C" __global__ void __maxnreg__(48)                                                                         \
        rms_norm_##T(T* dst, long long dst_stride, const T* x, long long x_stride, const float* weight, long long h,   \
                     float eps, int kept) {                                                                            \
        const long long row = blockIdx.x;                                                                              \
        if (kept) forward_kept<T>(dst + row * dst_stride, x + row * x_stride, weight, h, eps);                         \
        else forward_reread<T>(dst + row * dst_stride, x + row * x_stride, weight, h, eps);                            \
    }                                                                                                                  \
    extern "C" __global__ void __maxnreg__(48)                                                                         \
        rms_norm_backward_##T(T* dst, long long dst_stride, const T* dy, long long dy_stride, const T* x,              \
                              long long x_stride, const float* weight, long long h, float eps, int add, int kept) {    \
        const long long row = blockIdx.x;                                                                              \
        dst += row * dst_stride, dy += row * dy_stride, x += row * x_stride;                                           \
        if (kept) backward_kept<T>(dst, dy, x, weight, h, eps, add);                                                   \
        else backward_reread<T>(dst, dy, x, weight, h, eps, add);                                                      \
    }

RMS_NORM(f32)
WHERE_BF16(RMS_NORM(bf16))
RMS_NORM(f16)
