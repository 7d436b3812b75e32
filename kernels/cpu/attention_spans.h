/* attention_spans.h - the keys of few tokens shared out over many threads.
 *
 * A piece of work is mostly all keys of one token and kv head: two to eight pieces a session, which
 * leave threads idle while few sessions decode. Then a piece is a span of stripes:
 *
 *     stripes of a token   | 0 1 2 3 | 4 5 6 7 | 8 ...        1. each stripe alone: m, l, o
 *     parts                  m l o, m l o, ...                2. merged in key order, by kv head
 *
 * Every stripe has its own maximum and stripes are merged in one order anyway (ARITHMETIC.md, 6):
 * the bits are the same. A part is written and read once: heads / kv_heads / 32 of the bytes of its
 * stripe, so that a span pays where threads would idle for a fifth of the time.
 * Included by attention.c and attention_avx512.c after attention_groups.h.
 */
#ifndef LOCKSTEP_ATTENTION_SPANS_H
#define LOCKSTEP_ATTENTION_SPANS_H

#include <stdlib.h>

#include "attention_groups.h"

enum {
    SPAN_TOKENS = 32,         /* a step of more tokens has pieces enough */
    SPAN_STRIPES = 4,         /* of a span at least: less is not worth taking */
    SPANS_A_THREAD = 4,       /* so that they end together */
    PARTS_BYTES_MAX = 1 << 26 /* of all parts */
};

typedef struct {
    attention_job job;
    long first[SPAN_TOKENS], count[SPAN_TOKENS]; /* of each token's stripes */
    long offset[SPAN_TOKENS];                    /* of its first among all */
    long total, longest;                         /* stripes of all tokens; of one */
    long span, spans;                            /* stripes of one; spans of the longest */
    long stride;                                 /* floats of a part: o (D), m, l, padding */
    float *parts;                                /* [stripe][head][stride] */
} span_job;

static void count_stripes(span_job *s) {
    s->total = s->longest = 0;
    for (long t = 0; t < s->job.step.T; t++) {
        const query row = query_of(&s->job, t, 0);
        s->first[t] = row.first / STRIPE_KEYS;
        s->count[t] = row.position / STRIPE_KEYS - s->first[t] + 1;
        s->offset[t] = s->total;
        s->total += s->count[t];
        if (s->count[t] > s->longest) s->longest = s->count[t];
    }
}

/* Would whole tokens leave threads idle for more than a fifth of the time? */
static int leaves_idle(const span_job *s, int threads) {
    const long pieces = s->job.step.T * s->job.kv.kv_heads, stripes = s->total * s->job.kv.kv_heads;
    const long rounds = (pieces + threads - 1) / threads, even = rounds * s->total / s->job.step.T;
    const long whole = even > s->longest ? even : s->longest;
    return s->longest >= 2 * SPAN_STRIPES && 5 * whole * threads > 6 * stripes;
}

/* Kept by the thread that calls; NULL: there is no memory, or too much is wanted. */
static float *room_for(size_t bytes) {
    static _Thread_local float *room;
    static _Thread_local size_t size;
    if (bytes > PARTS_BYTES_MAX) return NULL;
    if (bytes > size) {
        free(room);
        room = aligned_alloc(64, (bytes + 63) / 64 * 64);
        size = room ? bytes : 0;
    }
    return room;
}

static float *part_of(const span_job *s, long t, long stripe, long head) {
    return s->parts + ((s->offset[t] + stripe) * s->job.step.heads + head) * s->stride;
}

static void take_rows(const span_job *s, group *g, long t, long kv_head) {
    g->count = (int)(s->job.step.heads / s->job.kv.kv_heads);
    for (int r = 0; r < g->count; r++) g->rows[r] = query_of(&s->job, t, kv_head * g->count + r);
}

/* One stripe as if there were no other. */
static void attend_alone(const span_job *s, group *g, long t, long kv_head, long stripe) {
    const long base = (s->first[t] + stripe) * STRIPE_KEYS, D = s->job.kv.D;
    begin_group(g);
    for (int r = 0; r < g->count; r++)
        if (g->rows[r].first < base) g->rows[r].first = base;
    attend_stripe(g, s->job.kv, table_of(&s->job, t), kv_head, base, s->job.scale);
    for (int r = 0; r < g->count; r++) {
        float *part = part_of(s, t, stripe, kv_head * g->count + r);
        for (long d = 0; d < D; d += 8)
            _mm256_store_ps(part + d, _mm256_load_ps(g->O + r * D + d));
        part[D] = g->M[r];
        part[D + 1] = g->L[r];
    }
}

static void span_piece(void *argument, long begin, long end) {
    const span_job *s = argument;
    group g;
    for (long item = begin; item < end; item++) {
        const long row = item / s->spans, t = row / s->job.kv.kv_heads;
        const long stripe = item % s->spans * s->span, last = stripe + s->span;
        take_rows(s, &g, t, row % s->job.kv.kv_heads);
        for (long i = stripe; i < last && i < s->count[t]; i++)
            attend_alone(s, &g, t, row % s->job.kv.kv_heads, i);
    }
}

/* What a stripe gave, merged into what those before it gave. */
static void merge_stripe(const span_job *s, group *g, long t, long kv_head, long stripe) {
    const long D = s->job.kv.D;
    for (int r = 0; r < g->count; r++) {
        const float *part = part_of(s, t, stripe, kv_head * g->count + r);
        g->m[r] = part[D];
        g->l[r] = part[D + 1];
        g->seen[r] = -1;
        g->first[r] = stripe ? 0 : -1;
    }
    merge_factors(g);
    for (int r = 0; r < g->count; r++) {
        const float *o = part_of(s, t, stripe, kv_head * g->count + r);
        for (long d = 0; d < D; d += 8) {
            float *O = g->O + r * D + d;
            const __m256 kept = _mm256_mul_ps(_mm256_load_ps(O), SET(g->a[r])),
                         both = _mm256_fmadd_ps(_mm256_load_ps(o + d), SET(g->b[r]), kept);
            _mm256_store_ps(O, stripe ? both : _mm256_load_ps(o + d));
        }
    }
}

static void merge_piece(void *argument, long begin, long end) {
    const span_job *s = argument;
    group g;
    for (long row = begin; row < end; row++) {
        const long t = row / s->job.kv.kv_heads, kv_head = row % s->job.kv.kv_heads;
        take_rows(s, &g, t, kv_head);
        begin_group(&g);
        for (long i = 0; i < s->count[t]; i++) merge_stripe(s, &g, t, kv_head, i);
        end_group(&g, s->job.kv.D);
    }
}

/* 1: done by spans. 0: pieces of whole tokens serve better, nothing was done. */
static int attend_spans(const attention_job *job, int threads) {
    const long kv_heads = job->kv.kv_heads, heads = job->step.heads;
    if (threads < 2 || job->step.T > SPAN_TOKENS || heads / kv_heads > ROWS) return 0;
    span_job s = {.job = *job, .stride = job->kv.D + 8};
    count_stripes(&s);
    if (!leaves_idle(&s, threads)) return 0;
    s.parts = room_for((size_t)(s.total * heads * s.stride) * sizeof(float));
    if (!s.parts) return 0;
    s.span = s.total * kv_heads / (threads * SPANS_A_THREAD) + 1;
    if (s.span < SPAN_STRIPES) s.span = SPAN_STRIPES;
    s.spans = (s.longest + s.span - 1) / s.span;
    pool_for(threads, job->step.T * kv_heads * s.spans, 1, span_piece, &s);
    pool_for(threads, job->step.T * kv_heads, 1, merge_piece, &s);
    return 1;
}

static void attention(float *out, const float *q, kv_layer kv, attention_step step, float scale,
                      int threads) {
    const long share = step.heads / kv.kv_heads,
               tokens = step.T <= 32 || share >= ROWS ? 1 : ROWS / share;
    attention_job job = {out, q, kv, step, scale, tokens};
    if (attend_spans(&job, threads)) return;
    pool_for(threads, (step.T + tokens - 1) / tokens * kv.kv_heads, 1, attention_piece, &job);
}

#endif
