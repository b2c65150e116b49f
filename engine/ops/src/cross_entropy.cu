// Cross-entropy and its gradient in place; see cross_entropy.rs for the formulas and the reference.
//
// Memory-bound: forward reads the logits once, with a running maximum, backward reads and writes them. Vocabularies may
// be odd, so each row has its own alignment: the elements before its first whole vector and after its last go singly.
#include "packed.cuh"

// Vectors that a thread has under way. Forward has fewer, and 32 registers, for all the threads a multiprocessor takes:
// exponentials of some overlap the reads of others.
constexpr int UNROLL_FORWARD = 2, UNROLL_BACKWARD = 4;

// `e^x`, zero where it is below f32's normal range: to give denormals too would take four more instructions.
__device__ __forceinline__ float exp_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

// A row of logits as elements, whole vectors, elements.
template <typename T> struct Parts {
    long long n_head, n_vectors, n_tail;

    __device__ __forceinline__ Parts(const T* row, long long v) {
        const unsigned past = reinterpret_cast<unsigned long long>(row) % 16;
        n_head = past == 0 ? 0 : (16 - past) / sizeof(T);
        if (n_head > v) n_head = v;
        n_vectors = (v - n_head) / Packed<T>::N;
        n_tail = v - n_head - n_vectors * Packed<T>::N;
    }
};

// Running maximum and `sum exp(z - maximum)`. The maximum starts finite, so that logits of negative infinity add zero.
struct Running {
    float max = -1e30f, sum = 0.0f;

    template <int N> __device__ __forceinline__ void add(const float (&z)[N]) {
        float largest = z[0];
#pragma unroll
        for (int i = 1; i < N; i++) largest = fmaxf(largest, z[i]);
        if (largest > max) {
            sum *= exp_flushed(max - largest);
            max = largest;
        }
#pragma unroll
        for (int i = 0; i < N; i++) sum += exp_flushed(z[i] - max);
    }

    __device__ __forceinline__ void add(float z) {
        const float one[1] = {z};
        add(one);
    }
};

// Grid: a block per row.
template <typename T>
__device__ void forward(float* stats, long long stats_stride, const T* logits, long long stride, const unsigned* labels,
                        long long v) {
    constexpr int N = Packed<T>::N;
    const T* z = logits + blockIdx.x * stride;
    const Parts<T> parts(z, v);
    Running running;
    const T* body = z + parts.n_head;
    for (long long first = threadIdx.x; first < parts.n_vectors; first += UNROLL_FORWARD * blockDim.x) {
        Packed<T> read[UNROLL_FORWARD];
#pragma unroll
        for (int k = 0; k < UNROLL_FORWARD; k++) {
            const long long i = first + k * blockDim.x;
            if (i < parts.n_vectors) read[k] = Packed<T>::load(body + i * N);
        }
#pragma unroll
        for (int k = 0; k < UNROLL_FORWARD; k++) {
            if (first + k * blockDim.x >= parts.n_vectors) break;
            float part[N];
            read[k].unpack(part);
            running.add(part);
        }
    }
    if (threadIdx.x < parts.n_head) running.add(to_float(z[threadIdx.x]));
    if (threadIdx.x < parts.n_tail) running.add(to_float(z[v - 1 - threadIdx.x]));

    __shared__ float scratch[33];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    float max = warp_max(running.max);
    if (lane == 0) scratch[warp] = max;
    __syncthreads();
    max = warp_max(lane < n_warps ? scratch[lane] : running.max);
    const float sum = block_sum(running.sum * exp_flushed(running.max - max), scratch);
    if (threadIdx.x == 0) {
        const float lse = max + logf(sum);
        const unsigned label = labels[blockIdx.x];
        float* out = stats + blockIdx.x * stats_stride;
        out[0] = lse;
        // The host validates labels; one past the vocabulary all the same shows as a loss that is no number.
        out[1] = label < v ? lse - to_float(z[label]) : __int_as_float(0x7fffffff);
    }
}

// Grid: x over rows, y over stretches of UNROLL_BACKWARD vectors a thread.
template <typename T>
__device__ void backward(T* logits, long long stride, const float* stats, long long stats_stride,
                         const unsigned* labels, long long v, float scale) {
    constexpr int N = Packed<T>::N;
    T* z = logits + blockIdx.x * stride;
    const Parts<T> parts(z, v);
    T* body = z + parts.n_head;
    const long long first = blockIdx.y * (long long)(UNROLL_BACKWARD * blockDim.x) + threadIdx.x;
    Packed<T> read[UNROLL_BACKWARD];
#pragma unroll
    for (int k = 0; k < UNROLL_BACKWARD; k++) {
        const long long i = first + k * blockDim.x;
        if (i < parts.n_vectors) read[k] = Packed<T>::load(body + i * N);
    }
    const float lse = stats[blockIdx.x * stats_stride];
    const long long label = labels[blockIdx.x];
    auto gradient = [&](float x, bool is_label) { return exp_flushed(x - lse) * scale - (is_label ? scale : 0.0f); };
#pragma unroll
    for (int k = 0; k < UNROLL_BACKWARD; k++) {
        const long long i = first + k * blockDim.x, at = label - parts.n_head - i * N;
        if (i >= parts.n_vectors) break;
        float part[N];
        read[k].unpack(part);
#pragma unroll
        for (int j = 0; j < N; j++) part[j] = gradient(part[j], at == j);
        Packed<T>::pack(part).store(body + i * N);
    }
    if (blockIdx.y == 0 && threadIdx.x < parts.n_head + parts.n_tail) {
        const long long i = threadIdx.x < parts.n_head ? threadIdx.x : threadIdx.x + parts.n_vectors * N;
        z[i] = from_float<T>(gradient(to_float(z[i]), label == i));
    }
}

#define CROSS_ENTROPY(T)                                                                                               \
    extern "C" __global__ void __maxnreg__(32)                                                                         \
        cross_entropy_##T(float* stats, long long stats_stride, const T* logits, long long stride,                     \
                          const unsigned* labels, long long v) {                                                       \
        forward<T>(stats, stats_stride, logits, stride, labels, v);                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        cross_entropy_backward_##T(T* logits, long long stride, const float* stats, long long stats_stride,            \
                                   const unsigned* labels, long long v, float scale) {                                 \
        backward<T>(logits, stride, stats, stats_stride, labels, v, scale);                                            \
    }

CROSS_ENTROPY(f32)
WHERE_BF16(CROSS_ENTROPY(bf16))
CROSS_ENTROPY(f16)
