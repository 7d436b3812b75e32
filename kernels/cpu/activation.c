/* activation.c - elementwise ops: add, silu_mul, exp, log.
 *
 *   silu_mul   e = exp(-gate);  out = (gate / (1 + e)) * up
 *
 * exp and log are the polynomials of vector.h; a tail goes through the same vectors by masked load
 * and store. About 30 instructions for 8 values of exp.
 * Spec: kernels/reference.py. Bench: tests/bench/bench_kernels.py --op silu_mul.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

void add_avx2(float *out, const float *x, long T, long K, long x_stride) {
    for (long t = 0; t < T; t++, out += K, x += x_stride) {
        long i = 0;
        for (; i + 8 <= K; i += 8)
            _mm256_storeu_ps(out + i,
                             _mm256_add_ps(_mm256_loadu_ps(out + i), _mm256_loadu_ps(x + i)));
        for (; i < K; i++) out[i] += x[i];
    }
}

ALWAYS __m256 silu_mul8(__m256 gate, __m256 up) {
    const __m256 e = exp8(_mm256_xor_ps(gate, SET(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(SET(1.0f), e)), up);
}

typedef struct {
    float *out;
    const float *gate, *up;
    long n;
} silu_job;

static void silu_piece(void *argument, long begin, long end) {
    const silu_job *j = argument;
    for (long v = begin; v < end; v++) {
        const __m256i mask = tail_mask(j->n - 8 * v < 8 ? j->n - 8 * v : 8);
        const __m256 gate = _mm256_maskload_ps(j->gate + 8 * v, mask),
                     up = _mm256_maskload_ps(j->up + 8 * v, mask);
        _mm256_maskstore_ps(j->out + 8 * v, mask, silu_mul8(gate, up));
    }
}

void silu_mul_avx2(float *out, const float *gate, const float *up, long n, int threads) {
    silu_job job = {out, gate, up, n};
    pool_for(threads, (n + 7) / 8, 1024, silu_piece, &job);
}

void exp_avx2(float *out, const float *x, long n) {
    for (long i = 0; i < n; i += 8) {
        const __m256i mask = tail_mask(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(out + i, mask, exp8(_mm256_maskload_ps(x + i, mask)));
    }
}

void log_avx2(float *out, const float *x, long n) {
    for (long i = 0; i < n; i += 8) {
        const __m256i mask = tail_mask(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(out + i, mask, log8(_mm256_maskload_ps(x + i, mask)));
    }
}
