/* matmul_q8.c - int8 activations times packed int8 weights (op: matmul for kind q8_0).
 *
 *   out  [T][R] f32      x  [T][K] int8 + scales [T][K/32]      w  packed units, LAYOUT.md
 *
 *   one unit: | d x16 f16 | word 0 of 16 rows | ... | word 7 |   word i, row r: columns 4i .. 4i+3
 *
 *     s[r]   += |w| . (x with w's sign)       sign, maddubs (128 * 127 * 2 < 32768), madd, paddd
 *     acc[r]  = fma(s[r], d[r] * scale, acc[r]);   out[r] = out[r] + acc[r] after every 8 blocks
 *
 * Products of two bytes fill 16 bits, so each maddubs is widened at once: 64 operations for 512
 * multiply-adds, 21 to 24 cycles. One token reads 544 bytes in that time, above what memory
 * delivers.
 * Spec: kernels/reference.py matmul. Bench: tests/bench/bench_kernels.py --op matmul_q8_0.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum { COLUMNS = 4, WORDS = 8, UNIT_BYTES = 544 };

typedef struct {
    float *out;
    quantized_rows x;
    const uint8_t *w;
    long T, R, K;
} matmul_job;

/* Exact products of one unit with `columns` tokens: s[c][0] rows 0..7, s[c][1] rows 8..15. */
ALWAYS void unit_products(__m256i s[COLUMNS][2], const uint8_t *words, const int8_t *x, long K,
                          const int columns) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int c = 0; c < columns; c++) s[c][0] = s[c][1] = _mm256_setzero_si256();
    for (int i = 0; i < WORDS; i++) {
        const __m256i w0 = _mm256_loadu_si256((const __m256i *)(words + 64 * i));
        const __m256i w1 = _mm256_loadu_si256((const __m256i *)(words + 64 * i + 32));
        const __m256i abs0 = _mm256_abs_epi8(w0),
                      abs1 = _mm256_abs_epi8(w1); /* -128 becomes 128, unsigned */
        for (int c = 0; c < columns; c++) {
            int32_t word;
            __builtin_memcpy(&word, x + c * K + 4 * i, 4);
            const __m256i a = _mm256_set1_epi32(word);
            const __m256i p0 = _mm256_maddubs_epi16(abs0, _mm256_sign_epi8(a, w0));
            const __m256i p1 = _mm256_maddubs_epi16(abs1, _mm256_sign_epi8(a, w1));
            s[c][0] =
                _mm256_add_epi32(s[c][0], _mm256_madd_epi16(p0, ones)); /* s += w . x[4i .. 4i+3] */
            s[c][1] = _mm256_add_epi32(s[c][1], _mm256_madd_epi16(p1, ones));
        }
    }
}

ALWAYS void tile_columns(const matmul_job *j, const uint8_t *tile, float total[COLUMNS][TILE_ROWS],
                         long t, const int columns) {
    const long blocks = j->K / QUANT_BLOCK;
    const int8_t *x = j->x.values + t * j->K;
    const float *scales = j->x.scales + t * blocks;
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++) _mm256_store_ps(total[c] + 8 * h, _mm256_setzero_ps());
    for (long begin = 0; begin < blocks; begin += STRIPE_BLOCKS) {
        const long end = begin + STRIPE_BLOCKS < blocks ? begin + STRIPE_BLOCKS : blocks;
        __m256 acc[COLUMNS][2];
        for (int c = 0; c < columns; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
        for (long b = begin; b < end; b++) {
            const uint8_t *unit = tile + b * UNIT_BYTES;
            __m256i s[COLUMNS][2];
            unit_products(s, unit + 32, x + b * QUANT_BLOCK, j->K, columns);
            for (int c = 0; c < columns; c++)
                for (int h = 0; h < 2; h++) {
                    const __m256 d =
                        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(unit + 16 * h)));
                    const __m256 scale = _mm256_mul_ps(d, SET(scales[c * blocks + b]));
                    acc[c][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[c][h]), scale, acc[c][h]);
                }
        }
        for (int c = 0; c < columns; c++)
            for (int h = 0; h < 2; h++)
                _mm256_store_ps(total[c] + 8 * h,
                                _mm256_add_ps(_mm256_load_ps(total[c] + 8 * h), acc[c][h]));
    }
}

static void piece(void *argument, long begin, long end) {
    const matmul_job *j = argument;
    _Alignas(32) float total[COLUMNS][TILE_ROWS];
    for (long tile = begin; tile < end; tile++) {
        const uint8_t *units = j->w + tile * (j->K / QUANT_BLOCK) * UNIT_BYTES;
        const long row = tile * TILE_ROWS, rows = j->R - row < TILE_ROWS ? j->R - row : TILE_ROWS;
        for (long t = 0; t < j->T;) {
            const long left = j->T - t;
            const int columns = left >= 4 && left != 5 ? 4
                                : left >= 3            ? 3
                                                       : (int)left; /* 5 is 3 + 2 */
            switch (columns) {
                case 1: tile_columns(j, units, total, t, 1); break;
                case 2: tile_columns(j, units, total, t, 2); break;
                case 3: tile_columns(j, units, total, t, 3); break;
                default: tile_columns(j, units, total, t, 4); break;
            }
            for (int c = 0; c < columns; c++)
                __builtin_memcpy(j->out + (t + c) * j->R + row, total[c],
                                 (size_t)rows * sizeof(float));
            t += columns;
        }
    }
}

void matmul_q8_0_avx2(float *out, quantized_rows x, const uint8_t *w, long T, long R, long K,
                      int threads) {
    matmul_job job = {out, x, w, T, R, K};
    const long grain = pool_grain(1 << 17, K * TILE_ROWS * T); /* a piece of some 5 us */
    pool_for(threads, (R + TILE_ROWS - 1) / TILE_ROWS, grain, piece, &job);
}
