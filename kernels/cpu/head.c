/* head.c - what is read off the logits: the digest's sum and the largest (ops: logits_sum,
 * logits_argmax).
 *
 *   logits [R][V] f32
 *   sum    out[r] = sum of bits(logit i) * (2i + 1) mod 2^64; integers, so any order gives it
 *   argmax the lowest index of the largest value; -1 when any logit of the row is not finite
 *
 * Memory bound: one pass each over R * V * 4 bytes.
 * Spec: kernels/reference.py. Bench: tests/bench/bench_kernels.py --op logits_sum.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "pool.h"
#include "vector.h"

#include <string.h>

static uint64_t sum_row(const float *logits, long V) {
    __m256i odd = _mm256_setr_epi64x(1, 5, 9, 13),
            sum = _mm256_setzero_si256(); /* 2i + 1 for even i */
    const __m256i two = _mm256_set1_epi64x(2), sixteen = _mm256_set1_epi64x(16);
    long i = 0;
    for (; i + 8 <= V; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(logits + i));
        const __m256i high = _mm256_srli_epi64(bits, 32);
        sum = _mm256_add_epi64(sum, _mm256_mul_epu32(bits, odd)); /* even i; bits * (2i+1) < 2^64 */
        sum = _mm256_add_epi64(sum, _mm256_mul_epu32(high, _mm256_add_epi64(odd, two)));
        odd = _mm256_add_epi64(odd, sixteen);
    }
    uint64_t lanes[4];
    _mm256_storeu_si256((__m256i *)lanes, sum);
    uint64_t total = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    for (; i < V; i++) {
        uint32_t bits;
        memcpy(&bits, logits + i, 4);
        total += (uint64_t)bits * (uint64_t)(2 * i + 1);
    }
    return total;
}

static int32_t argmax_row(const float *logits, long V) {
    const __m256 sign = SET(-0.0f), infinity = SET(__builtin_inff());
    __m256 best = SET(-__builtin_inff()), bad = _mm256_setzero_ps();
    long i = 0;
    for (; i + 8 <= V; i += 8) {
        const __m256 v = _mm256_loadu_ps(logits + i);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_andnot_ps(sign, v), infinity,
                                              _CMP_NLT_UQ)); /* !(|v| < inf) */
        best = _mm256_max_ps(best, v);
    }
    float largest = max8(best);
    int not_finite = _mm256_movemask_ps(bad);
    for (; i < V; i++) {
        not_finite |= !(__builtin_fabsf(logits[i]) < __builtin_inff());
        if (logits[i] > largest) largest = logits[i];
    }
    if (not_finite) return -1;
    const __m256 wanted = SET(largest);
    for (i = 0; i + 8 <= V;
         i += 8) { /* stops at the first equal: on average half a row, from cache */
        const int equal =
            _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(logits + i), wanted, _CMP_EQ_OQ));
        if (equal) return (int32_t)(i + __builtin_ctz((unsigned)equal));
    }
    for (; logits[i] != largest; i++) {
    }
    return (int32_t)i;
}

typedef struct {
    void *out;
    const float *logits;
    long V;
} head_job;

static void sum_piece(void *argument, long begin, long end) {
    const head_job *j = argument;
    for (long r = begin; r < end; r++)
        ((uint64_t *)j->out)[r] = sum_row(j->logits + r * j->V, j->V);
}

static void argmax_piece(void *argument, long begin, long end) {
    const head_job *j = argument;
    for (long r = begin; r < end; r++)
        ((int32_t *)j->out)[r] = argmax_row(j->logits + r * j->V, j->V);
}

void logits_sum_avx2(uint64_t *out, const float *logits, long R, long V, int threads) {
    head_job job = {out, logits, V};
    pool_for(threads, R, 1, sum_piece, &job);
}

void logits_argmax_avx2(int32_t *out, const float *logits, long R, long V, int threads) {
    head_job job = {out, logits, V};
    pool_for(threads, R, 1, argmax_piece, &job);
}
