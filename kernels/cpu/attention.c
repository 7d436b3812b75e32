/* attention.c - tokens against the paged KV of their sequences (ops: store_kv, attention).
 *
 *   arena        [blocks][layers][K, V][kv_heads][256][D] f16
 *                one head of one block is 256 x D numbers in a row
 *   q, out       [T][heads][D] f32; head h reads kv head h / (heads / kv_heads)
 *
 *   keys of one sequence, by position; a token sees the last `window` up to its own
 *
 *     | stripe 0: 0..63 | 64..127 | 128..191 | 192..255 |  256.. of the next block
 *       m0, l0, o0        m1, l1, o1   ...                  merged in this order into M, L, O
 *
 *   score[j] = (sum over d of q[d] * k[j][d]) * scale    accumulator d mod 8, then tree 4, 2, 1
 *   p[j]     = exp(score[j] - m), of keys it sees;  l = sum of p, accumulator j mod 8, tree
 *   o[d]     = fma(p[j], v[j][d], o[d])                    keys ascending, from +0
 *   M'       = max(M, m);  a = exp(M - M');  b = exp(m - M')
 *   L, O     = fma(l, b, L * a), fma(o, b, O * a);  out = O / L
 *
 * A piece of work is some neighbouring tokens and one kv head (attention_groups.h): the query heads
 * of that group and the tokens of one sequence share each stripe's conversion to f32. Where that is
 * too few pieces for the threads, it is a span of keys (attention_spans.h).
 * Per stripe and query 128 * D multiply-adds, at most 16 a cycle; 256 * D bytes read from memory.
 * Measured / limit, one core: 27 to 32 G / 38 G (16 a cycle) for a chunk of 256 or 512 tokens; 45
 * to 50 G with attention_avx512.c. One token reads 7 to 11 GB/s of KV: it converts as long as it
 * reads. Table: tests/bench/RESULTS.md.
 * Spec: kernels/reference.py attention. Bench: tests/bench/bench_kernels.py --op attention.
 * Source: Dao et al. 2022, arXiv:2205.14135; paged form: Kwon et al. 2023, arXiv:2309.06180.
 */
#pragma GCC target("avx2,fma,f16c")
#include "attention_spans.h"

void store_kv_avx2(kv_layer kv, const float *k, const float *v, const int64_t *slots, long T) {
    const __m256 top = SET(65504.0f), bottom = SET(-65504.0f);
    for (long t = 0; t < T; t++) {
        uint16_t *block =
            kv.keys + slots[t] / BLOCK_TOKENS * kv.block_stride + slots[t] % BLOCK_TOKENS * kv.D;
        for (int part = 0; part < 2; part++) {
            const float *from = (part ? v : k) + t * kv.kv_heads * kv.D;
            for (long h = 0; h < kv.kv_heads; h++, from += kv.D) {
                uint16_t *to = block + part * kv.values_offset + h * BLOCK_TOKENS * kv.D;
                for (long d = 0; d < kv.D; d += 8) { /* second operand wins on NaN, so NaN stays */
                    const __m256 x =
                        _mm256_min_ps(top, _mm256_max_ps(bottom, _mm256_loadu_ps(from + d)));
                    _mm_storeu_si128((__m128i *)(to + d),
                                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
                }
            }
        }
    }
}

static void widen(float *to, const uint16_t *from, long n) {
    for (long i = 0; i < n; i += 8)
        _mm256_store_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
}

/* Scores of keys [j, j + 8) for one query; keys are f32, D apart. */
ALWAYS __m256 scores8(const float *q, const float *keys, long D, float scale) {
    __m256 acc[8];
    for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_ps();
    for (long d = 0; d < D; d += 8) {
        const __m256 x = _mm256_loadu_ps(q + d);
        for (int i = 0; i < 8; i++)
            acc[i] = _mm256_fmadd_ps(x, _mm256_load_ps(keys + i * D + d), acc[i]);
    }
    return _mm256_mul_ps(tree8x8(acc), SET(scale));
}

static void stripe_scores(group *g, const uint16_t *keys, long base, long count, long D,
                          float scale) {
    const long at_a_time = keys_at_a_time(D);
    for (long j = 0; j < count; j += at_a_time) {
        const long left = (count - j + 7) / 8 * 8; /* whole vectors; past them is memory too */
        for (long i = 0; i < (left < at_a_time ? left : at_a_time); i++) {
            fetch_ahead(g, keys + (j + i) * D, D);
            widen(g->converted + i * D, keys + (j + i) * D, D);
        }
        for (int r = 0; r < g->count; r++)
            for (long i = 0; i < at_a_time && base + j + i <= g->rows[r].position; i += 8)
                _mm256_store_ps(g->P[r] + j + i,
                                scores8(g->rows[r].q, g->converted + i * D, D, scale));
    }
}

/* lanes [first, valid) set; either may lie outside of 0..8 */
ALWAYS __m256 key_mask(long first, long valid) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(tail_mask(first), tail_mask(valid)));
}

/* Weights and their sum from the scores of some keys; returns the largest score. */
static float stripe_weights(float *P, float *l, key_range keys) {
    __m256 top = SET(-__builtin_inff()), sum = _mm256_setzero_ps();
    for (long j = keys.begin / 8 * 8; j < keys.end; j += 8) {
        const __m256 mask = key_mask(keys.begin - j, keys.end - j);
        top = _mm256_max_ps(top,
                            _mm256_blendv_ps(SET(-__builtin_inff()), _mm256_load_ps(P + j), mask));
    }
    const float m = max8(top);
    for (long j = keys.begin / 8 * 8; j < keys.end; j += 8) {
        const __m256 mask = key_mask(keys.begin - j, keys.end - j);
        const __m256 p = _mm256_and_ps(exp8(_mm256_sub_ps(_mm256_load_ps(P + j), SET(m))), mask);
        _mm256_store_ps(P + j, p);
        sum = _mm256_add_ps(sum, p); /* sum[j mod 8] += p[j] */
    }
    *l = tree8(sum);
    return m;
}

/* o = sum of p[j] * v[j], `width` vectors of dims at once, then merged into O. */
ALWAYS void weigh_values(float *O, const float *P, const float *values, key_range keys,
                         float a, float b, const int width) {
    __m256 o[8];
    for (int i = 0; i < width; i++) o[i] = _mm256_setzero_ps();
    for (long j = keys.begin; j < keys.end; j++) {
        const __m256 p = SET(P[j]);
        for (int i = 0; i < width; i++)
            o[i] = _mm256_fmadd_ps(p, _mm256_load_ps(values + j * 8 * width + 8 * i), o[i]);
    }
    for (int i = 0; i < width; i++) {
        const __m256 kept = _mm256_mul_ps(_mm256_load_ps(O + 8 * i), SET(a));
        _mm256_store_ps(O + 8 * i, keys.is_first ? o[i] : _mm256_fmadd_ps(o[i], SET(b), kept));
    }
}

static void stripe_values(group *g, const uint16_t *values, long base, long count, long D) {
    for (long d = 0; d < D;) {
        const long width = D - d >= SLICE ? 8 : 1; /* vectors of 8 dims: 64 at a time, then 8 */
        for (long j = 0; j < count; j++) {
            fetch_ahead(g, values + j * D + d, 8 * width);
            widen(g->converted + j * 8 * width, values + j * D + d, 8 * width);
        }
        for (int r = 0; r < g->count; r++) {
            const key_range keys = keys_seen(&g->rows[r], base, count);
            if (keys.begin >= keys.end) continue;
            if (width == 8)
                weigh_values(g->O + r * D + d, g->P[r], g->converted, keys, g->a[r], g->b[r], 8);
            else weigh_values(g->O + r * D + d, g->P[r], g->converted, keys, g->a[r], g->b[r], 1);
        }
        d += 8 * width;
    }
}

void attention_avx2(float *out, const float *q, kv_layer kv, attention_step step, float scale,
                    int threads) {
    attention(out, q, kv, step, scale, threads);
}
