// AdamW over a flat buffer with 32-bit or block-wise 8-bit moments; see adamw.rs for the formulas and the reference, whose
// bits these kernels give: every rounding is spelled out, so that nothing is fused.
//
// Memory-bound with 32-bit moments, 28 bytes moved per parameter. With 8-bit moments it is 16, and the two searches for the
// nearest code weigh as much as the memory.
#include "kernels.cuh"

// Set from the maps of dynamic8.rs: the first moment's is signed, the second's is not.
__constant__ float M_VALUES[256];
__constant__ float M_MIDPOINTS[256];
__constant__ float V_VALUES[256];
__constant__ float V_MIDPOINTS[256];

constexpr int N_THREADS = 256;
constexpr int BLOCK = 256;  // values of one absmax

struct Factors {
    float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, root_correction, epsilon;
};

__device__ __forceinline__ void advance(const Factors& by, float& p, float g, float& m, float& v) {
    g = __fmul_rn(g, by.gradient_scale);
    m = __fadd_rn(__fmul_rn(m, by.beta1), __fmul_rn(by.one_minus_beta1, g));
    v = __fadd_rn(__fmul_rn(v, by.beta2), __fmul_rn(by.one_minus_beta2, __fmul_rn(g, g)));
    const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), by.root_correction), by.epsilon);
    p = __fsub_rn(__fmul_rn(p, by.decay), __fmul_rn(by.step_size, __fdiv_rn(m, denominator)));
}

// Four neighbours at once where `whole`, else the first `count`, one by one; what is missing reads as 0.
template <typename T> struct alignas(4 * sizeof(T)) Four {
    T x[4];
};

template <typename T> __device__ __forceinline__ Four<T> load(const T* src, bool whole, long long count) {
    if (whole) return *(const Four<T>*)src;
    Four<T> four;
#pragma unroll
    for (int i = 0; i < 4; i++) four.x[i] = i < count ? src[i] : T(0);
    return four;
}

template <typename T> __device__ __forceinline__ void store(T* dst, const Four<T>& four, bool whole, long long count) {
    if (whole) {
        *(Four<T>*)dst = four;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < count) dst[i] = four.x[i];
    }
}

// The number of midpoints below `value`.
__device__ __forceinline__ int nearest(const float* midpoints, float value) {
    int code = 0;
#pragma unroll
    for (int half = 128; half > 0; half /= 2) code += midpoints[code + half - 1] < value ? half : 0;
    return code;
}

// Magnitudes order like their bits.
__device__ __forceinline__ float largest_of_warp(float magnitude) {
    return __uint_as_float(warp_max(__float_as_uint(magnitude)));
}

// What a block's values are multiplied with before the search; a block of zeros keeps its zeros.
__device__ __forceinline__ float reciprocal(float absmax) { return __fdiv_rn(1.0f, fmaxf(absmax, 1e-38f)); }

#define FACTORS                                                                                                        \
    float gradient_scale, float beta1, float one_minus_beta1, float beta2, float one_minus_beta2, float decay,         \
        float step_size, float root_correction, float epsilon
#define THE_FACTORS                                                                                                    \
    { gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, root_correction, epsilon }

// Grid: four parameters a thread.
extern "C" __global__ void __launch_bounds__(N_THREADS)
    adamw_f32(float* params, const float* grads, float* m, float* v, long long n, int vectors, FACTORS) {
    const Factors factors = THE_FACTORS;
    const long long at = (blockIdx.x * (long long)N_THREADS + threadIdx.x) * 4, count = n - at;
    if (count <= 0) return;
    const bool whole = vectors && count >= 4;
    Four<float> p4 = load(params + at, whole, count), m4 = load(m + at, whole, count), v4 = load(v + at, whole, count);
    const Four<float> g4 = load(grads + at, whole, count);
#pragma unroll
    for (int i = 0; i < 4; i++) advance(factors, p4.x[i], g4.x[i], m4.x[i], v4.x[i]);
    store(params + at, p4, whole, count);
    store(m + at, m4, whole, count);
    store(v + at, v4, whole, count);
}

// Grid: a warp per block of 256, strided, so that few thread blocks copy the maps to shared memory (lookups diverge). A lane
// has twice four neighbours, 128 apart: every access of a warp is adjacent.
extern "C" __global__ void __launch_bounds__(N_THREADS, 4)
    adamw_u8(float* params, const float* grads, unsigned char* m, float* m_absmax, unsigned char* v, float* v_absmax,
             long long n, int vectors, FACTORS) {
    const Factors factors = THE_FACTORS;
    __shared__ float m_values[256], m_midpoints[256], v_values[256], v_midpoints[256];
    m_values[threadIdx.x] = M_VALUES[threadIdx.x];
    m_midpoints[threadIdx.x] = M_MIDPOINTS[threadIdx.x];
    v_values[threadIdx.x] = V_VALUES[threadIdx.x];
    v_midpoints[threadIdx.x] = V_MIDPOINTS[threadIdx.x];
    __syncthreads();

    constexpr int N_WARPS = N_THREADS / 32;
    const int lane = threadIdx.x % 32;
    const long long n_blocks = (n + BLOCK - 1) / BLOCK;
    for (long long block = blockIdx.x * (long long)N_WARPS + threadIdx.x / 32; block < n_blocks;
         block += gridDim.x * (long long)N_WARPS) {
        const long long at = block * BLOCK + lane * 4, count = n - at;
        const bool whole = vectors && n - block * BLOCK >= BLOCK;
        const float m_scale = m_absmax[block], v_scale = v_absmax[block];
        Four<float> p4[2], m4[2], v4[2];
        float m_largest = 0.0f, v_largest = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long left = count - half * 128;
            p4[half] = load(params + at + half * 128, whole, left);
            const Four<float> g4 = load(grads + at + half * 128, whole, left);
            const Four<unsigned char> m_codes = load(m + at + half * 128, whole, left);
            const Four<unsigned char> v_codes = load(v + at + half * 128, whole, left);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Code 0 is not the value 0: past the end there must be one that moves no absmax.
                const bool exists = whole || i < left;
                float& m_i = m4[half].x[i];
                float& v_i = v4[half].x[i];
                m_i = exists ? __fmul_rn(m_values[m_codes.x[i]], m_scale) : 0.0f;
                v_i = exists ? __fmul_rn(v_values[v_codes.x[i]], v_scale) : 0.0f;
                advance(factors, p4[half].x[i], g4.x[i], m_i, v_i);
                m_largest = fmaxf(m_largest, fabsf(m_i));
                v_largest = fmaxf(v_largest, fabsf(v_i));
            }
        }
        m_largest = largest_of_warp(m_largest);
        v_largest = largest_of_warp(v_largest);
        const float m_reciprocal = reciprocal(m_largest), v_reciprocal = reciprocal(v_largest);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long left = count - half * 128;
            Four<unsigned char> m_codes, v_codes;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                m_codes.x[i] = nearest(m_midpoints, __fmul_rn(m4[half].x[i], m_reciprocal));
                v_codes.x[i] = nearest(v_midpoints, __fmul_rn(v4[half].x[i], v_reciprocal));
            }
            store(params + at + half * 128, p4[half], whole, left);
            store(m + at + half * 128, m_codes, whole, left);
            store(v + at + half * 128, v_codes, whole, left);
        }
        if (lane == 0) {
            m_absmax[block] = m_largest;
            v_absmax[block] = v_largest;
        }
    }
}
