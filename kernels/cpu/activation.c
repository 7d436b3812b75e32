/* activation.c - elementwise ops: add, scale, silu_mul, gelu_mul, sigmoid_mul, delta_gates, exp,
 * log.
 *
 *   silu_mul     e = exp(-gate);  out = (gate / (1 + e)) * up
 *   gelu_mul     e = exp(-(gate * w)), w as below;  out = (gate / (1 + e)) * up
 *   sigmoid_mul  out = up / (1 + exp(-gate))
 *   delta_gates  decay = exp(ssm_a * softplus(a + dt_bias));  beta = 1 / (1 + exp(-b))
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

/* gate * (1 + tanh(sqrt(2/pi) * (gate + 0.044715 gate^3))) / 2, where (1 + tanh z) / 2 is
 * 1 / (1 + exp(-2z)): no difference of near numbers, however negative the gate */
ALWAYS __m256 gelu8(__m256 gate) {
    const __m256 w =
        _mm256_fmadd_ps(_mm256_mul_ps(gate, gate), SET(7.1354816e-2f), SET(1.59576912f));
    const __m256 e = exp8(negated(_mm256_mul_ps(gate, w)));
    return _mm256_div_ps(gate, _mm256_add_ps(SET(1.0f), e));
}

ALWAYS __m256 sigmoid_mul8(__m256 gate, __m256 up) {
    return _mm256_div_ps(up, _mm256_add_ps(SET(1.0f), exp8(negated(gate))));
}

/* ln(1 + exp(x)): what the rounding of 1 + e took away is given back, so that small e keep their
 * digits; x itself from 20 on */
ALWAYS __m256 softplus8(__m256 x) {
    const __m256 e = exp8(x), one = SET(1.0f), u = _mm256_add_ps(one, e);
    const __m256 lost = _mm256_sub_ps(e, _mm256_sub_ps(u, one));
    const __m256 y = _mm256_add_ps(log8(u), _mm256_div_ps(lost, u));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, SET(20.0f), _CMP_GT_OQ));
}

typedef struct {
    float *out;
    const float *gate, *up;
    long n;
} gate_job;

ALWAYS void gate_each(float *out, const float *gate, const float *up, long n, const int is_gelu) {
    for (long i = 0; i < n; i += 8) {
        const __m256i mask = tail_mask(n - i < 8 ? n - i : 8);
        const __m256 g = _mm256_maskload_ps(gate + i, mask), u = _mm256_maskload_ps(up + i, mask);
        const __m256 gated = is_gelu ? gelu8(g) : silu8(g);
        _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(gated, u));
    }
}

void gate_values(float *out, const float *gate, const float *up, long n, int is_gelu) {
    if (is_gelu) gate_each(out, gate, up, n, 1);
    else gate_each(out, gate, up, n, 0);
}

static void gate_piece(const gate_job *j, long begin, long end, int is_gelu) {
    const long n = 8 * end < j->n ? 8 * end : j->n, i = 8 * begin;
    gate_values(j->out + i, j->gate + i, j->up + i, n - i, is_gelu);
}

static void silu_piece(void *job, long begin, long end) { gate_piece(job, begin, end, 0); }
static void gelu_piece(void *job, long begin, long end) { gate_piece(job, begin, end, 1); }

void silu_mul_avx2(float *out, const float *gate, const float *up, long n, int threads) {
    gate_job job = {out, gate, up, n};
    pool_for(threads, (n + 7) / 8, 1024, silu_piece, &job);
}

void gelu_mul_avx2(float *out, const float *gate, const float *up, long n, int threads) {
    gate_job job = {out, gate, up, n};
    pool_for(threads, (n + 7) / 8, 1024, gelu_piece, &job);
}

typedef struct {
    float *out;
    const float *gate, *up;
    long K, gate_stride;
} sigmoid_job;

static void sigmoid_piece(void *argument, long begin, long end) {
    const sigmoid_job *j = argument;
    for (long t = begin; t < end; t++)
        for (long i = 0; i < j->K; i += 8) {
            const __m256i mask = tail_mask(j->K - i < 8 ? j->K - i : 8);
            const __m256 gate = _mm256_maskload_ps(j->gate + t * j->gate_stride + i, mask),
                         up = _mm256_maskload_ps(j->up + t * j->K + i, mask);
            _mm256_maskstore_ps(j->out + t * j->K + i, mask, sigmoid_mul8(gate, up));
        }
}

void sigmoid_mul_avx2(float *out, const float *gate, const float *up, long T, long K,
                      long gate_stride, int threads) {
    sigmoid_job job = {out, gate, up, K, gate_stride};
    pool_for(threads, T, pool_grain(1 << 13, K), sigmoid_piece, &job);
}

void scale_avx2(float *out, long n, float factor) {
    for (long i = 0; i < n; i += 8) {
        const __m256i mask = tail_mask(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(out + i, mask,
                            _mm256_mul_ps(_mm256_maskload_ps(out + i, mask), SET(factor)));
    }
}

void delta_gates_avx2(float *decay, float *beta, const float *a, const float *b,
                      const float *ssm_a, const float *dt_bias, long T, long heads) {
    for (long t = 0; t < T; t++)
        for (long h = 0; h < heads; h += 8) {
            const long i = t * heads + h;
            const __m256i mask = tail_mask(heads - h < 8 ? heads - h : 8);
            const __m256 x = _mm256_add_ps(_mm256_maskload_ps(a + i, mask),
                                           _mm256_maskload_ps(dt_bias + h, mask));
            const __m256 g = _mm256_mul_ps(_mm256_maskload_ps(ssm_a + h, mask), softplus8(x));
            _mm256_maskstore_ps(decay + i, mask, exp8(g));
            const __m256 gate = _mm256_maskload_ps(b + i, mask);
            _mm256_maskstore_ps(beta + i, mask, sigmoid_mul8(gate, SET(1.0f)));
        }
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
