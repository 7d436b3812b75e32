// matmul_many.cu - packed weights times many rows of int8 activations: prefill (op: matmul).
//
//   out  [T][R] f32     values [T][K] int8, scales, sums [T][K/32]     w packed units, LAYOUT.md
//
//   grid   (groups of 64 tokens, groups of 128 rows)     block  256 threads: 4 x 2 warps
//   smem   43 KiB: activations of two stripes, one that is multiplied, one that arrives
//
//   one warp: 32 rows x 32 tokens, eight 16 x 8 tensor-core products a block of columns
//
//              tokens 0..31        32..63
//     rows   +--------------+--------------+
//     0..31  |    warp 0    |    warp 1    |        A (weights): from memory to registers; the
//     32..63 |    warp 2    |    warp 3    |           packed order is the fragment's order
//     ..127  |    4, 6      |    5, 7      |        B (activations): from shared memory
//            +--------------+--------------+
//
//     acc   = fma(float(s), d * scale, acc)        8 blocks of a stripe, then total = total + acc
//
// A token's row in shared memory takes 272 bytes, not 256: the 32 words of a B fragment then lie in
// 32 banks. Scales and sums lie as pairs, [block][token]: one 16-byte load for two tokens.
//
// Limit. Each sum of 32 products costs three float operations (float(s), d * scale, fma; q4_1 five)
// and nothing can take them away: 132 * 128 lanes at 1.75 GHz give 29.6 T a second, 631 int8-TOPS
// of an H200; the integer tensor cores allow more. Beside a lane's 96 float operations of a block
// of columns stand 8 mma, 12 loads of shared and 8 of global memory (L1 for the second warp), 24 to
// unpack: an issue slot of 150 in all, 400 TOPS, before any wait.
// Spec: kernels/reference.py matmul. Up to 64 tokens: matmul_some.cu.
#include "matmul_some.cu"

namespace many {

constexpr int THREADS = 256, ROWS = 128, TOKENS = 64, COLUMNS = STRIPE_BLOCKS * QUANT_BLOCK;
constexpr int TILES = 2, GROUPS = 4;     // of one warp: tiles of 16 rows, groups of 8 tokens
constexpr int ROW_BYTES = COLUMNS + 16;  // of a token in shared memory
constexpr int STAGE_BYTES = TOKENS * ROW_BYTES + STRIPE_BLOCKS * TOKENS * 8;

struct Matrices {
    const int8_t *values;
    const float *scales;
    const int *sums;
    int T, K;
};

// One stripe of 64 tokens on its way to shared memory; tokens past the last are the last again.
__device__ __forceinline__ void fetch(unsigned char *stage, const Matrices &x, int token,
                                      int stripe) {
    const int count = min(x.K - stripe * COLUMNS, COLUMNS);  // columns of this stripe
    const int pieces = count / 16, blocks = count / QUANT_BLOCK;
    for (int i = threadIdx.x; i < TOKENS * pieces; i += THREADS) {
        const int t = i / pieces, piece = i % pieces;
        const size_t row = (size_t)min(token + t, x.T - 1) * x.K;
        copy_async<16>(stage + t * ROW_BYTES + 16 * piece,
                       x.values + row + stripe * COLUMNS + 16 * piece);
    }
    unsigned char *pairs = stage + TOKENS * ROW_BYTES;
    for (int i = threadIdx.x; i < TOKENS * blocks; i += THREADS) {
        const int t = i / blocks, b = i % blocks;
        const size_t at =
            (size_t)min(token + t, x.T - 1) * (x.K / QUANT_BLOCK) + stripe * STRIPE_BLOCKS + b;
        copy_async<4>(pairs + (b * TOKENS + t) * 8, x.scales + at);
        copy_async<4>(pairs + (b * TOKENS + t) * 8 + 4, x.sums + at);
    }
    copies_commit();
}

// One block of columns: this warp's 32 rows times its 32 tokens, from `token` of the stage on.
template <int KIND>
__device__ __forceinline__ void add_block(float (&acc)[TILES][GROUPS][4],
                                          const some::Unit<KIND> (&w)[TILES],
                                          const unsigned char *stage, int b, int token) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned char *pairs = stage + TOKENS * ROW_BYTES + b * TOKENS * 8;
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const unsigned char *x = stage + (token + 8 * n + g) * ROW_BYTES + b * QUANT_BLOCK + 4 * t;
        const uint32_t words[2] = {*(const uint32_t *)x, *(const uint32_t *)(x + 16)};
        const uint4 two = *(const uint4 *)(pairs + (token + 8 * n + 2 * t) * 8);
        const float scale[2] = {__int_as_float((int)two.x), __int_as_float((int)two.z)};
        const int sum[2] = {(int)two.y, (int)two.w};
#pragma unroll
        for (int i = 0; i < TILES; i++) some::add_product(acc[i][n], w[i], words, scale, sum);
    }
}

template <int KIND>
__device__ __forceinline__ void run(float *out, const Matrices &x, const unsigned char *w, int R) {
    DYNAMIC_SHARED(unsigned char, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int blocks = x.K / QUANT_BLOCK, stripes = (x.K + COLUMNS - 1) / COLUMNS;
    const int token = blockIdx.x * TOKENS, own = warp % 2 * 32;  // this warp's tokens of the stage
    const int tile = blockIdx.y * (ROWS / TILE_ROWS) + warp / 2 * TILES;
    const int last = (R + TILE_ROWS - 1) / TILE_ROWS - 1;
    const unsigned char *units[TILES];  // a tile past the last is the last again; not written
    for (int i = 0; i < TILES; i++)
        units[i] = w + (size_t)min(tile + i, last) * blocks * Format<KIND>::unit;
    float acc[TILES][GROUPS][4], total[TILES][GROUPS][4];
    for (int i = 0; i < TILES * GROUPS * 4; i++) (&total[0][0][0])[i] = 0.0f;
    fetch(shared, x, token, 0);
    for (int stripe = 0; stripe < stripes; stripe++) {
        const unsigned char *stage = shared + stripe % 2 * STAGE_BYTES;
        if (stripe + 1 < stripes) {
            fetch(shared + (stripe + 1) % 2 * STAGE_BYTES, x, token, stripe + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        for (int i = 0; i < TILES * GROUPS * 4; i++) (&acc[0][0][0])[i] = 0.0f;
        const int count = min(blocks - stripe * STRIPE_BLOCKS, STRIPE_BLOCKS);
#pragma unroll 2
        for (int b = 0; b < count; b++) {
            some::Unit<KIND> fragment[TILES];
            for (int i = 0; i < TILES; i++) {
                some::load_unit(fragment[i], units[i], g, t);
                units[i] += Format<KIND>::unit;
            }
            add_block<KIND>(acc, fragment, stage, b, own);
        }
        for (int i = 0; i < TILES * GROUPS * 4; i++)
            (&total[0][0][0])[i] = __fadd_rn((&total[0][0][0])[i], (&acc[0][0][0])[i]);
        __syncthreads();  // the stripe after the next arrives there
    }
    for (int i = 0; i < TILES; i++)
        for (int n = 0; n < GROUPS; n++)
            for (int k = 0; k < 4; k++) {
                const int row = (tile + i) * TILE_ROWS + g + k / 2 * 8;
                const int column = token + own + 8 * n + 2 * t + k % 2;
                if (row < R && column < x.T) out[(size_t)column * R + row] = total[i][n][k];
            }
}

}  // namespace many

#define MANY(name, kind)                                                             \
    KERNEL __launch_bounds__(many::THREADS)                                          \
        name(float *out, const int8_t *values, const float *scales, const int *sums, \
             const unsigned char *w, int T, int R, int K) {                          \
        many::run<kind>(out, many::Matrices{values, scales, sums, T, K}, w, R);      \
    }                                                                                \
    EMULATED(name)

MANY(matmul_q4_0_many, Q4_0)
MANY(matmul_q4_1_many, Q4_1)
MANY(matmul_q8_0_many, Q8_0)
