/* delta.c - the gated delta rule: recurrent memory of a linear layer (op: gated_delta_rule).
 *
 *   q, k         [T][k_heads][Dk] f32      v head h reads head h mod k_heads
 *   v, out       [T][heads][Dv]   f32      v: tokens v_stride apart
 *   decay, beta  [T][heads]       f32
 *   state        [slots] slot_stride apart, each [heads][Dv][Dk] f32: S transposed, k contiguous
 *
 *   one token and row j of S^T (Dk numbers):
 *     s      = sum of S[d] * k[d]             accumulator d mod 8, then tree 4, 2, 1
 *     e      = fma(-decay, s, v[j]) * beta
 *     S[d]   = fma(e, k[d], S[d] * decay)
 *     out[j] = sum of S[d] * q[d]             the new S; summed likewise
 *
 * Rows never meet, so eight of them (4 KiB at Dk 128) stay in the first-level cache while the
 * tokens of a tile pass. However long the chunk, a head's state comes from memory once.
 *
 *     | h 0: rows 0..7 | 8..15 | ... | h 1: rows 0..7 | ...     a unit is eight rows
 *       a piece of work is some neighbouring units, of every sequence of the step
 *
 * One token alone waits for memory, 8 bytes a number of S. Of a long chunk a number takes half a
 * cycle: 1 load and a multiply-add, then 2 loads, a store, a multiplication and 2 multiply-adds.
 * Spec: kernels/reference.py gated_delta_rule. Bench: tests/bench/bench_kernels.py --op
 * gated_delta_rule. Source: Yang et al. 2024, arXiv:2412.06464.
 */
#pragma GCC target("avx2,fma,f16c")
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "vector.h"

/* rows at a time, tokens at a time, floats of a cache line; host.py asserts the key's width */
enum { UNIT = 8, TILE = 16, LINE = 16, MAX_DK = 256 };

/* S^T k of eight rows; with `fetch` the eight that follow come nearer meanwhile. */
ALWAYS __m256 recall(const float *rows, const float *k, long Dk, const int fetch) {
    __m256 acc[UNIT];
    for (int i = 0; i < UNIT; i++) acc[i] = _mm256_setzero_ps();
    for (long d = 0; d < Dk; d += 8) {
        const __m256 x = _mm256_loadu_ps(k + d);
        for (int i = 0; i < UNIT; i++) {
            if (fetch && d % LINE == 0) _mm_prefetch(rows + (UNIT + i) * Dk + d, _MM_HINT_T0);
            acc[i] = _mm256_fmadd_ps(_mm256_loadu_ps(rows + i * Dk + d), x, acc[i]);
        }
    }
    return tree8x8(acc);
}

/* Decays eight rows, adds e * k to each, and gives S^T q of the result. */
ALWAYS __m256 update(float *rows, const float *k, const float *q, __m256 errors, float decay,
                     long Dk) {
    _Alignas(32) float e[UNIT];
    _mm256_store_ps(e, errors);
    __m256 acc[UNIT];
    for (int i = 0; i < UNIT; i++) acc[i] = _mm256_setzero_ps();
    for (long d = 0; d < Dk; d += 8) {
        const __m256 x = _mm256_loadu_ps(k + d), y = _mm256_loadu_ps(q + d);
        for (int i = 0; i < UNIT; i++) {
            const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(rows + i * Dk + d), SET(decay));
            const __m256 s = _mm256_fmadd_ps(SET(e[i]), x, kept);
            _mm256_storeu_ps(rows + i * Dk + d, s);
            acc[i] = _mm256_fmadd_ps(s, y, acc[i]);
        }
    }
    return tree8x8(acc);
}

typedef struct {
    delta_arrays a;
    state_slots state;
    state_step step;
} delta_job;

/* k and q of some tokens and one head, side by side: in the arrays their rows lie a power of two
 * apart, so that a few would push each other out of the cache. */
typedef struct {
    _Alignas(32) float k[TILE][MAX_DK], q[TILE][MAX_DK];
    long begin, count;
} tile;

static void take_tile(tile *t, const delta_arrays *a, long head, long begin, long end) {
    t->begin = begin;
    t->count = end - begin < TILE ? end - begin : TILE;
    for (long i = 0; i < t->count; i++) {
        const long from = ((begin + i) * a->k_heads + head % a->k_heads) * a->Dk;
        memcpy(t->k[i], a->k + from, a->Dk * sizeof(float));
        memcpy(t->q[i], a->q + from, a->Dk * sizeof(float));
    }
}

/* Eight rows of one head, from `row` on, and one token of a tile. */
ALWAYS void pass_token(const delta_arrays *a, const tile *t, long i, float *rows, long head,
                       long row, const int fetch) {
    const long token = t->begin + i, gate = token * a->heads + head;
    const float decay = a->decay[gate];
    const __m256 recalled = recall(rows, t->k[i], a->Dk, fetch);
    const __m256 v = _mm256_loadu_ps(a->v + token * a->v_stride + head * a->Dv + row);
    const __m256 e = _mm256_mul_ps(_mm256_fnmadd_ps(SET(decay), recalled, v), SET(a->beta[gate]));
    _mm256_storeu_ps(a->out + gate * a->Dv + row, update(rows, t->k[i], t->q[i], e, decay, a->Dk));
}

/* Units [first, last) of one head; tokens [begin, end) of one sequence. */
static void pass_sequence(const delta_arrays *a, float *state, long head, long first, long last,
                          long begin, long end, int starts) {
    const long unit_size = UNIT * a->Dk;
    float *rows = state + head * a->Dv * a->Dk;
    if (starts) memset(rows + first * unit_size, 0, (last - first) * unit_size * sizeof(float));
    tile t;
    for (; begin < end; begin += TILE) {
        take_tile(&t, a, head, begin, end);
        for (long unit = first; unit < last; unit++) {
            float *eight = rows + unit * unit_size;
            pass_token(a, &t, 0, eight, head, unit * UNIT, 1);
            for (long i = 1; i < t.count; i++) pass_token(a, &t, i, eight, head, unit * UNIT, 0);
        }
    }
}

static void delta_piece(void *argument, long first, long last) {
    const delta_job *j = argument;
    const long units = j->a.Dv / UNIT; /* of a head */
    for (long begin = 0, end; begin < j->step.T; begin = end) {
        end = sequence_end(j->step, begin);
        float *state = sequence_state(j->state, j->step, begin);
        for (long unit = first; unit < last;) {
            const long head = unit / units, next = (head + 1) * units;
            const long stop = next < last ? next : last;
            pass_sequence(&j->a, state, head, unit - head * units, stop - head * units, begin, end,
                          j->step.positions[begin] == 0);
            unit = stop;
        }
    }
}

void gated_delta_rule_avx2(delta_arrays arrays, state_slots state, state_step step, int threads) {
    delta_job job = {arrays, state, step};
    const long units = arrays.heads * (arrays.Dv / UNIT);
    pool_for(threads, units, pool_grain(1 << 16, step.T * UNIT * arrays.Dk), delta_piece, &job);
}
