// Causal grouped-query attention over packed documents, forward and backward, without ever storing the n x n scores
// (Dao 2023, arXiv:2307.08691). attention.rs has the formulas, the processor's version and the launches.
//
// Launch. M = 2 for D <= 128 and 1 for D = 256 (matrix tiles of 16 rows a warp); every block has 128 threads.
//
//   kernel          grid                             dynamic shared bytes: D = 64    96     128     256
//   forward         (n_heads,    ceil(n / (64 M)))                      49152   73728   98304   98304
//   backward_q      (n_heads,    ceil(n / (64 M)))                      49152   73728   98304   98304
//   backward_kv     (n_kv_heads, ceil(n / (32 M)))                      58368   82944   88832  100864
//   delta           (ceil(n * n_heads / 4))                                 0       0       0       0
//   f32: forward, backward_q (n_heads, ceil(n / 4)); backward_kv (n_kv_heads, ceil(n / 4)); delta as above; no shared
//
// More than 48 KiB needs cudaFuncAttributeMaxDynamicSharedMemorySize first. Order: delta before backward_kv and
// backward_q, which are independent of each other. Blocks start in order of blockIdx, x fastest, so the long tiles of a
// document (its last queries, its first keys) come first and the short ones fill the gaps at the end.
//
// Design, 16-bit types:
// - A warp owns 32 rows. Each fragment it reads from shared memory then feeds two mma instructions; with 16 rows the
//   reads, not the tensor cores, would set the pace.
// - Products chain in registers: the accumulator layout of S is the A-operand layout of the next product, so P and dS
//   never pass through shared memory (except once between two warps, see backward_kv).
// - Two stages of tiles: while one is multiplied, cp.async fills the other. One barrier a tile.
// - Nothing is accumulated across blocks, hence no atomics and the same bits every run. The price is that S and dP are
//   computed twice in the backward pass (7 products instead of 5).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
// Below every score, yet finite: the difference of two of them is 0 and not NaN.
constexpr float LOWEST = -1e30f;

template <int D>
struct Shape {
    static constexpr int ROW_BYTES = 2 * D;
    static constexpr int M = D <= 128 ? 2 : 1;          // matrix tiles of 16 rows a warp, limited by 255 registers
    static constexpr int WARP_ROWS = 16 * M;
    static constexpr int QUERIES = WARPS * WARP_ROWS;   // forward and backward_q: query rows of a block
    static constexpr int FORWARD_KEYS = D <= 128 ? 64 : 32;
    static constexpr int BACKWARD_Q_KEYS = D <= 128 ? 32 : 16;
    static constexpr int KEYS = WARPS / 2 * WARP_ROWS;  // backward_kv: keys of a block, two warps for each of them
    static constexpr int BACKWARD_KV_QUERIES = D < 128 ? 64 : D == 128 ? 48 : 32;
};

// ---- Documents ----

struct Document {
    int start, end;
};

// The document of a row: the last one that starts at or before it (those before it with the same start are empty).
__device__ Document document_of(const unsigned* cu_seqlens, int n_documents, int row) {
    int low = 0, high = n_documents;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (int(cu_seqlens[middle]) <= row) low = middle;
        else high = middle;
    }
    return {int(cu_seqlens[low]), int(cu_seqlens[low + 1])};
}

// ---- Numbers ----

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
constexpr bool IS_HALF = false;
template <>
constexpr bool IS_HALF<__half> = true;

template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned y;
    if constexpr (IS_HALF<T>) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    }
    return y;
}

template <class T>
__device__ __forceinline__ float2 unpack(unsigned x) {
    if constexpr (IS_HALF<T>) return __half22float2(*reinterpret_cast<__half2*>(&x));
    else return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// ---- Shared memory ----

// A tile is rows of D elements without padding. Its 16-byte chunks are permuted within each row, so that the eight rows
// of a matrix that ldmatrix reads at one column lie in different banks. Rows of a multiple of 128 bytes all start in
// bank 0 and need eight places; rows of 192 bytes (D = 96) alternate between two starts and need four.
template <int D>
__device__ __forceinline__ unsigned permuted(int row, int chunk) {
    return chunk ^ (D % 64 == 0 ? row & 7 : (row >> 1) & 3);
}

template <int D>
__device__ __forceinline__ unsigned chunk_offset(int row, int chunk) {
    return row * Shape<D>::ROW_BYTES + permuted<D>(row, chunk) * 16;
}

__device__ __forceinline__ unsigned shared_base() {
    extern __shared__ __align__(128) unsigned char shared[];
    return unsigned(__cvta_generic_to_shared(shared));
}

// Bytes that do not exist (`valid` false) arrive as zeros.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned destination, const void* source, bool valid) {
    int size = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(size) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source), "r"(size) : "memory");
    }
}

// Starts copying rows `row0..row0 + ROWS` of one head into a tile; rows past `n` become zeros.
template <int D, int ROWS, class T>
__device__ __forceinline__ void load_tile(unsigned tile, const T* head, long long stride, int row0, int n) {
    constexpr int CHUNKS = D / 8;
    constexpr int PASS_ROWS = D == 96 ? 8 : THREADS / CHUNKS;  // D = 96: 96 threads work
    static_assert(ROWS % PASS_ROWS == 0, "whole passes");
    int chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    if (row >= PASS_ROWS) return;
    const T* source = head + (row0 + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS / PASS_ROWS; i++) {
        copy_async<16>(tile + chunk_offset<D>(row, chunk), source, row0 + row < n);
        row += PASS_ROWS;
        source += PASS_ROWS * stride;
    }
}

// Starts copying one head's column of an f32 [n, n_heads] matrix.
template <int ROWS>
__device__ __forceinline__ void load_column(unsigned tile, const float* column, int n_heads, int row0, int n) {
    int row = row0 + int(threadIdx.x);
    if (threadIdx.x < ROWS) copy_async<4>(tile + threadIdx.x * 4, column + row * (long long)n_heads, row < n);
}

// Every copy that this thread started has landed and, after the barrier, those of the other threads too. The barrier
// also says that all warps are done with the previous tile, so its stage is free.
__device__ __forceinline__ void wait_for_tiles() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

// ---- Matrix products ----

// This lane's part of the addresses of 16 x 16 blocks: ldmatrix.x4 takes row `lane % 8` of 8 x 8 matrix `lane / 8`.
template <int D>
struct LaneRow {
    unsigned row_offset, chunk_offset;

    __device__ LaneRow(int row, int chunk) {
        row_offset = row * Shape<D>::ROW_BYTES;
        chunk_offset = permuted<D>(row, chunk) * 16;
    }

    // Matrices in the order (top left, bottom left, top right, bottom right): A operands, and B from row-major [k, n].
    __device__ static LaneRow down_first() {
        int lane = threadIdx.x % 32;
        return LaneRow(lane % 16, lane / 16);
    }

    // (top left, top right, bottom left, bottom right): B from row-major [n, k].
    __device__ static LaneRow across_first() {
        int lane = threadIdx.x % 32;
        return LaneRow(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }

    // Block rows are a multiple of 8 and block columns of two chunks, so the permutation commutes with the block.
    __device__ __forceinline__ unsigned in(unsigned tile, int block_row, int block_column) const {
        return tile + row_offset + block_row * 16 * Shape<D>::ROW_BYTES + (chunk_offset ^ (block_column * 32));
    }
};

__device__ __forceinline__ void load_matrices(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// c += a b for a of 16 x 16, b of 16 x 8. Lane l holds c at rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next.
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (IS_HALF<T>) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <int M, int N>
__device__ __forceinline__ void clear(float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[m][j][e] = 0;
}

// c = A Bᵀ: 16 M rows of tile a with 8 N rows of tile b, over all D columns.
template <class T, int D, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], unsigned a_tile, unsigned b_tile) {
    const auto a_lane = LaneRow<D>::down_first(), b_lane = LaneRow<D>::across_first();
    clear(c);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned a[M][4], b[4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices(a[m], a_lane.in(a_tile, m, k));
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            load_matrices(b, b_lane.in(b_tile, j, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], a[m], b[0], b[1]);
                mma<T>(c[m][2 * j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// c += A B: A of 16 M x 16 K in registers, B the 16 K rows of a tile.
template <class T, int D, int M, int K>
__device__ __forceinline__ void accumulate(float (&c)[M][D / 8][4], const unsigned (&a)[M][K][4], unsigned b_tile) {
    const auto lane = LaneRow<D>::down_first();
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            unsigned b[4];
            load_matrices_transposed(b, lane.in(b_tile, k, j));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], a[m][k], b[0], b[1]);
                mma<T>(c[m][2 * j + 1], a[m][k], b[2], b[3]);
            }
        }
    }
}

// Accumulators as A operands of the next product: two 16 x 8 tiles side by side are one 16 x 16 operand.
template <class T, int M, int N>
__device__ __forceinline__ void to_operand(unsigned (&a)[M][N / 2][4], const float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2 * N; i++) a[m][i / 4][i % 4] = pack<T>(c[m][i / 2][i % 2 * 2], c[m][i / 2][i % 2 * 2 + 1]);
}

// Writes a warp's 16 M x D accumulators, rows scaled by `scale[m][half]`, to rows `row0..` of one head. They pass
// through `tile`, 16 M rows that no other warp reads any more, so that the stores are of 16 bytes and coalesced.
template <class T, int D, int M>
__device__ __forceinline__ void store_rows(T* head, long long stride, int row0, int n, const float (&c)[M][D / 8][4],
                                           const float (&scale)[M][2], unsigned tile) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                float s = scale[m][half];
                unsigned x = pack<T>(c[m][j][2 * half] * s, c[m][j][2 * half + 1] * s);
                unsigned address = tile + chunk_offset<D>(16 * m + 8 * half + lane / 4, j) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
            }
    __syncwarp();
    constexpr int CHUNKS = D / 8;
#pragma unroll 4
    for (int i = lane; i < 16 * M * CHUNKS; i += 32) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row0 + row >= n) break;
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(tile + chunk_offset<D>(row, chunk))
                     : "memory");
        *reinterpret_cast<uint4*>(head + (row0 + row) * stride + chunk * 8) = x;
    }
}

// ---- Query tiles: what forward and backward_q share ----

// The rows of a warp: one document start for each of the lane's rows, and bounds that decide what a key tile needs.
template <int M>
struct QueryRows {
    int first, last;              // of the warp; last < first: none
    int first_start, last_start;  // documents of those two rows; no row's document starts outside them
    int row[M][2], start[M][2];

    __device__ QueryRows(const unsigned* cu_seqlens, int n_documents, int row0, int n) {
        int lane = threadIdx.x % 32;
        first = row0;
        last = min(row0 + 16 * M, n) - 1;
        first_start = document_of(cu_seqlens, n_documents, min(first, n - 1)).start;
        last_start = document_of(cu_seqlens, n_documents, last).start;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                row[m][half] = row0 + 16 * m + 8 * half + lane / 4;
                bool uniform = first_start == last_start;
                start[m][half] = uniform ? first_start : document_of(cu_seqlens, n_documents, min(row[m][half], n - 1)).start;
            }
    }

    __device__ bool sees_any(int key0, int n_keys) const { return key0 <= last && key0 + n_keys > first_start && first <= last; }
    __device__ bool sees_all(int key0, int n_keys) const { return key0 + n_keys - 1 <= first && key0 >= last_start; }

    // Sets what a row must not see to `value`.
    template <int N>
    __device__ __forceinline__ void mask(float (&s)[M][N][4], int key0, float value) const {
        int lane_key = key0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = lane_key + 8 * j + e % 2;
                    if (key > row[m][e / 2] || key < start[m][e / 2]) s[m][j][e] = value;
                }
    }
};

// ---- Forward ----

// The running softmax of a warp's rows. Scores stay unscaled; `reference` is what exponents are taken relative to, and
// follows the row's maximum only when that has grown by more than 2^8. Until then P merely exceeds 1, which f32 sums
// and both 16-bit types hold, and the output needs no rescaling: most tiles skip it.
template <int M>
struct Softmax {
    float reference[M][2], sum[M][2];  // sum: of this lane's columns

    __device__ Softmax() {
#pragma unroll
        for (int i = 0; i < 2 * M; i++) reference[i / 2][i % 2] = LOWEST, sum[i / 2][i % 2] = 0;
    }

    // s becomes 2^(scale (s - reference)), with `scale` in units of log2.
    template <int N, int NO>
    __device__ __forceinline__ void step(float (&s)[M][N][4], float (&o)[M][NO][4], float scale) {
        float correction[M][2];
        bool grown = false;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
                for (int j = 1; j < N; j++) top = fmaxf(top, fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
                float growth = (top - reference[m][half]) * scale;
                correction[m][half] = growth > 8 ? exp2_approx(-growth) : 1;
                if (growth > 8) reference[m][half] = top, grown = true;
            }
        if (__any_sync(ALL_LANES, grown)) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    sum[m][half] *= correction[m][half];
#pragma unroll
                    for (int j = 0; j < NO; j++) {
                        o[m][j][2 * half] *= correction[m][half];
                        o[m][j][2 * half + 1] *= correction[m][half];
                    }
                }
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float shift = -reference[m][half] * scale, total = 0;
#pragma unroll
                for (int i = 0; i < 2 * N; i++) {
                    float& x = s[m][i / 2][2 * half + i % 2];
                    x = exp2_approx(fmaf(x, scale, shift));
                    total += x;
                }
                sum[m][half] += total;
            }
    }
};

template <class T, int D>
__device__ __forceinline__ void forward_tiles(T* out, long long out_stride, float* lse, const T* qkv, long long qkv_stride,
                                              const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                              float scale) {
    using S = Shape<D>;
    constexpr int M = S::M, KEYS = S::FORWARD_KEYS, TILE = KEYS * S::ROW_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.x, query0 = (gridDim.y - 1 - blockIdx.y) * S::QUERIES;
    const T* q = qkv + head * D;
    const T* k = qkv + (n_heads + head / (n_heads / n_kv_heads)) * D;
    const T* v = k + n_kv_heads * D;
    const unsigned q_tile = shared_base(), kv_tiles = q_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned warp_q = q_tile + warp * S::WARP_ROWS * S::ROW_BYTES;

    const int key_begin = document_of(cu_seqlens, n_documents, query0).start;
    const int key_end = min(query0 + S::QUERIES, n);
    load_tile<D, S::QUERIES>(q_tile, q, qkv_stride, query0, n);
    load_tile<D, KEYS>(kv_tiles, k, qkv_stride, key_begin, n);
    load_tile<D, KEYS>(kv_tiles + TILE, v, qkv_stride, key_begin, n);

    const QueryRows<M> rows(cu_seqlens, n_documents, query0 + warp * S::WARP_ROWS, n);
    Softmax<M> softmax;
    float o[M][D / 8][4];
    clear(o);
    int stage = 0;
    for (int key0 = key_begin; key0 < key_end; key0 += KEYS, stage ^= 1) {
        wait_for_tiles();
        if (key0 + KEYS < key_end) {
            unsigned next = kv_tiles + (stage ^ 1) * 2 * TILE;
            load_tile<D, KEYS>(next, k, qkv_stride, key0 + KEYS, n);
            load_tile<D, KEYS>(next + TILE, v, qkv_stride, key0 + KEYS, n);
        }
        if (!rows.sees_any(key0, KEYS)) continue;
        const unsigned k_tile = kv_tiles + stage * 2 * TILE, v_tile = k_tile + TILE;
        float s[M][KEYS / 8][4];
        multiply_rows<T, D>(s, warp_q, k_tile);
        if (!rows.sees_all(key0, KEYS)) rows.mask(s, key0, -INFINITY);
        softmax.step(s, o, scale * LOG2_E);
        unsigned p[M][KEYS / 16][4];
        to_operand<T>(p, s);
        accumulate<T, D>(o, p, v_tile);
    }

    float inverse[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = softmax.sum[m][half];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            inverse[m][half] = 1 / sum;
            long long row = rows.row[m][half];
            if (lane % 4 == 0 && row < n) lse[row * n_heads + head] = softmax.reference[m][half] * scale + logf(sum);
        }
    store_rows<T, D>(out + head * D, out_stride, rows.first, n, o, inverse, warp_q);
}

// ---- Backward ----

// delta = rowsum(dout * out), one warp a row and head.
template <class T, int D>
__device__ __forceinline__ void delta_rows(float* delta, const T* dout, long long dout_stride, const T* out, long long out_stride,
                                           int n, int n_heads) {
    long long i = blockIdx.x * (long long)WARPS + threadIdx.x / 32;
    if (i >= (long long)n * n_heads) return;
    long long row = i / n_heads;
    int column = int(i % n_heads) * D + threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < D; c += 32) sum += to_float(dout[row * dout_stride + column + c]) * to_float(out[row * out_stride + column + c]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[i] = sum;
}

// dq = c dS k: query rows stay, keys stream by, as in forward.
template <class T, int D>
__device__ __forceinline__ void backward_q_tiles(T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride,
                                                 const float* lse, const float* delta, const T* qkv, long long qkv_stride,
                                                 const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                                 float scale) {
    using S = Shape<D>;
    constexpr int M = S::M, KEYS = S::BACKWARD_Q_KEYS, TILE = KEYS * S::ROW_BYTES;
    const int warp = threadIdx.x / 32;
    const int head = blockIdx.x, query0 = (gridDim.y - 1 - blockIdx.y) * S::QUERIES;
    const T* k = qkv + (n_heads + head / (n_heads / n_kv_heads)) * D;
    const T* v = k + n_kv_heads * D;
    const unsigned q_tile = shared_base(), dout_tile = q_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned kv_tiles = dout_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned warp_q = q_tile + warp * S::WARP_ROWS * S::ROW_BYTES;
    const unsigned warp_dout = dout_tile + warp * S::WARP_ROWS * S::ROW_BYTES;

    const int key_begin = document_of(cu_seqlens, n_documents, query0).start;
    const int key_end = min(query0 + S::QUERIES, n);
    load_tile<D, S::QUERIES>(q_tile, qkv + head * D, qkv_stride, query0, n);
    load_tile<D, S::QUERIES>(dout_tile, dout + head * D, dout_stride, query0, n);
    load_tile<D, KEYS>(kv_tiles, k, qkv_stride, key_begin, n);
    load_tile<D, KEYS>(kv_tiles + TILE, v, qkv_stride, key_begin, n);

    const QueryRows<M> rows(cu_seqlens, n_documents, query0 + warp * S::WARP_ROWS, n);
    float row_lse[M][2], row_delta[M][2];  // lse as -log2
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            long long i = (long long)min(rows.row[m][half], n - 1) * n_heads + head;
            row_lse[m][half] = -lse[i] * LOG2_E;
            row_delta[m][half] = delta[i];
        }
    float dq[M][D / 8][4];
    clear(dq);
    int stage = 0;
    for (int key0 = key_begin; key0 < key_end; key0 += KEYS, stage ^= 1) {
        wait_for_tiles();
        if (key0 + KEYS < key_end) {
            unsigned next = kv_tiles + (stage ^ 1) * 2 * TILE;
            load_tile<D, KEYS>(next, k, qkv_stride, key0 + KEYS, n);
            load_tile<D, KEYS>(next + TILE, v, qkv_stride, key0 + KEYS, n);
        }
        if (!rows.sees_any(key0, KEYS)) continue;
        const unsigned k_tile = kv_tiles + stage * 2 * TILE, v_tile = k_tile + TILE;
        float s[M][KEYS / 8][4], dp[M][KEYS / 8][4];
        multiply_rows<T, D>(s, warp_q, k_tile);
        if (!rows.sees_all(key0, KEYS)) rows.mask(s, key0, -INFINITY);
        multiply_rows<T, D>(dp, warp_dout, v_tile);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float p = exp2_approx(fmaf(s[m][j][e], scale * LOG2_E, row_lse[m][e / 2]));
                    s[m][j][e] = p * (dp[m][j][e] - row_delta[m][e / 2]);
                }
        unsigned ds[M][KEYS / 16][4];
        to_operand<T>(ds, s);
        accumulate<T, D>(dq, ds, k_tile);
    }
    float scales[M][2];
#pragma unroll
    for (int i = 0; i < 2 * M; i++) scales[i / 2][i % 2] = scale;
    store_rows<T, D>(dqkv + head * D, dqkv_stride, rows.first, n, dq, scales, warp_q);
}

// dv = Pᵀ dout and dk = c dSᵀ q: keys stay, the queries of every head of the group stream by. All is transposed (keys
// are rows). Both accumulators of 32 keys would take 256 registers, so two warps share these keys. One computes Sᵀ, P
// and dv; the other dPᵀ = v doutᵀ, dS and dk: the same two products with the roles of q and dout, k and v exchanged. P
// goes from the first to the second through shared memory, as A operands, 16 bytes a lane.
template <class T, int D>
__device__ __forceinline__ void backward_kv_tiles(T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride,
                                                  const float* lse, const float* delta, const T* qkv, long long qkv_stride,
                                                  const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                                  float scale) {
    using S = Shape<D>;
    constexpr int M = S::M, QUERIES = S::BACKWARD_KV_QUERIES, TILE = QUERIES * S::ROW_BYTES, N = QUERIES / 8;
    constexpr int STAGE = 2 * TILE + 2 * QUERIES * 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = warp / 2;
    const bool computes_dk = warp % 2;
    const int kv = blockIdx.x, key0 = blockIdx.y * S::KEYS, group = n_heads / n_kv_heads;
    const T* k = qkv + (n_heads + kv) * D;
    const T* v = k + n_kv_heads * D;
    // Shared memory: k, v, two stages of (q, dout, lse, delta), P of each pair of warps.
    const unsigned k_tile = shared_base(), v_tile = k_tile + S::KEYS * S::ROW_BYTES;
    const unsigned stages = v_tile + S::KEYS * S::ROW_BYTES;
    const unsigned exchange = stages + 2 * STAGE + pair * S::WARP_ROWS * QUERIES * 2 + lane * 16;
    const unsigned warp_keys = (computes_dk ? v_tile : k_tile) + pair * S::WARP_ROWS * S::ROW_BYTES;

    const int key_last = min(key0 + S::KEYS, n) - 1;
    const int query_end = document_of(cu_seqlens, n_documents, key_last).end;
    auto load_queries = [&](int stage, int head, int query0) {
        unsigned tile = stages + stage * STAGE;
        load_tile<D, QUERIES>(tile, qkv + head * D, qkv_stride, query0, n);
        load_tile<D, QUERIES>(tile + TILE, dout + head * D, dout_stride, query0, n);
        load_column<QUERIES>(tile + 2 * TILE, lse + head, n_heads, query0, n);
        load_column<QUERIES>(tile + 2 * TILE + QUERIES * 4, delta + head, n_heads, query0, n);
    };
    load_tile<D, S::KEYS>(k_tile, k, qkv_stride, key0, n);
    load_tile<D, S::KEYS>(v_tile, v, qkv_stride, key0, n);
    load_queries(0, kv * group, key0);

    // This warp's keys, and the end of the document of each of the lane's: a key is seen by queries key..end.
    const int first = key0 + pair * S::WARP_ROWS, last = min(first + S::WARP_ROWS, n) - 1;
    const int first_end = document_of(cu_seqlens, n_documents, min(first, n - 1)).end;
    const int last_end = document_of(cu_seqlens, n_documents, last).end;
    int end[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = min(first + 16 * m + 8 * half + lane / 4, n - 1);
            end[m][half] = first_end == last_end ? first_end : document_of(cu_seqlens, n_documents, row).end;
        }

    float gradient[M][D / 8][4];  // dk or dv
    clear(gradient);
    int head = kv * group, query0 = key0, stage = 0;
    while (true) {
        int next_head = head, next_query0 = query0 + QUERIES;
        if (next_query0 >= query_end) next_head++, next_query0 = key0;
        const bool more = next_head < (kv + 1) * group;
        wait_for_tiles();
        if (more) load_queries(stage ^ 1, next_head, next_query0);

        if (first <= last && query0 + QUERIES > first && query0 < last_end) {
            const unsigned tile = stages + stage * STAGE;
            const unsigned q_or_dout = computes_dk ? tile + TILE : tile, dout_or_q = computes_dk ? tile : tile + TILE;
            const unsigned lane_column = tile + 2 * TILE + (computes_dk ? QUERIES * 4 : 0) + lane % 4 * 8;
            float s[M][N][4];  // Sᵀ or dPᵀ
            multiply_rows<T, D>(s, warp_keys, q_or_dout);
            unsigned operand[M][N / 2][4];
            if (!computes_dk) {
#pragma unroll
                for (int j = 0; j < N; j++) {
                    float2 l;
                    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(l.x), "=f"(l.y) : "r"(lane_column + j * 32) : "memory");
                    l.x *= -LOG2_E;
                    l.y *= -LOG2_E;
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int e = 0; e < 4; e++) s[m][j][e] = exp2_approx(fmaf(s[m][j][e], scale * LOG2_E, e % 2 ? l.y : l.x));
                }
                if (query0 < last || query0 + QUERIES > first_end) {
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int j = 0; j < N; j++)
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                int query = query0 + 8 * j + lane % 4 * 2 + e % 2;
                                int key = first + 16 * m + e / 2 * 8 + lane / 4;
                                if (query < key || query >= end[m][e / 2]) s[m][j][e] = 0;
                            }
                }
                to_operand<T>(operand, s);
#pragma unroll
                for (int i = 0; i < M * N / 2; i++) {
                    const unsigned(&x)[4] = operand[i / (N / 2)][i % (N / 2)];
                    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(exchange + i * 512), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
                }
                asm volatile("bar.arrive %0, 64;" ::"r"(1 + pair) : "memory");
            } else {
                asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory");
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    float2 d[2];
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(d[h].x), "=f"(d[h].y) : "r"(lane_column + (2 * i + h) * 32) : "memory");
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        unsigned p[4];
                        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3])
                                     : "r"(exchange + (m * (N / 2) + i) * 512)
                                     : "memory");
#pragma unroll
                        for (int r = 0; r < 4; r++) {
                            const float* dp = &s[m][2 * i + r / 2][r % 2 * 2];
                            float2 x = unpack<T>(p[r]);
                            operand[m][i][r] = pack<T>(x.x * (dp[0] - d[r / 2].x), x.y * (dp[1] - d[r / 2].y));
                        }
                    }
                }
            }
            accumulate<T, D>(gradient, operand, dout_or_q);
        }
        if (!more) break;
        head = next_head;
        query0 = next_query0;
        stage ^= 1;
    }

    // The warp that computed dv was the only reader of its k rows, the other one of its v rows: room for the results.
    float scales[M][2];
#pragma unroll
    for (int i = 0; i < 2 * M; i++) scales[i / 2][i % 2] = computes_dk ? scale : 1;
    T* destination = dqkv + (n_heads + (computes_dk ? 0 : n_kv_heads) + kv) * D;
    store_rows<T, D>(destination, dqkv_stride, first, n, gradient, scales, warp_keys);
}

// ---- f32: for checks, one warp a row, each lane D / 32 columns, no tiles ----

template <int D>
struct Row {
    static constexpr int N = D / 32;
    float x[N];

    __device__ static Row zeros() {
        Row row;
        for (int i = 0; i < N; i++) row.x[i] = 0;
        return row;
    }
    __device__ static Row load(const float* source) {
        Row row;
        for (int i = 0; i < N; i++) row.x[i] = source[threadIdx.x % 32 + 32 * i];
        return row;
    }
    __device__ void store(float* destination) const {
        for (int i = 0; i < N; i++) destination[threadIdx.x % 32 + 32 * i] = x[i];
    }
    __device__ float dot(const Row& other) const {
        float sum = 0;
        for (int i = 0; i < N; i++) sum += x[i] * other.x[i];
        return warp_sum(sum);
    }
    // self = self a + other b
    __device__ void combine(float a, const Row& other, float b) {
        for (int i = 0; i < N; i++) x[i] = x[i] * a + other.x[i] * b;
    }
};

template <class T, int D>
__device__ __forceinline__ void forward_rows(T* out, long long out_stride, float* lse, const T* qkv, long long qkv_stride,
                                             const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                             float scale) {
    const int head = blockIdx.x;
    const long long row = (gridDim.y - 1 - blockIdx.y) * (long long)WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const T* k = qkv + (n_heads + head / (n_heads / n_kv_heads)) * D;
    const T* v = k + n_kv_heads * D;
    const auto q = Row<D>::load(qkv + row * qkv_stride + head * D);
    auto o = Row<D>::zeros();
    float top = LOWEST, sum = 0;
    for (long long key = document_of(cu_seqlens, n_documents, int(row)).start; key <= row; key++) {
        float s = q.dot(Row<D>::load(k + key * qkv_stride)) * scale;
        float new_top = fmaxf(top, s), correction = expf(top - new_top), p = expf(s - new_top);
        o.combine(correction, Row<D>::load(v + key * qkv_stride), p);
        sum = sum * correction + p;
        top = new_top;
    }
    o.combine(1 / sum, o, 0);
    o.store(out + row * out_stride + head * D);
    if (threadIdx.x % 32 == 0) lse[row * n_heads + head] = top + logf(sum);
}

template <class T, int D>
__device__ __forceinline__ void backward_q_rows(T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride,
                                                const float* lse, const float* delta, const T* qkv, long long qkv_stride,
                                                const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                                float scale) {
    const int head = blockIdx.x;
    const long long row = (gridDim.y - 1 - blockIdx.y) * (long long)WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const T* k = qkv + (n_heads + head / (n_heads / n_kv_heads)) * D;
    const T* v = k + n_kv_heads * D;
    const auto q = Row<D>::load(qkv + row * qkv_stride + head * D), d_o = Row<D>::load(dout + row * dout_stride + head * D);
    const float row_lse = lse[row * n_heads + head], row_delta = delta[row * n_heads + head];
    auto dq = Row<D>::zeros();
    for (long long key = document_of(cu_seqlens, n_documents, int(row)).start; key <= row; key++) {
        const auto k_row = Row<D>::load(k + key * qkv_stride);
        float p = expf(q.dot(k_row) * scale - row_lse);
        dq.combine(1, k_row, scale * p * (d_o.dot(Row<D>::load(v + key * qkv_stride)) - row_delta));
    }
    dq.store(dqkv + row * dqkv_stride + head * D);
}

template <class T, int D>
__device__ __forceinline__ void backward_kv_rows(T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride,
                                                 const float* lse, const float* delta, const T* qkv, long long qkv_stride,
                                                 const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads,
                                                 float scale) {
    const int kv = blockIdx.x, group = n_heads / n_kv_heads;
    const long long key = blockIdx.y * (long long)WARPS + threadIdx.x / 32;
    if (key >= n) return;
    const long long k_column = (n_heads + kv) * D, v_column = k_column + n_kv_heads * D;
    const auto k = Row<D>::load(qkv + key * qkv_stride + k_column), v = Row<D>::load(qkv + key * qkv_stride + v_column);
    const int end = document_of(cu_seqlens, n_documents, int(key)).end;
    auto dk = Row<D>::zeros(), dv = Row<D>::zeros();
    for (int head = kv * group; head < (kv + 1) * group; head++)
        for (long long row = key; row < end; row++) {
            const auto q = Row<D>::load(qkv + row * qkv_stride + head * D), d_o = Row<D>::load(dout + row * dout_stride + head * D);
            float p = expf(q.dot(k) * scale - lse[row * n_heads + head]);
            dv.combine(1, d_o, p);
            dk.combine(1, q, scale * p * (d_o.dot(v) - delta[row * n_heads + head]));
        }
    dk.store(dqkv + key * dqkv_stride + k_column);
    dv.store(dqkv + key * dqkv_stride + v_column);
}

}  // namespace

// ---- Kernels ----

#define BACKWARD(WHICH, T, D, VARIANT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_##WHICH(                                     \
        T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride, const float* lse, const float* delta,          \
        const T* qkv, long long qkv_stride, const unsigned* cu_seqlens, int n_documents, int n, int n_heads, int n_kv_heads, \
        float scale) {                                                                                                       \
        VARIANT<T, D>(dqkv, dqkv_stride, dout, dout_stride, lse, delta, qkv, qkv_stride, cu_seqlens, n_documents, n,         \
                      n_heads, n_kv_heads, scale);                                                                           \
    }

#define ATTENTION(NAME, T, D, VARIANT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward_##NAME##_##D(                                 \
        T* out, long long out_stride, float* lse, const T* qkv, long long qkv_stride, const unsigned* cu_seqlens,            \
        int n_documents, int n, int n_heads, int n_kv_heads, float scale) {                                                  \
        forward_##VARIANT<T, D>(out, out_stride, lse, qkv, qkv_stride, cu_seqlens, n_documents, n, n_heads, n_kv_heads,      \
                                scale);                                                                                      \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_delta_##NAME##_##D(                                      \
        float* delta, const T* dout, long long dout_stride, const T* out, long long out_stride, int n, int n_heads) {        \
        delta_rows<T, D>(delta, dout, dout_stride, out, out_stride, n, n_heads);                                             \
    }                                                                                                                        \
    BACKWARD(kv_##NAME##_##D, T, D, backward_kv_##VARIANT)                                                                   \
    BACKWARD(q_##NAME##_##D, T, D, backward_q_##VARIANT)

#define ATTENTION_ALL(D)                   \
    ATTENTION(bf16, __nv_bfloat16, D, tiles) \
    ATTENTION(f16, __half, D, tiles)       \
    ATTENTION(f32, float, D, rows)

ATTENTION_ALL(64)
ATTENTION_ALL(96)
ATTENTION_ALL(128)
ATTENTION_ALL(256)
