/* matmul.h - what all quantised products share: the job of one, and weights fetched ahead.
 *
 * A family (matmul_q4.c, matmul_q8.c, matmul_vnni.c, matmul_amx.c) gives functions that compute
 * some tiles of a job, rows 16 * begin to 16 * end of w, for all of its tokens: CHUNK at most.
 * matmul.c cuts steps into chunks and jobs into pieces for the threads. After the target pragma.
 */
#ifndef LOCKSTEP_MATMUL_H
#define LOCKSTEP_MATMUL_H

#include "kernels.h"
#include "vector.h"

enum { CHUNK = 64 }; /* tokens that pass a tile together: they fit into second-level cache */

#define UNIT_BYTES(kind) ((kind) == Q4_0 ? 288 : (kind) == Q4_1 ? 320 : 544)

/* out [T][R] = x [T][K] times the packed rows of w */
typedef struct {
    float *out;
    quantized_rows x;
    const uint8_t *w;
    long T, R, K;
} matmul_job;

typedef void tiles_fn(const matmul_job *job, long begin, long end);
tiles_fn tiles_q4_0_avx2, tiles_q4_1_avx2, tiles_q8_0_avx2;
tiles_fn tiles_q4_0_avx512, tiles_q4_1_avx512, tiles_q8_0_avx512;
tiles_fn tiles_q4_0_amx, tiles_q4_1_amx, tiles_q8_0_amx;

/* Four activations as one word, to be broadcast. */
ALWAYS int32_t word4(const int8_t *x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return word;
}

/* Tokens of the next group when `left` are left: groups of nearly equal size, `most` at most. */
ALWAYS int group_size(long left, long most) {
    const long groups = (left + most - 1) / most;
    return (int)((left + groups - 1) / groups);
}

/* Weights of the next stripe of some neighbouring tiles, fetched a few lines at a time while this
 * one is multiplied: fetched all at once they would wait for one another. */
typedef struct {
    const uint8_t *at; /* of the first tile; the others lie tile_bytes further on each */
    long tile_bytes, tiles, lines, each;
} fetch_ahead;

/* To be fetched in `steps` calls, from the stripe that begins at block `begin` of the tile on. */
ALWAYS fetch_ahead plan_fetch(const matmul_job *j, long tile, long tiles, long begin,
                               long steps, const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK, bytes = UNIT_BYTES(kind);
    if (begin >= blocks) tile += tiles, begin = 0;
    const long count = blocks - begin < STRIPE_BLOCKS ? blocks - begin : STRIPE_BLOCKS;
    const long lines = (count * bytes + 127) / 64;
    return (fetch_ahead){j->w + (tile * blocks + begin) * bytes, blocks * bytes, tiles, lines,
                         (lines + steps - 1) / steps};
}

ALWAYS void fetch(fetch_ahead *p) {
    for (long i = 0; i < p->each && p->lines > 0; i++, p->lines--, p->at += 64)
        for (long tile = 0; tile < p->tiles; tile++)
            _mm_prefetch(p->at + tile * p->tile_bytes, _MM_HINT_T0);
}

#endif
