// matmul_few.cu - packed weights times one to four rows of int8 activations (op: matmul).
//
//   out  [T][R] f32     values [T][K] int8, scales, sums [T][K/32]     w packed units, LAYOUT.md
//
//   grid   one block per tile of 16 rows           block  128 threads
//   smem   T * 10.75 KiB: activations of a pass of 32 stripes; afterwards the stripes' sums
//
//     thread = 4 * stripe + quad:     stripe = 8 blocks = 256 columns, quad = rows 4q .. 4q+3
//
//       | d x16 | word 0 of 16 rows | word 1 | word 2 | word 3 |       one unit, 16 bytes a load:
//                 q0   q1   q2   q3   four threads take a whole word group, 64 bytes
//
//     acc[row]  = fma(float(s), d * scale, acc[row])         8 blocks of its stripe, one thread
//     total     = total + acc of each stripe, ascending      16 * T threads, from shared memory
//
// A stripe in shared memory takes 272 bytes of activations, not 256, and 9 pairs, not 8: eight
// stripes of a warp then read eight different bank groups at once.
//
// Per weight 0.5625 bytes (q4_0) are read once from memory; activations come from L2, an eighth of
// that for one token (K = 5120). Of a row's block: 12 instructions to unpack it, then 8 dp4a and 4
// more for each token, some 24 for one and 60 for four: 27 G weights are 0.84 G such blocks, 1.4
// and 3.5 ms of an H200's 64 lanes of integers in 132 processors, where memory takes 3.2 ms.
// Spec: kernels/reference.py matmul. From five tokens on: matmul_some.cu.
#include "device.cuh"

namespace few {

constexpr int THREADS = 128, STRIPES = THREADS / 4;              // stripes of one pass
constexpr int COLUMNS = STRIPE_BLOCKS * QUANT_BLOCK;             // of a stripe
constexpr int VALUES = COLUMNS + 16, PAIRS = STRIPE_BLOCKS + 1;  // of a stripe in shared memory
constexpr int TOKEN_BYTES = STRIPES * (VALUES + 8 * PAIRS);

// scale, and by kind: where the sum starts (q4_0), or sum * scale for the minimum (q4_1)
template <int KIND>
__device__ __forceinline__ uint2 pair_of(float scale, int sum) {
    const float product = __fmul_rn(__int2float_rn(sum), scale);
    const int second = KIND == Q4_1 ? __float_as_int(product) : start_of<KIND>(sum);
    return uint2{(unsigned)__float_as_int(scale), (unsigned)second};
}

// Activations of a pass: columns [first, first + count) of every token.
template <int KIND, int T>
__device__ __forceinline__ void stage(unsigned char *shared, const int8_t *values,
                                      const float *scales, const int *sums, int K, int first,
                                      int count) {
    for (int i = threadIdx.x; i < T * (count / 16); i += THREADS) {
        const int t = i / (count / 16), piece = i % (count / 16);
        const int at = piece / (COLUMNS / 16) * VALUES + piece % (COLUMNS / 16) * 16;
        *(uint4 *)(shared + t * TOKEN_BYTES + at) =
            *(const uint4 *)(values + (size_t)t * K + first + piece * 16);
    }
    for (int i = threadIdx.x; i < T * (count / QUANT_BLOCK); i += THREADS) {
        const int t = i / (count / QUANT_BLOCK), b = i % (count / QUANT_BLOCK);
        const size_t from = (size_t)t * (K / QUANT_BLOCK) + first / QUANT_BLOCK + b;
        uint2 *pairs = (uint2 *)(shared + t * TOKEN_BYTES + STRIPES * VALUES);
        pairs[b / STRIPE_BLOCKS * PAIRS + b % STRIPE_BLOCKS] =
            pair_of<KIND>(scales[from], sums[from]);
    }
}

__device__ __forceinline__ uint32_t part(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ float half_at(const uint2 &four, int i) {
    return half_bits_to_float((uint16_t)((i < 2 ? four.x : four.y) >> (i & 1) * 16));
}

// One unit times T tokens: four rows of this thread.
template <int KIND, int T>
__device__ __forceinline__ void add_unit(float (&acc)[T][4], const unsigned char *unit,
                                         const unsigned char *x, const uint2 *pairs, int quad) {
    using F = Format<KIND>;
    uint4 words[F::words];  // word i of rows 4 * quad ..
    const uint2 d = *(const uint2 *)(unit + 8 * quad);
    const uint2 m = F::has_min ? *(const uint2 *)(unit + 32 + 8 * quad) : d;
#pragma unroll
    for (int i = 0; i < F::words; i++)
        words[i] = *(const uint4 *)(unit + F::head + 64 * i + 16 * quad);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const uint4 low = *(const uint4 *)(x + t * TOKEN_BYTES);
        const uint4 high = *(const uint4 *)(x + t * TOKEN_BYTES + 16);
        const uint2 pair = *(const uint2 *)((const unsigned char *)pairs + t * TOKEN_BYTES);
        const float scale = __int_as_float((int)pair.x);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int s = KIND == Q4_0 ? (int)pair.y : MAGIC;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t w = part(words[i], r);
                const uint32_t next = F::is_q4 ? high_nibbles(w) : part(words[F::words - 4 + i], r);
                s = __dp4a((int)(F::is_q4 ? low_nibbles(w) : w), (int)part(low, i), s);
                s = __dp4a((int)next, (int)part(high, i), s);
            }
            acc[t][r] = __fmaf_rn(float_of(s), __fmul_rn(half_at(d, r), scale), acc[t][r]);
            if (F::has_min)
                acc[t][r] = __fmaf_rn(half_at(m, r), __int_as_float((int)pair.y), acc[t][r]);
        }
    }
}

template <int KIND, int T>
__device__ __forceinline__ void run(float *out, const int8_t *values, const float *scales,
                                    const int *sums, const unsigned char *w, int R, int K) {
    DYNAMIC_SHARED(unsigned char, shared);
    float *stripe_sums = (float *)shared;  // [T][stripe][16], once the activations are used up
    const int blocks = K / QUANT_BLOCK, quad = threadIdx.x % 4, stripe = threadIdx.x / 4;
    const unsigned char *tile = w + (size_t)blockIdx.x * blocks * Format<KIND>::unit;
    float total = 0.0f;  // of thread 16 * t + row
    for (int first = 0; first < K; first += STRIPES * COLUMNS) {
        const int count = min(K - first, STRIPES * COLUMNS);
        stage<KIND, T>(shared, values, scales, sums, K, first, count);
        __syncthreads();
        float acc[T][4];
        for (int t = 0; t < T; t++)
            for (int r = 0; r < 4; r++) acc[t][r] = 0.0f;
        const int begin = stripe * STRIPE_BLOCKS, end = min(count / QUANT_BLOCK, begin + 8);
        const unsigned char *unit =
            tile + (size_t)(first / QUANT_BLOCK + begin) * Format<KIND>::unit;
        const unsigned char *x = shared + stripe * VALUES;
        const uint2 *pairs = (const uint2 *)(shared + STRIPES * VALUES) + stripe * PAIRS;
#pragma unroll 4 / T
        for (int b = begin; b < end; b++, unit += Format<KIND>::unit, x += QUANT_BLOCK, pairs++)
            add_unit<KIND, T>(acc, unit, x, pairs, quad);
        __syncthreads();  // the activations are used up
        for (int t = 0; t < T; t++)
            *(float4 *)(stripe_sums + (t * STRIPES + stripe) * TILE_ROWS + 4 * quad) =
                float4{acc[t][0], acc[t][1], acc[t][2], acc[t][3]};
        __syncthreads();
        const int t = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
        for (int i = 0; t < T && i * COLUMNS < count; i++)
            total = __fadd_rn(total, stripe_sums[(t * STRIPES + i) * TILE_ROWS + row]);
        __syncthreads();  // the next pass writes there
    }
    const int t = threadIdx.x / TILE_ROWS, row = blockIdx.x * TILE_ROWS + threadIdx.x % TILE_ROWS;
    if (t < T && row < R) out[(size_t)t * R + row] = total;
}

}  // namespace few

#define FEW(name, kind, tokens)                                                      \
    KERNEL __launch_bounds__(few::THREADS)                                           \
        name(float *out, const int8_t *values, const float *scales, const int *sums, \
             const unsigned char *w, int R, int K) {                                 \
        few::run<kind, tokens>(out, values, scales, sums, w, R, K);                  \
    }                                                                                \
    EMULATED(name)

FEW(matmul_q4_0_few_1, Q4_0, 1)
FEW(matmul_q4_0_few_2, Q4_0, 2)
FEW(matmul_q4_0_few_3, Q4_0, 3)
FEW(matmul_q4_0_few_4, Q4_0, 4)
FEW(matmul_q4_1_few_1, Q4_1, 1)
FEW(matmul_q4_1_few_2, Q4_1, 2)
FEW(matmul_q4_1_few_3, Q4_1, 3)
FEW(matmul_q4_1_few_4, Q4_1, 4)
FEW(matmul_q8_0_few_1, Q8_0, 1)
FEW(matmul_q8_0_few_2, Q8_0, 2)
FEW(matmul_q8_0_few_3, Q8_0, 3)
FEW(matmul_q8_0_few_4, Q8_0, 4)
