/* conv.c - depthwise causal convolution over the tokens of a sequence, then SiLU (op: conv1d).
 *
 *   x, out   [T][C] f32
 *   weight   [C][taps] f32, the last tap is the token's own
 *   state    [slots] slot_stride apart, each [taps - 1][C] f32: the last inputs, oldest first
 *
 *   inputs of one sequence      | kept: taps - 1 | x of this step ...        |
 *   out of its token n            sum over j of weight[j] * inputs[n + j]
 *   kept afterwards                                          | taps - 1 last |
 *
 *   y = fma(weight[j], input[j], y), j ascending, from +0;  out = y / (1 + exp(-y))
 *
 * A piece of work is some blocks of 64 channels, of every sequence; their weights lie turned,
 * [taps][64], on the stack. Per value some 35 instructions, most of them exp.
 * Spec: kernels/reference.py conv1d. Bench: tests/bench/bench_kernels.py --op conv1d.
 */
#pragma GCC target("avx2,fma,f16c")
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum { BLOCK = 64, MAX_TAPS = 8 }; /* channels at a time; host.py asserts taps */

typedef struct {
    float *out;
    const float *x, *weight;
    long C, taps;
    state_slots state;
    state_step step;
} conv_job;

/* Tokens [begin, end) of one sequence, `width` channels from `channel` on. */
static void convolve(const conv_job *j, float weight[MAX_TAPS][BLOCK], long begin, long end,
                     long channel, long width) {
    const long C = j->C, kept = j->taps - 1;
    float *slot = sequence_state(j->state, j->step, begin) + channel;
    float past[MAX_TAPS - 1][BLOCK];
    for (long m = 0; m < kept; m++)
        if (j->step.positions[begin] == 0) memset(past[m], 0, width * sizeof(float));
        else memcpy(past[m], slot + m * C, width * sizeof(float));
    const float *x = j->x + begin * C + channel;
    const float *input[MAX_TAPS]; /* of tap 0, 1, ... of the token at hand */
    for (long m = 0; m < kept; m++) input[m] = past[m];
    for (long t = begin; t < end; t++, x += C) {
        input[kept] = x;
        for (long c = 0; c < width; c += 8) {
            __m256 y = _mm256_setzero_ps();
            for (long m = 0; m < j->taps; m++)
                y = _mm256_fmadd_ps(_mm256_loadu_ps(weight[m] + c), _mm256_loadu_ps(input[m] + c),
                                    y);
            _mm256_storeu_ps(j->out + t * C + channel + c, silu8(y));
        }
        for (long m = 0; m < kept; m++) input[m] = input[m + 1];
    }
    for (long m = 0; m < kept; m++) memcpy(slot + m * C, input[m], width * sizeof(float));
}

static void conv_piece(void *argument, long first_block, long end_block) {
    const conv_job *j = argument;
    for (long channel = first_block * BLOCK; channel < end_block * BLOCK; channel += BLOCK) {
        const long width = j->C - channel < BLOCK ? j->C - channel : BLOCK;
        float weight[MAX_TAPS][BLOCK];
        for (long c = 0; c < width; c++)
            for (long m = 0; m < j->taps; m++)
                weight[m][c] = j->weight[(channel + c) * j->taps + m];
        for (long begin = 0, end; begin < j->step.T; begin = end) {
            end = sequence_end(j->step, begin);
            convolve(j, weight, begin, end, channel, width);
        }
    }
}

void conv1d_avx2(float *out, const float *x, const float *weight, long C, long taps,
                 state_slots state, state_step step, int threads) {
    conv_job job = {out, x, weight, C, taps, state, step};
    const long grain = pool_grain(1 << 13, (step.T + 1) * BLOCK);
    pool_for(threads, (C + BLOCK - 1) / BLOCK, grain, conv_piece, &job);
}
