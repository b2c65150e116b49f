// Causal grouped-query attention over packed documents, forward and backward, without storing the n x n scores; see
// attention.rs for the formulas and the reference. Tiling and online softmax: Dao 2023, arXiv:2307.08691.
//
// Launch, for heads of D columns and M = 2 (D <= 128) or 1 (D = 256); every block has 128 threads:
//
//   kernel        grid                            bytes of shared memory: D = 64      96     128     256
//   forward       (n_heads,    ceil(n / (64 M)))                       49,152  73,728  98,304  98,304
//   backward_q    (n_heads,    ceil(n / (64 M)))                       49,152  73,728  98,304  98,304
//   backward_kv   (n_kv_heads, ceil(n / (32 M)))                       58,368  82,944  99,328 100,864
//   delta         (ceil(n * n_heads / 16)), or any other                    0
//   f32           as above but ceil(n / 4) in y                             0
//
// In code for compute capability 7.5, where a block has at most 64 KiB of shared memory, M is 1, and for D = 256 a block
// has 64 threads and half the rows:
//
//   forward       (n_heads,    ceil(n / 64), D = 256: / 32)            24,576  24,576  32,768  49,152
//   backward_q    (n_heads,    ceil(n / 64), D = 256: / 32)            32,768  49,152  65,536  65,536
//   backward_kv   (n_kv_heads, ceil(n / 32), D = 256: / 16)            27,136  39,424  51,712  49,920
//
// Shared memory is dynamic; more than 48 KiB has to be allowed first. delta comes before backward_kv and backward_q,
// which write different columns of dqkv and may run in either order.
//
// Design, for 16-bit types (f32 is for comparisons and has plain kernels at the end):
// - A warp owns 32 rows, so that each fragment of the other operand that it reads from shared memory feeds two mma
//   instructions. With 16 rows those reads, not the tensor cores, would set the pace.
// - Products chain in registers: an accumulator of S is laid out as the A operand of the next product.
// - Two stages of tiles: while one is multiplied, cp.async fills the other. One block-wide barrier a tile, and in
//   backward_kv one more for every 16 queries of the tile. Compute capability 7.5 has no cp.async: there a tile passes
//   through registers on its way into the free stage, and the other block of the multiprocessor computes meanwhile.
// - Nothing is summed across blocks: no atomics, the same bits on every run, no memory beyond lse and delta. The price
//   is that the backward pass computes S and dP twice, 7 products instead of 5.
// - At D = 128 the kernels use all 255 registers. What is needed rarely (document bounds of single rows) or cheaply
//   (addresses) is computed again rather than kept, which leaves room to load fragments ahead of their use.
#include "kernels.cuh"

namespace {

// Compute capability 7.5: no asynchronous copies, products of half the depth, 64 KiB of shared memory, no bf16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool IS_TURING = true;
#else
constexpr bool IS_TURING = false;
#endif

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
// Below every score, yet finite: the difference of two of them is 0 and not NaN.
constexpr float LOWEST = -1e30f;

template <int D> struct Shape {
    static constexpr int ROW_BYTES = 2 * D;
    static constexpr int M = D <= 128 && !IS_TURING ? 2 : 1;  // matrix tiles of 16 rows a warp
    static constexpr int WARP_ROWS = 16 * M;
    static constexpr int WARPS = D == 256 && IS_TURING ? 2 : 4;
    // forward and backward_q: queries of a block, keys of a tile
    static constexpr int QUERIES = WARPS * WARP_ROWS;
    static constexpr int FORWARD_KEYS = IS_TURING ? (D == 64 ? 32 : 16) : D <= 128 ? 64 : 32;
    static constexpr int BACKWARD_Q_KEYS = D <= 128 ? 32 : 16;
    // backward_kv: keys of a block, two warps for each of them, and queries of a tile
    static constexpr int KEYS = WARPS / 2 * WARP_ROWS;
    static constexpr int BACKWARD_KV_QUERIES = (D <= 128 ? 64 : 32) / (IS_TURING ? 2 : 1);
};

struct Document {
    int start, end;
};

// What every kernel is given.
template <typename T, int D> struct Input {
    const T* qkv;
    long long stride;
    const unsigned* cu_seqlens;
    int n_documents, n, n_heads, n_kv_heads;
    float scale;

    __device__ int group() const { return n_heads / n_kv_heads; }
    __device__ const T* q(int head) const { return qkv + head * D; }
    __device__ const T* k(int kv_head) const { return qkv + (n_heads + kv_head) * D; }
    __device__ const T* v(int kv_head) const { return qkv + (n_heads + n_kv_heads + kv_head) * D; }

    // The document of a row: the last that starts at or before it (those that start there too are empty).
    __device__ Document document(int row) const {
        row = min(row, n - 1);
        int low = 0, high = n_documents;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (int(cu_seqlens[middle]) <= row) low = middle;
            else high = middle;
        }
        return {int(cu_seqlens[low]), int(cu_seqlens[low + 1])};
    }
};

// What the backward kernels are given besides.
template <typename T> struct Gradients {
    T* dqkv;
    long long dqkv_stride;
    const T* dout;
    long long dout_stride;
    const float *lse, *delta;
};

// The tile that a block takes, 0 being the longest: blocks start in order, x fastest, so that short ones fill the gaps
// at the end. If all run at once, two on a multiprocessor, the second half goes backwards instead: they are dealt out in
// turn, so that each multiprocessor gets a long and a short one.
__device__ __forceinline__ int tile_of_block() {
    unsigned n_multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(n_multiprocessors));
    const int y = blockIdx.y, n = gridDim.y, half = (n + 1) / 2;
    return gridDim.x * gridDim.y <= 2 * n_multiprocessors && y >= half ? n - 1 - (y - half) : y;
}

// ---- Numbers ----

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T> constexpr bool IS_F16 = false;
template <> constexpr bool IS_F16<f16> = true;

template <typename T> __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned y;
    if constexpr (IS_F16<T>) {
        const __half2 pair = __floats2half2_rn(low, high);
        y = *reinterpret_cast<const unsigned*>(&pair);
    } else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

template <typename T> __device__ __forceinline__ float2 unpack(unsigned x) {
    if constexpr (IS_F16<T>) return __half22float2(*reinterpret_cast<__half2*>(&x));
    else return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

// ---- Shared memory ----

__device__ __forceinline__ unsigned shared_base() {
    extern __shared__ __align__(1024) unsigned char shared[];
    return unsigned(__cvta_generic_to_shared(shared));
}

// A tile is rows of D elements without padding. Chunks of 16 bytes are permuted within each row, so that the eight rows
// that ldmatrix reads at one column lie in different banks. Rows of a multiple of 128 bytes all start in bank 0 and need
// eight places; rows of 192 bytes (D = 96) start in two banks by turns and need four.
template <int D> __device__ __forceinline__ unsigned permuted(int row, int chunk) {
    return chunk ^ (D == 96 ? row >> 1 & 3 : row & 7);
}

template <int D> __device__ __forceinline__ unsigned chunk_offset(int row, int chunk) {
    return row * Shape<D>::ROW_BYTES + permuted<D>(row, chunk) * 16;
}

__device__ __forceinline__ void store_words(unsigned address, const unsigned (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// Starts copying 16 or 4 bytes, or as many zeros.
#define COPY_ASYNC(CACHE, BYTES, to, from, valid)                                                                      \
    asm volatile("cp.async." CACHE ".shared.global [%0], [%1], " #BYTES ", %2;" ::"r"(to), "l"(from),                  \
                 "r"((valid) ? BYTES : 0) : "memory")

// Starts copying rows row0 + FIRST..row0 + LAST of one head to rows FIRST..LAST of a tile; rows past n become zeros.
template <int D, int FIRST, int LAST, int N_THREADS = 32 * Shape<D>::WARPS, typename T>
__device__ __forceinline__ void load_tile(unsigned tile, const T* head, long long stride, int row0, int n) {
    constexpr int CHUNKS = D / 8;
    constexpr int PASS_ROWS = D == 96 ? N_THREADS / 16 : N_THREADS / CHUNKS;  // D = 96: a quarter of the threads rests
    static_assert((LAST - FIRST) % PASS_ROWS == 0, "whole passes");
    // Where registers are short, the compiler must not see that the offsets below are the same for every tile.
    int thread = threadIdx.x;
    if constexpr (D == 128) asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= N_THREADS;
    const int chunk = thread % CHUNKS;
    int row = FIRST + thread / CHUNKS;
    if (row >= FIRST + PASS_ROWS) return;
    const T* source = head + (row0 + row) * stride + chunk * 8;
    constexpr int PASSES = (LAST - FIRST) / PASS_ROWS;
    if constexpr (IS_TURING) {
        // All reads are ahead of the writes.
        uint4 read[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const bool valid = row0 + row + i * PASS_ROWS < n;
            read[i] = valid ? *reinterpret_cast<const uint4*>(source + i * PASS_ROWS * stride) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            store_words(tile + chunk_offset<D>(row + i * PASS_ROWS, chunk), {read[i].x, read[i].y, read[i].z, read[i].w});
    } else {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            COPY_ASYNC("cg", 16, tile + chunk_offset<D>(row, chunk), source, row0 + row < n);
            row += PASS_ROWS;
            source += PASS_ROWS * stride;
        }
    }
}

// Starts copying one head's column of an f32 [n, n_heads] matrix.
template <int ROWS>
__device__ __forceinline__ void load_column(unsigned tile, const float* column, int n_heads, int row0, int n) {
    if (threadIdx.x >= ROWS) return;
    const int row = row0 + int(threadIdx.x);
    const float* source = column + row * (long long)n_heads;
    const unsigned destination = tile + threadIdx.x * 4;
    if constexpr (IS_TURING)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(destination), "f"(row < n ? *source : 0.0f) : "memory");
    else COPY_ASYNC("ca", 4, destination, source, row < n);
}

// All copies have landed: this thread's, and after the barrier the other threads' too. The barrier also says that every
// warp is done with the previous tile, so that its stage is free.
__device__ __forceinline__ void wait_for_tiles() {
    if constexpr (!IS_TURING) asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

__device__ __forceinline__ void load_words(unsigned (&x)[4], unsigned address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ float2 load_floats(unsigned address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

// ---- Matrix products ----

// c += a b for a of 16 x 16, b of 16 x 8. Lane l holds c at rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next.
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define MMA(TYPE)                                                                                                      \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
        "{%0, %1, %2, %3};"                                                                                            \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
// The same of k from 0 to 8 or from 8 to 16.
#define MMA_HALF(a0, a1, b)                                                                                            \
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"         \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                               \
        : "r"(a0), "r"(a1), "r"(b))
    if constexpr (IS_TURING) {
        static_assert(IS_F16<T>, "no products of bf16");
        MMA_HALF(a[0], a[1], b0);
        MMA_HALF(a[2], a[3], b1);
    } else if constexpr (IS_F16<T>) MMA("f16");
    else MMA("bf16");
#undef MMA
#undef MMA_HALF
}

#define LOAD_MATRICES(TRANS, x, address)                                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];"                           \
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory")

// The row that this lane points ldmatrix.x4 at, in any 16 x 16 block of a tile: row l % 8 of 8 x 8 matrix l / 8.
template <int D> struct LaneRow {
    unsigned row, chunk;  // byte offsets

    __device__ LaneRow(int row, int chunk) : row(row * Shape<D>::ROW_BYTES), chunk(permuted<D>(row, chunk) * 16) {}

    // Matrices in the order top left, bottom left, top right, bottom right: A, and B from rows of k.
    __device__ static LaneRow down_first() {
        const int lane = threadIdx.x % 32;
        return LaneRow(lane % 16, lane / 16);
    }

    // Top left, top right, bottom left, bottom right: B from rows of n.
    __device__ static LaneRow across_first() {
        const int lane = threadIdx.x % 32;
        return LaneRow(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }

    // Blocks start at multiples of 16 rows and 2 chunks, so the permutation is an xor with the block's column. If rows
    // are a power of two, and tiles aligned to them, it can be applied to the whole address.
    __device__ __forceinline__ unsigned in(unsigned tile, int block_row, int block_column) const {
        const unsigned rows = block_row * 16 * Shape<D>::ROW_BYTES;
        if constexpr (D == 96) return tile + row + (chunk ^ block_column * 32) + rows;
        else return ((tile + row + chunk) ^ block_column * 32) + rows;
    }
};

template <int M, int N> __device__ __forceinline__ void clear(float (&c)[M][N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * M * N; i++) c[i / 4 / N][i / 4 % N][i % 4] = 0;
}

// c += A Bᵀ: 16 M rows of tile a with 8 N rows of tile b, over all D columns.
template <typename T, int D, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], unsigned a_tile, unsigned b_tile) {
    const auto a_lane = LaneRow<D>::down_first(), b_lane = LaneRow<D>::across_first();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned a[M][4], b[4];
        for (int m = 0; m < M; m++) LOAD_MATRICES("", a[m], a_lane.in(a_tile, m, k));
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            LOAD_MATRICES("", b, b_lane.in(b_tile, j, k));
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], a[m], b[0], b[1]);
                mma<T>(c[m][2 * j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

struct Nothing {
    __device__ void operator()(int) const {}
};

// c += A B: A of 16 M x 16 K in registers, B the 16 K rows of a tile. `beside(step)` is called in each of the K D / 16
// steps: exponentials, say, which then run while the tensor core is busy.
template <typename T, int D, int M, int K, typename Beside = Nothing>
__device__ __forceinline__ void accumulate(float (&c)[M][D / 8][4], const unsigned (&a)[M][K][4], unsigned b_tile,
                                           const Beside& beside = {}) {
    const auto lane = LaneRow<D>::down_first();
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            unsigned b[4];
            LOAD_MATRICES(".trans", b, lane.in(b_tile, k, j));
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], a[m][k], b[0], b[1]);
                mma<T>(c[m][2 * j + 1], a[m][k], b[2], b[3]);
            }
            beside(k * D / 16 + j);
        }
    }
}

// Accumulators as A operands of the next product: two 16 x 8 tiles side by side are one 16 x 16 operand.
template <typename T, int M, int N>
__device__ __forceinline__ void to_operand(unsigned (&a)[M][N / 2][4], const float (&c)[M][N][4]) {
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            a[m][i / 4][i % 4] = pack<T>(c[m][i / 2][i % 2 * 2], c[m][i / 2][i % 2 * 2 + 1]);
}

// Writes a warp's 16 M x D accumulators, times scale[m][half] by row, to rows row0.. of one head. They pass through
// `tile`, 16 M rows that no other warp reads any more, so that the stores are coalesced and of 16 bytes.
template <typename T, int D, int M>
__device__ __forceinline__ void store_rows(T* head, long long stride, int row0, int n, const float (&c)[M][D / 8][4],
                                           const float (&scale)[M][2], unsigned tile) {
    constexpr int CHUNKS = D / 8;
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        const int m = r / 2, half = r % 2;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const float s = scale[m][half];
            const unsigned x = pack<T>(c[m][j][2 * half] * s, c[m][j][2 * half + 1] * s);
            const unsigned address = tile + chunk_offset<D>(16 * m + 8 * half + lane / 4, j) + lane % 4 * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * M * CHUNKS; i += 32) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row0 + row >= n) break;
        unsigned x[4];
        load_words(x, tile + chunk_offset<D>(row, chunk));
        *reinterpret_cast<uint4*>(head + (row0 + row) * stride + chunk * 8) = {x[0], x[1], x[2], x[3]};
    }
}

// ---- Forward ----

// The query rows of a warp, and the bounds that decide what a tile of keys needs.
template <typename T, int D> struct QueryRows {
    static constexpr int M = Shape<D>::M;
    const Input<T, D>& input;
    int first, last;              // last < first: none
    int first_start, last_start;  // first rows of those two rows' documents; the other rows' lie between

    __device__ QueryRows(const Input<T, D>& input, int row0)
        : input(input), first(row0), last(min(row0 + 16 * M, input.n) - 1) {
        first_start = input.document(first).start;
        last_start = input.document(last).start;
    }

    // One of the lane's rows: row lane / 4 or lane / 4 + 8 of matrix tile m.
    __device__ int row(int m, int half) const { return first + 16 * m + 8 * half + threadIdx.x % 32 / 4; }
    __device__ bool see_any(int key0, int n_keys) const {
        return first <= last && key0 <= last && key0 + n_keys > first_start;
    }
    __device__ bool see_all(int key0, int n_keys) const { return key0 + n_keys - 1 <= first && key0 >= last_start; }

    // Makes -infinity what a row must not see.
    template <int N> __device__ __forceinline__ void mask(float (&s)[M][N][4], int key0) const {
        const int lane_key = key0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2 * M; r++) {
            const int m = r / 2, half = r % 2;
            const int start = key0 < last_start ? input.document(row(m, half)).start : first_start;
#pragma unroll
            for (int i = 0; i < 2 * N; i++) {
                const int key = lane_key + i / 2 * 8 + i % 2;
                if (key > row(m, half) || key < start) s[m][i / 2][2 * half + i % 2] = -INFINITY;
            }
        }
    }
};

// Starts copying a tile of keys and, behind it, their values.
template <int KEYS, typename T, int D>
__device__ __forceinline__ void load_keys(unsigned tile, const Input<T, D>& input, int kv_head, int key0) {
    load_tile<D, 0, KEYS>(tile, input.k(kv_head), input.stride, key0, input.n);
    load_tile<D, 0, KEYS>(tile + KEYS * Shape<D>::ROW_BYTES, input.v(kv_head), input.stride, key0, input.n);
}

// The running softmax of a warp's rows. `reference` is the score that exponents are relative to. It follows a row's
// maximum only once that has grown by more than 2^8; until then P exceeds 1, which sums in f32 and both 16-bit types can
// hold. So most tiles need not rescale what was summed before.
template <int M> struct Softmax {
    float reference[M][2], sum[M][2];  // sum: of this lane's columns

    __device__ Softmax() {
#pragma unroll
        for (int i = 0; i < 2 * M; i++) reference[i / 2][i % 2] = LOWEST, sum[i / 2][i % 2] = 0;
    }

    // s becomes 2^(scale (s - reference)).
    template <int N, int NO>
    __device__ __forceinline__ void step(float (&s)[M][N][4], float (&o)[M][NO][4], float scale) {
        float correction[M][2];
        bool moved = false;
#pragma unroll
        for (int r = 0; r < 2 * M; r++) {
            const int m = r / 2, half = r % 2;
            float top = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
            for (int j = 1; j < N; j++) top = fmaxf(top, fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            const float growth = (top - reference[m][half]) * scale;
            correction[m][half] = growth > 8 ? exp2_approx(-growth) : 1;
            if (growth > 8) reference[m][half] = top, moved = true;
        }
        if (__any_sync(ALL_LANES, moved)) {
#pragma unroll
            for (int r = 0; r < 2 * M; r++) {
                const int m = r / 2, half = r % 2;
                sum[m][half] *= correction[m][half];
#pragma unroll
                for (int i = 0; i < 2 * NO; i++) o[m][i / 2][2 * half + i % 2] *= correction[m][half];
            }
        }
#pragma unroll
        for (int r = 0; r < 2 * M; r++) {
            const int m = r / 2, half = r % 2;
            const float shift = -reference[m][half] * scale;
            float total = 0;
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

template <typename T, int D>
__device__ __forceinline__ void forward_tiles(T* out, long long out_stride, float* lse, const Input<T, D>& input) {
    using S = Shape<D>;
    constexpr int M = S::M, KEYS = S::FORWARD_KEYS, TILE = KEYS * S::ROW_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = input.n;
    const int head = blockIdx.x, kv_head = head / input.group(), query0 = (gridDim.y - 1 - tile_of_block()) * S::QUERIES;
    // Shared memory: q, two stages of (k, v).
    const unsigned q_tile = shared_base(), stages = q_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned warp_q = q_tile + warp * S::WARP_ROWS * S::ROW_BYTES;
    const int key_begin = input.document(query0).start, key_end = min(query0 + S::QUERIES, n);
    load_tile<D, 0, S::QUERIES>(q_tile, input.q(head), input.stride, query0, n);
    load_keys<KEYS>(stages, input, kv_head, key_begin);

    const QueryRows<T, D> rows(input, query0 + warp * S::WARP_ROWS);
    Softmax<M> softmax;
    float o[M][D / 8][4];
    clear(o);
    int stage = 0;
    for (int key0 = key_begin; key0 < key_end; key0 += KEYS, stage ^= 1) {
        wait_for_tiles();
        if (key0 + KEYS < key_end) load_keys<KEYS>(stages + (stage ^ 1) * 2 * TILE, input, kv_head, key0 + KEYS);
        if (!rows.see_any(key0, KEYS)) continue;
        const unsigned k_tile = stages + stage * 2 * TILE, v_tile = k_tile + TILE;
        float s[M][KEYS / 8][4];
        clear(s);
        multiply_rows<T, D>(s, warp_q, k_tile);
        if (!rows.see_all(key0, KEYS)) rows.mask(s, key0);
        softmax.step(s, o, input.scale * LOG2_E);
        unsigned p[M][KEYS / 16][4];
        to_operand<T>(p, s);
        accumulate<T, D>(o, p, v_tile);
    }

    float inverse[M][2];
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        const int m = r / 2, half = r % 2;
        float sum = softmax.sum[m][half];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        inverse[m][half] = 1 / sum;
        const long long row = rows.row(m, half);
        const float row_lse = softmax.reference[m][half] * input.scale + logf(sum);
        if (lane % 4 == 0 && row < n) lse[row * input.n_heads + head] = row_lse;
    }
    store_rows<T, D>(out + head * D, out_stride, rows.first, n, o, inverse, warp_q);
}

// ---- Backward ----

// Eight neighbouring elements. Heads of 16-bit types start at multiples of 16 bytes.
template <typename T> __device__ __forceinline__ void load_eight(float (&x)[8], const T* source) {
    if constexpr (sizeof(T) == 2) {
        const Vec<T> y = *reinterpret_cast<const Vec<T>*>(source);
        for (int i = 0; i < 8; i++) x[i] = to_float(y.x[i]);
    } else {
        for (int i = 0; i < 8; i++) x[i] = to_float(source[i]);
    }
}

// delta = rowsum(dout * out): 8 columns a lane, D / 8 lanes (rounded up to a power of two) a row and head.
template <typename T, int D>
__device__ __forceinline__ void delta_rows(float* delta, const T* dout, long long dout_stride, const T* out,
                                           long long out_stride, int n, int n_heads) {
    constexpr int LANES = D == 64 ? 8 : D == 256 ? 32 : 16, ITEMS = THREADS / LANES;
    const long long n_items = (long long)n * n_heads;
    const int column = threadIdx.x % LANES * 8;
    for (long long first = blockIdx.x * (long long)ITEMS; first < n_items; first += gridDim.x * (long long)ITEMS) {
        const long long item = first + threadIdx.x / LANES, row = item / n_heads;
        float sum = 0;
        if (item < n_items && column < D) {
            const int start = int(item % n_heads) * D + column;
            float x[8], y[8];
            load_eight(x, dout + row * dout_stride + start);
            load_eight(y, out + row * out_stride + start);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += x[i] * y[i];
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (item < n_items && column == 0) delta[item] = sum;
    }
}

// dq = c dS k: the queries stay, keys stream by, as in forward. The accumulators of S and dP start at -lse / c and
// -delta, so that P = e^(c S) and dS = P dP without another addition.
template <typename T, int D>
__device__ __forceinline__ void backward_q_tiles(const Gradients<T>& g, const Input<T, D>& input) {
    using S = Shape<D>;
    constexpr int M = S::M, KEYS = S::BACKWARD_Q_KEYS, TILE = KEYS * S::ROW_BYTES, N = KEYS / 8;
    const int warp = threadIdx.x / 32, n = input.n;
    const int head = blockIdx.x, kv_head = head / input.group(), query0 = (gridDim.y - 1 - tile_of_block()) * S::QUERIES;
    // Shared memory: q, dout, two stages of (k, v).
    const unsigned q_tile = shared_base(), dout_tile = q_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned stages = dout_tile + S::QUERIES * S::ROW_BYTES;
    const unsigned warp_offset = warp * S::WARP_ROWS * S::ROW_BYTES;
    const int key_begin = input.document(query0).start, key_end = min(query0 + S::QUERIES, n);
    load_tile<D, 0, S::QUERIES>(q_tile, input.q(head), input.stride, query0, n);
    load_tile<D, 0, S::QUERIES>(dout_tile, g.dout + head * D, g.dout_stride, query0, n);
    load_keys<KEYS>(stages, input, kv_head, key_begin);

    const QueryRows<T, D> rows(input, query0 + warp * S::WARP_ROWS);
    float start_s[M][2], start_dp[M][2], scales[M][2];
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        const int m = r / 2, half = r % 2;
        const long long i = (long long)min(rows.row(m, half), n - 1) * input.n_heads + head;
        start_s[m][half] = -g.lse[i] / input.scale;
        start_dp[m][half] = -g.delta[i];
        scales[m][half] = input.scale;
    }
    float dq[M][D / 8][4];
    clear(dq);
    int stage = 0;
    for (int key0 = key_begin; key0 < key_end; key0 += KEYS, stage ^= 1) {
        wait_for_tiles();
        if (key0 + KEYS < key_end) load_keys<KEYS>(stages + (stage ^ 1) * 2 * TILE, input, kv_head, key0 + KEYS);
        if (!rows.see_any(key0, KEYS)) continue;
        const unsigned k_tile = stages + stage * 2 * TILE, v_tile = k_tile + TILE;
        float s[M][N][4], dp[M][N][4];
#pragma unroll
        for (int i = 0; i < 4 * M * N; i++) {
            s[i / 4 / N][i / 4 % N][i % 4] = start_s[i / 4 / N][i % 4 / 2];
            dp[i / 4 / N][i / 4 % N][i % 4] = start_dp[i / 4 / N][i % 4 / 2];
        }
        multiply_rows<T, D>(s, warp_offset + q_tile, k_tile);
        if (!rows.see_all(key0, KEYS)) rows.mask(s, key0);
        multiply_rows<T, D>(dp, warp_offset + dout_tile, v_tile);
#pragma unroll
        for (int i = 0; i < 4 * M * N; i++) {
            float& x = s[i / 4 / N][i / 4 % N][i % 4];
            x = exp2_approx(x * (input.scale * LOG2_E)) * dp[i / 4 / N][i / 4 % N][i % 4];
        }
        unsigned ds[M][N / 2][4];
        to_operand<T>(ds, s);
        accumulate<T, D>(dq, ds, k_tile);
    }
    store_rows<T, D>(g.dqkv + head * D, g.dqkv_stride, rows.first, n, dq, scales, warp_offset + q_tile);
}

// dv = Pᵀ dout and dk = c dSᵀ q: the keys stay, the queries of every head of the group stream by. All is transposed:
// keys are rows. Both accumulators of 32 keys would take 256 registers, so two warps share these keys. One computes Sᵀ,
// P and dv; the other dPᵀ = v doutᵀ, dS and dk: the same two products with q and dout, k and v exchanged. P goes from
// the first to the second through shared memory, 16 queries (a slice) at a time, as A operands, 16 bytes a lane. The
// barrier between is one of the whole block, at one place in the code for all its warps, whether they see the tile or
// not: with barriers of two warps, reached at two places, compute-sanitizer's racecheck reports hazards that are none.
//
// For D = 128 there is no room left for P below 99 KiB. It travels in the first rows of the next tile of q, which the
// second warp fills once it has read P.
template <typename T, int D>
__device__ __forceinline__ void backward_kv_tiles(const Gradients<T>& g, const Input<T, D>& input) {
    using S = Shape<D>;
    constexpr int M = S::M, QUERIES = S::BACKWARD_KV_QUERIES, TILE = QUERIES * S::ROW_BYTES, COLUMN = QUERIES * 4;
    constexpr int N = QUERIES / 8, SLICES = QUERIES / 16, SLICE_BYTES = 16 * S::ROW_BYTES;
    constexpr int P_BYTES = S::WARP_ROWS * QUERIES * 2;  // of one pair of warps
    constexpr int LATE_ROWS = D == 128 && !IS_TURING ? P_BYTES / S::ROW_BYTES : 0;
    // The shuffle tells the compiler that all lanes hold the same value: what follows from it (roles, rows, addresses)
    // can then live in uniform registers, and branches cannot diverge. Without it the kernels for D = 128 spill.
    const int warp = __shfl_sync(ALL_LANES, int(threadIdx.x / 32), 0), lane = threadIdx.x % 32, pair = warp / 2;
    const bool computes_dk = warp % 2;
    const int kv_head = blockIdx.x, key0 = tile_of_block() * S::KEYS, n = input.n;
    const int first_head = kv_head * input.group(), end_head = first_head + input.group();
    const float scale_log2 = input.scale * LOG2_E;
    // Shared memory: k, v, two stages of (q, dout), two of (lse, delta), P of each pair.
    const unsigned k_tile = shared_base(), v_tile = k_tile + S::KEYS * S::ROW_BYTES;
    const unsigned stages = v_tile + S::KEYS * S::ROW_BYTES, columns = stages + 4 * TILE;
    const unsigned warp_keys = (computes_dk ? v_tile : k_tile) + pair * S::WARP_ROWS * S::ROW_BYTES;

    auto load_columns = [&](int stage, int head, int query0) {
        load_column<QUERIES>(columns + stage * 2 * COLUMN, g.lse + head, input.n_heads, query0, n);
        load_column<QUERIES>(columns + stage * 2 * COLUMN + COLUMN, g.delta + head, input.n_heads, query0, n);
    };
    load_tile<D, 0, S::KEYS>(k_tile, input.k(kv_head), input.stride, key0, n);
    load_tile<D, 0, S::KEYS>(v_tile, input.v(kv_head), input.stride, key0, n);
    load_tile<D, 0, QUERIES>(stages, input.q(first_head), input.stride, key0, n);
    load_tile<D, 0, QUERIES>(stages + TILE, g.dout + first_head * D, g.dout_stride, key0, n);
    load_columns(0, first_head, key0);

    // This warp's keys, and the ends of the documents of the first and the last. A key is seen by queries key..end.
    const int first = key0 + pair * S::WARP_ROWS, last = min(first + S::WARP_ROWS, n) - 1;
    const int first_end = input.document(first).end, last_end = input.document(last).end;
    const int query_end = input.document(key0 + S::KEYS - 1).end;

    float gradient[M][D / 8][4];  // dk or dv
    clear(gradient);
    int head = first_head, query0 = key0, stage = 0;
    while (true) {
        int next_head = head, next_query0 = query0 + QUERIES;
        if (next_query0 >= query_end) next_head++, next_query0 = key0;
        const bool more = next_head < end_head;
        const unsigned q_tile = stages + stage * 2 * TILE, dout_tile = q_tile + TILE;
        const unsigned next_q_tile = stages + (stage ^ 1) * 2 * TILE;
        wait_for_tiles();
        if (more) {
            load_tile<D, 2 * LATE_ROWS, QUERIES>(next_q_tile, input.q(next_head), input.stride, next_query0, n);
            load_tile<D, 0, QUERIES>(next_q_tile + TILE, g.dout + next_head * D, g.dout_stride, next_query0, n);
            load_columns(stage ^ 1, next_head, next_query0);
        }
        const unsigned lse_column = columns + stage * 2 * COLUMN + lane % 4 * 8, delta_column = lse_column + COLUMN;
        const unsigned exchange = (LATE_ROWS ? next_q_tile : columns + 4 * COLUMN) + pair * P_BYTES + lane * 16;
        const bool seen = first <= last && query0 + QUERIES > first && query0 < last_end;
        float s[M][N][4];             // the warp of dk: dP - delta
        unsigned p[SLICES][M][1][4];  // the warp of dk: dS
        auto exponentiate = [&](int slice, int i) {  // register i of the slice: one key, two neighbouring queries
            const int j = 2 * slice + i % 4 / 2;
            const float* x = &s[i / 4][j][i % 2 * 2];
            const float2 l = load_floats(lse_column + j * 32);
            p[slice][i / 4][0][i % 4] = pack<T>(exp2_approx(fmaf(x[0], scale_log2, l.x * -LOG2_E)),
                                                exp2_approx(fmaf(x[1], scale_log2, l.y * -LOG2_E)));
        };
        if (seen) {
            clear(s);
            if (computes_dk) {
#pragma unroll
                for (int j = 0; j < N; j++) {
                    const float2 delta = load_floats(delta_column + j * 32);
#pragma unroll
                    for (int i = 0; i < 4 * M; i++) s[i / 4][j][i % 4] = i % 2 ? -delta.y : -delta.x;
                }
            }
            multiply_rows<T, D>(s, warp_keys, computes_dk ? dout_tile : q_tile);
        }
        if (seen && !computes_dk) {
            if (query0 < last || query0 + QUERIES > first_end) {
#pragma unroll
                for (int r = 0; r < 2 * M; r++) {
                    const int m = r / 2, half = r % 2;
                    const int key = first + 16 * m + 8 * half + lane / 4;
                    const int end = query0 + QUERIES > first_end ? input.document(key).end : last_end;
#pragma unroll
                    for (int i = 0; i < 2 * N; i++) {
                        const int query = query0 + lane % 4 * 2 + i / 2 * 8 + i % 2;
                        if (query < key || query >= end) s[m][i / 2][2 * half + i % 2] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 4 * M; i++) exponentiate(0, i);
        }
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            if (seen && !computes_dk)
                for (int m = 0; m < M; m++) store_words(exchange + (slice * M + m) * 512, p[slice][m][0]);
            __syncthreads();
            if (seen && !computes_dk) {
                // The next slice's exponentials, evenly over the D / 16 steps.
                accumulate<T, D>(gradient, p[slice], dout_tile + slice * SLICE_BYTES, [&](int step) {
#pragma unroll
                    for (int i = 0; i < 4 * M; i++)
                        if (slice + 1 < SLICES && i * (D / 16) / (4 * M) == step) exponentiate(slice + 1, i);
                });
            }
            if (seen && computes_dk) {
                for (int m = 0; m < M; m++) load_words(p[slice][m][0], exchange + (slice * M + m) * 512);
#pragma unroll
                for (int i = 0; i < 4 * M; i++) {
                    unsigned& x = p[slice][i / 4][0][i % 4];
                    const float* y = &s[i / 4][2 * slice + i % 4 / 2][i % 2 * 2];
                    const float2 probability = unpack<T>(x);
                    x = pack<T>(probability.x * y[0], probability.y * y[1]);
                }
                if (slice + 1 < SLICES) accumulate<T, D>(gradient, p[slice], q_tile + slice * SLICE_BYTES);
            }
        }
        if (LATE_ROWS && more && computes_dk) {
            __syncwarp();
            load_tile<D, 0, LATE_ROWS ? LATE_ROWS : 16, 32>(next_q_tile + pair * P_BYTES, input.q(next_head),
                                                            input.stride, next_query0 + pair * LATE_ROWS, n);
        }
        if (seen && computes_dk)
            accumulate<T, D>(gradient, p[SLICES - 1], q_tile + (SLICES - 1) * SLICE_BYTES);
        if (!more) break;
        head = next_head;
        query0 = next_query0;
        stage ^= 1;
    }

    // Only this warp read its rows of k or v: room for the results on their way out.
    float scales[M][2];
#pragma unroll
    for (int i = 0; i < 2 * M; i++) scales[i / 2][i % 2] = computes_dk ? input.scale : 1;
    T* destination = g.dqkv + (input.n_heads + (computes_dk ? 0 : input.n_kv_heads) + kv_head) * D;
    store_rows<T, D>(destination, g.dqkv_stride, first, n, gradient, scales, warp_keys);
}

// ---- f32: one warp a row, D / 32 columns a lane, no tiles ----

template <int D> struct Row {
    static constexpr int N = D / 32;
    float x[N] = {};

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

template <typename T, int D>
__device__ __forceinline__ void forward_rows(T* out, long long out_stride, float* lse, const Input<T, D>& input) {
    const int head = blockIdx.x, kv_head = head / input.group();
    const long long row = (gridDim.y - 1 - blockIdx.y) * (long long)WARPS + threadIdx.x / 32, stride = input.stride;
    if (row >= input.n) return;
    const auto q = Row<D>::load(input.q(head) + row * stride);
    Row<D> o;
    float top = LOWEST, sum = 0;
    for (long long key = input.document(int(row)).start; key <= row; key++) {
        const float s = q.dot(Row<D>::load(input.k(kv_head) + key * stride)) * input.scale;
        const float new_top = fmaxf(top, s), correction = expf(top - new_top), p = expf(s - new_top);
        o.combine(correction, Row<D>::load(input.v(kv_head) + key * stride), p);
        sum = sum * correction + p;
        top = new_top;
    }
    o.combine(1 / sum, o, 0);
    o.store(out + row * out_stride + head * D);
    if (threadIdx.x % 32 == 0) lse[row * input.n_heads + head] = top + logf(sum);
}

template <typename T, int D>
__device__ __forceinline__ void backward_q_rows(const Gradients<T>& g, const Input<T, D>& input) {
    const int head = blockIdx.x, kv_head = head / input.group();
    const long long row = (gridDim.y - 1 - blockIdx.y) * (long long)WARPS + threadIdx.x / 32, stride = input.stride;
    if (row >= input.n) return;
    const auto q = Row<D>::load(input.q(head) + row * stride);
    const auto dout = Row<D>::load(g.dout + row * g.dout_stride + head * D);
    const float lse = g.lse[row * input.n_heads + head], delta = g.delta[row * input.n_heads + head];
    Row<D> dq;
    for (long long key = input.document(int(row)).start; key <= row; key++) {
        const auto k = Row<D>::load(input.k(kv_head) + key * stride), v = Row<D>::load(input.v(kv_head) + key * stride);
        dq.combine(1, k, input.scale * expf(q.dot(k) * input.scale - lse) * (dout.dot(v) - delta));
    }
    dq.store(g.dqkv + row * g.dqkv_stride + head * D);
}

template <typename T, int D>
__device__ __forceinline__ void backward_kv_rows(const Gradients<T>& g, const Input<T, D>& input) {
    const int kv_head = blockIdx.x;
    const long long key = blockIdx.y * (long long)WARPS + threadIdx.x / 32, stride = input.stride;
    if (key >= input.n) return;
    const auto k = Row<D>::load(input.k(kv_head) + key * stride), v = Row<D>::load(input.v(kv_head) + key * stride);
    const int end = input.document(int(key)).end;
    Row<D> dk, dv;
    for (int head = kv_head * input.group(); head < (kv_head + 1) * input.group(); head++)
        for (long long row = key; row < end; row++) {
            const auto q = Row<D>::load(input.q(head) + row * stride);
            const auto dout = Row<D>::load(g.dout + row * g.dout_stride + head * D);
            const long long i = row * input.n_heads + head;
            const float p = expf(q.dot(k) * input.scale - g.lse[i]);
            dv.combine(1, dout, p);
            dk.combine(1, q, input.scale * p * (dout.dot(v) - g.delta[i]));
        }
    T* destination = g.dqkv + key * g.dqkv_stride + (input.n_heads + kv_head) * D;
    dk.store(destination);
    dv.store(destination + input.n_kv_heads * D);
}

}  // namespace

// ---- Kernels ----

#define INPUT(T)                                                                                                       \
    const T *qkv, long long qkv_stride, const unsigned *cu_seqlens, int n_documents, int n, int n_heads,               \
        int n_kv_heads, float scale
#define INPUT_VALUES {qkv, qkv_stride, cu_seqlens, n_documents, n, n_heads, n_kv_heads, scale}

#define BACKWARD(NAME, T, D, BODY)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                           \
        attention_backward_##NAME(T* dqkv, long long dqkv_stride, const T* dout, long long dout_stride,                \
                                  const float* lse, const float* delta, INPUT(T)) {                                    \
        BODY<T, D>({dqkv, dqkv_stride, dout, dout_stride, lse, delta}, INPUT_VALUES);                                  \
    }

// Two blocks of 128 threads on a multiprocessor: up to 255 registers.
#define ATTENTION(T, D, VARIANT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                           \
        attention_forward_##T##_##D(T* out, long long out_stride, float* lse, INPUT(T)) {                              \
        forward_##VARIANT<T, D>(out, out_stride, lse, INPUT_VALUES);                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        attention_delta_##T##_##D(float* delta, const T* dout, long long dout_stride, const T* out,                    \
                                  long long out_stride, int n, int n_heads) {                                          \
        delta_rows<T, D>(delta, dout, dout_stride, out, out_stride, n, n_heads);                                       \
    }                                                                                                                  \
    BACKWARD(kv_##T##_##D, T, D, backward_kv_##VARIANT)                                                                \
    BACKWARD(q_##T##_##D, T, D, backward_q_##VARIANT)

#define ATTENTION_ALL_TYPES(D)                                                                                         \
    WHERE_BF16(ATTENTION(bf16, D, tiles)) ATTENTION(f16, D, tiles) ATTENTION(f32, D, rows)

ATTENTION_ALL_TYPES(64)
ATTENTION_ALL_TYPES(96)
ATTENTION_ALL_TYPES(128)
ATTENTION_ALL_TYPES(256)
