/* matmul_q8.c - int8 activations times packed int8 weights (op: matmul for kind q8_0).
 *
 *   out  [T][R] f32      x  [T][K] int8 + scales [T][K/32]      w  packed units, LAYOUT.md
 *
 *   one unit: | d x16 f16 | word 0 of 16 rows | ... | word 7 |   word i, row r: columns 4i .. 4i+3
 *
 *     s[r]   += |w| . (x with w's sign)       sign, maddubs (128 * 127 * 2 < 32768), madd, paddd
 *     acc[r]  = fma(s[r], d[r] * scale, acc[r]);   out[r] = out[r] + acc[r] after every 8 blocks
 *
 * Products of two bytes fill 16 bits, so each maddubs is widened at once: 64 operations and 8 more
 * for 512 multiply-adds, 24 cycles (21 a cycle). One token reads 544 bytes in 28 cycles, 19 bytes a
 * cycle, above what memory gives.
 * Measured / limit, one core, 49152 x 576: 51 G / 51 G (21 a cycle) with 8 and 16 tokens; with 1, 2
 * and 4 tokens the matrix passes at the speed of memory. Table: tests/bench/RESULTS.md.
 * Spec: kernels/reference.py matmul. Bench: tests/bench/bench_kernels.py --op matmul_q8_0.
 */
#pragma GCC target("avx2,fma,f16c")
#include "matmul.h"

enum { COLUMNS = 4, WORDS = 8, AHEAD = 4096 };

/* s += w . x[4i .. 4i+3] of token c. The sums have names: gcc 12 leaves an array in memory. */
#define NEXT(c)                                                                             \
    if (columns > c) {                                                                      \
        const __m256i a = _mm256_set1_epi32(word4(x + c * K + 4 * i));                      \
        const __m256i p0 = _mm256_maddubs_epi16(abs0, _mm256_sign_epi8(a, w0));             \
        const __m256i p1 = _mm256_maddubs_epi16(abs1, _mm256_sign_epi8(a, w1));             \
        low##c = _mm256_add_epi32(low##c, _mm256_madd_epi16(p0, ones));                     \
        high##c = _mm256_add_epi32(high##c, _mm256_madd_epi16(p1, ones));                   \
        __asm__("" : "+x"(low##c), "+x"(high##c)); /* no tree of sums: too few registers */ \
    }
/* acc = fma(float(s), d * scale, acc) */
#define ADD(c)                                                                   \
    if (columns > c) {                                                           \
        const __m256 scale = SET(scales[c * blocks + b]);                        \
        const __m256 d0 = _mm256_mul_ps(load_halves(unit), scale);               \
        const __m256 d1 = _mm256_mul_ps(load_halves(unit + 16), scale);          \
        acc[c][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low##c), d0, acc[c][0]);  \
        acc[c][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high##c), d1, acc[c][1]); \
    }

ALWAYS __m256 load_halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

ALWAYS void tile_columns(const matmul_job *j, const uint8_t *unit, float total[COLUMNS][TILE_ROWS],
                         long t, const int columns) {
    const long K = j->K, blocks = K / QUANT_BLOCK;
    const int8_t *x = j->x.values + t * K;
    const float *scales = j->x.scales + t * blocks;
    const __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256 acc[COLUMNS][2];
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++) {
            acc[c][h] = _mm256_setzero_ps();
            _mm256_store_ps(total[c] + 8 * h, acc[c][h]);
        }
    for (long b = 0; b < blocks; b++, unit += UNIT_BYTES(Q8_0), x += QUANT_BLOCK) {
        __m256i low0 = zero, low1 = zero, low2 = zero, low3 = zero; /* rows 0..7 of token c */
        __m256i high0 = zero, high1 = zero, high2 = zero, high3 = zero;
        for (int i = 0; i < WORDS; i++) {
            const __m256i *word = (const __m256i *)(unit + 32 + 64 * i);
            const __m256i w0 = _mm256_loadu_si256(word), w1 = _mm256_loadu_si256(word + 1);
            const __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1); /* 128 unsigned */
            _mm_prefetch((const char *)word + AHEAD, _MM_HINT_T0);
            NEXT(0);
            NEXT(1);
            NEXT(2);
            NEXT(3);
        }
        ADD(0);
        ADD(1);
        ADD(2);
        ADD(3);
        if ((b + 1) % STRIPE_BLOCKS && b + 1 < blocks) continue;
        for (int c = 0; c < columns; c++)
            for (int h = 0; h < 2; h++) { /* the stripe ends */
                float *sum = total[c] + 8 * h;
                _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), acc[c][h]));
                acc[c][h] = _mm256_setzero_ps();
            }
    }
}

void tiles_q8_0_avx2(const matmul_job *j, long begin, long end) {
    _Alignas(32) float total[COLUMNS][TILE_ROWS];
    for (long tile = begin; tile < end; tile++) {
        const uint8_t *units = j->w + tile * (j->K / QUANT_BLOCK) * UNIT_BYTES(Q8_0);
        const long row = tile * TILE_ROWS, rows = j->R - row < TILE_ROWS ? j->R - row : TILE_ROWS;
        for (long t = 0; t < j->T;) {
            const int columns = group_size(j->T - t, COLUMNS);
            switch (columns) {
                case 1: tile_columns(j, units, total, t, 1); break;
                case 2: tile_columns(j, units, total, t, 2); break;
                case 3: tile_columns(j, units, total, t, 3); break;
                default: tile_columns(j, units, total, t, 4); break;
            }
            for (int c = 0; c < columns; c++, t++)
                __builtin_memcpy(j->out + t * j->R + row, total[c], (size_t)rows * sizeof(float));
        }
    }
}
