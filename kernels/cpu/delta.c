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
 * Rows never meet, so eight of them (4 KiB at Dk 128) stay in the first-level cache while all
 * tokens of a sequence pass: however long the chunk, its state is read and written once.
 *
 *     | h 0: rows 0..7 | 8..15 | ... | h 1: rows 0..7 | ...     a unit is eight rows
 *       a piece of work is some neighbouring units, of every sequence of the step
 *
 * Some 1.6 instructions a number and pass: one token alone waits for memory, 8 bytes a number.
 * Spec: kernels/reference.py gated_delta_rule. Bench: tests/bench/bench_kernels.py --op
 * gated_delta_rule. Source: Yang et al. 2024, arXiv:2412.06464.
 */
#pragma GCC target("avx2,fma,f16c")
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum { UNIT = 8, LINE = 16 }; /* rows at a time, floats of a cache line */

/* S^T k of eight rows; the eight that follow them are fetched meanwhile. */
ALWAYS __m256 recall(const float *rows, const float *k, long Dk) {
    __m256 acc[UNIT];
    for (int i = 0; i < UNIT; i++) acc[i] = _mm256_setzero_ps();
    for (long d = 0; d < Dk; d += 8) {
        const __m256 x = _mm256_loadu_ps(k + d);
        for (int i = 0; i < UNIT; i++)
            acc[i] = _mm256_fmadd_ps(_mm256_loadu_ps(rows + i * Dk + d), x, acc[i]);
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

/* Eight rows of one head, tokens [begin, end) of one sequence. */
static void pass_tokens(const delta_job *j, float *rows, long unit, long begin, long end) {
    const delta_arrays *a = &j->a;
    const long units = a->Dv / UNIT, head = unit / units, row = unit % units * UNIT;
    for (long t = begin; t < end; t++) {
        const long gate = t * a->heads + head, key = (t * a->k_heads + head % a->k_heads) * a->Dk;
        const float decay = a->decay[gate];
        const __m256 recalled = recall(rows, a->k + key, a->Dk);
        const __m256 v = _mm256_loadu_ps(a->v + t * a->v_stride + head * a->Dv + row);
        const __m256 e =
            _mm256_mul_ps(_mm256_fnmadd_ps(SET(decay), recalled, v), SET(a->beta[gate]));
        _mm256_storeu_ps(a->out + gate * a->Dv + row,
                         update(rows, a->k + key, a->q + key, e, decay, a->Dk));
    }
}

static void delta_piece(void *argument, long first_unit, long end_unit) {
    const delta_job *j = argument;
    const long unit_size = UNIT * j->a.Dk;
    for (long begin = 0, end; begin < j->step.T; begin = end) {
        end = sequence_end(j->step, begin);
        float *slot = sequence_state(j->state, j->step, begin);
        for (long unit = first_unit; unit < end_unit; unit++) {
            float *rows = slot + unit * unit_size;
            if (j->step.positions[begin] == 0)
                memset(rows, 0, unit_size * sizeof(float)); /* never read before */
            else
                for (long i = 0; i < unit_size; i += LINE)
                    _mm_prefetch(rows + unit_size + i, _MM_HINT_T0);
            pass_tokens(j, rows, unit, begin, end);
        }
    }
}

void gated_delta_rule_avx2(delta_arrays arrays, state_slots state, state_step step, int threads) {
    delta_job job = {arrays, state, step};
    const long units = arrays.heads * (arrays.Dv / UNIT);
    pool_for(threads, units, pool_grain(1 << 16, step.T * UNIT * arrays.Dk), delta_piece, &job);
}
