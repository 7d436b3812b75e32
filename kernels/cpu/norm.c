/* norm.c - norms of rows: root mean square, and length (ops: rms_norm, add_norm, l2_norm).
 *
 *   rms_norm   x, out  [T][K]        f32, rows of x lie x_stride apart; out may be x
 *              weight  [K]           f32
 *   add_norm   hidden += branch, rms_norm of it, quantised: a row after the other, in L1
 *   l2_norm    x, out  [T][heads][D] f32, tokens of x lie x_stride apart; out may be x
 *
 *   accumulator i mod 32, ascending: four vectors of eight lanes, then the tree 16, 8, 4, 2, 1
 *
 *     | 0..7 | 8..15 | 16..23 | 24..31 | 32..39 | ...      a tail is masked
 *      acc[0]  acc[1]  acc[2]   acc[3]   acc[0]
 *
 * Memory bound: reads x twice, the second time from L1.
 *   rms_norm   scale = 1 / sqrt(sum / K + eps);  out = (x * scale) * weight
 *   l2_norm    factor = scale / sqrt(sum + eps);  out = x * factor
 *
 * Spec: kernels/reference.py rms_norm. Bench: tests/bench/bench_kernels.py --op rms_norm.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

ALWAYS float sum_of_squares(const float *x, long K) {
    __m256 acc[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    long i = 0;
    for (; i + 32 <= K; i += 32)
        for (int a = 0; a < 4; a++) {
            const __m256 v = _mm256_loadu_ps(x + i + 8 * a);
            acc[a] = _mm256_fmadd_ps(v, v, acc[a]); /* acc[i mod 32] += v*v */
        }
    for (int a = 0; i < K; i += 8, a++) {
        const __m256 v = _mm256_maskload_ps(x + i, tail_mask(K - i < 8 ? K - i : 8));
        acc[a] = _mm256_fmadd_ps(v, v, acc[a]); /* + 0 in lanes past the end */
    }
    return tree32(acc);
}

static void norm_row(float *out, const float *x, const float *weight, long K, float eps) {
    const __m128 mean = _mm_set_ss(sum_of_squares(x, K) / (float)K + eps);
    const float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean));
    long i = 0;
    for (; i + 8 <= K; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), SET(scale));
        _mm256_storeu_ps(out + i,
                         _mm256_mul_ps(v, _mm256_loadu_ps(weight + i))); /* (x * scale) * weight */
    }
    for (; i < K; i++) out[i] = x[i] * scale * weight[i];
}

typedef struct {
    float *out;
    const float *x, *weight;
    long K, x_stride;
    float eps;
} norm_job;

static void norm_piece(void *argument, long begin, long end) {
    const norm_job *j = argument;
    for (long t = begin; t < end; t++)
        norm_row(j->out + t * j->K, j->x + t * j->x_stride, j->weight, j->K, j->eps);
}

void rms_norm_avx2(float *out, const float *x, const float *weight, long T, long K, long x_stride,
                   float eps, int threads) {
    norm_job job = {out, x, weight, K, x_stride, eps};
    pool_for(threads, T, pool_grain(1 << 15, K), norm_piece, &job);
}

typedef struct {
    float *normed, *hidden;
    quantized_out out;
    const float *branch, *weight;
    long K;
    float eps;
} add_norm_job;

static void add_norm_piece(void *argument, long begin, long end) {
    const add_norm_job *j = argument;
    const long blocks = j->K / QUANT_BLOCK;
    for (long t = begin; t < end; t++) {
        float *hidden = j->hidden + t * j->K, *normed = j->normed + t * j->K;
        if (j->branch) add_avx2(hidden, j->branch + t * j->K, 1, j->K, j->K);
        norm_row(normed, hidden, j->weight, j->K, j->eps);
        if (j->out.values)
            quantize_blocks(j->out.values + t * j->K, j->out.scales + t * blocks,
                            j->out.sums + t * blocks, normed, blocks);
    }
}

void add_norm_avx2(float *normed, quantized_out out, float *hidden, const float *branch,
                   const float *weight, long T, long K, float eps, int threads) {
    add_norm_job job = {normed, hidden, out, branch, weight, K, eps};
    pool_for(threads, T, pool_grain(1 << 14, K), add_norm_piece, &job);
}

typedef struct {
    float *out;
    const float *x;
    long heads, D, x_stride;
    float eps, scale;
} length_job;

static void length_piece(void *argument, long begin, long end) {
    const length_job *j = argument;
    for (long row = begin; row < end; row++) {
        const float *x = j->x + row / j->heads * j->x_stride + row % j->heads * j->D;
        const __m128 square = _mm_set_ss(sum_of_squares(x, j->D) + j->eps);
        const float factor = j->scale / _mm_cvtss_f32(_mm_sqrt_ss(square));
        for (long i = 0; i < j->D; i += 8) {
            const __m256i mask = tail_mask(j->D - i < 8 ? j->D - i : 8);
            const __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), SET(factor));
            _mm256_maskstore_ps(j->out + row * j->D + i, mask, v);
        }
    }
}

void l2_norm_avx2(float *out, const float *x, long T, long heads, long D, long x_stride, float eps,
                  float scale, int threads) {
    length_job job = {out, x, heads, D, x_stride, eps, scale};
    pool_for(threads, T * heads, pool_grain(1 << 15, D), length_piece, &job);
}
