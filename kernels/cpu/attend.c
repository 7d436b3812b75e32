/* attend.c - what attention does between its projections, in one call (op: attend).
 *
 *   q, k    [T][heads][D] turned by their positions      v    as it is
 *   k, v    stored at the tokens' slots, then each token against the keys of its sequence
 *   mixed   [T][heads * D], and that quantised
 *
 * The first part goes over the threads by tokens, attention by its own pieces. For one token all
 * of it but attention is some 2 us, less than a barrier would bring.
 * The bits are those of rope, store_kv, attention and quantize_rows.
 * Spec: kernels/reference.py attend. Bench: tests/bench/bench_kernels.py --op attend.
 */
#include <stddef.h>

#include "kernels.h"
#include "pool.h"

typedef struct {
    attend_arrays arrays;
    kv_layer kv;
    attention_step step;
    rope_table table;
} store_job;

static void store_piece(void *argument, long begin, long end) {
    const store_job *j = argument;
    const rope_table r = j->table;
    const int32_t *positions = j->step.positions + begin;
    const long T = end - begin, D = j->kv.D, kv_row = j->kv.kv_heads * D;
    float *q = j->arrays.q + begin * j->step.heads * D, *k = j->arrays.k + begin * kv_row;
    rope_avx2(q, positions, r.cos, r.sin, T, j->step.heads, D, r.half, r.adjacent);
    rope_avx2(k, positions, r.cos, r.sin, T, j->kv.kv_heads, D, r.half, r.adjacent);
    store_kv_avx2(j->kv, k, j->arrays.v + begin * kv_row, j->arrays.slots + begin, T);
}

void attend(quantized_out out, attend_arrays arrays, kv_layer kv, attention_step step,
            rope_table table, float scale, int isa, int threads) {
    const long width = step.heads * kv.D;
    store_job job = {arrays, kv, step, table};
    pool_for(threads, step.T, pool_grain(1 << 14, width + 2 * kv.kv_heads * kv.D), store_piece,
             &job);
    attention_fn *attention = isa ? attention_avx512 : attention_avx2;
    attention(arrays.mixed, arrays.q, kv, step, scale, threads);
    if (out.values)
        quantize_rows_avx2(out.values, out.scales, out.sums, arrays.mixed, step.T, width, threads);
}
