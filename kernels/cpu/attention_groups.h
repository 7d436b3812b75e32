/* attention_groups.h - attention of both instruction sets: queries that share a pass over K and V.
 *
 * A group is up to ROWS queries of one sequence and kv head: the query heads of that head, of some
 * neighbouring tokens. Stripe by stripe, the keys are converted to f32 once for all of them, then
 * the values. Included by attention.c and attention_avx512.c after their target pragma; each has
 *
 *   stripe_scores   P[r][j] = q[r] . k[j] * scale, for keys j of the stripe
 *   stripe_weights  P[r][j] = exp(P[r][j] - m), of keys it sees; their sum; returns m
 *   stripe_values   o[r] = sum of P[r][j] * v[j], then O[r] = fma(o, b, O * a)
 */
#ifndef LOCKSTEP_ATTENTION_GROUPS_H
#define LOCKSTEP_ATTENTION_GROUPS_H

#include "kernels.h"
#include "pool.h"
#include "vector.h"

/* queries at a time, largest head, numbers of K or V converted at a time for a key of each */
enum { ROWS = 32, MAX_D = MAX_HEAD_DIM, SLICE = 64 };

/* One query row. */
typedef struct {
    const float *q;
    float *out;
    long position, first; /* of the last key it sees, and of the first */
} query;

typedef struct {
    query rows[ROWS];
    int count;
    _Alignas(64) float O[ROWS * MAX_D]; /* D apart */
    _Alignas(64) float P[ROWS][STRIPE_KEYS]; /* scores, then weights */
    /* by row: what all stripes have given so far, what this one gives, how much both count; one
     * that sees no key of this stripe is not `seen` */
    _Alignas(32) float M[ROWS], L[ROWS], m[ROWS], l[ROWS], a[ROWS], b[ROWS];
    _Alignas(32) int32_t seen[ROWS], first[ROWS];
    long ahead; /* from a number of this stripe to that of the next one, in memory */
    _Alignas(64) float converted[2 * STRIPE_KEYS * SLICE]; /* 16 keys of MAX_D, too */
} group;

/* Of one stripe the keys that a query sees, none when begin >= end. */
typedef struct {
    long begin, end;
    int is_first; /* no stripe before this one has a key that it sees */
} key_range;

static key_range keys_seen(const query *row, long base, long count) {
    const long begin = row->first - base, end = row->position - base + 1;
    return (key_range){begin > 0 ? begin : 0, end < count ? end : count, begin >= 0};
}

/* Fetches what lies `ahead` of n numbers, so that the next stripe is there when its turn comes:
 * pages end after 32 keys, and the processor's own prefetching ends with them. */
ALWAYS void fetch_ahead(const group *g, const uint16_t *from, long n) {
    for (long i = 0; i < n; i += 32) _mm_prefetch((const char *)(from + g->ahead + i), _MM_HINT_T0);
}

/* Keys that fit into `converted`. */
ALWAYS long keys_at_a_time(long D) { return D <= 64 ? 64 : D <= 128 ? 32 : D <= 256 ? 16 : 8; }

static void stripe_scores(group *g, const uint16_t *keys, long base, long count, long D,
                          float scale);
static float stripe_weights(float *P, float *l, key_range keys);
static void stripe_values(group *g, const uint16_t *values, long base, long count, long D);

/* How much the kept sums and the new stripe count after their common maximum, 8 rows at once. */
static void merge_factors(group *g) {
    for (int r = 0; r < g->count; r += 8) {
        const __m256 M = _mm256_load_ps(g->M + r), m = _mm256_load_ps(g->m + r);
        const __m256 L = _mm256_load_ps(g->L + r), l = _mm256_load_ps(g->l + r);
        const __m256 first = _mm256_load_ps((const float *)(g->first + r));
        const __m256 seen = _mm256_load_ps((const float *)(g->seen + r));
        const __m256 larger = _mm256_or_ps(first, _mm256_cmp_ps(m, M, _CMP_GT_OQ));
        const __m256 top = _mm256_blendv_ps(M, m, larger);
        const __m256 a = exp8(_mm256_sub_ps(M, top)), b = exp8(_mm256_sub_ps(m, top));
        const __m256 both = _mm256_fmadd_ps(l, b, _mm256_mul_ps(L, a));
        _mm256_store_ps(g->a + r, a);
        _mm256_store_ps(g->b + r, b);
        _mm256_store_ps(g->L + r, _mm256_blendv_ps(L, _mm256_blendv_ps(both, l, first), seen));
        _mm256_store_ps(g->M + r, _mm256_blendv_ps(M, top, seen));
    }
}

static uint16_t *stripe_at(kv_layer kv, const int32_t *table, long kv_head, long base) {
    return kv.keys + table[base / BLOCK_TOKENS] * kv.block_stride +
           (kv_head * BLOCK_TOKENS + base % BLOCK_TOKENS) * kv.D;
}

static void begin_group(group *g) {
    for (int r = 0; r < ROWS; r++) g->M[r] = g->L[r] = g->m[r] = g->l[r] = 0.0f;
    for (int r = 0; r < ROWS; r++) g->seen[r] = g->first[r] = 0;
}

/* The stripe of keys from base on, merged into what the group has. */
static void attend_stripe(group *g, kv_layer kv, const int32_t *table, long kv_head, long base,
                          float scale) {
    const long last = g->rows[g->count - 1].position, D = kv.D;
    const long count = last - base + 1 < STRIPE_KEYS ? last - base + 1 : STRIPE_KEYS;
    const long next = base + STRIPE_KEYS <= last ? base + STRIPE_KEYS : base;
    const uint16_t *keys = stripe_at(kv, table, kv_head, base);
    g->ahead = stripe_at(kv, table, kv_head, next) - keys;
    stripe_scores(g, keys, base, count, D, scale);
    for (int r = 0; r < g->count; r++) {
        const key_range seen = keys_seen(&g->rows[r], base, count);
        g->seen[r] = seen.begin < seen.end ? -1 : 0;
        g->first[r] = seen.is_first ? -1 : 0;
        if (g->seen[r]) g->m[r] = stripe_weights(g->P[r], &g->l[r], seen);
    }
    merge_factors(g);
    stripe_values(g, keys + kv.values_offset, base, count, D);
}

static void end_group(const group *g, long D) {
    for (int r = 0; r < g->count; r++)
        for (long d = 0; d < D; d += 8) {
            const __m256 out = _mm256_div_ps(_mm256_load_ps(g->O + r * D + d), SET(g->L[r]));
            _mm256_storeu_ps(g->rows[r].out + d, out);
        }
}

/* All stripes of one group of queries: the same sequence, the same kv head, positions ascending. */
static void attend_group(group *g, kv_layer kv, const int32_t *table, long kv_head, float scale) {
    const long last = g->rows[g->count - 1].position;
    begin_group(g);
    for (long base = g->rows[0].first / STRIPE_KEYS * STRIPE_KEYS; base <= last;
         base += STRIPE_KEYS)
        attend_stripe(g, kv, table, kv_head, base, scale);
    end_group(g, kv.D);
}

typedef struct {
    float *out;
    const float *q;
    kv_layer kv;
    attention_step step;
    float scale;
    long tokens; /* neighbouring tokens of one piece */
} attention_job;

static query query_of(const attention_job *j, long t, long head) {
    const long row = (t * j->step.heads + head) * j->kv.D;
    const long position = j->step.positions[t], before = position - j->step.window + 1;
    return (query){j->q + row, j->out + row, position, before > 0 ? before : 0};
}

static const int32_t *table_of(const attention_job *j, long t) {
    return j->step.block_tables + j->step.seq_index[t] * j->step.max_blocks;
}

/* Tokens [begin, end) and one kv head: cut into groups of one sequence and at most ROWS queries. */
static void attend_tokens(const attention_job *j, long begin, long end, long kv_head) {
    const long share = j->step.heads / j->kv.kv_heads;
    group g;
    g.count = 0;
    for (long t = begin; t < end; t++)
        for (long h = 0; h < share; h++) {
            g.rows[g.count++] = query_of(j, t, kv_head * share + h);
            const int is_last = h + 1 == share &&
                                (t + 1 == end || j->step.seq_index[t + 1] != j->step.seq_index[t]);
            if (!is_last && g.count < ROWS) continue;
            attend_group(&g, j->kv, table_of(j, t), kv_head, j->scale);
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

#endif
