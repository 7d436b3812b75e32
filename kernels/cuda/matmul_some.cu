// matmul_some.cu - packed weights times 5 to 64 rows of int8 activations (op: matmul).
//
//   out  [T][R] f32     values [T][K] int8, scales, sums [T][K/32]     w packed units, LAYOUT.md
//
//   grid   (tiles of 16 or 32 rows, groups of 16 tokens)     block  256 threads, 8 warps
//   smem   8 or 16 KiB: sums of 8 stripes
//
//   one warp takes one stripe of 8 blocks; a block is one tensor-core product:
//
//     16 rows x 32 columns (A)  .  32 columns x 8 tokens (B)  ->  16 x 8 sums of 32 products, int32
//
//     lane (g, t) = (lane / 4, lane % 4) needs of A rows g, g + 8 at columns 4t .. and 16 + 4t ..:
//     word t of these rows, low and high nibbles (q8_0: words t and t + 4); 128-byte pieces a warp
//
//     acc   = fma(float(s), d * scale, acc)      row g or g + 8, token 2t or 2t + 1
//     total = total + acc of each stripe, ascending, from shared memory after each round of 8
//
// Weights come once from memory and again from L2 for each further group of tokens. A block reads
// 16 * (K + K / 4) bytes of activations for 32 rows * K / 2 of weights: three times as many from L2
// as from memory, 13 TB/s at full speed of an H200's memory; so up to 16 tokens L2 sets the pace.
// Of a 16 x 8 product: one mma, 4 * 3 float operations a lane, 6 loads, 6 to unpack.
// Spec: kernels/reference.py matmul. Fewer tokens: matmul_few.cu; more: matmul_many.cu.
#include "device.cuh"

namespace some {

constexpr int WARPS = 8, THREADS = 32 * WARPS, TOKENS = 16, GROUPS = TOKENS / 8;

// What a lane holds of one unit: A's fragment, and d (and m) of rows g and g + 8.
template <int KIND>
struct Unit {
    uint32_t a[4];
    float d[2], m[2];
};

template <int KIND>
__device__ __forceinline__ void load_unit(Unit<KIND> &to, const unsigned char *unit, int g, int t) {
    using F = Format<KIND>;
    for (int half = 0; half < 2; half++) {  // rows g, g + 8
        const int row = g + 8 * half;
        const uint32_t w = *(const uint32_t *)(unit + F::head + 64 * t + 4 * row);
        if (F::is_q4) {
            to.a[half] = low_nibbles(w);
            to.a[2 + half] = high_nibbles(w);
        } else {
            to.a[half] = w;
            to.a[2 + half] = *(const uint32_t *)(unit + F::head + 64 * (t + 4) + 4 * row);
        }
        to.d[half] = half_bits_to_float(*(const uint16_t *)(unit + 2 * row));
        to.m[half] = F::has_min ? half_bits_to_float(*(const uint16_t *)(unit + 32 + 2 * row)) : 0;
    }
}

// acc += one unit times 8 tokens: b their values, scale and sum of tokens 2t and 2t + 1.
template <int KIND>
__device__ __forceinline__ void add_product(float (&acc)[4], const Unit<KIND> &w,
                                            const uint32_t (&b)[2], const float (&scale)[2],
                                            const int (&sum)[2]) {
    const int even = start_of<KIND>(sum[0]), odd = start_of<KIND>(sum[1]);
    const int c[4] = {even, odd, even, odd};
    int s[4];
    mma_s8(s, w.a, b, c);
#pragma unroll
    for (int i = 0; i < 4; i++) {  // row g + 8 * (i / 2), token 2t + i % 2
        acc[i] = __fmaf_rn(float_of(s[i]), __fmul_rn(w.d[i / 2], scale[i % 2]), acc[i]);
        if (Format<KIND>::has_min) {
            const float product = __fmul_rn(__int2float_rn(sum[i % 2]), scale[i % 2]);
            acc[i] = __fmaf_rn(w.m[i / 2], product, acc[i]);
        }
    }
}

// One block of columns of 16 tokens times TILES tiles. Tokens past the last are the last again.
template <int KIND, int TILES>
__device__ __forceinline__ void add_block(float (&acc)[TILES][GROUPS][4], const unsigned char *unit,
                                          size_t tile_bytes, const int8_t *values,
                                          const float *scales, const int *sums, int b, int token,
                                          int T, int K) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Unit<KIND> w[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) load_unit(w[i], unit + i * tile_bytes, g, t);
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const int8_t *x = values + (size_t)min(token + 8 * n + g, T - 1) * K + b * QUANT_BLOCK;
        const uint32_t x_words[2] = {*(const uint32_t *)(x + 4 * t),
                                     *(const uint32_t *)(x + 16 + 4 * t)};
        float scale[2];
        int sum[2];
        for (int i = 0; i < 2; i++) {
            const int row = min(token + 8 * n + 2 * t + i, T - 1);
            scale[i] = scales[(size_t)row * (K / QUANT_BLOCK) + b];
            sum[i] = sums[(size_t)row * (K / QUANT_BLOCK) + b];
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) add_product(acc[i][n], w[i], x_words, scale, sum);
    }
}

template <int KIND, int TILES>
__device__ __forceinline__ void run(float *out, const int8_t *values, const float *scales,
                                    const int *sums, const unsigned char *w, int T, int R, int K) {
    constexpr int ROWS = TILES * TILE_ROWS, SUMS = ROWS * TOKENS;  // of one stripe: [token][row]
    constexpr int EACH = SUMS / THREADS;                           // totals of one thread
    SHARED(float, stripe_sums, WARPS *SUMS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int blocks = K / QUANT_BLOCK, token = blockIdx.y * TOKENS;
    const int stripes = (blocks + STRIPE_BLOCKS - 1) / STRIPE_BLOCKS;
    const int first = blockIdx.x * TILES, tiles = (R + TILE_ROWS - 1) / TILE_ROWS;
    const unsigned char *tile = w + (size_t)first * blocks * Format<KIND>::unit;
    // a tile past the last is the last again; its sums are not written
    const size_t tile_bytes = first + TILES > tiles ? 0 : (size_t)blocks * Format<KIND>::unit;
    float total[EACH];
    for (int i = 0; i < EACH; i++) total[i] = 0.0f;
    for (int begin = 0; begin < stripes; begin += WARPS) {
        const int stripe = begin + warp;
        float acc[TILES][GROUPS][4];
        for (int i = 0; i < TILES; i++)
            for (int n = 0; n < GROUPS; n++)
                for (int k = 0; k < 4; k++) acc[i][n][k] = 0.0f;
        const int end = min(blocks, (stripe + 1) * STRIPE_BLOCKS);
#pragma unroll 4
        for (int b = stripe * STRIPE_BLOCKS; b < end; b++)
            add_block<KIND, TILES>(acc, tile + (size_t)b * Format<KIND>::unit, tile_bytes, values,
                                   scales, sums, b, token, T, K);
        for (int i = 0; i < TILES; i++)
            for (int n = 0; n < GROUPS; n++)
                for (int k = 0; k < 4; k++)
                    stripe_sums[warp * SUMS + (8 * n + 2 * t + k % 2) * ROWS + i * TILE_ROWS + g +
                                k / 2 * 8] = acc[i][n][k];
        __syncthreads();
        for (int s = 0; s < WARPS && begin + s < stripes; s++)
            for (int i = 0; i < EACH; i++)
                total[i] = __fadd_rn(total[i], stripe_sums[s * SUMS + i * THREADS + threadIdx.x]);
        __syncthreads();  // the next round writes there
    }
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + threadIdx.x, row = first * TILE_ROWS + at % ROWS;
        if (token + at / ROWS < T && row < R) out[(size_t)(token + at / ROWS) * R + row] = total[i];
    }
}

}  // namespace some

#define SOME(name, kind, tiles)                                                      \
    KERNEL __launch_bounds__(some::THREADS)                                          \
        name(float *out, const int8_t *values, const float *scales, const int *sums, \
             const unsigned char *w, int T, int R, int K) {                          \
        some::run<kind, tiles>(out, values, scales, sums, w, T, R, K);               \
    }                                                                                \
    EMULATED(name)

SOME(matmul_q4_0_some_1, Q4_0, 1)
SOME(matmul_q4_0_some_2, Q4_0, 2)
SOME(matmul_q4_1_some_1, Q4_1, 1)
SOME(matmul_q4_1_some_2, Q4_1, 2)
SOME(matmul_q8_0_some_1, Q8_0, 1)
SOME(matmul_q8_0_some_2, Q8_0, 2)
