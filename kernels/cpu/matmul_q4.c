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
 * One token: a tile is unpacked in registers on the way from memory. More: each stripe is unpacked
 * once to bytes (4 KiB, first-level cache), then up to COLUMNS tokens at a time share its loads,
 * while the next stripe is fetched. Sums of a chunk stay beside it and are written once.
 *
 * Limits. Many tokens: 512 multiply-adds of a unit and a token take 16 maddubs, 14 paddw and 11
 * more, 13.7 cycles on three vector ports (37 a cycle); maddubs + paddw alone would allow 48. One
 * token: 24 operations more for unpacking, 22 cycles for 288 bytes, above what memory gives.
 * Measured / limit, one core: 105 G / 126 G (maddubs + paddw) from 32 tokens on, 100 G with 10,
 * 86 G with 4; with one token the matrix passes at the speed of memory. tests/bench/RESULTS.md.
 * Spec: kernels/reference.py matmul. Bench: tests/bench/bench_kernels.py --op matmul_q4_0.
 */
#pragma GCC target("avx2,fma,f16c")
#include "matmul.h"

enum { COLUMNS = 4, WORDS = 4, AHEAD = 3072 };

ALWAYS __m256i broadcast4(const int8_t *x) { return _mm256_set1_epi32(word4(x)); }

ALWAYS __m256 load_halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* One token times one tile, unpacked in registers on the way from memory. */
ALWAYS void tile_one(const matmul_job *j, const uint8_t *unit, long row, long rows,
                     const int has_min) {
    const long blocks = j->K / QUANT_BLOCK;
    const int8_t *x = j->x.values;
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const __m256 zero = _mm256_setzero_ps();
    __m256 total[2] = {zero, zero}, acc[2] = {zero, zero};
    for (long b = 0; b < blocks; b++, unit += has_min ? 320 : 288, x += QUANT_BLOCK) {
        for (int i = 0; i < 5; i++) _mm_prefetch(unit + AHEAD + 64 * i, _MM_HINT_T0);
        const __m256i sum = _mm256_set1_epi32(j->x.sums[b]), eight = _mm256_slli_epi32(sum, 3);
        const __m256 scale = SET(j->x.scales[b]);
        const __m256 sum_scale = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
        for (int h = 0; h < 2; h++) { /* rows [8h, 8h + 8) */
            __m256i s16 = _mm256_setzero_si256();
            for (int i = 0; i < WORDS; i++) { /* s16 += nibble * x, columns 4i.. and 16 + 4i.. */
                const uint8_t *word = unit + (has_min ? 64 : 32) + 64 * i + 32 * h;
                const __m256i w = _mm256_loadu_si256((const __m256i *)word);
                const __m256i low = _mm256_and_si256(w, nibble);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
                s16 = _mm256_add_epi16(s16, _mm256_maddubs_epi16(low, broadcast4(x + 4 * i)));
                s16 = _mm256_add_epi16(s16, _mm256_maddubs_epi16(high, broadcast4(x + 16 + 4 * i)));
            }
            __m256i s = _mm256_madd_epi16(s16, ones);
            if (!has_min) s = _mm256_sub_epi32(s, eight); /* (q - 8) . x */
            const __m256 d = _mm256_mul_ps(load_halves(unit + 16 * h), scale);
            acc[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), d, acc[h]);
            if (has_min)
                acc[h] = _mm256_fmadd_ps(load_halves(unit + 32 + 16 * h), sum_scale, acc[h]);
        }
        if ((b + 1) % STRIPE_BLOCKS && b + 1 < blocks) continue;
        for (int h = 0; h < 2; h++) { /* the stripe ends */
            total[h] = _mm256_add_ps(total[h], acc[h]);
            acc[h] = zero;
        }
    }
    _Alignas(32) float all[TILE_ROWS];
    for (int h = 0; h < 2; h++) _mm256_store_ps(all + 8 * h, total[h]);
    __builtin_memcpy(j->out + row, all, (size_t)rows * sizeof(float));
}

/* A stripe of one tile, unpacked once for all tokens: nibbles as bytes, halves as floats. */
typedef struct {
    /* one quad: 4 columns of 16 rows */
    _Alignas(64) uint8_t quads[STRIPE_BLOCKS][QUANT_BLOCK / 4][4 * TILE_ROWS];
    float d[STRIPE_BLOCKS][TILE_ROWS], m[STRIPE_BLOCKS][TILE_ROWS];
} stripe;

ALWAYS void unpack_stripe(stripe *to, const uint8_t *units, long blocks, const int has_min) {
    const __m256i low = _mm256_set1_epi8(15);
    for (long b = 0; b < blocks; b++, units += has_min ? 320 : 288) {
        for (int h = 0; h < 2; h++) {
            _mm256_store_ps(to->d[b] + 8 * h, load_halves(units + 16 * h));
            if (has_min) _mm256_store_ps(to->m[b] + 8 * h, load_halves(units + 32 + 16 * h));
            for (int i = 0; i < WORDS; i++) {
                const uint8_t *word = units + (has_min ? 64 : 32) + 64 * i + 32 * h;
                const __m256i w = _mm256_loadu_si256((const __m256i *)word);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
                _mm256_store_si256((__m256i *)(to->quads[b][i] + 32 * h), _mm256_and_si256(w, low));
                _mm256_store_si256((__m256i *)(to->quads[b][i + 4] + 32 * h), high);
            }
        }
    }
}

/* FIRST and NEXT: s16 += quad . x[4i .. 4i+3] of token c. The sums have names, since gcc 12 leaves
 * an array of them in memory; the empty asm keeps it from adding in a tree, which needs more
 * registers than there are. */
#define FIRST(c)                                 \
    if (columns > c) {                           \
        const __m256i a = broadcast4(x + c * K); \
        low##c = _mm256_maddubs_epi16(w0, a);    \
        high##c = _mm256_maddubs_epi16(w1, a);   \
    }
#define NEXT(c)                                                           \
    if (columns > c) {                                                    \
        const __m256i a = broadcast4(x + c * K + 4 * i);                  \
        low##c = _mm256_add_epi16(low##c, _mm256_maddubs_epi16(w0, a));   \
        high##c = _mm256_add_epi16(high##c, _mm256_maddubs_epi16(w1, a)); \
        __asm__("" : "+x"(low##c), "+x"(high##c));                        \
    }

/* acc = fma(float(s), d * scale, acc) and the minimum's term: 8 rows of one block and token. */
ALWAYS void add_block(float *acc, __m256i s16, const float *d, const float *m, float scale,
                      int32_t sum, const int has_min) {
    const __m256i all = _mm256_set1_epi32(sum);
    __m256i s = _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
    if (!has_min) s = _mm256_sub_epi32(s, _mm256_slli_epi32(all, 3)); /* (q - 8) . x */
    const __m256 product = _mm256_mul_ps(_mm256_load_ps(d), SET(scale));
    __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), product, _mm256_load_ps(acc));
    if (has_min)
        a = _mm256_fmadd_ps(_mm256_load_ps(m), _mm256_mul_ps(_mm256_cvtepi32_ps(all), SET(scale)),
                            a);
    _mm256_store_ps(acc, a);
}
#define ADD(c)                                                                         \
    if (columns > c) {                                                                 \
        const float scale = scales[c * row_blocks + b];                                \
        const int32_t sum = sums[c * row_blocks + b];                                  \
        add_block(acc[c], low##c, w->d[b], w->m[b], scale, sum, has_min);              \
        add_block(acc[c] + 8, high##c, w->d[b] + 8, w->m[b] + 8, scale, sum, has_min); \
    }

/* One unpacked stripe times `columns` tokens; first_block is its place in the row. */
ALWAYS void stripe_columns(const matmul_job *j, const stripe *w, float acc[COLUMNS][TILE_ROWS],
                           fetch_ahead *next, long t, long first_block, long blocks,
                           const int columns, const int has_min) {
    const long K = j->K, row_blocks = K / QUANT_BLOCK;
    const int8_t *x = j->x.values + t * K + first_block * QUANT_BLOCK;
    const float *scales = j->x.scales + t * row_blocks + first_block;
    const int32_t *sums = j->x.sums + t * row_blocks + first_block;
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++) _mm256_store_ps(acc[c] + 8 * h, _mm256_setzero_ps());
    for (long b = 0; b < blocks; b++, x += QUANT_BLOCK) {
        fetch(next);
        __m256i low0, low1, low2, low3;     /* rows 0..7 of token c */
        __m256i high0, high1, high2, high3; /* rows 8..15 */
        __m256i w0 = _mm256_load_si256((const __m256i *)w->quads[b][0]);
        __m256i w1 = _mm256_load_si256((const __m256i *)(w->quads[b][0] + 32));
        FIRST(0);
        FIRST(1);
        FIRST(2);
        FIRST(3);
        for (int i = 1; i < QUANT_BLOCK / 4; i++) {
            w0 = _mm256_load_si256((const __m256i *)w->quads[b][i]);
            w1 = _mm256_load_si256((const __m256i *)(w->quads[b][i] + 32));
            NEXT(0);
            NEXT(1);
            NEXT(2);
            NEXT(3);
        }
        ADD(0);
        ADD(1);
        ADD(2);
        ADD(3);
    }
}

/* Sums of a chunk of tokens for one tile: kept close while its stripes pass. */
typedef struct {
    _Alignas(32) float rows[CHUNK][TILE_ROWS];
} totals;

/* total = acc for the first stripe (0 + acc is acc), total + acc for later ones. */
ALWAYS void add_stripe(float *total, const float *acc, int is_first) {
    for (int h = 0; h < TILE_ROWS; h += 8) {
        const __m256 a = _mm256_load_ps(acc + h);
        _mm256_store_ps(total + h, is_first ? a : _mm256_add_ps(_mm256_load_ps(total + h), a));
    }
}

/* Many tokens: the tile stripe by stripe, each unpacked once. */
ALWAYS void tile_many(const matmul_job *j, long tile, long row, long rows,
                      const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK;
    const uint8_t *units = j->w + tile * blocks * UNIT_BYTES(kind);
    _Alignas(32) float acc[COLUMNS][TILE_ROWS];
    totals total;
    stripe w;
    for (long begin = 0; begin < blocks; begin += STRIPE_BLOCKS) {
        const long count = blocks - begin < STRIPE_BLOCKS ? blocks - begin : STRIPE_BLOCKS;
        unpack_stripe(&w, units + begin * UNIT_BYTES(kind), count, kind == Q4_1);
        const long steps = (j->T + COLUMNS - 1) / COLUMNS * count;
        fetch_ahead next = plan_fetch(j, tile, 1, begin + count, steps, kind);
        for (long t = 0; t < j->T;) {
            const int columns = group_size(j->T - t, COLUMNS);
            switch (columns) {
                case 1: stripe_columns(j, &w, acc, &next, t, begin, count, 1, kind == Q4_1); break;
                case 2: stripe_columns(j, &w, acc, &next, t, begin, count, 2, kind == Q4_1); break;
                case 3: stripe_columns(j, &w, acc, &next, t, begin, count, 3, kind == Q4_1); break;
                default: stripe_columns(j, &w, acc, &next, t, begin, count, 4, kind == Q4_1); break;
            }
            for (int c = 0; c < columns; c++, t++) add_stripe(total.rows[t], acc[c], begin == 0);
        }
    }
    for (long t = 0; t < j->T; t++)
        __builtin_memcpy(j->out + t * j->R + row, total.rows[t], (size_t)rows * sizeof(float));
}

ALWAYS void tiles_all(const matmul_job *j, long begin, long end, const weight_kind kind) {
    const long tile_bytes = j->K / QUANT_BLOCK * UNIT_BYTES(kind);
    for (long tile = begin; tile < end; tile++) {
        const long row = tile * TILE_ROWS, left = j->R - row;
        const long rows = left < TILE_ROWS ? left : TILE_ROWS;
        if (j->T == 1) tile_one(j, j->w + tile * tile_bytes, row, rows, kind == Q4_1);
        else tile_many(j, tile, row, rows, kind);
    }
}

void tiles_q4_0_avx2(const matmul_job *j, long begin, long end) { tiles_all(j, begin, end, Q4_0); }
void tiles_q4_1_avx2(const matmul_job *j, long begin, long end) { tiles_all(j, begin, end, Q4_1); }
