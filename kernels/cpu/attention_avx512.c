/* attention_avx512.c - attention in vectors of 16 lanes, with the bits of attention.c.
 *
 *   scores   lanes 0..7 are key 2i, lanes 8..15 key 2i + 1: accumulator d mod 8 of each
 *
 *     | k[2i][0..7] k[2i+1][0..7] | k[2i][8..15] k[2i+1][8..15] | ...     one pair of keys as f32
 *       q[0..7]     q[0..7]         q[8..15]     q[8..15]                 a query, broadcast
 *
 *   weights  16 keys; their sum adds the first 8 lanes, then the others: accumulator j mod 8
 *   values   lanes are dims, and up to 4 queries that see the same keys share each load of v
 *
 * Per stripe and query 128 * D multiply-adds, at most 32 a cycle. Measured: tests/bench/RESULTS.md.
 * Spec: kernels/reference.py attention. Bench: tests/bench/bench_kernels.py --op attention.
 */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#include "attention_spans.h"

#define SET16(v) _mm512_set1_ps(v)

/* exp8 of vector.h, 16 at once. */
ALWAYS __m512 exp16(__m512 x0) {
    const __m512 x = _mm512_min_ps(SET16(88.37f), _mm512_max_ps(SET16(-87.33f), x0));
    const __m512 t = _mm512_fmadd_ps(x, SET16(1.44269504f), SET16(12582912.0f));
    const __m512 n = _mm512_sub_ps(t, SET16(12582912.0f));
    __m512 r = _mm512_fmadd_ps(n, SET16(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, SET16(2.12194440e-4f), r);
    __m512 p = SET16(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, SET16(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, SET16(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, SET16(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, SET16(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, SET16(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, SET16(1.0f));
    const __m512i scaled =
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x0, x0, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, _mm512_castsi512_ps(scaled), x0);
}

/* The trees 4, 2, 1 of eight pairs of accumulators: lane 2i + h of the result is half h of v[i]. */
ALWAYS __m512 tree8x16(const __m512 v[8]) {
    __m512 four[4], two[2];
    for (int i = 0; i < 4; i++) /* quarters: v[i] half 0, half 1, v[i+4] half 0, half 1 */
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88),
                                _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
    for (int i = 0; i < 2; i++) /* lanes l + (l+2): i, i+2 side by side */
        two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[i], four[i + 2], 0x44),
                               _mm512_shuffle_ps(four[i], four[i + 2], 0xee));
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88),
                                      _mm512_shuffle_ps(two[0], two[1], 0xdd));
    const __m512i order =
        _mm512_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15);
    return _mm512_permutexvar_ps(order, sums);
}

/* Pairs of keys as f32, 8 numbers of one beside 8 of the other. */
static void widen_pairs(group *g, const uint16_t *keys, long count, long D) {
    float *to = g->converted;
    for (long j = 0; j < count; j += 2, keys += 2 * D) {
        fetch_ahead(g, keys, 2 * D);
        for (long d = 0; d < D; d += 8, to += 16) {
            const __m128i first = _mm_loadu_si128((const __m128i *)(keys + d)),
                          second = _mm_loadu_si128((const __m128i *)(keys + D + d));
            _mm512_store_ps(to, _mm512_cvtph_ps(_mm256_set_m128i(second, first)));
        }
    }
}

/* Scores of 16 keys for `rows` queries. */
ALWAYS void scores16(float *const P[2], const float *const q[2], const float *pairs, long D,
                     float scale, const int rows) {
    __m512 acc[2][8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) acc[0][i] = acc[1][i] = _mm512_setzero_ps();
    for (long d = 0; d < D; d += 8) {
        const __m512 q0 = _mm512_broadcast_f32x8(_mm256_loadu_ps(q[0] + d)),
                     q1 = _mm512_broadcast_f32x8(_mm256_loadu_ps(q[rows - 1] + d));
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512 k = _mm512_load_ps(pairs + 2 * (i * D + d));
            acc[0][i] = _mm512_fmadd_ps(q0, k, acc[0][i]);
            if (rows > 1) acc[1][i] = _mm512_fmadd_ps(q1, k, acc[1][i]);
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(P[r], _mm512_mul_ps(tree8x16(acc[r]), SET16(scale)));
}

static void stripe_scores(group *g, const uint16_t *keys, long base, long count, long D,
                          float scale) {
    const long fitting = keys_at_a_time(D), at_a_time = fitting < 16 ? 16 : fitting;
    for (long j = 0; j < count; j += at_a_time) {
        const long left = (count - j + 15) / 16 * 16; /* whole vectors; past them is memory too */
        widen_pairs(g, keys + j * D, left < at_a_time ? left : at_a_time, D);
        for (int r = 0; r < g->count; r += 2) {
            const int two = r + 1 < g->count; /* positions ascend: the second sees no less */
            const query *last = g->rows + r + two;
            for (long i = 0; i < at_a_time && base + j + i <= last->position; i += 16) {
                float *const P[2] = {g->P[r] + j + i, g->P[r + two] + j + i};
                const float *const q[2] = {g->rows[r].q, last->q};
                if (two) scores16(P, q, g->converted + i * D, D, scale, 2);
                else scores16(P, q, g->converted + i * D, D, scale, 1);
            }
        }
    }
}

/* lanes [first, valid) set; either may lie outside of 0..16 */
ALWAYS __mmask16 key_mask(long first, long valid) {
    const unsigned below = first <= 0 ? 0 : first >= 16 ? 0xffff : (1u << first) - 1;
    const unsigned up_to = valid <= 0 ? 0 : valid >= 16 ? 0xffff : (1u << valid) - 1;
    return (__mmask16)(up_to & ~below);
}

/* Weights and their sum from the scores of some keys; returns the largest score. */
static float stripe_weights(float *P, float *l, key_range keys) {
    __m512 top = SET16(-__builtin_inff());
    __m256 sum = _mm256_setzero_ps();
    for (long j = keys.begin / 16 * 16; j < keys.end; j += 16)
        top = _mm512_mask_max_ps(top, key_mask(keys.begin - j, keys.end - j), top,
                                 _mm512_load_ps(P + j));
    const float m = max8(_mm256_max_ps(_mm512_castps512_ps256(top),
                                       _mm512_extractf32x8_ps(top, 1)));
    for (long j = keys.begin / 16 * 16; j < keys.end; j += 16) {
        const __mmask16 mask = key_mask(keys.begin - j, keys.end - j);
        const __m512 e = exp16(_mm512_sub_ps(_mm512_load_ps(P + j), SET16(m)));
        const __m512 p = _mm512_maskz_mov_ps(mask, e);
        _mm512_store_ps(P + j, p);
        sum = _mm256_add_ps(sum, _mm512_castps512_ps256(p)); /* sum[j mod 8] += p[j] */
        sum = _mm256_add_ps(sum, _mm512_extractf32x8_ps(p, 1));
    }
    *l = tree8(sum);
    return m;
}

/* o = sum of p[j] * v[j] of `rows` queries from r on and 64 dims, then merged into O. */
ALWAYS void weigh_64(group *g, int r, long d, long D, key_range keys, const int rows) {
    __m512 o[4][4];
#pragma GCC unroll 4
    for (int k = 0; k < rows; k++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) o[k][i] = _mm512_setzero_ps();
    for (long j = keys.begin; j < keys.end; j++) {
        const float *v = g->converted + j * SLICE;
        const __m512 v0 = _mm512_load_ps(v), v1 = _mm512_load_ps(v + 16),
                     v2 = _mm512_load_ps(v + 32), v3 = _mm512_load_ps(v + 48);
#pragma GCC unroll 4
        for (int k = 0; k < rows; k++) {
            const __m512 p = SET16(g->P[r + k][j]);
            o[k][0] = _mm512_fmadd_ps(p, v0, o[k][0]);
            o[k][1] = _mm512_fmadd_ps(p, v1, o[k][1]);
            o[k][2] = _mm512_fmadd_ps(p, v2, o[k][2]);
            o[k][3] = _mm512_fmadd_ps(p, v3, o[k][3]);
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < rows; k++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float *O = g->O + (r + k) * D + d + 16 * i;
            const __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(O), SET16(g->a[r + k]));
            const __m512 sum = _mm512_fmadd_ps(o[k][i], SET16(g->b[r + k]), kept);
            _mm512_storeu_ps(O, keys.is_first ? o[k][i] : sum);
        }
}

/* The same of one query and 8 dims, which `converted` holds 8 apart. */
static void weigh_8(group *g, int r, long d, long D, key_range keys) {
    __m256 o = _mm256_setzero_ps();
    for (long j = keys.begin; j < keys.end; j++)
        o = _mm256_fmadd_ps(SET(g->P[r][j]), _mm256_load_ps(g->converted + 8 * j), o);
    float *O = g->O + r * D + d;
    const __m256 kept = _mm256_mul_ps(_mm256_load_ps(O), SET(g->a[r]));
    _mm256_store_ps(O, keys.is_first ? o : _mm256_fmadd_ps(o, SET(g->b[r]), kept));
}

/* Queries from r on, 4 at most, that see the same keys of the stripe. */
static int rows_alike(const group *g, int r, key_range keys, long base, long count) {
    int rows = 1;
    for (; rows < 4 && r + rows < g->count; rows++) {
        const key_range other = keys_seen(&g->rows[r + rows], base, count);
        if (other.begin != keys.begin || other.end != keys.end ||
            other.is_first != keys.is_first)
            break;
    }
    return rows;
}

static void values_64(group *g, const uint16_t *values, long base, long count, long d, long D) {
    for (long j = 0; j < count; j++) {
        const uint16_t *from = values + j * D + d;
        fetch_ahead(g, from, SLICE);
        for (long i = 0; i < SLICE; i += 16) {
            const __m256i v = _mm256_loadu_si256((const __m256i *)(from + i));
            _mm512_store_ps(g->converted + j * SLICE + i, _mm512_cvtph_ps(v));
        }
    }
    for (int r = 0, rows; r < g->count; r += rows) {
        const key_range keys = keys_seen(&g->rows[r], base, count);
        rows = rows_alike(g, r, keys, base, count);
        if (keys.begin >= keys.end) continue;
        switch (rows) {
            case 1: weigh_64(g, r, d, D, keys, 1); break;
            case 2: weigh_64(g, r, d, D, keys, 2); break;
            case 3: weigh_64(g, r, d, D, keys, 3); break;
            default: weigh_64(g, r, d, D, keys, 4); break;
        }
    }
}

static void stripe_values(group *g, const uint16_t *values, long base, long count, long D) {
    long d = 0;
    for (; d + SLICE <= D; d += SLICE) values_64(g, values, base, count, d, D);
    for (; d < D; d += 8) {
        for (long j = 0; j < count; j++) {
            const __m128i v = _mm_loadu_si128((const __m128i *)(values + j * D + d));
            _mm256_store_ps(g->converted + 8 * j, _mm256_cvtph_ps(v));
        }
        for (int r = 0; r < g->count; r++) {
            const key_range keys = keys_seen(&g->rows[r], base, count);
            if (keys.begin < keys.end) weigh_8(g, r, d, D, keys);
        }
    }
}

void attention_avx512(float *out, const float *q, kv_layer kv, attention_step step, float scale,
                      int threads) {
    attention(out, q, kv, step, scale, threads);
}
