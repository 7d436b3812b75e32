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
 * A piece of work is some neighbouring tokens and one kv head: the query heads of that group and
 * the tokens of one sequence share each stripe's conversion to f32 (up to ROWS queries at a time).
 * Per stripe and query 128 * D multiply-adds, at most 16 a cycle; 256 * D bytes read from memory.
 * Measured / limit, one core: 22 to 27 G / 38 G (16 a cycle) for a chunk of 256 tokens; one token
 * reads its KV at 9 to 14 GB/s of 12 to 13. Table: tests/bench/RESULTS.md.
 * Spec: kernels/reference.py attention. Bench: tests/bench/bench_kernels.py --op attention.
 * Source: Dao et al. 2022, arXiv:2205.14135; paged form: Kwon et al. 2023, arXiv:2309.06180.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum {
    ROWS = 16,
    MAX_D = 512,
    SLICE = 64
}; /* queries at a time, largest head, dims of V converted at a time */

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

/* One query row and what its stripes have given so far. */
typedef struct {
    const float *q;
    float *out;
    long position, first; /* of the last key it sees, and of the first */
    float M, L;
} query;

typedef struct {
    query rows[ROWS];
    int count;
    _Alignas(32) float O[ROWS][MAX_D];
    _Alignas(32) float P[ROWS][STRIPE_KEYS]; /* scores, then weights */
    float l[ROWS], a[ROWS], b[ROWS];
    _Alignas(32) float converted[STRIPE_KEYS * SLICE];
} group;

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

/* Of one stripe the keys that a query sees, none when begin >= end. */
typedef struct {
    long begin, end;
    int is_first; /* no stripe before this one has a key that it sees */
} key_range;

static key_range keys_seen(const query *row, long base, long count) {
    const long begin = row->first - base, end = row->position - base + 1;
    return (key_range){begin > 0 ? begin : 0, end < count ? end : count, begin >= 0};
}

static void stripe_scores(group *g, const uint16_t *keys, long base, long count, long D,
                          float scale) {
    const long at_a_time = D <= 64    ? 64
                           : D <= 128 ? 32
                           : D <= 256 ? 16
                                      : 8; /* keys that fit into `converted` */
    for (long j = 0; j < count; j += at_a_time) {
        const long left =
            (count - j + 7) / 8 * 8; /* whole vectors of keys; past them is memory too */
        widen(g->converted, keys + j * D, (left < at_a_time ? left : at_a_time) * D);
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

/* How much the kept sums and the new stripe count after their common maximum. */
static void merge_factors(group *g, int r, float m, int is_first) {
    query *row = &g->rows[r];
    const float top = is_first || m > row->M ? m : row->M;
    const __m256 both = exp8(_mm256_setr_ps(row->M - top, m - top, 0, 0, 0, 0, 0, 0));
    g->a[r] = _mm256_cvtss_f32(both);
    g->b[r] = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(both)));
    row->L = is_first ? g->l[r] : __builtin_fmaf(g->l[r], g->b[r], row->L * g->a[r]);
    row->M = top;
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
        for (long j = 0; j < count; j++)
            widen(g->converted + j * 8 * width, values + j * D + d, 8 * width);
        for (int r = 0; r < g->count; r++) {
            const key_range keys = keys_seen(&g->rows[r], base, count);
            if (keys.begin >= keys.end) continue;
            if (width == 8)
                weigh_values(g->O[r] + d, g->P[r], g->converted, keys, g->a[r], g->b[r], 8);
            else weigh_values(g->O[r] + d, g->P[r], g->converted, keys, g->a[r], g->b[r], 1);
        }
        d += 8 * width;
    }
}

/* All stripes of one group of queries: the same sequence, the same kv head, positions ascending. */
static void attend(group *g, kv_layer kv, const int32_t *table, long kv_head, float scale) {
    const long last = g->rows[g->count - 1].position, D = kv.D;
    for (long base = g->rows[0].first / STRIPE_KEYS * STRIPE_KEYS; base <= last;
         base += STRIPE_KEYS) {
        const long count = last - base + 1 < STRIPE_KEYS ? last - base + 1 : STRIPE_KEYS;
        const uint16_t *keys = kv.keys + table[base / BLOCK_TOKENS] * kv.block_stride +
                               (kv_head * BLOCK_TOKENS + base % BLOCK_TOKENS) * D;
        stripe_scores(g, keys, base, count, D, scale);
        for (int r = 0; r < g->count; r++) {
            const key_range seen = keys_seen(&g->rows[r], base, count);
            if (seen.begin >= seen.end) continue;
            const float m = stripe_weights(g->P[r], &g->l[r], seen);
            merge_factors(g, r, m, seen.is_first);
        }
        stripe_values(g, keys + kv.values_offset, base, count, D);
    }
    for (int r = 0; r < g->count; r++)
        for (long d = 0; d < D; d += 8) {
            const __m256 out = _mm256_div_ps(_mm256_load_ps(g->O[r] + d), SET(g->rows[r].L));
            _mm256_storeu_ps(g->rows[r].out + d, out);
        }
}

typedef struct {
    float *out;
    const float *q;
    kv_layer kv;
    attention_step step;
    float scale;
    long tokens; /* neighbouring tokens of one piece */
} attention_job;

/* Tokens [begin, end) and one kv head: cut into groups of one sequence and at most ROWS queries. */
static void attend_tokens(const attention_job *j, long begin, long end, long kv_head) {
    const long heads = j->step.heads, share = heads / j->kv.kv_heads, D = j->kv.D;
    group g;
    g.count = 0;
    for (long t = begin; t < end; t++)
        for (long h = 0; h < share; h++) {
            const long row = t * heads + kv_head * share + h;
            const long position = j->step.positions[t], before = position - j->step.window + 1;
            g.rows[g.count++] = (query){
                j->q + row * D, j->out + row * D, position, before > 0 ? before : 0, 0.0f, 0.0f};
            const int is_last = h + 1 == share &&
                                (t + 1 == end || j->step.seq_index[t + 1] != j->step.seq_index[t]);
            if (!is_last && g.count < ROWS) continue;
            attend(&g, j->kv, j->step.block_tables + j->step.seq_index[t] * j->step.max_blocks,
                   kv_head, j->scale);
            g.count = 0;
        }
}

static void attention_piece(void *argument, long begin, long end) {
    const attention_job *j = argument;
    for (long item = begin; item < end; item++) {
        const long first = item / j->kv.kv_heads * j->tokens, last = first + j->tokens;
        attend_tokens(j, first, last < j->step.T ? last : j->step.T, item % j->kv.kv_heads);
    }
}

void attention_avx2(float *out, const float *q, kv_layer kv, attention_step step, float scale,
                    int threads) {
    const long share = step.heads / kv.kv_heads,
               tokens = step.T <= 32 || share >= ROWS ? 1 : ROWS / share;
    attention_job job = {out, q, kv, step, scale, tokens};
    pool_for(threads, (step.T + tokens - 1) / tokens * kv.kv_heads, 1, attention_piece, &job);
}
