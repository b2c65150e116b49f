// SwiGLU forward and backward; see swiglu.rs for the formulas and the reference.
//
// Memory-bound: 3 elements moved per output forward, 5 backward. One thread moves 16 bytes of each operand at a time; rows that
// don't start at a multiple of 16 bytes, or whose width is no multiple of a vector, go element by element.
#include "kernels.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ void backward(float& gate, float& up, float dy) {
    const float s = sigmoid(gate), silu = gate * s;
    const float d_gate = dy * up * (s + silu * (1.0f - s));
    up = dy * silu;
    gate = d_gate;
}

// Grid: x over columns, y over rows (strided, since y is limited to 65,535).
template <typename T, bool VECTORS>
__device__ void swiglu_rows(T* dst, long long dst_stride, const T* gate_up, long long stride, long long n, long long f) {
    constexpr int N = VECTORS ? Vec<T>::N : 1;
    const long long column = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * N;
    if (column >= f) return;
    for (long long row = blockIdx.y; row < n; row += gridDim.y) {
        const T* gate = gate_up + row * stride + column;
        T* out = dst + row * dst_stride + column;
        if constexpr (VECTORS) {
            const Vec<T> g = *(const Vec<T>*)gate, u = *(const Vec<T>*)(gate + f);
            Vec<T> y;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float x = to_float(g.x[i]);
                y.x[i] = from_float<T>(x * sigmoid(x) * to_float(u.x[i]));
            }
            *(Vec<T>*)out = y;
        } else {
            const float x = to_float(*gate);
            *out = from_float<T>(x * sigmoid(x) * to_float(gate[f]));
        }
    }
}

template <typename T, bool VECTORS>
__device__ void swiglu_backward_rows(T* gate_up, long long stride, const T* dy, long long dy_stride, long long n, long long f) {
    constexpr int N = VECTORS ? Vec<T>::N : 1;
    const long long column = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * N;
    if (column >= f) return;
    for (long long row = blockIdx.y; row < n; row += gridDim.y) {
        T* gate = gate_up + row * stride + column;
        const T* d = dy + row * dy_stride + column;
        if constexpr (VECTORS) {
            Vec<T> g = *(const Vec<T>*)gate, u = *(const Vec<T>*)(gate + f);
            const Vec<T> v = *(const Vec<T>*)d;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float x = to_float(g.x[i]), y = to_float(u.x[i]);
                backward(x, y, to_float(v.x[i]));
                g.x[i] = from_float<T>(x);
                u.x[i] = from_float<T>(y);
            }
            *(Vec<T>*)gate = g;
            *(Vec<T>*)(gate + f) = u;
        } else {
            float x = to_float(*gate), y = to_float(gate[f]);
            backward(x, y, to_float(*d));
            *gate = from_float<T>(x);
            gate[f] = from_float<T>(y);
        }
    }
}

#define SWIGLU(T)                                                                                                       \
    extern "C" __global__ void swiglu_##T(T* dst, long long dst_stride, const T* gate_up, long long stride, long long n,  \
                                          long long f, int vectors) {                                                    \
        if (vectors) swiglu_rows<T, true>(dst, dst_stride, gate_up, stride, n, f);                                       \
        else swiglu_rows<T, false>(dst, dst_stride, gate_up, stride, n, f);                                              \
    }                                                                                                                    \
    extern "C" __global__ void swiglu_backward_##T(T* gate_up, long long stride, const T* dy, long long dy_stride,       \
                                                   long long n, long long f, int vectors) {                              \
        if (vectors) swiglu_backward_rows<T, true>(gate_up, stride, dy, dy_stride, n, f);                                \
        else swiglu_backward_rows<T, false>(gate_up, stride, dy, dy_stride, n, f);                                       \
    }

SWIGLU(f32)
WHERE_BF16(SWIGLU(bf16))
SWIGLU(f16)
