/* matmul_q4.c - int8 activations times packed 4-bit weights (op: matmul for kinds q4_0 and q4_1).
 *
 *   out  [T][R] f32      x  [T][K] int8 + scales, sums [T][K/32]      w  packed units, LAYOUT.md
 *
 *   one unit: 16 rows x 32 columns        word i of 16 rows, 64 bytes = two vectors of 8 rows
 *
 *     | d x16 f16 | (m x16) | word 0 | word 1 | word 2 | word 3 |
 *                     row r, byte j:  low nibble column 4i + j, high nibble column 16 + 4i + j
 *
 *   four activations are broadcast to all lanes, so lane r of a vector always belongs to row r:
 *
 *     s16[r] += nibbles[r] . x[4i .. 4i+3]      maddubs + paddw, 8 times: 8 * 2 * 15 * 127 < 32768
 *     s[r]    = s16 pairs added                 madd with ones: int32; then - 8 * sum(x) for q4_0
 *     acc[r]  = fma(s[r], d[r] * scale, acc[r])               one accumulator a row inside 8 blocks
 *     acc[r]  = fma(m[r], sum(x) * scale, acc[r])             q4_1 only
 *     out[r]  = out[r] + acc[r]                               stripes in order
 *
 * Up to COLUMNS tokens share one unpacking. Operations for a unit and a token: 512 multiply-adds
 * in 16 maddubs, 14 paddw and 10 more; unpacking 24 shared by the tokens. On three vector ports
 * that is 13.3 cycles (38 multiply-adds a cycle) for many tokens, 21 cycles (13.5 bytes a cycle)
 * for one, which is above what memory delivers. Measured: see tests/bench/RESULTS.md, section
 * kernels.
 * Spec: kernels/reference.py matmul. Bench: tests/bench/bench_kernels.py --op matmul_q4_0.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum { COLUMNS = 4, WORDS = 4 };

typedef struct {
    float *out;
    quantized_rows x;
    const uint8_t *w;
    long T, R, K;
} matmul_job;

ALWAYS __m256i broadcast4(const int8_t *x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}

ALWAYS __m256 load_halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Integer products of one unit with `columns` tokens: s[c][0] rows 0..7, s[c][1] rows 8..15. */
ALWAYS void unit_products(__m256i s[COLUMNS][2], const uint8_t *words, const int8_t *x, long K,
                          const int columns) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < WORDS; i++) {
        const __m256i w0 = _mm256_loadu_si256((const __m256i *)(words + 64 * i));
        const __m256i w1 = _mm256_loadu_si256((const __m256i *)(words + 64 * i + 32));
        const __m256i low0 = _mm256_and_si256(w0, low), low1 = _mm256_and_si256(w1, low);
        for (int c = 0; c < columns; c++) { /* s16 += nibble * x[4i .. 4i+3] */
            const __m256i a = broadcast4(x + c * K + 4 * i);
            const __m256i p0 = _mm256_maddubs_epi16(low0, a), p1 = _mm256_maddubs_epi16(low1, a);
            s[c][0] = i ? _mm256_add_epi16(s[c][0], p0) : p0;
            s[c][1] = i ? _mm256_add_epi16(s[c][1], p1) : p1;
        }
        const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), low);
        const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), low);
        for (int c = 0; c < columns; c++) { /* s16 += nibble * x[16 + 4i .. 16 + 4i+3] */
            const __m256i a = broadcast4(x + c * K + 16 + 4 * i);
            s[c][0] = _mm256_add_epi16(s[c][0], _mm256_maddubs_epi16(high0, a));
            s[c][1] = _mm256_add_epi16(s[c][1], _mm256_maddubs_epi16(high1, a));
        }
    }
}

/* One tile of 16 rows times `columns` tokens from t on; the constants unroll. */
ALWAYS void tile_columns(const matmul_job *j, const uint8_t *tile, float total[COLUMNS][TILE_ROWS],
                         long t, const int columns, const int has_min) {
    const long blocks = j->K / QUANT_BLOCK, unit_bytes = has_min ? 320 : 288;
    const int8_t *x = j->x.values + t * j->K;
    const float *scales = j->x.scales + t * blocks;
    const int32_t *sums = j->x.sums + t * blocks;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++) _mm256_store_ps(total[c] + 8 * h, _mm256_setzero_ps());
    for (long begin = 0; begin < blocks; begin += STRIPE_BLOCKS) {
        const long end = begin + STRIPE_BLOCKS < blocks ? begin + STRIPE_BLOCKS : blocks;
        __m256 acc[COLUMNS][2];
        for (int c = 0; c < columns; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
        for (long b = begin; b < end; b++) {
            const uint8_t *unit = tile + b * unit_bytes;
            __m256i s[COLUMNS][2];
            unit_products(s, unit + (has_min ? 64 : 32), x + b * QUANT_BLOCK, j->K, columns);
            for (int c = 0; c < columns; c++) {
                const __m256 scale = SET(scales[c * blocks + b]);
                const __m256i sum = _mm256_set1_epi32(sums[c * blocks + b]);
                const __m256i eight = _mm256_slli_epi32(sum, 3);
                const __m256 sum_scale = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                for (int h = 0; h < 2; h++) {
                    __m256i s32 = _mm256_madd_epi16(s[c][h], ones);
                    if (!has_min) s32 = _mm256_sub_epi32(s32, eight); /* (q - 8) . x */
                    const __m256 d = _mm256_mul_ps(load_halves(unit + 16 * h), scale);
                    acc[c][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s32), d, acc[c][h]);
                    if (has_min)
                        acc[c][h] =
                            _mm256_fmadd_ps(load_halves(unit + 32 + 16 * h), sum_scale, acc[c][h]);
                }
            }
        }
        for (int c = 0; c < columns; c++)
            for (int h = 0; h < 2; h++)
                _mm256_store_ps(total[c] + 8 * h,
                                _mm256_add_ps(_mm256_load_ps(total[c] + 8 * h), acc[c][h]));
    }
}

ALWAYS void tile_all(const matmul_job *j, long tile_index, const int has_min) {
    const uint8_t *tile = j->w + tile_index * (j->K / QUANT_BLOCK) * (has_min ? 320 : 288);
    const long row = tile_index * TILE_ROWS, rows = j->R - row < TILE_ROWS ? j->R - row : TILE_ROWS;
    _Alignas(32) float total[COLUMNS][TILE_ROWS];
    for (long t = 0; t < j->T;) {
        const long left = j->T - t;
        const int columns = left >= 4 && left != 5 ? 4 : left >= 3 ? 3 : (int)left; /* 5 is 3 + 2 */
        switch (columns) {
            case 1: tile_columns(j, tile, total, t, 1, has_min); break;
            case 2: tile_columns(j, tile, total, t, 2, has_min); break;
            case 3: tile_columns(j, tile, total, t, 3, has_min); break;
            default: tile_columns(j, tile, total, t, 4, has_min); break;
        }
        for (int c = 0; c < columns; c++)
            __builtin_memcpy(j->out + (t + c) * j->R + row, total[c], (size_t)rows * sizeof(float));
        t += columns;
    }
}

static void piece_q4_0(void *job, long begin, long end) {
    for (long tile = begin; tile < end; tile++) tile_all(job, tile, 0);
}

static void piece_q4_1(void *job, long begin, long end) {
    for (long tile = begin; tile < end; tile++) tile_all(job, tile, 1);
}

static void run(matmul_job *job, pool_fn piece, int threads) {
    const long tiles = (job->R + TILE_ROWS - 1) / TILE_ROWS;
    const long grain = pool_grain(1 << 18, job->K * TILE_ROWS * job->T); /* a piece of some 5 us */
    pool_for(threads, tiles, grain, piece, job);
}

void matmul_q4_0_avx2(float *out, quantized_rows x, const uint8_t *w, long T, long R, long K,
                      int threads) {
    matmul_job job = {out, x, w, T, R, K};
    run(&job, piece_q4_0, threads);
}

void matmul_q4_1_avx2(float *out, quantized_rows x, const uint8_t *w, long T, long R, long K,
                      int threads) {
    matmul_job job = {out, x, w, T, R, K};
    run(&job, piece_q4_1, threads);
}
