// Attention of new rows against a cache of keys and values; see attention_cached.rs for the layout and the reference.
//
// Answering a prompt reads every key and value once a row: memory-bound, no tensor cores. One block answers one row and query
// head; its warps take keys in turn, each with a running softmax of its own (Milakov & Gimelshein 2018, arXiv:1805.02867), and
// are added up in order at the end, so results don't depend on timing. Nothing of the length of the sequence is stored.
#include "kernels.cuh"

constexpr int N_WARPS = 8;
constexpr int MAX_HEAD_DIM = 256;
// Elements of a head that a lane holds.
constexpr int LANE_ELEMENTS = MAX_HEAD_DIM / 32;

// Grid: x rows, y query heads. A row's position in its sequence and its row in the cache say where the sequence begins there.
template <typename T>
__device__ void cached_rows(T* out, long long out_stride, const T* queries, long long q_stride, const T* cache,
                            long long cache_stride, const unsigned* positions, const unsigned* cache_rows, int n_heads,
                            int n_kv_heads, int d, float scale) {
    __shared__ float maxima[N_WARPS], sums[N_WARPS], outputs[N_WARPS][MAX_HEAD_DIM];
    const long long row = blockIdx.x;
    const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int kv = head / (n_heads / n_kv_heads);
    const unsigned position = positions[row], first = cache_rows[row] - position, n_seen = position + 1;
    const T* keys = cache + (long long)first * cache_stride + kv * d;
    const T* values = keys + (long long)n_kv_heads * d;

    float q[LANE_ELEMENTS], o[LANE_ELEMENTS] = {};
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; i++) {
        const int e = lane + 32 * i;
        q[i] = e < d ? to_float(queries[row * q_stride + head * d + e]) * scale : 0.0f;
    }
    float maximum = -INFINITY, sum = 0.0f;
    for (unsigned j = warp; j < n_seen; j += N_WARPS) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; i++) {
            const int e = lane + 32 * i;
            if (e < d) score += q[i] * to_float(keys[j * cache_stride + e]);
        }
        score = warp_sum(score);
        const float larger = fmaxf(maximum, score);
        const float shrink = expf(maximum - larger), p = expf(score - larger);
        sum = sum * shrink + p;
        maximum = larger;
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; i++) {
            const int e = lane + 32 * i;
            if (e < d) o[i] = o[i] * shrink + p * to_float(values[j * cache_stride + e]);
        }
    }
    if (lane == 0) {
        maxima[warp] = maximum;
        sums[warp] = sum;
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; i++) outputs[warp][lane + 32 * i] = o[i];
    __syncthreads();

    float largest = -INFINITY, total = 0.0f;
    for (int w = 0; w < N_WARPS; w++) largest = fmaxf(largest, maxima[w]);
    for (int w = 0; w < N_WARPS; w++) total += sums[w] * expf(maxima[w] - largest);
    for (int e = threadIdx.x; e < d; e += blockDim.x) {
        float result = 0.0f;
        for (int w = 0; w < N_WARPS; w++) result += outputs[w][e] * expf(maxima[w] - largest);
        out[row * out_stride + head * d + e] = from_float<T>(result / total);
    }
}

#define ATTENTION_CACHED(T)                                                                                            \
    extern "C" __global__ void attention_cached_##T(T* out, long long out_stride, const T* queries, long long q_stride, \
                                                    const T* cache, long long cache_stride,                             \
                                                    const unsigned* positions, const unsigned* cache_rows, int n_heads, \
                                                    int n_kv_heads, int d, float scale) {                               \
        cached_rows(out, out_stride, queries, q_stride, cache, cache_stride, positions, cache_rows, n_heads,            \
                    n_kv_heads, d, scale);                                                                              \
    }

ATTENTION_CACHED(f32)
WHERE_BF16(ATTENTION_CACHED(bf16))
ATTENTION_CACHED(f16)
