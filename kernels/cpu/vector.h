/* vector.h - sums over lanes and the polynomials of ARITHMETIC.md. After the target pragma. */
#ifndef LOCKSTEP_VECTOR_H
#define LOCKSTEP_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#define ALWAYS static inline __attribute__((always_inline))

/* a[l] + a[l+4], then 2, then 1: the tree over eight lanes */
ALWAYS float tree8(__m256 a) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* The trees 4, 2, 1 of eight accumulators at once: lane i of the result is the sum of v[i]. */
ALWAYS __m256 tree8x8(const __m256 v[8]) {
    __m256 four[4], two[2];
    for (int i = 0; i < 4;
         i++) { /* lanes l + (l+4): v[i] in the low half, v[i+4] in the high one */
        const __m256 low = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20),
                     high = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
        four[i] = _mm256_add_ps(low, high);
    }
    for (int i = 0; i < 2; i++) /* lanes l + (l+2): rows i, i+2 side by side */
        two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[i], four[i + 2], 0x44),
                               _mm256_shuffle_ps(four[i], four[i + 2], 0xee));
    const __m256 even = _mm256_shuffle_ps(two[0], two[1], 0x88),
                 odd = _mm256_shuffle_ps(two[0], two[1], 0xdd);
    return _mm256_permutevar8x32_ps(_mm256_add_ps(even, odd),
                                    _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7));
}

/* accumulators 0..31 in four vectors: strides 16, 8, then the tree over eight */
ALWAYS float tree32(const __m256 a[4]) {
    return tree8(_mm256_add_ps(_mm256_add_ps(a[0], a[2]), _mm256_add_ps(a[1], a[3])));
}

ALWAYS float max8(__m256 a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* lanes [0, n) set, for masked loads and stores of a tail; n in 0..8 */
ALWAYS __m256i tail_mask(long n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#define SET(v) _mm256_set1_ps(v)

/* exp, x clamped to [-87.33, 88.37] so that no result is subnormal or infinite; NaN stays NaN */
ALWAYS __m256 exp8(__m256 x0) {
    const __m256 x = _mm256_min_ps(
        SET(88.37f), _mm256_max_ps(SET(-87.33f), x0)); /* second operand wins on NaN */
    const __m256 t = _mm256_fmadd_ps(x, SET(1.44269504f),
                                     SET(12582912.0f)); /* n = round(x / ln 2) in low bits */
    const __m256 n = _mm256_sub_ps(t, SET(12582912.0f));
    __m256 r = _mm256_fmadd_ps(n, SET(-0.693359375f), x); /* r = x - n ln 2, ln 2 in two parts */
    r = _mm256_fmadd_ps(n, SET(2.12194440e-4f), r);
    __m256 p = SET(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, SET(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, SET(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, SET(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, SET(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, SET(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, SET(1.0f));
    const __m256i scaled =
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_blendv_ps(_mm256_castsi256_ps(scaled), x0, _mm256_cmp_ps(x0, x0, _CMP_UNORD_Q));
}

/* natural logarithm: 0 gives -inf, +inf itself, negative and NaN NaN; subnormals are scaled */
ALWAYS __m256 log8(__m256 x0) {
    const __m256 small = _mm256_cmp_ps(x0, SET(1.17549435e-38f), _CMP_LT_OQ);
    const __m256 x = _mm256_blendv_ps(x0, _mm256_mul_ps(x0, SET(8388608.0f)), small);
    const __m256i root_half =
        _mm256_set1_epi32(0x3f3504f3); /* sqrt(1/2): the mantissa lies in [sqrt(1/2), sqrt(2)) */
    const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(x), root_half);
    __m256 e = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
    e = _mm256_sub_ps(e, _mm256_and_ps(small, SET(23.0f)));
    const __m256i mantissa =
        _mm256_add_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), root_half);
    const __m256 f = _mm256_sub_ps(_mm256_castsi256_ps(mantissa), SET(1.0f));
    const __m256 z = _mm256_mul_ps(f, f);
    __m256 p = SET(7.0376836292e-2f);
    p = _mm256_fmadd_ps(p, f, SET(-1.1514610310e-1f));
    p = _mm256_fmadd_ps(p, f, SET(1.1676998740e-1f));
    p = _mm256_fmadd_ps(p, f, SET(-1.2420140846e-1f));
    p = _mm256_fmadd_ps(p, f, SET(1.4249322787e-1f));
    p = _mm256_fmadd_ps(p, f, SET(-1.6668057665e-1f));
    p = _mm256_fmadd_ps(p, f, SET(2.0000714765e-1f));
    p = _mm256_fmadd_ps(p, f, SET(-2.4999993993e-1f));
    p = _mm256_fmadd_ps(p, f, SET(3.3333331174e-1f));
    __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, f), z);
    y = _mm256_fmadd_ps(e, SET(-2.12194440e-4f), y);
    y = _mm256_fmadd_ps(z, SET(-0.5f), y);
    y = _mm256_add_ps(f, y);
    y = _mm256_fmadd_ps(e, SET(0.693359375f), y);
    const __m256 infinity = SET(__builtin_inff());
    y = _mm256_blendv_ps(y, infinity, _mm256_cmp_ps(x0, infinity, _CMP_EQ_OQ));
    y = _mm256_blendv_ps(y, SET(-__builtin_inff()),
                         _mm256_cmp_ps(x0, _mm256_setzero_ps(), _CMP_EQ_OQ));
    return _mm256_blendv_ps(y, SET(__builtin_nanf("")),
                            _mm256_cmp_ps(x0, _mm256_setzero_ps(), _CMP_NGE_UQ));
}

ALWAYS __m256 negated(__m256 x) { return _mm256_xor_ps(x, SET(-0.0f)); }

/* x / (1 + exp(-x)) */
ALWAYS __m256 silu8(__m256 x) {
    return _mm256_div_ps(x, _mm256_add_ps(SET(1.0f), exp8(negated(x))));
}

#endif
