// NF4 to weights and back; see nf4.rs for the format and the reference, whose bits these kernels give.
//
// Dequantisation is memory-bound: 0.52 bytes read and one element written per weight. So that no other unit is the limit,
// a lookup is one shuffle (lane i of each half warp holds value i) and a block's scale is computed once, not by each of
// the threads that use it. Every rounding is spelled out, so that nothing is fused.
//
// A group of linear layers is dequantised by one launch, with its adapter around it; see padded.rs.
#include "packed.cuh"

// Set from the tables of nf4.rs and dynamic8.rs. Constant memory serves one address at a time: it is for the thresholds,
// which all lanes go through together, not for values that each lane looks up by itself.
__device__ float NF4_VALUES[16];
__device__ float ABSMAX_VALUES[256];
__constant__ float NF4_THRESHOLDS[15];

constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int BLOCK = 64;          // weights of one absmax
constexpr int NESTED_BLOCK = 256;  // absmax of one nested absmax
constexpr int TILE = 1024;         // weights of a warp
constexpr int PIECE = 256;         // of them, those it has in hand at once: 8 a lane
constexpr int N_WARPS = 8;         // of a thread block that works in tiles
constexpr int PADDING_ITEMS = 4;   // elements, or pairs, of a thread that places the adapter
// Thread blocks that a multiprocessor has threads for: registers are to leave room for as many.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
constexpr int N_RESIDENT = 8;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int N_RESIDENT = 4;
#else
constexpr int N_RESIDENT = 6;
#endif

// Scale of a block, in two roundings.
__device__ __forceinline__ float block_scale(unsigned char absmax, float nested, float offset) {
    return __fadd_rn(__fmul_rn(ABSMAX_VALUES[absmax], nested), offset);
}

// One instruction, by name: nvcc loses sight of the alignment of some of these stores and splits them.
__device__ __forceinline__ void store16(void* dst, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <typename T, bool VECTORS> __device__ __forceinline__ void store(T* dst, const float (&w)[8]) {
    if constexpr (!VECTORS) {
#pragma unroll
        for (int i = 0; i < 8; i++) dst[i] = from_float<T>(w[i]);
    } else if constexpr (sizeof(T) == 2) {
        store16(dst, pack_pair(w[0], w[1], T{}), pack_pair(w[2], w[3], T{}), pack_pair(w[4], w[5], T{}),
                pack_pair(w[6], w[7], T{}));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i += 4)
            store16(dst + i, __float_as_uint(w[i]), __float_as_uint(w[i + 1]), __float_as_uint(w[i + 2]),
                    __float_as_uint(w[i + 3]));
    }
}

// One matrix of a group and its B, f32 [rows, b_end - b_begin], as nf4.rs packs them.
struct Member {
    const unsigned char* codes;
    const unsigned char* absmax;
    const float* nested;
    const float* b;
    float offset;
    unsigned end;             // the row of the buffer after its last
    unsigned b_begin, b_end;  // columns of the padding that B takes; an empty range without B
};
static_assert(sizeof(Member) == 6 * 8);

// Up to three members below one another; unused ones are never looked at, since `end` of those in use reaches n_out.
struct Group {
    Member members[3];

    // The member of a row, which is left as the row within it.
    __device__ __forceinline__ Member of(unsigned& row) const {
        if (row < members[0].end) return members[0];
        if (row < members[1].end) {
            row -= members[0].end;
            return members[1];
        }
        row -= members[1].end;
        return members[2];
    }
};

// What stands beside a weight's row in column `i` of the padding: the member's B, or zero in the columns of others.
__device__ __forceinline__ float beside(const Member& member, unsigned row, unsigned i) {
    const bool own = member.b_begin <= i && i < member.b_end;
    return own ? __ldg(member.b + (long long)row * (member.b_end - member.b_begin) + (i - member.b_begin)) : 0.0f;
}

// A and B, and zeros in the columns of other members. N elements at a time, 2 where rows are whole pairs: it is about a
// hundredth of the buffer, and rows of B are short. All reads are ahead of the writes.
template <typename T, int N>
__device__ __forceinline__ void place_adapter(T* dst, long long stride, long long n_out, long long cols, long long rank,
                                              const float* a, const Group& group) {
    struct alignas(N * sizeof(T)) Item {
        T x[N];
    };
    const unsigned n_b = n_out * rank, n = n_b + rank * cols;
    const unsigned first = (blockIdx.x * (PADDING_ITEMS * 32 * N_WARPS) + threadIdx.x) * N;
    float x[PADDING_ITEMS][N];
    T* to[PADDING_ITEMS];
#pragma unroll
    for (int k = 0; k < PADDING_ITEMS; k++) {
        const unsigned i = first + k * 32 * N_WARPS * N;
        const bool is_b = i < n_b;
        const unsigned at = is_b ? i : i - n_b, width = is_b ? rank : cols, column = at % width;
        unsigned row = at / width;
        to[k] = dst + (is_b ? row * stride + cols : (n_out + row) * stride) + column;
        if (is_b) {
            const Member member = group.of(row);
#pragma unroll
            for (int j = 0; j < N; j++) x[k][j] = beside(member, row, column + j);
        } else if (i < n) {
#pragma unroll
            for (int j = 0; j < N; j++) x[k][j] = __ldg(a + at + j);
        }
    }
#pragma unroll
    for (int k = 0; k < PADDING_ITEMS; k++) {
        Item item;
#pragma unroll
        for (int j = 0; j < N; j++) item.x[j] = from_float<T>(x[k][j]);
        if (first + k * 32 * N_WARPS * N < n) *(Item*)to[k] = item;
    }
}

// For widths that are a multiple of 64: blocks don't straddle rows and 4 bytes of codes are 8 weights of one block.
//
// One warp a tile, tiles counted along the rows; the last of a row may be narrower. Loads and stores of a warp are
// adjacent: lane i of piece j takes weights 256 j + 8 i and on. Scales are computed by lanes 0 to 15, one each.
template <typename T, bool VECTORS>
__device__ __forceinline__ void dequantize_tile(T* dst, long long stride, long long n_out, long long cols,
                                                unsigned thread_block, const Group& group) {
    const unsigned lane = threadIdx.x % 32, tiles_per_row = (cols + TILE - 1) / TILE;
    const unsigned tile = thread_block * N_WARPS + threadIdx.x / 32;
    unsigned row = tile / tiles_per_row;
    const unsigned column = tile % tiles_per_row * TILE;
    if (row >= n_out) return;  // the whole warp
    const unsigned width = min((long long)TILE, cols - column);
    T* out = dst + row * stride + column;
    const Member member = group.of(row);

    const unsigned long long start = row * (unsigned long long)cols + column;
    const unsigned* words = (const unsigned*)(member.codes + start / 2);
    unsigned word[TILE / PIECE];
#pragma unroll
    for (int j = 0; j < TILE / PIECE; j++) {
        const unsigned i = j * PIECE + lane * 8;
        word[j] = i < width ? __ldcs(words + i / 8) : 0;  // read once: leaves the cache to the weights
    }
    const unsigned long long block = start / BLOCK + (lane * BLOCK < width ? lane : 0);
    const unsigned char absmax = __ldg(member.absmax + block);
    const float nested = __ldg(member.nested + block / NESTED_BLOCK);
    const float value = __ldg(NF4_VALUES + lane % 16);
    __syncwarp();  // or the compiler waits for a scale before it reads the codes
    const float own_scale = block_scale(absmax, nested, member.offset);

#pragma unroll
    for (int j = 0; j < TILE / PIECE; j++) {
        const unsigned i = j * PIECE + lane * 8;
        const float scale = __shfl_sync(ALL_LANES, own_scale, i / BLOCK);
        float weights[8];
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
            // A shuffle of width 16 looks at the low four bits only. The earlier weight is in the high nibble.
            const float high = __shfl_sync(ALL_LANES, value, word[j] >> (8 * byte + 4), 16);
            const float low = __shfl_sync(ALL_LANES, value, word[j] >> (8 * byte), 16);
            weights[2 * byte] = __fmul_rn(high, scale);
            weights[2 * byte + 1] = __fmul_rn(low, scale);
        }
        if (i < width) store<T, VECTORS>(out + i, weights);
    }
}

// For any width, an element at a time. Grid: x over columns, y over rows (strided, since y is limited to 65,535).
template <typename T>
__device__ __forceinline__ void dequantize_each(T* dst, long long stride, long long n_out, long long cols,
                                                long long rank, const float* a, const Group& group) {
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (long long row = blockIdx.y; row < n_out + rank; row += gridDim.y) {
        if (column >= (row < n_out ? cols + rank : cols)) return;  // nothing stands below B, and A comes last
        float x;
        if (row >= n_out) {
            x = a[(row - n_out) * cols + column];
        } else {
            unsigned member_row = row;
            const Member member = group.of(member_row);
            const long long i = member_row * cols + column;
            if (column >= cols) {
                x = beside(member, member_row, column - cols);
            } else {
                const int byte = member.codes[i / 2], code = i % 2 == 0 ? byte >> 4 : byte & 15;
                const float nested = member.nested[i / BLOCK / NESTED_BLOCK];
                x = __fmul_rn(NF4_VALUES[code], block_scale(member.absmax[i / BLOCK], nested, member.offset));
            }
        }
        dst[row * stride + column] = from_float<T>(x);
    }
}

// The number of thresholds below `value`.
__device__ __forceinline__ unsigned nearest(float value) {
    unsigned code = 0;
#pragma unroll
    for (int i = 0; i < 15; i++) code += value > NF4_THRESHOLDS[i];
    return code;
}

// Codes and absmax of `n` weights, `n` even and `weights` at a multiple of 8 bytes. Grid: one warp a block, two weights a
// lane.
extern "C" __global__ void nf4_quantize(unsigned char* codes, float* absmax, const float* weights, long long n) {
    const int lane = threadIdx.x % 32;
    const long long block = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    const long long i = block * BLOCK + lane * 2;
    if (block * BLOCK >= n) return;  // the whole warp
    const float2 pair = i < n ? *(const float2*)(weights + i) : make_float2(0.0f, 0.0f);
    // Bits of magnitudes order like the magnitudes, with NaN above infinity: the host sees both and refuses.
    const unsigned x = __float_as_uint(pair.x) & 0x7fffffff, y = __float_as_uint(pair.y) & 0x7fffffff;
    const float largest = __uint_as_float(warp_max(max(x, y)));
    const float reciprocal = __fdiv_rn(1.0f, fmaxf(largest, 1e-38f));
    if (i < n) codes[i / 2] = nearest(__fmul_rn(pair.x, reciprocal)) << 4 | nearest(__fmul_rn(pair.y, reciprocal));
    if (lane == 0) absmax[block] = largest;
}

// Grid: first the thread blocks that place the adapter, then one warp a tile of weights.
template <typename T, bool VECTORS>
__device__ __forceinline__ void dequantize(T* dst, long long stride, long long n_out, long long cols, long long rank,
                                           const float* a, const Group& group) {
    constexpr int N = VECTORS ? 2 : 1;
    const unsigned n_padding = rank * (n_out + cols), n_per_block = PADDING_ITEMS * N * 32 * N_WARPS;
    const unsigned n_padding_blocks = (n_padding + n_per_block - 1) / n_per_block;
    if (blockIdx.x < n_padding_blocks) place_adapter<T, N>(dst, stride, n_out, cols, rank, a, group);
    else dequantize_tile<T, VECTORS>(dst, stride, n_out, cols, blockIdx.x - n_padding_blocks, group);
}

// `dst` is [n_out + rank, cols + rank] with rows `stride` apart: the members' weights, B to their right and A, f32
// [rank, cols], below them. Of rank 0 it is the weights alone.
#define DEQUANTIZE(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * N_WARPS, N_RESIDENT)                                             \
        nf4_dequantize_##T(T* dst, long long stride, long long n_out, long long cols, long long rank, const float* a,  \
                           const __grid_constant__ Group group, int vectors) {                                         \
        if (vectors) dequantize<T, true>(dst, stride, n_out, cols, rank, a, group);                                    \
        else dequantize<T, false>(dst, stride, n_out, cols, rank, a, group);                                           \
    }                                                                                                                  \
    extern "C" __global__ void nf4_dequantize_each_##T(T* dst, long long stride, long long n_out, long long cols,      \
                                                       long long rank, const float* a,                                 \
                                                       const __grid_constant__ Group group) {                          \
        dequantize_each<T>(dst, stride, n_out, cols, rank, a, group);                                                  \
    }

DEQUANTIZE(f32)
WHERE_BF16(DEQUANTIZE(bf16))
DEQUANTIZE(f16)
