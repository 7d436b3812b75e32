/* matmul_f32.c - f32 activations times packed f32 weights (op: matmul_f32).
 *
 *   out  [T][R] f32      x  [T][K] f32      w  tiles of 16 rows: [K][16] f32
 *
 *     acc[r] = fma(w[k][r], x[k], acc[r])     one accumulator a row inside 256 columns, from +0
 *     out[r] = out[r] + acc[r]                stripes in order
 *
 * Only small or odd-sized matrices are of this kind (rows that are no multiple of 32). Two fma
 * chains of 4 cycles for one token, eight for four: 16 multiply-adds a cycle at best.
 * Spec: kernels/reference.py matmul_f32. Bench: tests/bench/bench_kernels.py --op matmul_f32.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

enum { COLUMNS = 4 };

typedef struct {
    float *out;
    const float *x, *w;
    long T, R, K;
} matmul_job;

ALWAYS void tile_columns(const matmul_job *j, const float *tile, float total[COLUMNS][TILE_ROWS],
                         long t, const int columns) {
    const float *x = j->x + t * j->K;
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++) _mm256_store_ps(total[c] + 8 * h, _mm256_setzero_ps());
    for (long begin = 0; begin < j->K; begin += STRIPE_COLS) {
        const long end = begin + STRIPE_COLS < j->K ? begin + STRIPE_COLS : j->K;
        __m256 acc[COLUMNS][2];
        for (int c = 0; c < columns; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
        for (long k = begin; k < end; k++) {
            const __m256 w0 = _mm256_loadu_ps(tile + k * TILE_ROWS),
                         w1 = _mm256_loadu_ps(tile + k * TILE_ROWS + 8);
            for (int c = 0; c < columns; c++) {
                const __m256 a = SET(x[c * j->K + k]);
                acc[c][0] = _mm256_fmadd_ps(w0, a, acc[c][0]); /* acc += w * x[k] */
                acc[c][1] = _mm256_fmadd_ps(w1, a, acc[c][1]);
            }
        }
        for (int c = 0; c < columns; c++)
            for (int h = 0; h < 2; h++)
                _mm256_store_ps(total[c] + 8 * h,
                                _mm256_add_ps(_mm256_load_ps(total[c] + 8 * h), acc[c][h]));
    }
}

static void piece(void *argument, long begin, long end) {
    const matmul_job *j = argument;
    _Alignas(32) float total[COLUMNS][TILE_ROWS];
    for (long tile = begin; tile < end; tile++) {
        const float *weights = j->w + tile * j->K * TILE_ROWS;
        const long row = tile * TILE_ROWS, rows = j->R - row < TILE_ROWS ? j->R - row : TILE_ROWS;
        for (long t = 0; t < j->T;) {
            const int columns = j->T - t >= COLUMNS ? COLUMNS : 1;
            if (columns == COLUMNS) tile_columns(j, weights, total, t, COLUMNS);
            else tile_columns(j, weights, total, t, 1);
            for (int c = 0; c < columns; c++)
                __builtin_memcpy(j->out + (t + c) * j->R + row, total[c],
                                 (size_t)rows * sizeof(float));
            t += columns;
        }
    }
}

void matmul_f32_avx2(float *out, const float *x, const float *w, long T, long R, long K,
                     int threads) {
    matmul_job job = {out, x, w, T, R, K};
    const long grain = pool_grain(1 << 16, K * TILE_ROWS * T); /* a piece of some 5 us */
    pool_for(threads, (R + TILE_ROWS - 1) / TILE_ROWS, grain, piece, &job);
}
